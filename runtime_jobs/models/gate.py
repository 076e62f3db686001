from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel


class ClaimGate(UuidModel):
    """Something that may not be claimed now: paused by staff, or broken by a provider that keeps failing."""

    class Kind(models.TextChoices):
        LANE = "lane", _("Lane")
        JOB_TYPE = "job_type", _("Job Type")
        MODEL = "model", _("provider and model")  # key is "provider/model"
        BREAKER = "breaker", _("failing provider and model")  # key as above; `until` is when one job may try again

    kind = models.CharField(max_length=20, choices=Kind)
    key = models.CharField(max_length=260)
    reason = models.CharField(max_length=500, blank=True, default="")
    closed_by = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    until = models.DateTimeField(null=True, blank=True)  # NULL: until somebody opens it

    class Meta:
        db_table = "claim_gate"
        verbose_name = _("pause")
        verbose_name_plural = _("pauses")
        permissions = [
            ("pause_claims", "Can pause lanes, job types and models"),
            ("resume_claims", "Can resume what is paused"),
        ]
        constraints = [
            # Makes a pause that resuming does not lift, since there is a second one, impossible.
            models.UniqueConstraint(fields=["kind", "key"], name="gate_once"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"
