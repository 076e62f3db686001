from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.errors import ErrorCode
from runtime_jobs.models.base import UuidModel, choices
from runtime_jobs.models.job import AiRuntimeJob
from runtime_jobs.models.service_token import RuntimeServiceToken
from runtime_jobs.states import AttemptOutcome


class AiJobAttempt(UuidModel):
    """One execution of a job, with its own token, number and answer: it can be told apart, replayed and billed for ever."""

    job = models.ForeignKey(AiRuntimeJob, models.PROTECT, related_name="attempts", db_index=False)
    attempt_no = models.PositiveIntegerField()
    lock_token = models.CharField(max_length=64)  # SHA-256
    worker = models.CharField(max_length=128)
    service_token = models.ForeignKey(RuntimeServiceToken, models.PROTECT, null=True, blank=True, related_name="attempts")
    request_id = models.UUIDField(null=True, blank=True)  # the runtime's, which makes a lock repeatable
    # From it and the server's key its token is made again for a repeated lock (services/tokens.py); '' where the token was random.
    token_nonce = models.CharField(max_length=64, blank=True, default="", db_default="", editable=False)
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=20, blank=True, default="", choices=choices(AttemptOutcome))
    error_code = models.CharField(max_length=40, blank=True, default="", choices=choices(ErrorCode))
    internal_error = models.TextField(blank=True, default="")
    # What its terminal call was answered, and the digest of what was called: a repeat gets the same.
    answer = models.JSONField(null=True, blank=True)
    answer_digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        db_table = "ai_job_attempt"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = [
            # Makes two executions under one number impossible.
            models.UniqueConstraint(fields=["job", "attempt_no"], name="attempt_no_once_per_job"),
            # Makes an ended attempt without an outcome impossible.
            models.CheckConstraint(
                condition=models.Q(outcome="", ended_at=None) | models.Q(~models.Q(outcome=""), ended_at__isnull=False),
                name="attempt_outcome_when_ended",
            ),
        ]
        indexes = [
            # A repeated lock of a runtime.
            models.Index(
                fields=["service_token", "worker", "request_id"],
                name="attempt_request",
                condition=models.Q(request_id__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.attempt_no}"
