"""The jobs: what runs, what waits, what ended how."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.timesince import timesince

from runtime_jobs import registry
from runtime_jobs.admin.actions import CANCEL, RERUN, confirm_or_run
from runtime_jobs.admin.readonly import ReadOnlyAdmin, shown_json
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeJob, AiRuntimeResult, AiUsageLog

_LAST = 50


class _LastRows(BaseInlineFormSet):
    """The last rows only, in order: a job may have thousands."""

    def get_queryset(self) -> Any:
        if not hasattr(self, "_last"):
            self._last = list(super().get_queryset().reverse()[:_LAST])[::-1]
        return self._last


class _Lines(admin.TabularInline):
    formset = _LastRows
    extra = 0
    max_num = 0
    can_delete = False
    template = "admin/runtime_jobs/lines.html"

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
    verbose_name_plural = "provider calls"


class Results(_Lines):
    model = AiRuntimeResult
    fields = readonly_fields = ("attempt_no", "status", "schema_version", "validation_errors", "repairs", "created_at")
    ordering = ("attempt_no",)
    show_change_link = True


class Timeline(_Lines):
    model = AiJobEvent
    fields = readonly_fields = ("seq", "name", "attempt_no", "actor_name", "data", "created_at")
    ordering = ("seq",)
    verbose_name_plural = "timeline"


class JobTypeFilter(admin.SimpleListFilter):
    """From the registry: Django's own filter would read the whole table for its distinct values."""

    title = "job type"
    parameter_name = "job_type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(job_type, job_type) for job_type in registry.job_types()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(job_type=self.value()) if self.value() else queryset


@admin.register(AiRuntimeJob)
class JobAdmin(ReadOnlyAdmin):
    list_display = ("short_id", "job_type", "status", "error_code", "target", "user", "attempt_no", "lane", "age")
    list_filter = ("status", "lane", JobTypeFilter)
    list_select_related = ("user",)
    search_fields = ("id",)
    search_help_text = "a job's whole id, or its idempotency key"
    search_exact = ("idempotency_key",)
    actions = ("rerun_selected", "cancel_selected")
    inlines = (Attempts, Calls, Results, Timeline)
    fieldsets = (
        (None, {"fields": ("id", "job_type", "user", "target", "status", "error_code", "error_message", "internal_error")}),
        (
            "Progress",
            {
                "fields": (
                    "attempt_no", "retry_count", "max_retry_count", "lapse_count", "release_count", "created_at", "available_at",
                    "started_at",
                    "finished_at", "locked_by", "locked_at", "lock_until", "progress", "progress_message",
                )
            },
        ),
        ("Cancel", {"fields": ("cancel_requested_at", "cancel_requested_by", "cancel_reason"), "classes": ("collapse",)}),
        (
            "Request",
            {
                "fields": (
                    "lane", "priority", "idempotency_key", "api_key_mode", "credential", "model_provider", "model_name", "prompt_version",
                    "input_schema_version", "output_schema_version", "timeout_seconds", "retried_from_job", "input",
                ),
                "classes": ("collapse",),
            },
        ),
    )  # fmt: skip
    readonly_fields = ("id", "target", "created_at", "input")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        self._request = request
        return super().get_queryset(request).defer("checkpoint", "internal_error")

    @admin.display(description="job", ordering="id")
    def short_id(self, job: AiRuntimeJob) -> str:
        return format_html('<code title="{}">{}</code>', job.pk, str(job.pk)[-12:])

    @admin.display(description="target")
    def target(self, job: AiRuntimeJob) -> str:
        return f"{job.target_type} {job.target_id}"

    @admin.display(description="age", ordering="id")
    def age(self, job: AiRuntimeJob) -> str:
        return format_html('<span title="{}">{}</span>', job.created_at.isoformat(timespec="seconds"), timesince(job.created_at, depth=1))

    @admin.display(description="input")
    def input(self, job: AiRuntimeJob) -> str:
        return shown_json(self._request, job.snapshot.payload, job.job_type)

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
