from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.models.base import UuidModel
from runtime_jobs.models.job import AiRuntimeJob


class AiRuntimeResult(UuidModel):
    """What an attempt delivered: the one result that made its job succeed, or one that the output chain rejected."""

    class Status(models.TextChoices):
        SUCCEEDED = "succeeded", _("Succeeded")
        REJECTED = "rejected", _("Rejected")

    job = models.ForeignKey(AiRuntimeJob, models.PROTECT, related_name="results", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="ai_results")
    runtime_instance_id = models.CharField(max_length=128)
    status = models.CharField(max_length=20, choices=Status)
    attempt_no = models.PositiveIntegerField()
    result_idempotency_key = models.CharField(max_length=300)
    output_hash = models.CharField(max_length=64)  # SHA-256 of the raw output's UTF-8 bytes
    raw_output = models.TextField()
    validated_output = models.JSONField(null=True, blank=True)
    schema_version = models.CharField(max_length=50)
    validation_errors = models.JSONField(default=list, blank=True)
    repairs = models.JSONField(default=list, blank=True)  # what the JSON needed, by name
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "ai_runtime_result"
        verbose_name = _("result")
        verbose_name_plural = _("results")
        constraints = [
            # Makes a second success impossible, whatever the code does: the one-to-one of job and result.
            models.UniqueConstraint(fields=["job"], name="result_one_success_per_job", condition=Q(status="succeeded")),
            # Makes one delivery stored twice impossible.
            models.UniqueConstraint(fields=["job", "attempt_no", "output_hash"], name="result_once_per_output"),
            # Makes one key of a runtime answer for two deliveries impossible.
            models.UniqueConstraint(fields=["result_idempotency_key"], name="result_idempotency_key"),
            # Makes a success without an output impossible.
            models.CheckConstraint(condition=~Q(status="succeeded") | Q(validated_output__isnull=False), name="result_success_has_output"),
            # Makes a third kind of result impossible.
            models.CheckConstraint(condition=Q(status__in=["succeeded", "rejected"]), name="result_status_known"),
        ]

    def __str__(self) -> str:
        return f"{self.status} result of attempt {self.attempt_no}"
