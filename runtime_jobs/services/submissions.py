"""What runtimes hand in: results, failures, releases. The checks before the terminal transaction, then the engine's own way to the end."""

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from django.views.decorators.debug import sensitive_variables

from runtime_jobs import registry
from runtime_jobs.errors import AttemptError, ErrorCode, ServiceError
from runtime_jobs.model_call import FinishReason
from runtime_jobs.models import AiJobAttempt
from runtime_jobs.redaction import redact, safe_trace, storable
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.services import credentials, terminal
from runtime_jobs.services.holders import attempt_of
from runtime_jobs.services.masking import masked, masked_json
from runtime_jobs.services.payloads import digest
from runtime_jobs.services.runtime_usage import known_code
from runtime_jobs.services.settlements import Delivery, Fence, Settlement
from runtime_jobs.states import JobStatus
from runtime_jobs.validation import chain

logger = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = chain.MAX_OUTPUT_BYTES
MAX_MESSAGE_BYTES = 16_384
MAX_RETRY_AFTER_SECONDS = 900
CUT = "… [cut]"


class OutputHashMismatch(ServiceError):
    """The output that arrived is not the one that was hashed. The lease is as it was."""

    code = "output_hash_mismatch"


class DefinitionMissing(ServiceError):
    """This server has no definition of the job's type: one that is being deployed. The lease is as it was."""

    code = "unavailable"


@dataclass(frozen=True)
class Submission:
    """A result as it came. `raw_output` may hold what PostgreSQL cannot keep; `validated_output` is None when the text is to be read."""

    raw_output: str
    output_hash: str
    schema_version: str
    validated_output: Any = None
    idempotency_key: str | None = None


@sensitive_variables()
def submit_result(fence: Fence, submission: Submission, job_types: Collection[str]) -> Settlement:
    """Take a result through the output chain to its end, exactly as the engine's own.

    Raises JobNotFound, ResultConflict, LockLost, JobCancelled, JobAlreadyFinished, OutputHashMismatch, DefinitionMissing; nothing has
    changed then. A job whose cancel was requested becomes cancelled, and the settlement says `refused`.
    """
    attempt = attempt_of(fence, job_types, "snapshot", "credential")
    secrets = credentials.known_secrets(attempt.job.credential)
    delivery = Delivery(
        raw_output=masked(storable(submission.raw_output), secrets),
        output_hash=submission.output_hash,
        schema_version=submission.schema_version,
        idempotency_key=submission.idempotency_key,
    )
    # Replays, and calls that can no longer change anything, do not go through the chain.
    before = terminal.foresee(attempt.job, attempt, fence, delivery.content(fence), delivery)
    if before is not None:
        return before
    definition, job = _definition_and_input(attempt)
    if attempt.job.status == JobStatus.CANCEL_REQUESTED:
        return terminal.submit_result(fence, delivery, definition, job)
    if hashlib.sha256(submission.raw_output.encode(errors="surrogatepass")).hexdigest() != submission.output_hash:
        raise OutputHashMismatch("outputHash is not the SHA-256 of rawOutput as it arrived.")
    given = None if submission.validated_output is None else masked_json(submission.validated_output, secrets)
    return _through_the_chain(fence, delivery, given, definition, job)


def _through_the_chain(fence: Fence, delivery: Delivery, given: Any, definition: JobDefinition, job: JobInput) -> Settlement:
    try:
        reading = chain.Reading(given) if given is not None else chain.read_output(delivery.raw_output, FinishReason.OTHER)
        validated = chain.validate(definition, job, reading, schema_version=delivery.schema_version)
    except AttemptError as error:
        return terminal.reject_result(fence, delivery, error)
    except Exception as error:  # a definition's checks are foreign code: whatever they raise ends this attempt, as in the engine
        logger.error("job %s attempt %s: the definition's checks failed\n%s", fence.job_id, fence.attempt_no, safe_trace(error))
        failed = AttemptError(ErrorCode.INTERNAL_ERROR, f"checks: {safe_trace(error)}")
        return terminal.submit_failure(fence, failed, content=delivery.content(fence))
    passed = replace(delivery, validated_output=validated.output, repairs=validated.repairs)
    return terminal.submit_result(fence, passed, definition, job)


def _definition_and_input(attempt: AiJobAttempt) -> tuple[JobDefinition, JobInput]:
    job = attempt.job
    definition = registry.find(job.job_type)
    if definition is None:
        raise DefinitionMissing("This server does not know the job's type now. Try again.")
    return definition, JobInput(
        job_id=job.pk,
        user_id=job.user_id,
        job_type=job.job_type,
        target_type=job.target_type,
        target_id=job.target_id,
        input_schema_version=job.input_schema_version,
        output_schema_version=job.output_schema_version,
        payload=job.snapshot.payload,
    )


@dataclass(frozen=True)
class Failure:
    """A failure as reported; `message` is for staff."""

    code: str
    message: str
    retryable: bool
    retry_after_seconds: float | None = None


@sensitive_variables()
def submit_failure(fence: Fence, failure: Failure, job_types: Collection[str]) -> tuple[Settlement, bool]:
    """End the attempt with a reported error; True when its message was cut. Unknown codes are stored as internal_error, the code beside it.

    Raises JobNotFound, LockLost, JobCancelled, JobAlreadyFinished.
    """
    attempt = attempt_of(fence, job_types, "credential")
    message, cut = _cut(redact(storable(failure.message), credentials.known_secrets(attempt.job.credential), limit=MAX_MESSAGE_BYTES * 2))
    code = ErrorCode(known_code(failure.code))
    if code != failure.code:
        message = f"reported as {redact(storable(failure.code)[:100])!r}: {message}"
    wait = failure.retry_after_seconds
    error = AttemptError(
        code,
        message,
        retryable=failure.retryable,
        retry_after_seconds=None if wait is None else min(wait, MAX_RETRY_AFTER_SECONDS),
    )
    # What was sent, not what was made of it: masking must not turn a repeat into something else.
    content = digest("fail", storable(failure.code), storable(failure.message), str(failure.retryable), str(wait))
    return terminal.submit_failure(fence, error, content=content), cut


def release(fence: Fence, reason: str, job_types: Collection[str]) -> Settlement:
    """Hand the job back. Raises JobNotFound, LockLost, JobCancelled, JobAlreadyFinished."""
    attempt = attempt_of(fence, job_types, "credential")
    return terminal.release(fence, redact(storable(reason), credentials.known_secrets(attempt.job.credential), limit=200))


def _cut(text: str) -> tuple[str, bool]:
    data = text.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return text, False
    return data[: MAX_MESSAGE_BYTES - len(CUT.encode())].decode(errors="ignore") + CUT, True
