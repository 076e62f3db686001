"""One attempt, from a job to its end: a function a stage, in the customer's order.

PREPARE    read job · terminal? · cancel requested? · definition · queued or retrying → running · attempt_no + 1
RESOLVE    snapshot · input schema version · credential · abort signal with the business timeout
EXECUTE    cancel check · the definition's executor calls the gateway
VALIDATE   JSON repair · output schema · business validation · reference validation
PROJECT    cancel check · fenced success, projector, result, attempt, event: one transaction (services/terminal.py)
"""

import hashlib
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError

from runtime_jobs import queries, registry
from runtime_jobs.abort import Aborted, AbortReason, AbortSignal
from runtime_jobs.engine.connections import database, persist, without_database
from runtime_jobs.engine.provider import AttemptGateway
from runtime_jobs.engine.writes import Writes, WritesAlone
from runtime_jobs.errors import (
    AttemptError,
    ErrorCode,
    JobAlreadyFinished,
    JobCancelled,
    LockConflict,
    LockLost,
    NotLockable,
    ResultConflict,
)
from runtime_jobs.gateway import AiGatewayService
from runtime_jobs.model_call import ModelAnswer, ProviderTarget
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.queries import WorkItem
from runtime_jobs.redaction import safe_trace, storable
from runtime_jobs.registry import Execution, JobDefinition, JobInput
from runtime_jobs.services import claims, credentials, lapses, terminal
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.payloads import digest, text_of
from runtime_jobs.services.settlements import Delivery, Fence, Settlement
from runtime_jobs.states import TERMINAL, JobStatus
from runtime_jobs.validation import chain

logger = logging.getLogger(__name__)

_ALONE = WritesAlone()

# Others were faster, or the job ended meanwhile: nothing of ours is left to do.
_OVERTAKEN = (LockLost, JobCancelled, JobAlreadyFinished, ResultConflict)


@dataclass(frozen=True)
class Work:
    """What RESOLVE found."""

    definition: JobDefinition
    job: JobInput
    target: ProviderTarget


def execute_job(job_id: UUID, *, worker: str, service: AiGatewayService) -> Settlement | None:
    """Execute one job here and now, as the lanes do with those that they claim. None when there is nothing to do."""
    claim = prepare(job_id, worker=worker)
    return None if claim is None else run_attempt(claim, AbortSignal(claim.timeout_seconds), service)


def prepare(job_id: UUID, *, worker: str) -> Claim | None:
    """PREPARE, step by step. (A lane's batch claim does the same checks in its one statement.)"""
    job = AiRuntimeJob.objects.filter(pk=job_id).first()
    if job is None or job.status in TERMINAL or job.status == JobStatus.CANCEL_REQUESTED:
        return None
    if registry.find(job.job_type) is None:
        lapses.give_up_unknown_type(job.pk)
        return None
    try:
        return claims.lock_job(job.pk, lane=job.lane, worker=worker, lease_seconds=settings.ENGINE_LEASE_SECONDS)
    except (LockConflict, NotLockable):
        return None


def run_attempt(
    claim: Claim, signal: AbortSignal, service: AiGatewayService, item: WorkItem | None = None, writes: Writes = _ALONE
) -> Settlement | None:
    """Everything after the claim; `item` is what was read with it. Never raises: whatever happens ends this attempt and is logged."""
    started = time.monotonic()
    fence = Fence(claim.job_id, claim.attempt_no, claim.token, claim.worker)
    try:
        settlement, error_code = _run(claim, item, fence, signal, service, writes)
        outcome = str(settlement.job_status)
    except _OVERTAKEN as lost:
        settlement, outcome, error_code = None, "overtaken", lost.code
    except Exception as error:
        # Not even the end could be written (the database is away): the lease lapses and the job goes on elsewhere.
        logger.error("job %s attempt %s could not be ended\n%s", claim.job_id, claim.attempt_no, safe_trace(error))
        settlement, outcome, error_code = None, "unknown", str(ErrorCode.INTERNAL_ERROR)
    _log_end(claim, outcome, error_code, time.monotonic() - started)
    return settlement


def _log_end(claim: Claim, outcome: str, error_code: str, seconds: float) -> None:
    """One line per attempt, for people as text and for machines as fields: ids, names and codes only."""
    definition = registry.find(claim.job_type)
    fields = {
        "job": str(claim.job_id),
        "attempt": claim.attempt_no,
        "type": claim.job_type,
        "lane": str(definition.lane) if definition else "",
        "worker": claim.worker,
        "outcome": outcome,
        "error_code": error_code,
        "seconds": round(seconds, 3),
    }
    logger.info(" ".join(f"{name}=%({name})s" for name in fields), fields, extra=fields)


