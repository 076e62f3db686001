"""Service tokens: who may speak for runtimes. A new one is shown once; nothing of one is changed but by revoking it."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import patch_cache_control
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_variables

from runtime_jobs import registry
from runtime_jobs.admin.verbs import Verb, VerbAdmin
from runtime_jobs.errors import InvalidRequest
from runtime_jobs.models import RuntimeServiceToken
from runtime_jobs.services import service_tokens
from runtime_jobs.services.events import Actor
from runtime_jobs.states import Lane

_DAYS = 90


class NewTokenForm(forms.Form):
    name = forms.CharField(max_length=100, label=gettext_lazy("Name"), help_text=gettext_lazy("For people, such as the runtime group's."))
    days = forms.IntegerField(min_value=1, max_value=service_tokens.MAX_DAYS, initial=_DAYS, label=gettext_lazy("Days until it expires"))
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in service_tokens.SCOPES],
        initial=service_tokens.SCOPES,
        widget=forms.CheckboxSelectMultiple,
        label=gettext_lazy("Scopes"),
        help_text=gettext_lazy("jobs: from poll to release; credentials: get the key for a model call; logs: report calls."),
    )
    job_types = forms.MultipleChoiceField(
        label=gettext_lazy("Job types"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("None chosen: all."),
    )
    instance_pattern = forms.CharField(
        label=gettext_lazy("Instances"),
        max_length=200,
        initial=".*",
        help_text=gettext_lazy("Regular expression for the runtimeInstanceIds that it may speak for."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(job_type, job_type) for job_type in registry.job_types(Lane.RUNTIME)]
        self.fields["job_types"].choices = choices  # type: ignore[attr-defined]


def _revoke(token_id: UUID, actor: Actor, reason: str) -> str:
    key_id = RuntimeServiceToken.objects.filter(pk=token_id).values_list("key_id", flat=True).first()
    revoked = key_id is not None and service_tokens.revoke(key_id, actor=actor, reason=reason)
    return "" if revoked else _("it was revoked already")


REVOKE = Verb(
    name="revoke",
    permission="runtime_jobs.revoke_service_token",
    title=gettext_lazy("Revoke service tokens"),
    explanation=gettext_lazy(
        "Each token is refused from the next request on. Jobs that its runtimes hold go on elsewhere when their leases end. This cannot be"
        " taken back."
    ),
    button=gettext_lazy("Revoke"),
    action=gettext_lazy("Revoke selected service tokens"),
    run=_revoke,
    offered=lambda token: token.revoked_at is None,
    destructive=True,
)


@admin.register(RuntimeServiceToken)
class ServiceTokenAdmin(VerbAdmin):
    verbs = (REVOKE,)
    list_display = ("name", "key_id", "state", "scopes", "job_types", "instance_pattern", "expires_at", "last_used_at")
    fields = (
        "name",
        "key_id",
        "state",
        "scopes",
        "job_types",
        "instance_pattern",
        "created_at",
        "expires_at",
        "revoked_at",
        "last_used_at",
    )
    readonly_fields = fields
    search_fields = ("key_id",)
    search_help_text = gettext_lazy("a whole key id")
    search_exact = ("key_id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # By the database's clock, as the check of a request.
        expired = ExpressionWrapper(Q(expires_at__lte=Now()), output_field=BooleanField())
        tokens: QuerySet[Any] = super().get_queryset(request).annotate(is_expired=expired)
        return tokens

    @admin.display(description=gettext_lazy("state"))
    def state(self, token: Any) -> SafeString:
        if token.revoked_at:
            kind, word = "revoked", _("revoked")
        elif token.is_expired:
            kind, word = "expired", _("expired")
        else:
            kind, word = "live", _("live")
        return format_html('<span class="status status-{}">{}</span>', kind, word)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runtime_jobs.add_runtimeservicetoken")

    @method_decorator(sensitive_variables())
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = NewTokenForm(request.POST if request.method == "POST" else None)
        secret = None
        if request.method == "POST" and form.is_valid():
            try:
                token, secret = service_tokens.issue(**form.cleaned_data)
            except InvalidRequest as refusal:
                form.add_error(refusal.details["field"], refusal.message)
            else:
                self.log_addition(request, token, [{"added": {}}])
        context = {
            **self.admin_site.each_context(request),
            "title": _("A new service token"),
            "form": form,
            "secret": secret and secret.reveal(),
            "opts": self.opts,
            "media": self.media,
        }
        response = TemplateResponse(request, "admin/runtime_jobs/new_service_token.html", context)
        # Shown once: neither a proxy nor the browser's back button keeps it.
        patch_cache_control(response, private=True, no_store=True)
        return response
