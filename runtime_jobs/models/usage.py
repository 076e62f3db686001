from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from runtime_jobs.errors import ErrorCode
from runtime_jobs.model_call import Dispatch
from runtime_jobs.models.base import UuidModel, choices
from runtime_jobs.models.job import AiRuntimeJob
from runtime_jobs.states import ApiKeyMode


class AiUsageLog(UuidModel):
    """One provider call, hence money: inserted before the request in a transaction of its own, closed after it, never rolled back.

    Its id goes out with the request. Tokens and cost that nobody reported are NULL, never 0.
    """

    class Outcome(models.TextChoices):
        STARTED = "started", _("Started")
        SUCCEEDED = "succeeded", _("Succeeded")
        FAILED = "failed", _("Failed")
        ABORTED = "aborted", _("Aborted")

    job = models.ForeignKey(AiRuntimeJob, models.PROTECT, related_name="usage", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="ai_usage")
    attempt_no = models.PositiveIntegerField()
    call_no = models.PositiveSmallIntegerField()  # within the attempt, from 1
    invocation_id = models.CharField(max_length=100)  # the engine's is this row's id
    credential_mode = models.CharField(max_length=20, choices=choices(ApiKeyMode))
    provider = models.CharField(max_length=50)
    base_url_host = models.CharField(max_length=255, blank=True, default="")
    model_requested = models.CharField(max_length=200)
    model_used = models.CharField(max_length=200, blank=True, default="")
    outcome = models.CharField(max_length=20, choices=Outcome, default=Outcome.STARTED)
    dispatch = models.CharField(max_length=20, choices=choices(Dispatch), default=Dispatch.NOT_SENT)
    error_code = models.CharField(max_length=40, blank=True, default="", choices=choices(ErrorCode))
    retryable = models.BooleanField(null=True, blank=True)
    retry_after_ms = models.BigIntegerField(null=True, blank=True)
    http_status = models.PositiveSmallIntegerField(null=True, blank=True)
    provider_error_code = models.CharField(max_length=100, blank=True, default="")
    provider_request_id = models.CharField(max_length=200, blank=True, default="")
    finish_reason = models.CharField(max_length=40, blank=True, default="")
    input_tokens = models.PositiveBigIntegerField(null=True, blank=True)  # cached ones included
    output_tokens = models.PositiveBigIntegerField(null=True, blank=True)  # reasoning included
    cached_input_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    reasoning_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    cost_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True, blank=True)
    usage_raw = models.JSONField(default=dict, blank=True)  # the provider's own numbers
    warnings = models.JSONField(default=list, blank=True)
    latency_ms = models.PositiveIntegerField(null=True, blank=True)
    request_bytes = models.PositiveIntegerField(null=True, blank=True)
    response_bytes = models.PositiveIntegerField(null=True, blank=True)
    reported_started_at = models.DateTimeField(null=True, blank=True)  # by a runtime's clock: information, never compared
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "ai_usage_log"
        verbose_name = _("usage")
        verbose_name_plural = _("usage")
        constraints = [
            # Makes one call counted twice impossible, however often it is reported.
            models.UniqueConstraint(fields=["job", "invocation_id"], name="usage_invocation_once_per_job"),
            # Makes a closed row without an outcome, and an open one with an end, impossible.
            models.CheckConstraint(
                condition=models.Q(outcome="started", closed_at=None) | models.Q(~models.Q(outcome="started"), closed_at__isnull=False),
                name="usage_closed_at_when_closed",
            ),
        ]
        indexes = [
            # The calls of a job in order; and the open ones that a reaper closes.
            models.Index(fields=["job", "attempt_no", "call_no"], name="usage_of_attempt"),
            # The latest calls of a provider's model: whether it fails in a row.
            models.Index(fields=["provider", "model_requested", "-id"], name="usage_of_model"),
        ]

    def __str__(self) -> str:
        return f"call {self.call_no} of attempt {self.attempt_no}"
