"""How an attempt ends: with a result, a failure or a release, of the engine and of runtimes alike.

Each is one transaction with the job's row locked first, and looks in this order: replay · another answer of the same attempt · the fence ·
a job that has ended · a cancel that was requested · the table of states (services/outcomes.py). The answer is stored with the attempt, so
that a repeat gets the same one for as long as the job is kept.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from django.db import IntegrityError, connection, transaction

from runtime_jobs import prepared, subscribers
from runtime_jobs.errors import AttemptError, JobAlreadyFinished, JobCancelled, JobNotFound, LockLost, ResultConflict
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob
from runtime_jobs.redaction import safe_trace
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.services import success, usage
from runtime_jobs.services.outcomes import apply_error, end_cancelled, hand_back, projector_failed, store_rejected
from runtime_jobs.services.payloads import digest
from runtime_jobs.services.settlements import Delivery, Fence, Settlement
from runtime_jobs.services.success import Success
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.services.transitions import lock
from runtime_jobs.services.usage import NO_CALL, ClosedCall
from runtime_jobs.states import TERMINAL, AttemptOutcome, JobStatus


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
        return _succeed(fence, delivery, definition, job_input, call)

    def act(job: AiRuntimeJob) -> Settlement:
        try:
            with transaction.atomic():
                settlement = attempt()
            if settlement is not None:
                return settlement
            trace = "a job that was locked and held could not be ended"
        except Exception as error:  # a projector is foreign code: whatever it raises ends this attempt, not the worker
            trace = safe_trace(error)
        return projector_failed(job, trace)

    try:
        settlement = attempt()
    except ProjectorFailed as failed:
        # It has run once and failed; it is not run again for this attempt.
        trace = failed.trace
        usage.close_call(call)
        return _settle(fence, content, lambda job: projector_failed(job, trace), delivery)
    except IntegrityError:
        # Its key is taken, or an event came between: the rows say which, once the job is locked.
        usage.close_call(call)
        settlement = None
    return settlement or _settle(fence, content, act, delivery)


def reject_result(fence: Fence, delivery: Delivery, error: AttemptError) -> Settlement:
    """Store a result that the output chain refused, as evidence, and go on as its error says. Raises as `submit_result`."""

    def act(job: AiRuntimeJob) -> Settlement:
        result = store_rejected(job, fence, delivery, error.issues)
        settlement = apply_error(job, error, AttemptOutcome.REJECTED)
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
    return _settle(fence, content, lambda job: apply_error(job, error))


def release(fence: Fence, reason: str = "") -> Settlement:
    """Hand the job back, as at a shutdown: due at once, no budget charged, RELEASE_LIMIT times; then it counts as a lapse."""
    return _settle(fence, digest("release"), lambda job: hand_back(job, reason))


def foresee(job: AiRuntimeJob, attempt: AiJobAttempt, fence: Fence, content: str, delivery: Delivery) -> Settlement | None:
    """What a result would meet, without a lock and without changing anything, so that no work is done for nothing.

    As `_look`; who has the key of the result is only asked where the caller chose it: ours holds the job and the attempt.
    """
    return _look(job, attempt, fence, content, delivery, also_key=delivery.idempotency_key is not None)


def _look(
    job: AiRuntimeJob, attempt: AiJobAttempt, fence: Fence, content: str, delivery: Delivery | None = None, *, also_key: bool = True
) -> Settlement | None:
    """The stored answer of a repeat; None when the call may go on. Raises as `submit_result`, in the order of the checks."""
    if attempt.answer is not None:
        if attempt.answer_digest == content:
            return replace(Settlement.from_json(attempt.answer), duplicate=True)
        if delivery is not None and attempt.answer.get("result_id"):
            raise ResultConflict("This attempt has already delivered another result.")
    if delivery is not None and also_key:
        _refuse_taken_key(job, fence, delivery)
    if job.lock_token != attempt.lock_token:
        raise LockLost("The job has been taken over.")
    if job.status in TERMINAL:
        raise _ended(job)
    return None


def _settle(fence: Fence, content: str, act: Callable[[AiRuntimeJob], Settlement], delivery: Delivery | None = None) -> Settlement:
    with transaction.atomic():
        job = lock(fence.job_id)
        if job is None:
            raise JobNotFound(f"There is no job {fence.job_id}.")
        attempt = AiJobAttempt.objects.filter(job=job, attempt_no=fence.attempt_no, lock_token=token_hash(fence.token)).first()
        if attempt is None:
            raise LockLost("This token never was, or no longer is, the one of this attempt.")
        if (before := _look(job, attempt, fence, content, delivery)) is not None:
            return before
        late = job.status == JobStatus.RETRYING
        if job.status == JobStatus.CANCEL_REQUESTED:
            settlement = end_cancelled(job, refused="job_cancelled" if delivery is not None else "")
        else:
            settlement = replace(act(job), late=late)
        AiJobAttempt.objects.filter(pk=attempt.pk).update(answer=settlement.as_json(), answer_digest=content)
    return settlement


_TAKEN = "SELECT job_id, attempt_no FROM ai_runtime_result WHERE result_idempotency_key = %(key)s"


def _refuse_taken_key(job: AiRuntimeJob, fence: Fence, delivery: Delivery) -> None:
    if any((job_id, attempt_no) != (job.pk, fence.attempt_no) for job_id, attempt_no in prepared.run(_TAKEN, {"key": delivery.key(fence)})):
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


def ends_alone(definition: JobDefinition) -> bool:
    """Whether a success of the definition is nothing but its one statement: no projector, nobody who waits for the event."""
    return not definition.projects and not subscribers.handlers_of("job.succeeded")


def success_of(fence: Fence, delivery: Delivery, call: ClosedCall) -> Success:
    """What `success.win` writes for this delivery."""
    return Success(
        job_id=fence.job_id,
        lock_token=token_hash(fence.token),
        worker=fence.worker,
        digest=delivery.content(fence),
        key=delivery.key(fence),
        output_hash=delivery.output_hash,
        raw_output=delivery.raw_output,
        validated_output=delivery.validated_output,
        schema_version=delivery.schema_version,
        repairs=delivery.repairs,
        call=call,
    )


def submit_plain_results(successes: Sequence[Success]) -> list[Settlement | None]:
    """End jobs whose definitions `ends_alone` in one transaction; None for each that `submit_result` has to look at more closely.

    Raises IntegrityError as `success.win`: `submit_result` then tells for each what is the matter.
    """
    answers = success.win(successes)
    return [Settlement.from_json(answer) if (answer := answers.get(one.lock_token)) else None for one in successes]


def _succeed(fence: Fence, delivery: Delivery, definition: JobDefinition, job_input: JobInput, call: ClosedCall) -> Settlement | None:
    """The fenced success, then the projector; None when the token does not hold the job. Raises ProjectorFailed, IntegrityError."""
    alone = ends_alone(definition)
    with nullcontext() if alone else transaction.atomic():
        (settlement,) = submit_plain_results([success_of(fence, delivery, call)])
        if settlement is None:
            return None
        try:
            definition.project(delivery.validated_output, job_input)
            if not alone:
                # Now, not by the COMMIT: a reference to nothing, and a database error that the projector has swallowed. As
                # `connection.check_constraints`, in one round trip.
                with connection.cursor() as cursor:
                    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
        except Exception as error:
            raise ProjectorFailed(error) from None
    return settlement
