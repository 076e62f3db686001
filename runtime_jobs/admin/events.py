"""What happened to jobs, and who did it."""

from django.contrib import admin

from runtime_jobs.admin.readonly import ReadOnlyAdmin
from runtime_jobs.models import AiJobEvent


@admin.register(AiJobEvent)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("id", "job", "seq", "name", "attempt_no", "actor_name", "created_at")
    list_select_related = ("job",)
    search_fields = ("id",)
    search_help_text = "an event's or a job's id"
    search_uuids = ("pk", "job_id")
