"""How an attempt ends: with a result, a failure or a release, of the engine and of runtimes alike.

Each is one transaction with the job's row locked first, and looks in this order: replay · another answer of the same attempt · the fence ·
a job that has ended · a cancel that was requested · the table of states. The answer is stored with the attempt, so that a repeat gets the
same one for as long as the job is kept.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.utils.dateparse import parse_datetime

from runtime_jobs import registry, subscribers
from runtime_jobs.errors import (
    RULES,
    AttemptError,
    ErrorCode,
    Issue,
    JobAlreadyFinished,
    JobCancelled,
    JobNotFound,
    LockLost,
    ResultConflict,
)
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret, safe_trace
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.services import notify, success, usage
from runtime_jobs.services.backoff import delay_seconds
from runtime_jobs.services.payloads import digest
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.services.transitions import NO_HOLDER, due_in, end_attempt, error_fields, lock, step
from runtime_jobs.services.usage import NO_CALL, ClosedCall
from runtime_jobs.states import TERMINAL, AttemptOutcome, JobStatus

logger = logging.getLogger(__name__)

LAPSE_LIMIT = 3  # lapses that are retried, apart from max_retry_count
RELEASE_LIMIT = 5  # releases that cost nothing


@dataclass(frozen=True)
class Fence:
    """Who speaks: the attempt and the token that its lease gave out."""

    job_id: UUID
    attempt_no: int
    token: Secret
    worker: str


@dataclass(frozen=True)
class Settlement:
    """What a terminal call came to. `refused` is set when a result was not taken: a rejected output's code, or job_cancelled."""

    job_status: JobStatus
    attempt_no: int
    retry_count: int
    max_retry_count: int
    result_id: UUID | None = None
    refused: str = ""
    issues: tuple[Issue, ...] = ()
    next_attempt_at: datetime | None = None
    late: bool = False
    duplicate: bool = False

    def as_json(self) -> dict[str, Any]:
        made = asdict(self)
        made["result_id"] = self.result_id and str(self.result_id)
        made["next_attempt_at"] = self.next_attempt_at and self.next_attempt_at.isoformat()
        return made

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Settlement":
        return cls(
            **{
                **stored,
                "job_status": JobStatus(stored["job_status"]),
                "result_id": stored["result_id"] and UUID(stored["result_id"]),
                "next_attempt_at": stored["next_attempt_at"] and parse_datetime(stored["next_attempt_at"]),
                "issues": tuple(Issue(**issue) for issue in stored["issues"]),
            }
        )


@dataclass(frozen=True)
class Delivery:
    """A result as it came: the model's text, its hash, and what the output chain made of it."""

    raw_output: str
    output_hash: str
    schema_version: str
    validated_output: Any = None
    repairs: Sequence[str] = ()
    idempotency_key: str | None = None

    def key(self, fence: Fence) -> str:
        return self.idempotency_key or f"{fence.job_id}:{fence.attempt_no}:{self.output_hash}"

    def content(self, fence: Fence) -> str:
        """By what a repeat is recognised."""
        return digest("result", self.output_hash, self.schema_version, self.key(fence))


def submit_result(
    fence: Fence, delivery: Delivery, definition: JobDefinition, job_input: JobInput, call: ClosedCall = NO_CALL
) -> Settlement:
    """Store a result that passed the output chain: project it and end the job as succeeded, all in one transaction.

    `call` is the provider call that the usage log still has open; it is closed whatever happens to the result. A projector that raises is
    rolled back and counts as internal_error. Raises LockLost, ResultConflict, JobCancelled, JobAlreadyFinished, JobNotFound; the job is
    as before then.
    """
    content = delivery.content(fence)

    def attempt() -> Settlement | None:
        return _succeed(fence, delivery, definition, job_input, content, call)

    def act(job: AiRuntimeJob) -> Settlement:
        try:
            with transaction.atomic():
                settlement = attempt()
            if settlement is not None:
                return settlement
            trace = "a job that was locked and held could not be ended"
        except Exception as error:  # a projector is foreign code: whatever it raises ends this attempt, not the worker
            trace = safe_trace(error)
        return _projector_failed(job, trace)

    try:
        settlement = attempt()
    except ProjectorFailed as failed:
        # It has run once and failed; it is not run again for this attempt.
        trace = failed.trace
        usage.close_call(call)
        return _settle(fence, content, lambda job: _projector_failed(job, trace), delivery)
    except IntegrityError:
        # Its key is taken, or an event came between: the rows say which, once the job is locked.
        usage.close_call(call)
        settlement = None
    return settlement or _settle(fence, content, act, delivery)