def _run(
    claim: Claim, item: WorkItem | None, fence: Fence, signal: AbortSignal, service: AiGatewayService, writes: Writes
) -> tuple[Settlement, str]:
    """How the attempt ended, and the code of what ended it; empty for a success and a hand-back."""
    try:
        work = resolve(item or persist(lambda: queries.work_item(claim.job_id)))
        gateway = AttemptGateway(service, claim, work.target, signal, writes)
        with gateway.closed_on_error():
            answer = execute(work, gateway, signal)
            delivery = validate(work, answer)
            signal.check()
        settlement = project(work, fence, delivery, gateway, writes)
        # Beside a success: a cancel that came last, or a projector that raised.
        return settlement, "" if settlement.job_status == JobStatus.SUCCEEDED else settlement.refused or str(ErrorCode.INTERNAL_ERROR)
    except Aborted as aborted:
        return _aborted(fence, aborted.reason)
    except OutputRefused as refused:
        return _refused(fence, refused), str(refused.error.code)
    except AttemptError as error:
        return _failed(fence, error), str(error.code)
    except _OVERTAKEN:
        raise
    except Exception as error:
        logger.error("job %s attempt %s failed unexpectedly\n%s", claim.job_id, claim.attempt_no, safe_trace(error))
        return _failed(fence, AttemptError(ErrorCode.INTERNAL_ERROR, safe_trace(error))), str(ErrorCode.INTERNAL_ERROR)


def resolve(item: WorkItem) -> Work:
    """RESOLVE: definition, snapshot, schema version, credential; all was read with the claim. Raises AttemptError."""
    definition = registry.find(item.job.job_type)
    if definition is None:
        raise AttemptError(ErrorCode.UNKNOWN_JOB_TYPE, f"this worker has no definition of {item.job.job_type}")
    if digest(item.job.input_schema_version, text_of(item.job.payload)) != item.content_hash:
        raise AttemptError(ErrorCode.INTERNAL_ERROR, "the snapshot does not have the content it was stored with", retryable=False)
    if item.job.input_schema_version not in definition.input_schemas:
        known = ", ".join(definition.input_schemas)
        raise AttemptError(ErrorCode.UNSUPPORTED_INPUT_SCHEMA, f"input schema {item.job.input_schema_version}; supported: {known}")
    target = credentials.open_sealed(item.credential, mode=item.api_key_mode, user_id=item.job.user_id, model=item.model_name)
    return Work(definition, item.job, target)


def execute(work: Work, gateway: AttemptGateway, signal: AbortSignal) -> ModelAnswer:
    """EXECUTE: the definition's executor, outside any transaction and without a database connection. Raises AttemptError or Aborted."""
    signal.check()
    with without_database():
        answer = work.definition.execute(Execution(work.job, gateway, signal))
    signal.check()
    return answer


class OutputRefused(Exception):
    """The output chain did not accept the answer. It is stored all the same, as evidence."""

    def __init__(self, delivery: Delivery, error: AttemptError) -> None:
        super().__init__(str(error.code))
        self.delivery, self.error = delivery, error


def validate(work: Work, answer: ModelAnswer) -> Delivery:
    """VALIDATE: the output chain. Raises OutputRefused."""
    raw = storable(answer.text)
    delivery = Delivery(raw, hashlib.sha256(raw.encode()).hexdigest(), work.job.output_schema_version)
    try:
        with database():
            validated = chain.validate(work.definition, work.job, answer)
    except AttemptError as error:
        raise OutputRefused(delivery, error) from None
    return replace(delivery, validated_output=validated.output, repairs=validated.repairs)


def project(work: Work, fence: Fence, delivery: Delivery, gateway: AttemptGateway, writes: Writes) -> Settlement:
    """PROJECT and COMPLETE, in one transaction. Raises what `submit_result` raises."""
    call = gateway.take_last_call()
    if terminal.ends_alone(work.definition):
        with suppress(IntegrityError):
            if (settlement := writes.succeed(terminal.success_of(fence, delivery, call))) is not None:
                return settlement
    return persist(lambda: terminal.submit_result(fence, delivery, work.definition, work.job, call))


def _refused(fence: Fence, refused: OutputRefused) -> Settlement:
    return persist(lambda: terminal.reject_result(fence, refused.delivery, refused.error))


def _failed(fence: Fence, error: AttemptError) -> Settlement:
    return persist(lambda: terminal.submit_failure(fence, error))


def _aborted(fence: Fence, reason: AbortReason) -> tuple[Settlement, str]:
    if reason == AbortReason.LEASE_LOST:
        raise LockLost("The lease was lost while the attempt ran.")
    if reason == AbortReason.TIMEOUT:
        timeout = AttemptError(ErrorCode.PROVIDER_TIMEOUT, "the attempt's own deadline passed")
        return _failed(fence, timeout), str(timeout.code)
    # A cancel that was requested ends here as cancelled; at a shutdown the job goes on elsewhere.
    settlement = persist(lambda: terminal.release(fence, str(reason)))
    return settlement, str(ErrorCode.CANCELLED) if settlement.job_status == JobStatus.CANCELLED else ""
