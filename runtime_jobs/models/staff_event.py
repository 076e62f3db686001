import pgtrigger
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel, no_truncate


class AiStaffEvent(UuidModel):
    """Something that staff did which is no step of one job: a pause, a drain, a token, an export. What they do to a job is its AiJobEvent.

    The actor is kept as text, so that the record survives the person. Append-only, and never pruned.
    """

    name = models.CharField(max_length=60)  # dotted, stable
    actor_id = models.CharField(max_length=60)
    actor_name = models.CharField(max_length=150)
    subject_type = models.CharField(max_length=60)  # what it was done to, as text too
    subject_id = models.CharField(max_length=300, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="")
    data = models.JSONField(default=dict, blank=True)  # with the request's id
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "ai_staff_event"
        verbose_name = _("staff action")
        verbose_name_plural = _("staff actions")
        indexes = [
            # What was done to one thing, newest first.
            models.Index(fields=["subject_type", "subject_id", "-id"], name="staff_event_subject"),
            # What one person did, newest first.
            models.Index(fields=["actor_name", "-id"], name="staff_event_actor"),
        ]
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete),
            no_truncate(),
        ]

    def __str__(self) -> str:
        return f"{self.name} by {self.actor_name}"