def reject_result(fence: Fence, delivery: Delivery, error: AttemptError) -> Settlement:
    """Store a result that the output chain refused, as evidence, and go on as its error says. Raises as `submit_result`."""

    def act(job: AiRuntimeJob) -> Settlement:
        result = _store_rejected(job, fence, delivery, error.issues)
        settlement = _apply_error(job, error, AttemptOutcome.REJECTED)
        return replace(settlement, result_id=result.pk, refused=str(error.code), issues=error.issues)

    try:
        return _settle(fence, delivery.content(fence), act, delivery)
    except IntegrityError:
        # Its key was taken at the same moment, and by now whoever has it can be seen.
        return _settle(fence, delivery.content(fence), act, delivery)


def submit_failure(fence: Fence, error: AttemptError, *, content: str | None = None) -> Settlement:
    """End the attempt with an error: the job is retried within its budget, or failed. Raises as `submit_result`.

    `content` is by what a repeat is recognised, where the error does not say it: what it is made of was changed on the way in.
    """
    content = content or digest("fail", str(error.code), error.internal, str(error.retryable), str(error.retry_after_seconds))
    return _settle(fence, content, lambda job: _apply_error(job, error))


def look(job: AiRuntimeJob, attempt: AiJobAttempt, fence: Fence, content: str, delivery: Delivery | None = None) -> Settlement | None:
    """What a terminal call would meet, without a lock and without changing anything, so that no work is done for nothing.

    The stored answer of a repeat; None when the call may go on. Raises as `submit_result`, in the order of the checks.
    """
    if attempt.answer is not None:
        if attempt.answer_digest == content:
            return replace(Settlement.from_json(attempt.answer), duplicate=True)
        if delivery is not None and attempt.answer.get("result_id"):
            raise ResultConflict("This attempt has already delivered another result.")
    if delivery is not None:
        _refuse_taken_key(job, fence, delivery)
    if job.lock_token != attempt.lock_token:
        raise LockLost("The job has been taken over.")
    if job.status in TERMINAL:
        raise _ended(job)
    return None


def release(fence: Fence, reason: str = "") -> Settlement:
    """Hand the job back, as at a shutdown: due at once, no budget charged, RELEASE_LIMIT times; then it counts as a lapse."""
    return _settle(fence, digest("release"), lambda job: _release(job, reason))


def _settle(fence: Fence, content: str, act: Callable[[AiRuntimeJob], Settlement], delivery: Delivery | None = None) -> Settlement:
    with transaction.atomic():
        job = lock(fence.job_id)
        if job is None:
            raise JobNotFound(f"There is no job {fence.job_id}.")
        attempt = AiJobAttempt.objects.filter(job=job, attempt_no=fence.attempt_no, lock_token=token_hash(fence.token)).first()
        if attempt is None:
            raise LockLost("This token never was, or no longer is, the one of this attempt.")
        if (before := look(job, attempt, fence, content, delivery)) is not None:
            return before
        late = job.status == JobStatus.RETRYING
        if job.status == JobStatus.CANCEL_REQUESTED:
            settlement = _cancel(job, refused="job_cancelled" if delivery is not None else "")
        else:
            settlement = replace(act(job), late=late)
        AiJobAttempt.objects.filter(pk=attempt.pk).update(answer=settlement.as_json(), answer_digest=content)
    return settlement


def _refuse_taken_key(job: AiRuntimeJob, fence: Fence, delivery: Delivery) -> None:
    taken = AiRuntimeResult.objects.filter(result_idempotency_key=delivery.key(fence)).only("job_id", "attempt_no").first()
    if taken is not None and (taken.job_id, taken.attempt_no) != (job.pk, fence.attempt_no):
        raise ResultConflict("This result idempotency key belongs to another attempt or job.")


def _ended(job: AiRuntimeJob) -> Exception:
    if job.status == JobStatus.CANCELLED:
        return JobCancelled("The job was cancelled.")
    return JobAlreadyFinished(f"The job has ended: it is {job.status}.")


class ProjectorFailed(Exception):
    """The definition's projector raised; the transaction of the success is rolled back."""

    def __init__(self, error: Exception) -> None:
        super().__init__("the projector raised")
        self.trace = safe_trace(error)


