"""The closed set of error codes: what went wrong with an attempt, and what callers of the services did wrong.

`public_error` is a fixed sentence per code, fit for anyone outside; whatever is specific stands in the internal detail, which only
staff see. Whether an attempt's error may be retried is decided where the error arises and stored; the table holds the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runtime_jobs.states import JobStatus


class ErrorCode(StrEnum):
    """Why an attempt or a job failed. Stored, shown and sent on the wire: never rename one."""

    PROVIDER_TIMEOUT = "provider_timeout"
    PROVIDER_RATE_LIMITED = "provider_rate_limited"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    PROVIDER_QUOTA_EXHAUSTED = "provider_quota_exhausted"
    PROVIDER_AUTH_FAILED = "provider_auth_failed"
    PROVIDER_REJECTED_REQUEST = "provider_rejected_request"
    CONTEXT_TOO_LONG = "context_too_long"
    CONTENT_FILTERED = "content_filtered"
    OUTPUT_TRUNCATED = "output_truncated"
    OUTPUT_TOO_LARGE = "output_too_large"
    INVALID_MODEL_OUTPUT = "invalid_model_output"
    SCHEMA_VALIDATION_FAILED = "schema_validation_failed"
    BUSINESS_VALIDATION_FAILED = "business_validation_failed"
    REFERENCE_VALIDATION_FAILED = "reference_validation_failed"
    CANCELLED = "cancelled"
    UNKNOWN_JOB_TYPE = "unknown_job_type"
    UNSUPPORTED_INPUT_SCHEMA = "unsupported_input_schema"
    CREDENTIAL_UNAVAILABLE = "credential_unavailable"
    LEASE_EXPIRED = "lease_expired"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True)
class ErrorRule:
    public_error: str
    retryable: bool = False
    # At most so many retries of this error, within the job's max_retry_count; None leaves it to the job.
    retry_limit: int | None = None


_C = ErrorCode
RULES: Mapping[ErrorCode, ErrorRule] = {
    _C.PROVIDER_TIMEOUT: ErrorRule("The AI provider did not answer in time.", retryable=True),
    _C.PROVIDER_RATE_LIMITED: ErrorRule("The AI provider asked us to slow down.", retryable=True),
    _C.PROVIDER_UNAVAILABLE: ErrorRule("The AI provider could not be reached or answered with an error.", retryable=True),
    _C.PROVIDER_QUOTA_EXHAUSTED: ErrorRule("The account at the AI provider has no quota left."),
    _C.PROVIDER_AUTH_FAILED: ErrorRule("The AI provider refused the key."),
    _C.PROVIDER_REJECTED_REQUEST: ErrorRule("The AI provider rejected the request."),
    _C.CONTEXT_TOO_LONG: ErrorRule("The input is too long for the model."),
    _C.CONTENT_FILTERED: ErrorRule("The AI provider's content filter stopped the request or the answer."),
    _C.OUTPUT_TRUNCATED: ErrorRule("The model's answer was cut off before its end."),
    _C.OUTPUT_TOO_LARGE: ErrorRule("The model's answer is larger than allowed."),
    _C.INVALID_MODEL_OUTPUT: ErrorRule("The model gave no usable answer.", retryable=True, retry_limit=1),
    _C.SCHEMA_VALIDATION_FAILED: ErrorRule("The model's answer does not have the required form."),
    _C.BUSINESS_VALIDATION_FAILED: ErrorRule("The model's answer breaks a business rule."),
    _C.REFERENCE_VALIDATION_FAILED: ErrorRule("The model's answer refers to something that is not in the input."),
    _C.CANCELLED: ErrorRule("The job was cancelled."),
    _C.UNKNOWN_JOB_TYPE: ErrorRule("No worker knows this type of job."),
    _C.UNSUPPORTED_INPUT_SCHEMA: ErrorRule("The job's input has a version that is no longer supported."),
    _C.CREDENTIAL_UNAVAILABLE: ErrorRule("The key for the AI provider is missing, revoked or unreadable."),
    _C.LEASE_EXPIRED: ErrorRule("The worker that ran this job stopped responding."),
    _C.INTERNAL_ERROR: ErrorRule("Something went wrong on our side.", retryable=True, retry_limit=2),
}


def public_error(code: ErrorCode) -> str:
    return RULES[code].public_error


class AttemptError(Exception):
    """An attempt failed for a known reason.

    `internal` is for staff and must hold no key and no snapshot text. `retryable` and `retry_after_seconds` come from where the error
    arose; without them the table decides. `issues` are a failed validation's findings, each at its path.
    """

    def __init__(
        self,
        code: ErrorCode,
        internal: str = "",
        *,
        retryable: bool | None = None,
        retry_after_seconds: float | None = None,
        issues: tuple["Issue", ...] = (),
    ) -> None:
        super().__init__(f"{code}: {internal}" if internal else str(code))
        self.code = code
        self.internal = internal
        self.retryable = RULES[code].retryable if retryable is None else retryable
        self.retry_after_seconds = retry_after_seconds
        self.issues = issues


@dataclass(frozen=True)
class Issue:
    """One finding of a validation: where (a JSON pointer), which rule, and a sentence without the value itself."""

    path: str
    rule: str
    message: str

    def as_json(self) -> dict[str, str]:
        return {"path": self.path, "rule": self.rule, "message": self.message}


class ServiceError(Exception):
    """A caller asked a service for something that cannot be done. Nothing was changed. `code` is stable, the text is for people."""

    code = "service_error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class UnknownJobType(ServiceError):
    """No definition of this job type is registered."""

    code = "unknown_job_type"


class InvalidRequest(ServiceError):
    """An argument is out of its bounds; details name the field."""

    code = "invalid_request"


class InvalidPayload(ServiceError):
    """The payload breaks the definition's input schema; details hold the issues."""

    code = "invalid_payload"


