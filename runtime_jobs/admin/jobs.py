"""The jobs: what runs, what waits, what ended how."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs.admin import counts, export, job_page, vocabulary, words
from runtime_jobs.admin.filters import JOB_FILTERS
from runtime_jobs.admin.job_verbs import JOB_VERBS
from runtime_jobs.admin.verbs import VerbAdmin
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.queries import lists
from runtime_jobs.services.audit import record_staff, sensitive_viewed
from runtime_jobs.services.events import Actor
from runtime_jobs.states import LEASED, TERMINAL, JobStatus

EXPORT = "runtime_jobs.export_jobs"


@admin.register(AiRuntimeJob)
class JobAdmin(VerbAdmin):
    verbs = JOB_VERBS
    list_display = (
        "short_id", "type_of_job", "state", "error", "target", "user", "in_lane", "provider", "attempts_made", "age", "wait", "run",
    )  # fmt: skip
    sortable_by = ("age",)
    list_filter = JOB_FILTERS
    list_select_related = ("user",)
    search_fields = ("id",)
    search_help_text = gettext_lazy("a whole id, idempotency key, target (type and id) or user name")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("export/", view(self.export_view), name="runtime_jobs_airuntimejob_export"),
            path("<uuid:row_id>/input.json", view(self.input_view), name="runtime_jobs_airuntimejob_input"),
            path("<uuid:row_id>/output.json", view(self.output_view), name="runtime_jobs_airuntimejob_output"),
            *super().get_urls(),
        ]

    # --- the list ---

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("checkpoint", "internal_error", "lock_token")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        return (lists.find(queryset, search_term) if search_term.strip() else queryset), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None)
        if context and "cl" in context:
            context.update(self._around_the_list(request, context["cl"]))
        return response

    def _around_the_list(self, request: HttpRequest, changes: Any) -> dict[str, Any]:
        return {
            "title": _("Jobs"),
            "chips": _chips(changes),
            "export_url": reverse("admin:runtime_jobs_airuntimejob_export") + changes.get_query_string(),
            "may_export": request.user.has_perm(EXPORT),
        }

    @admin.display(description=gettext_lazy("job"))
    def short_id(self, job: AiRuntimeJob) -> str:
        return format_html('<code title="{}">{}</code>', job.pk, str(job.pk)[-12:])

    @admin.display(description=gettext_lazy("job type"))
    def type_of_job(self, job: AiRuntimeJob) -> SafeString:
        return words.breakable(job.job_type)

    @admin.display(description=gettext_lazy("status"))
    def state(self, job: AiRuntimeJob) -> SafeString:
        return chip(job.status)

    @admin.display(description=gettext_lazy("error"))
    def error(self, job: AiRuntimeJob) -> str:
        if not job.error_code:
            return words.NOTHING
        return format_html('<span title="{}">{}</span>', vocabulary.public_error(job.error_code), words.breakable(job.error_code))

    @admin.display(description=gettext_lazy("target"))
    def target(self, job: AiRuntimeJob) -> str:
        return f"{job.target_type} {job.target_id}"

    @admin.display(description=gettext_lazy("lane"))
    def in_lane(self, job: AiRuntimeJob) -> str:
        return vocabulary.lane(job.lane)

    @admin.display(description=gettext_lazy("provider"))
    def provider(self, job: AiRuntimeJob) -> str:
        return format_html('<span title="{}">{}</span>', job.model_name, job.model_provider)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts_made(self, job: AiRuntimeJob) -> int:
        return job.attempt_no

    @admin.display(description=gettext_lazy("age"), ordering="id")
    def age(self, job: AiRuntimeJob) -> str:
        return words.since(job.created_at)

    @admin.display(description=gettext_lazy("wait"))
    def wait(self, job: AiRuntimeJob) -> str:
        """Until its first attempt; the back-offs and waits of later ones stand on the job's page."""
        return words.between(job.created_at, job.started_at or job.finished_at or timezone.now())

    @admin.display(description=gettext_lazy("run"))
    def run(self, job: AiRuntimeJob) -> str:
        """From its first attempt to its end."""
        return words.between(job.started_at, job.finished_at) if job.finished_at or job.status in LEASED else words.NOTHING

    # --- the job's page ---

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The page of a job. `?clear` shows sensitive text to who may see it, and that is recorded."""
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = self._job(object_id)
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        clear = "clear" in request.GET
        if clear:
            self._record_view(request, job.pk, "page")
        context = {
            **self.admin_site.each_context(request),
            **job_page.context(job, request.GET, clear=clear),
            "preserved_filters": self.get_preserved_filters(request),
            "title": str(job.job_type),
            "subtitle": str(job.pk),
            "verbs": [(verb, self.verb_url(verb, job)) for verb in self.offered_verbs(request, job)],
            "may_see_clear": request.user.has_perm(job_page.SENSITIVE),
            "clear": clear,
            "ended": job.status in TERMINAL,
            "opts": self.opts,
            "media": self.media,
        }
        return TemplateResponse(request, "admin/runtime_jobs/job.html", {**context, **(extra_context or {})})

    @staticmethod
    def _job(job_id: str) -> AiRuntimeJob | None:
        try:
            key = UUID(str(job_id))
        except ValueError:
            return None
        jobs = AiRuntimeJob.objects.select_related("user", "credential", "snapshot")
        return jobs.defer("lock_token", "credential__ciphertext", "checkpoint").filter(pk=key).first()

    def _record_view(self, request: HttpRequest, job_id: UUID, what: str) -> None:
        if not request.user.has_perm(job_page.SENSITIVE):
            raise PermissionDenied
        sensitive_viewed(job_id, actor=Actor.of(request.user), what=what)

    def input_view(self, request: HttpRequest, row_id: UUID) -> HttpResponseBase:
        return self._download(request, row_id, "input")

    def output_view(self, request: HttpRequest, row_id: UUID) -> HttpResponseBase:
        return self._download(request, row_id, "output")

    def _download(self, request: HttpRequest, job_id: UUID, what: str) -> HttpResponseBase:
        """The whole of it, for who may see sensitive text; recorded."""
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        if not (self.has_view_permission(request) and request.user.has_perm(job_page.SENSITIVE)):
            raise PermissionDenied
        job = self._job(str(job_id))
        text = job and job_page.document(job, what)
        if job is None or text is None:
            raise Http404
        self._record_view(request, job.pk, what)
        response = HttpResponse(text, content_type="application/json")
        response["Content-Disposition"] = f'attachment; filename="{job.pk}-{what}.json"'
        response["Cache-Control"] = "private, no-store"
        return response

    # --- the export ---

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """What the list's address filters, as CSV. Who took which list away is recorded."""
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        if not (self.has_view_permission(request) and request.user.has_perm(EXPORT)):
            raise PermissionDenied
        changes = self.get_changelist_instance(request)
        record_staff("jobs.exported", actor=Actor.of(request.user), subject_type="jobs", data={"filter": request.GET.urlencode()[:1_000]})
        response = StreamingHttpResponse(export.csv_lines(changes.queryset), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="jobs-{timezone.now():%Y%m%d-%H%M%S}.csv"'
        response["Cache-Control"] = "private, no-store"
        return response


def chip(status: str) -> SafeString:
    return format_html('<span class="status status-{}">{}</span>', status, vocabulary.status(status))


def _chips(changes: Any) -> list[dict[str, Any]]:
    """A link per state, with how many jobs are in it. Together with other filters they are not counted: no index counts that."""
    chosen = changes.params.get("status__exact", "")
    narrowed = set(changes.params) - {"status__exact", "o"}
    found = {} if narrowed else counts.status_counts()
    every = [{"label": _("all"), "url": changes.get_query_string({"status__exact": None}), "chosen": not chosen, "status": "all"}]
    return every + [
        {
            "label": vocabulary.status(status),
            "count": counts.shown(found[status]) if status in found else "",
            "url": changes.get_query_string({"status__exact": str(status)}),
            "chosen": chosen == status,
            "status": str(status),
        }
        for status in JobStatus
    ]
