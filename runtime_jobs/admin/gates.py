"""What is paused by staff or rests because its provider fails: pausing, and resuming."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs import registry
from runtime_jobs.admin import vocabulary
from runtime_jobs.admin.verbs import Verb, VerbAdmin
from runtime_jobs.models import ClaimGate
from runtime_jobs.services import gates
from runtime_jobs.services.events import Actor
from runtime_jobs.states import Lane

PAUSE = "runtime_jobs.pause_claims"


def _resume(gate_id: UUID, actor: Actor, reason: str) -> str:
    gate = ClaimGate.objects.filter(pk=gate_id).first()
    resumed = gate is not None and gates.resume(gate.kind, gate.key, actor=actor, reason=reason)
    return "" if resumed else _("it was resumed already")


RESUME = Verb(
    name="resume",
    permission="runtime_jobs.resume_claims",
    title=gettext_lazy("Resume"),
    explanation=gettext_lazy("Waiting jobs are claimed again at once. A failing provider is called again, and rests if it still fails."),
    button=gettext_lazy("Resume"),
    action=gettext_lazy("Resume selected"),
    run=_resume,
)


class PauseForm(forms.Form):
    """One of lane, job type and model, why, and until when."""

    what = forms.ChoiceField(label=gettext_lazy("What"))
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=500, help_text=gettext_lazy("Shown to whoever asks why jobs wait."))
    until = forms.DateTimeField(
        label=gettext_lazy("Until"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text=gettext_lazy("Empty: until somebody resumes it."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        lanes = [(f"{gates.Kind.LANE}:{lane}", vocabulary.lane(lane)) for lane in Lane]
        types = [(f"{gates.Kind.JOB_TYPE}:{name}", name) for name in registry.job_types()]
        self.fields["what"].choices = [(_("Lane"), lanes), (_("Job type"), types)]  # type: ignore[attr-defined]

    def clean_until(self) -> Any:
        until = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError(_("This time is over. Choose a later one, or leave it empty."))
        return until


@admin.register(ClaimGate)
class GateAdmin(VerbAdmin):
    verbs = (RESUME,)
    list_display = ("kind", "key", "reason", "closed_by", "created_at", "until")
    fields = readonly_fields = ("kind", "key", "reason", "closed_by", "created_at", "until")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PAUSE)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The form is its own confirmation: nothing is paused but by its POST, and twice is once."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = PauseForm(request.POST if request.method == "POST" else None, initial={"what": request.GET.get("what", "")})
        if form.is_bound and form.is_valid():
            kind, _colon, key = form.cleaned_data["what"].partition(":")
            gates.pause(
                gates.Kind(kind), key, actor=Actor.of(request.user), reason=form.cleaned_data["reason"], until=form.cleaned_data["until"]
            )
            messages.success(request, _("%(key)s is paused. What runs goes on.") % {"key": key})
            return HttpResponseRedirect(self._list_url(""))
        context = {
            **self.admin_site.each_context(request),
            "title": _("Pause"),
            "form": form,
            "post_to": reverse("admin:runtime_jobs_claimgate_add"),
            "button": _("Pause"),
            "back": self._list_url(""),
            "opts": self.opts,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime_jobs/form.html", context)

    def _page_of(self, row: Any) -> str:
        return self._list_url("")