class PayloadTooLarge(ServiceError):
    """The payload is larger than JOB_MAX_SNAPSHOT_BYTES."""

    code = "payload_too_large"


class CredentialUnavailable(ServiceError):
    """There is no credential that this job may use."""

    code = "credential_unavailable"


class IdempotencyConflict(ServiceError):
    """The idempotency key belongs to a job that was made from another request."""

    code = "idempotency_conflict"


class JobNotFound(ServiceError):
    """There is no such job, or none that this caller may know of."""

    code = "job_not_found"


class IllegalTransition(ServiceError):
    """The state table has no such step; the message names both states."""

    code = "illegal_transition"

    def __init__(self, old: JobStatus, new: JobStatus) -> None:
        super().__init__(f"A job that is {old} cannot become {new}.", old=old, new=new)


class JobNotRerunnable(ServiceError):
    """Only a job that has ended can be rerun."""

    code = "job_not_rerunnable"


class JobNotCancellable(ServiceError):
    """The job has ended already; the message names its state."""

    code = "job_not_cancellable"


class JobNotLeased(ServiceError):
    """No worker holds the job; the message names its state."""

    code = "job_not_leased"


class LockConflict(ServiceError):
    """The job is leased by, or reserved for, somebody else."""

    code = "job_lock_conflict"


class NotLockable(ServiceError):
    """The job is free but may not run now: not due, paused or at its limit."""

    code = "job_not_lockable"


class LockLost(ServiceError):
    """The token is no longer the job's: somebody else has taken it over."""

    code = "job_lock_lost"


class JobCancelled(ServiceError):
    """The job was cancelled, or is about to be: no result is wanted."""

    code = "job_cancelled"


class JobAlreadyFinished(ServiceError):
    """The job has ended with another outcome; it does not change any more."""

    code = "job_already_finished"


class ResultConflict(ServiceError):
    """This attempt has already answered, or the result's idempotency key belongs to another attempt."""

    code = "result_conflict"
