"""Keys for model providers: entered once, never shown again, tested through the gateway, replaced, revoked."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from runtime_jobs.admin import numbers, vocabulary, words
from runtime_jobs.admin.verbs import Verb, VerbAdmin
from runtime_jobs.errors import InvalidRequest
from runtime_jobs.models import AiModelCredential
from runtime_jobs.services import calling, credentials
from runtime_jobs.services.calling import CallTest
from runtime_jobs.services.events import Actor
from runtime_jobs.states import ApiKeyMode

CHANGE = "runtime_jobs.change_aimodelcredential"


def _revoke(credential_id: UUID, actor: Actor, reason: str) -> str:
    return "" if credentials.revoke_credential(credential_id, actor=actor, reason=reason) else _("it was revoked already")


REVOKE = Verb(
    name="revoke",
    permission="runtime_jobs.revoke_credential",
    title=gettext_lazy("Revoke credentials"),
    explanation=gettext_lazy(
        "No call is made with this key from now on. Jobs that wait for it fail when their turn comes; new ones take another live credential"
        " of the provider. This cannot be taken back."
    ),
    button=gettext_lazy("Revoke"),
    action=gettext_lazy("Revoke selected credentials"),
    run=_revoke,
    offered=lambda credential: credential.revoked_at is None,
    destructive=True,
)


def _key_field() -> forms.CharField:
    return forms.CharField(
        label=gettext_lazy("Key"),
        max_length=4_000,
        strip=True,
        # Never rendered again, also not after an error elsewhere in the form.
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "size": 60}),
        help_text=gettext_lazy("Stored encrypted, and never shown again."),
    )


class NewCredentialForm(forms.Form):
    name = forms.CharField(label=gettext_lazy("Name"), max_length=100, help_text=gettext_lazy("For people; once per owner."))
    provider = forms.CharField(
        label=gettext_lazy("Provider"),
        max_length=50,
        help_text=gettext_lazy("As definitions name it. anthropic has its own format; all others are called as OpenAI-compatible."),
    )
    base_url = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=500,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text=gettext_lazy("Up to the version, such as https://api.example.com/v1. It cannot be changed later."),
    )
    owner = forms.CharField(
        label=gettext_lazy("Owner"),
        max_length=150,
        required=False,
        help_text=gettext_lazy("A user's name, whose jobs alone may use it. Empty: the platform's, for everybody's jobs."),
    )
    api_key = _key_field()

    def clean_owner(self) -> Any:
        name = self.cleaned_data["owner"].strip()
        users = get_user_model()
        user = users.objects.filter(**{users.USERNAME_FIELD: name}).first() if name else None
        if name and user is None:
            raise forms.ValidationError(_("There is no user of this name."))
        return user

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "base_url" in cleaned and "owner" in cleaned:
            try:
                calling.check_base_url(cleaned["base_url"], ApiKeyMode.USER if cleaned["owner"] else ApiKeyMode.PLATFORM)
            except InvalidRequest as refused:
                self.add_error("base_url", refused.message)
        return cleaned


class ReplaceKeyForm(forms.Form):
    api_key = _key_field()


class TestCallForm(forms.Form):
    model = forms.CharField(
        label=gettext_lazy("Model"),
        max_length=200,
        help_text=gettext_lazy("One small request goes out with this key now. It costs a few tokens and takes up to 20 seconds."),
    )


@admin.register(AiModelCredential)
class CredentialAdmin(VerbAdmin):
    verbs = (REVOKE,)
    list_display = ("name", "provider", "base_url", "owner", "state", "fingerprint", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("name",)
    search_help_text = gettext_lazy("a credential's whole name")
    search_exact = ("name",)
    fields = readonly_fields = (
        "name", "provider", "base_url", "owner", "state", "fingerprint", "key_id", "created_at", "revoked_at", "last_used_at",
    )  # fmt: skip
    change_form_template = "admin/runtime_jobs/credential.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("ciphertext")

    @admin.display(description=gettext_lazy("owner"))
    def owner(self, credential: AiModelCredential) -> str:
        return credential.user.get_username() if credential.user else _("the platform")

    @admin.display(description=gettext_lazy("state"))
    def state(self, credential: AiModelCredential) -> SafeString:
        kind, word = ("revoked", _("revoked")) if credential.revoked_at else ("live", _("live"))
        return format_html('<span class="status status-{}">{}</span>', kind, word)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runtime_jobs.add_aimodelcredential")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<uuid:row_id>/test/", view(self.test_view), name="runtime_jobs_aimodelcredential_test"),
            path("<uuid:row_id>/replace-key/", view(self.replace_view), name="runtime_jobs_aimodelcredential_replace_key"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "may_change": request.user.has_perm(CHANGE)})

    @method_decorator(sensitive_post_parameters("api_key"))
    @method_decorator(sensitive_variables())
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = NewCredentialForm(request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid() and (made := self._create(form)) is not None:
            self.log_addition(request, made, [{"added": {}}])
            messages.success(request, _("The credential is stored. Its key is not shown again; a test call tells whether it works."))
            return HttpResponseRedirect(self._page_of(made))
        url = reverse("admin:runtime_jobs_aimodelcredential_add")
        return self._form(request, _("Add a credential"), form, url, _("Store the credential"), self._list_url(""))

    @staticmethod
    @sensitive_variables()
    def _create(form: NewCredentialForm) -> AiModelCredential | None:
        given = form.cleaned_data
        owner = given.pop("owner")
        try:
            with transaction.atomic():
                return credentials.create_credential(**given, user_id=owner and owner.pk)
        except InvalidRequest as refused:
            form.add_error(refused.details["field"], refused.message)
        except IntegrityError:
            form.add_error("name", _("The owner has a credential of this name already."))
        return None

    @method_decorator(sensitive_post_parameters("api_key"))
    @method_decorator(sensitive_variables())
    def replace_view(self, request: HttpRequest, row_id: UUID) -> HttpResponseBase:
        """A new key in the old one's place."""
        credential = self._changeable(request, row_id)
        form = ReplaceKeyForm(request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                if credentials.replace_key(row_id, form.cleaned_data["api_key"], actor=Actor.of(request.user)):
                    messages.success(request, _("The key is replaced. Calls use the new one from now on."))
                else:
                    messages.warning(request, _("Nothing was changed: the credential is revoked."))
                return HttpResponseRedirect(self._page_of(credential))
            except InvalidRequest as refused:
                form.add_error(refused.details["field"], refused.message)
        url = reverse("admin:runtime_jobs_aimodelcredential_replace_key", args=[row_id])
        return self._form(request, _("Replace the key"), form, url, _("Replace the key"), self._page_of(credential))

    def test_view(self, request: HttpRequest, row_id: UUID) -> HttpResponseBase:
        """First the form; its POST makes the call and says what came of it."""
        credential = self._changeable(request, row_id)
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        models = calling.models_of(credential.provider)
        form = TestCallForm(request.POST if request.method == "POST" else None, initial={"model": models[0] if models else ""})
        if form.is_bound and form.is_valid():
            try:
                self._say(request, calling.try_credential(row_id, model=form.cleaned_data["model"], actor=Actor.of(request.user)))
            except InvalidRequest:
                messages.warning(request, _("Nothing was sent: the credential is revoked."))
            return HttpResponseRedirect(self._page_of(credential))
        url = reverse("admin:runtime_jobs_aimodelcredential_test", args=[row_id])
        return self._form(request, _("Test call"), form, url, _("Make the call"), self._page_of(credential))

    @staticmethod
    def _say(request: HttpRequest, test: CallTest) -> None:
        if test.code:
            sentence = _("The test call failed: %(sentence)s (%(code)s) %(detail)s")
            parts = {"sentence": vocabulary.public_error(test.code), "code": test.code, "detail": test.detail}
            messages.error(request, sentence % parts)
            return
        parts = {
            "model": test.model,
            "time": words.NOTHING if test.latency_ms is None else f"{numbers.whole(test.latency_ms)} ms",
            "tokens": words.NOTHING if test.tokens is None else numbers.whole(test.tokens),
        }
        messages.success(request, _("The key works: %(model)s answered in %(time)s, %(tokens)s tokens.") % parts)

    def _changeable(self, request: HttpRequest, row_id: UUID) -> AiModelCredential:
        if not (request.user.has_perm(CHANGE) and self.has_view_permission(request)):
            raise PermissionDenied
        credential = self.get_object(request, str(row_id))
        if credential is None:
            raise Http404
        return credential  # type: ignore[no-any-return]

    def _form(self, request: HttpRequest, title: str, form: forms.Form, post_to: str, button: str, back: str) -> TemplateResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "form": form,
            "post_to": post_to,
            "button": button,
            "back": back,
            "opts": self.opts,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime_jobs/form.html", context)
