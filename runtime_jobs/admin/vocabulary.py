"""The words of our closed sets as staff read them."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from runtime_jobs.errors import ErrorCode
from runtime_jobs.states import AttemptOutcome, JobStatus, Lane

STATUSES: Mapping[str, Any] = {
    JobStatus.QUEUED: _("queued"),
    JobStatus.RUNNING: _("running"),
    JobStatus.RETRYING: _("retrying"),
    JobStatus.CANCEL_REQUESTED: _("cancel requested"),
    JobStatus.SUCCEEDED: _("succeeded"),
    JobStatus.FAILED: _("failed"),
    JobStatus.CANCELLED: _("cancelled"),
}
LANES: Mapping[str, Any] = {
    Lane.INTERACTIVE: _("interactive"),
    Lane.BACKGROUND: _("background"),
    Lane.RUNTIME: _("runtime"),
}
OUTCOMES: Mapping[str, Any] = {
    AttemptOutcome.SUCCEEDED: _("succeeded"),
    AttemptOutcome.REJECTED: _("rejected"),
    AttemptOutcome.FAILED: _("failed"),
    AttemptOutcome.LAPSED: _("lapsed"),
    AttemptOutcome.RELEASED: _("released"),
    AttemptOutcome.CANCELLED: _("cancelled"),
    # Of provider calls.
    "started": _("started"),
    "aborted": _("aborted"),
}
# What stands in errors.py as the sentence for people outside.
PUBLIC_ERRORS: Mapping[str, Any] = {
    ErrorCode.PROVIDER_TIMEOUT: _("The AI provider did not answer in time."),
    ErrorCode.PROVIDER_RATE_LIMITED: _("The AI provider asked us to slow down."),
    ErrorCode.PROVIDER_UNAVAILABLE: _("The AI provider could not be reached or answered with an error."),
    ErrorCode.PROVIDER_QUOTA_EXHAUSTED: _("The account at the AI provider has no quota left."),
    ErrorCode.PROVIDER_AUTH_FAILED: _("The AI provider refused the key."),
    ErrorCode.PROVIDER_REJECTED_REQUEST: _("The AI provider rejected the request."),
    ErrorCode.CONTEXT_TOO_LONG: _("The input is too long for the model."),
    ErrorCode.CONTENT_FILTERED: _("The AI provider's content filter stopped the request or the answer."),
    ErrorCode.OUTPUT_TRUNCATED: _("The model's answer was cut off before its end."),
    ErrorCode.OUTPUT_TOO_LARGE: _("The model's answer is larger than allowed."),
    ErrorCode.INVALID_MODEL_OUTPUT: _("The model gave no usable answer."),
    ErrorCode.SCHEMA_VALIDATION_FAILED: _("The model's answer does not have the required form."),
    ErrorCode.BUSINESS_VALIDATION_FAILED: _("The model's answer breaks a business rule."),
    ErrorCode.REFERENCE_VALIDATION_FAILED: _("The model's answer refers to something that is not in the input."),
    ErrorCode.CANCELLED: _("The job was cancelled."),
    ErrorCode.UNKNOWN_JOB_TYPE: _("No worker knows this type of job."),
    ErrorCode.UNSUPPORTED_INPUT_SCHEMA: _("The job's input has a version that is no longer supported."),
    ErrorCode.CREDENTIAL_UNAVAILABLE: _("The key for the AI provider is missing, revoked or unreadable."),
    ErrorCode.LEASE_EXPIRED: _("The worker that ran this job stopped responding."),
    ErrorCode.INTERNAL_ERROR: _("Something went wrong on our side."),
}


def status(code: str) -> str:
    return str(STATUSES.get(code, code))


def lane(code: str) -> str:
    return str(LANES.get(code, code))


def outcome(code: str) -> str:
    return str(OUTCOMES.get(code, code))


def public_error(code: str) -> str:
    return str(PUBLIC_ERRORS.get(code, code))
