"""What becomes of a locked job when its attempt does not succeed: rows of the table of states, each in its caller's transaction."""

import logging
from collections.abc import Sequence
from typing import Any

from runtime_jobs import registry
from runtime_jobs.errors import RULES, AttemptError, ErrorCode, Issue
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.models.base import new_id
from runtime_jobs.services import notify, usage
from runtime_jobs.services.backoff import delay_seconds
from runtime_jobs.services.settlements import Delivery, Fence, Settlement
from runtime_jobs.services.transitions import NO_HOLDER, due_in, end_attempt, error_fields, step
from runtime_jobs.states import AttemptOutcome, JobStatus

logger = logging.getLogger(__name__)

LAPSE_LIMIT = 3  # lapses that are retried, apart from max_retry_count
RELEASE_LIMIT = 5  # releases that cost nothing


def apply_error(job: AiRuntimeJob, error: AttemptError, outcome: AttemptOutcome = AttemptOutcome.FAILED) -> Settlement:
    """End the attempt with an error: the job is retried while its budget lasts, or failed."""
    end_attempt(job, outcome, error_code=str(error.code), internal=error.internal)
    fields = error_fields(error.code, error.internal)
    data = {"error_code": str(error.code)}
    if error.retryable and job.status == JobStatus.RETRYING:
        # A late holder's failure: the retry that its lapse has scheduled stands, nothing is charged, and nobody holds the job any more.
        AiRuntimeJob.objects.filter(pk=job.pk, status=JobStatus.RETRYING, lock_token=job.lock_token).update(**NO_HOLDER)
        return settlement_of(job, next_attempt_at=job.available_at)
    if error.retryable and _budget_left(job, error.code):
        seconds = delay_seconds(job.retry_count + 1, at_least=error.retry_after_seconds)
        step(
            job, JobStatus.RETRYING, "job.retry_scheduled", data={**data, "delay_seconds": round(seconds, 3)},
            retry_count=job.retry_count + 1, available_at=due_in(seconds), lock_until=None, **NO_HOLDER, **fields,
        )  # fmt: skip
        job.refresh_from_db()
        return settlement_of(job, next_attempt_at=job.available_at)
    step(job, JobStatus.FAILED, "job.failed", data=data, **fields)
    return settlement_of(job)


def _budget_left(job: AiRuntimeJob, code: ErrorCode) -> bool:
    limit = RULES[code].retry_limit
    if job.retry_count >= job.max_retry_count:
        return False
    # The attempt that just ended is counted too, hence "at most".
    return limit is None or AiJobAttempt.objects.filter(job=job, error_code=code).count() <= limit


def store_rejected(job: AiRuntimeJob, fence: Fence, delivery: Delivery, issues: Sequence[Issue]) -> AiRuntimeResult:
    """Keep what the output chain refused, as evidence. Raises IntegrityError when its key is taken."""
    return AiRuntimeResult.objects.create(
        id=new_id(),
        job=job,
        user_id=job.user_id,
        runtime_instance_id=fence.worker,
        status=AiRuntimeResult.Status.REJECTED,
        attempt_no=fence.attempt_no,
        result_idempotency_key=delivery.key(fence),
        output_hash=delivery.output_hash,
        raw_output=delivery.raw_output,
        schema_version=delivery.schema_version,
        validation_errors=[issue.as_json() for issue in issues],
        repairs=list(delivery.repairs),
    )


def projector_failed(job: AiRuntimeJob, trace: str) -> Settlement:
    """A projector is foreign code: what it raised is an error of ours, and costs a retry."""
    logger.error("job %s attempt %s: the projector failed\n%s", job.pk, job.attempt_no, trace)
    return apply_error(job, AttemptError(ErrorCode.INTERNAL_ERROR, f"projector: {trace}"))


def end_cancelled(job: AiRuntimeJob, *, refused: str) -> Settlement:
    """The cancel that was requested takes effect. `refused` names the code when a result was not taken for it."""
    end_attempt(job, AttemptOutcome.CANCELLED, error_code=ErrorCode.CANCELLED)
    step(job, JobStatus.CANCELLED, "job.cancelled", **error_fields(ErrorCode.CANCELLED, ""))
    return settlement_of(job, refused=refused)


def hand_back(job: AiRuntimeJob, reason: str) -> Settlement:
    """Due at once and charged to nobody, RELEASE_LIMIT times; then it counts as a lapse."""
    if job.status == JobStatus.RETRYING:
        # Lapsed already: the retry stands, its late holder lets go.
        AiRuntimeJob.objects.filter(pk=job.pk, status=JobStatus.RETRYING, lock_token=job.lock_token).update(**NO_HOLDER)
        return settlement_of(job, next_attempt_at=job.available_at)
    end_attempt(job, AttemptOutcome.RELEASED)
    if job.release_count >= RELEASE_LIMIT:
        lapse(job, keep_token=False)
        return settlement_of(job)
    step(
        job, JobStatus.RETRYING, "job.released", data={"reason": reason[:200]},
        release_count=job.release_count + 1, available_at=due_in(0), lock_until=None, **NO_HOLDER,
    )  # fmt: skip
    notify.wake(job.lane)
    return settlement_of(job)


def lapse(job: AiRuntimeJob, *, keep_token: bool) -> None:
    """A locked, running job loses its lease: retried while lapses are left and the definition wants it, else failed.

    The token is kept after a real lapse, so that a holder who is only late may still deliver.
    """
    usage.close_abandoned(job.pk, job.attempt_no, ErrorCode.LEASE_EXPIRED)
    definition = registry.find(job.job_type)
    fields = error_fields(ErrorCode.LEASE_EXPIRED, f"attempt {job.attempt_no} of {job.locked_by} was not renewed in time")
    data = {"lapse": job.lapse_count + 1, "worker": job.locked_by or ""}
    if job.lapse_count >= LAPSE_LIMIT or (definition is not None and definition.on_lapse == "fail"):
        step(job, JobStatus.FAILED, "job.failed", data={**data, "error_code": str(ErrorCode.LEASE_EXPIRED)}, **fields)
        return
    seconds = delay_seconds(job.lapse_count + 1)
    step(
        job, JobStatus.RETRYING, "job.lapsed", data={**data, "delay_seconds": round(seconds, 3)},
        lapse_count=job.lapse_count + 1, available_at=due_in(seconds), lock_until=None, **({} if keep_token else NO_HOLDER), **fields,
    )  # fmt: skip


def settlement_of(job: AiRuntimeJob, **extra: Any) -> Settlement:
    """What the job is now, as an answer."""
    return Settlement(
        job_status=JobStatus(job.status),
        attempt_no=job.attempt_no,
        retry_count=job.retry_count,
        max_retry_count=job.max_retry_count,
        **extra,
    )
