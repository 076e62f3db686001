"""What attempts delivered."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from runtime_jobs.admin.readonly import ReadOnlyAdmin, shown_json
from runtime_jobs.models import AiRuntimeResult


@admin.register(AiRuntimeResult)
class ResultAdmin(ReadOnlyAdmin):
    list_display = ("id", "job", "status", "attempt_no", "schema_version", "created_at")
    list_filter = ("status",)
    list_select_related = ("job",)
    search_fields = ("id",)
    search_help_text = "a result's or a job's id"
    search_uuids = ("pk", "job_id")
    fields = (
        "id", "job", "user", "status", "attempt_no", "runtime_instance_id", "schema_version", "output", "validation_errors", "repairs",
        "output_hash", "created_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        self._request = request
        return super().get_queryset(request).defer("raw_output")

    @admin.display(description="validated output")
    def output(self, result: AiRuntimeResult) -> str:
        return shown_json(self._request, result.validated_output, result.job.job_type)
