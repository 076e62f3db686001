import pgtrigger
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel, delete_only_by_prune, no_truncate


class AiJobSnapshot(UuidModel):
    """The immutable input of jobs. Equal content is stored once, so reruns and repeated inputs share a row."""

    input_schema_version = models.CharField(max_length=50)
    payload = models.JSONField()
    # SHA-256 over schema version and canonical JSON: found again by content, and checked before every execution.
    content_hash = models.CharField(max_length=64)
    size_bytes = models.PositiveIntegerField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "ai_job_snapshot"
        verbose_name = _("snapshot")
        verbose_name_plural = _("snapshots")
        constraints = [
            # Makes two rows with the same content impossible, also when two creates race.
            models.UniqueConstraint(fields=["content_hash"], name="snapshot_content_once"),
        ]
        triggers = [
            pgtrigger.Protect(name="never_changes", operation=pgtrigger.Update),
            delete_only_by_prune(),
            no_truncate(),
        ]

    def __str__(self) -> str:
        return f"{self.input_schema_version} {self.content_hash[:12]}"