def _succeed(
    fence: Fence, delivery: Delivery, definition: JobDefinition, job_input: JobInput, content: str, call: ClosedCall
) -> Settlement | None:
    """The fenced success, then the projector; None when the token does not hold the job. Raises ProjectorFailed, IntegrityError."""
    alone = not definition.projects and not subscribers.handlers_of("job.succeeded")
    with nullcontext() if alone else transaction.atomic():
        answer = success.win(
            job_id=fence.job_id,
            lock_token=token_hash(fence.token),
            worker=fence.worker,
            digest=content,
            key=delivery.key(fence),
            output_hash=delivery.output_hash,
            raw_output=delivery.raw_output,
            validated_output=delivery.validated_output,
            schema_version=delivery.schema_version,
            repairs=list(delivery.repairs),
            call=call,
        )
        if answer is None:
            return None
        try:
            definition.project(delivery.validated_output, job_input)
            if not alone:
                # Now, not by the COMMIT: a reference to nothing, and a database error that the projector has swallowed.
                connection.check_constraints()
        except Exception as error:
            raise ProjectorFailed(error) from None
    return Settlement.from_json(answer)


def _projector_failed(job: AiRuntimeJob, trace: str) -> Settlement:
    logger.error("job %s attempt %s: the projector failed\n%s", job.pk, job.attempt_no, trace)
    return _apply_error(job, AttemptError(ErrorCode.INTERNAL_ERROR, f"projector: {trace}"))


def _store_rejected(job: AiRuntimeJob, fence: Fence, delivery: Delivery, issues: Sequence[Issue]) -> AiRuntimeResult:
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


def _apply_error(job: AiRuntimeJob, error: AttemptError, outcome: AttemptOutcome = AttemptOutcome.FAILED) -> Settlement:
    end_attempt(job, outcome, error_code=str(error.code), internal=error.internal)
    fields = error_fields(error.code, error.internal)
    data = {"error_code": str(error.code)}
    if error.retryable and job.status == JobStatus.RETRYING:
        # A late holder's failure: the retry that its lapse has scheduled stands, nothing is charged, and nobody holds the job any more.
        AiRuntimeJob.objects.filter(pk=job.pk, status=JobStatus.RETRYING, lock_token=job.lock_token).update(**NO_HOLDER)
        return _settlement(job, next_attempt_at=job.available_at)
    if error.retryable and _budget_left(job, error.code):
        seconds = delay_seconds(job.retry_count + 1, at_least=error.retry_after_seconds)
        step(
            job, JobStatus.RETRYING, "job.retry_scheduled", data={**data, "delay_seconds": round(seconds, 3)},
            retry_count=job.retry_count + 1, available_at=due_in(seconds), lock_until=None, **NO_HOLDER, **fields,
        )  # fmt: skip
        job.refresh_from_db()
        return _settlement(job, next_attempt_at=job.available_at)
    step(job, JobStatus.FAILED, "job.failed", data=data, **fields)
    return _settlement(job)


def _budget_left(job: AiRuntimeJob, code: ErrorCode) -> bool:
    limit = RULES[code].retry_limit
    if job.retry_count >= job.max_retry_count:
        return False
    # The attempt that just ended is counted too, hence "at most".
    return limit is None or AiJobAttempt.objects.filter(job=job, error_code=code).count() <= limit


def _cancel(job: AiRuntimeJob, *, refused: str) -> Settlement:
    end_attempt(job, AttemptOutcome.CANCELLED, error_code=ErrorCode.CANCELLED)
    step(job, JobStatus.CANCELLED, "job.cancelled", **error_fields(ErrorCode.CANCELLED, ""))
    return _settlement(job, refused=refused)


def _release(job: AiRuntimeJob, reason: str) -> Settlement:
    if job.status == JobStatus.RETRYING:
        # Lapsed already: the retry stands, its late holder lets go.
        AiRuntimeJob.objects.filter(pk=job.pk, status=JobStatus.RETRYING, lock_token=job.lock_token).update(**NO_HOLDER)
        return _settlement(job, next_attempt_at=job.available_at)
    end_attempt(job, AttemptOutcome.RELEASED)
    if job.release_count >= RELEASE_LIMIT:
        lapse(job, keep_token=False)
        return _settlement(job)
    step(
        job, JobStatus.RETRYING, "job.released", data={"reason": reason[:200]},
        release_count=job.release_count + 1, available_at=due_in(0), lock_until=None, **NO_HOLDER,
    )  # fmt: skip
    notify.wake(job.lane)
    return _settlement(job)


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


def _settlement(job: AiRuntimeJob, **extra: Any) -> Settlement:
    return Settlement(
        job_status=JobStatus(job.status),
        attempt_no=job.attempt_no,
        retry_count=job.retry_count,
        max_retry_count=job.max_retry_count,
        **extra,
    )
