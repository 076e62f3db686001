"""The jobs: what runs, what waits, what ended how."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse

from runtime_jobs.admin.actions import CANCEL, RERUN, confirm_or_run
from runtime_jobs.admin.readonly import ReadOnlyAdmin
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeJob, AiUsageLog

_LAST = 50


class _Lines(admin.TabularInline):
    """The last rows of a job's history. Nothing can be changed here."""

    extra = 0
    max_num = 0
    can_delete = False
    show_change_link = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("runtime_jobs.view_airuntimejob")


class Attempts(_Lines):
    model = AiJobAttempt
    fields = readonly_fields = ("attempt_no", "worker", "started_at", "ended_at", "outcome", "error_code")
    ordering = ("attempt_no",)


class Calls(_Lines):
    model = AiUsageLog
    fields = readonly_fields = (
        "attempt_no", "call_no", "provider", "model_requested", "outcome", "error_code", "dispatch", "input_tokens", "output_tokens",
        "cost_usd", "latency_ms",
    )  # fmt: skip
    ordering = ("attempt_no", "call_no")


class Timeline(_Lines):
    model = AiJobEvent
    fields = readonly_fields = ("seq", "name", "attempt_no", "actor_name", "data", "created_at")
    ordering = ("seq",)


@admin.register(AiRuntimeJob)
class JobAdmin(ReadOnlyAdmin):
    list_display = ("id", "job_type", "status", "lane", "user", "target", "attempt_no", "error_code", "created_at", "finished_at")
    list_filter = ("status", "lane", "job_type")
    list_select_related = ("user",)
    search_fields = ("id",)
    search_help_text = "a job's id, an idempotency key, or a target's id"
    search_exact = ("idempotency_key",)
    actions = ("rerun_selected", "cancel_selected")
    inlines = (Attempts, Calls, Timeline)
    exclude = ("lock_token", "request_fingerprint")

    @admin.display(description="target")
    def target(self, job: AiRuntimeJob) -> str:
        return f"{job.target_type} {job.target_id}"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("checkpoint", "internal_error")

    def has_rerun_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runtime_jobs.rerun_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runtime_jobs.cancel_job")

    @admin.action(description="Rerun selected jobs", permissions=["rerun"])
    def rerun_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return confirm_or_run(self, request, queryset, RERUN)

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> TemplateResponse | None:
        return confirm_or_run(self, request, queryset, CANCEL)
