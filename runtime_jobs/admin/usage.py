"""Every call of a provider, with its tokens."""

from django.contrib import admin
from django.utils.translation import gettext_lazy

from runtime_jobs.admin.filters import CALL_FILTERS
from runtime_jobs.admin.readonly import ReadOnlyAdmin
from runtime_jobs.models import AiUsageLog


@admin.register(AiUsageLog)
class UsageAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "job", "attempt_no", "call_no", "provider", "model_requested", "outcome", "error_code", "input_tokens", "output_tokens",
        "cost_usd", "latency_ms", "created_at",
    )  # fmt: skip
    list_select_related = ("job",)
    list_filter = CALL_FILTERS
    search_fields = ("id",)
    search_help_text = gettext_lazy("a call's or a job's id")
    search_uuids = ("pk", "job_id")
