"""What staff may do to a row: first a page that says what will happen and changes nothing, then, by POST, the service.

An admin lists its `verbs`; each becomes a button on the row's page, an action of the list, and the two views behind them. Whether it is
possible is decided by the service, under the row's lock: `offered` only spares people buttons that would be refused.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from runtime_jobs.admin import vocabulary
from runtime_jobs.admin.readonly import ReadOnlyAdmin
from runtime_jobs.errors import ServiceError
from runtime_jobs.services.events import Actor

MOST = 1_000  # rows in one action
_SHOWN = 10  # rows named on the confirmation page
_REASONS = 5  # kinds of refusal in the result

Text = Any  # a str or a lazy translation of one


@dataclass(frozen=True)
class Verb:
    name: str  # in URLs and of the admin action
    permission: str
    title: Text
    explanation: Text
    button: Text
    action: Text  # in the list's menu
    # Does it to one row and returns why it was skipped, or nothing. Raises ServiceError when the state does not allow it.
    run: Callable[[Any, Actor, str], Text]
    offered: Callable[[Any], bool] = lambda _row: True
    destructive: bool = False


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        help_text=gettext_lazy("Why is this done? Kept in the record, with your name."),
        widget=forms.TextInput(attrs={"size": 60, "autocomplete": "off"}),
    )
    # Of many rows: their keys in one field (Django takes no more than 1,000 fields), and where to go back to.
    ids = forms.CharField(required=False, widget=forms.HiddenInput)
    query = forms.CharField(required=False, widget=forms.HiddenInput)


class VerbAdmin(ReadOnlyAdmin):
    verbs: tuple[Verb, ...] = ()
    change_form_template = "admin/runtime_jobs/row.html"

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        return request.user.has_perm(verb.permission)

    def offered_verbs(self, request: HttpRequest, row: Any) -> list[Verb]:
        """The buttons of this row's page."""
        return [verb for verb in self.verbs if self.may(request, verb) and verb.offered(row)]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {verb.name: (_starter(verb), verb.name, verb.action) for verb in self.verbs if self.may(request, verb)}

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        urls = []
        for verb in self.verbs:
            one = self.admin_site.admin_view(_bound(self._one, verb))
            many = self.admin_site.admin_view(_bound(self._many, verb))
            urls.append(path(f"<uuid:row_id>/{verb.name}/", one, name=f"{name}_{verb.name}"))
            urls.append(path(f"{verb.name}-selected/", many, name=f"{name}_{verb.name}_selected"))
        return urls + super().get_urls()

    def verb_url(self, verb: Verb, row: Any) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_{verb.name}", args=[row.pk])

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        verbs = [] if row is None else [(verb, self.verb_url(verb, row)) for verb in self.offered_verbs(request, row)]
        return super().change_view(request, object_id, form_url, {"verbs": verbs, **(extra_context or {})})

    # --- one row ---

    def _one(self, request: HttpRequest, verb: Verb, row_id: UUID) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        self._must_be_allowed(request, verb)
        row = self.get_object(request, str(row_id))
        if row is None:
            raise Http404
        form = ReasonForm(request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            self._report(request, verb, self._run([row.pk], verb, Actor.of(request.user), form.cleaned_data["reason"]))
            return HttpResponseRedirect(self._page_of(row))
        return self._confirmation(request, verb, form, [row], 1, self._page_of(row))

    def _page_of(self, row: Any) -> str:
        """Where one goes after an action: the row's page, or the list when an action removes the row."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[row.pk])

    # --- many rows ---

    def confirm_many(self, request: HttpRequest, queryset: QuerySet[Any], verb: Verb) -> HttpResponse | None:
        """The confirmation page for what was ticked, or for all that match. Nothing is changed yet, and these rows are what will be."""
        ids = list(queryset.values_list("pk", flat=True)[: MOST + 1])
        if len(ids) > MOST:
            messages.error(request, _("More than %(most)s rows match. Nothing was changed; narrow the filter.") % {"most": f"{MOST:,}"})
            return None
        form = ReasonForm(initial={"ids": ",".join(map(str, ids)), "query": request.GET.urlencode()})
        return self._confirm_these(request, verb, form, ids)

    def _many(self, request: HttpRequest, verb: Verb) -> HttpResponseBase:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._must_be_allowed(request, verb)
        form = ReasonForm(request.POST)
        try:
            ids = [UUID(one) for one in request.POST.get("ids", "").split(",")][: MOST + 1]
        except ValueError:
            ids = []
        if not ids or len(ids) > MOST:
            messages.error(request, _("Nothing was changed: choose 1 to %(most)s rows.") % {"most": f"{MOST:,}"})
        elif not form.is_valid():
            return self._confirm_these(request, verb, form, ids)
        else:
            self._report(request, verb, self._run(ids, verb, Actor.of(request.user), form.cleaned_data["reason"]))
        return HttpResponseRedirect(self._list_url(request.POST.get("query", "")))

    def _confirm_these(self, request: HttpRequest, verb: Verb, form: ReasonForm, ids: list[UUID]) -> HttpResponse:
        rows = list(self.get_queryset(request).filter(pk__in=ids[:_SHOWN]))
        back = self._list_url(str(form["query"].value() or ""))
        return self._confirmation(request, verb, form, rows, len(ids), back)

    def _list_url(self, query: str) -> str:
        url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        return f"{url}?{query}" if query else url

    # --- both ---

    def _must_be_allowed(self, request: HttpRequest, verb: Verb) -> None:
        if not (self.may(request, verb) and self.has_view_permission(request)):
            raise PermissionDenied

    def _confirmation(self, request: HttpRequest, verb: Verb, form: ReasonForm, rows: list[Any], count: int, back: str) -> TemplateResponse:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{verb.name}"
        context = {
            **self.admin_site.each_context(request),
            "title": verb.title,
            "verb": verb,
            "form": form,
            "rows": [(row, self._page_of(row)) for row in rows],
            "count": count,
            "more": count - len(rows),
            "things": self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural,
            "post_to": reverse(f"{name}_selected") if form["ids"].value() else reverse(name, args=[rows[0].pk]),
            "back": back,
            "opts": self.opts,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime_jobs/confirm.html", context)

    def _run(self, ids: list[Any], verb: Verb, actor: Actor, reason: str) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        for row_id in ids:
            try:
                outcomes[str(verb.run(row_id, actor, reason))] += 1
            except ServiceError as refusal:
                outcomes[_why(refusal)] += 1
        return outcomes

    def _report(self, request: HttpRequest, verb: Verb, outcomes: Counter[str]) -> None:
        done = outcomes.pop("", 0)
        skipped = outcomes.total()
        if done:
            said = ngettext("%(verb)s: %(count)s done.", "%(verb)s: %(count)s done.", done)
            messages.success(request, said % {"verb": verb.button, "count": f"{done:,}"})
        for why, count in outcomes.most_common(_REASONS):
            messages.warning(request, _("%(count)s skipped, because %(why)s") % {"count": f"{count:,}", "why": why})
        if rest := skipped - sum(count for _why, count in outcomes.most_common(_REASONS)):
            messages.warning(request, _("%(count)s skipped for other reasons.") % {"count": f"{rest:,}"})


def _bound(view: Callable[..., HttpResponseBase], verb: Verb) -> Callable[..., HttpResponseBase]:
    def of_verb(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        return view(request, verb, **arguments)

    return of_verb


def _starter(verb: Verb) -> Callable[..., HttpResponse | None]:
    def start(admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return admin.confirm_many(request, queryset, verb)

    return start


# What services refuse, as staff read it in their language; the rest is said as the service says it.
_REFUSALS: Mapping[str, Text] = {
    "job_not_rerunnable": gettext_lazy("the job is %(status)s; only a job that has ended can be rerun"),
    "job_not_cancellable": gettext_lazy("the job is %(status)s already"),
    "job_not_leased": gettext_lazy("the job is %(status)s; no worker holds it"),
    "job_not_found": gettext_lazy("the job is not there any more"),
}


def _why(refusal: ServiceError) -> str:
    said = _REFUSALS.get(refusal.code)
    if said is None:
        return refusal.message
    return str(said) % {"status": vocabulary.status(str(refusal.details.get("status", "")))}
