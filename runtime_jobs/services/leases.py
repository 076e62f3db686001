"""Keeping a lease: renewals in bulk for the engine, heartbeats one by one for runtimes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import DateTimeField, ExpressionWrapper, F
from django.db.models.functions import Greatest, Least, Now
from psycopg.types.json import Jsonb

from runtime_jobs.errors import JobAlreadyFinished, JobCancelled, JobNotFound, LockLost, ServiceError
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob
from runtime_jobs.redaction import Secret, redact
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.masking import masked_json, secrets_of
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.services.transitions import lock, step
from runtime_jobs.states import LEASED, TERMINAL, JobStatus, Lane

_RENEW = """
    UPDATE ai_runtime_job j SET
        lock_until = greatest(j.lock_until, least(statement_timestamp() + make_interval(secs => %(lease)s),
                              j.locked_at + make_interval(secs => j.timeout_seconds + %(grace)s))),
        updated_at = statement_timestamp()
    FROM unnest(%(ids)s::uuid[], %(hashes)s::text[]) AS held(id, lock_token)
    WHERE j.id = held.id AND j.lock_token = held.lock_token AND j.status IN ('cancel_requested', 'running')
    RETURNING j.id, j.status
"""


def renew(claims: Sequence[Claim], *, lease_seconds: float, grace_seconds: float) -> Mapping[UUID, JobStatus]:
    """Extend the leases that are still held: the status of each (cancel_requested brings the wish back); a missing one is lost.

    A lease never moves backwards, and never beyond the attempt's deadline plus `grace_seconds`: a hung attempt cannot hold on for ever.
    """
    # In one order, as the successes that share a transaction are written (services/success.py).
    claims = sorted(claims, key=lambda held: held.job_id)
    parameters: dict[str, Any] = {
        "ids": [held.job_id for held in claims],
        "hashes": [token_hash(held.token) for held in claims],
        "lease": lease_seconds,
        "grace": grace_seconds,
    }
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, parameters)
        return {job_id: JobStatus(status) for job_id, status in cursor.fetchall()}


def held_status(held: Claim) -> JobStatus | None:
    """The job's status while this claim holds it; None once it is lost or over."""
    status = AiRuntimeJob.objects.filter(pk=held.job_id, lock_token=token_hash(held.token)).values_list("status", flat=True).first()
    return JobStatus(status) if status in LEASED else None


@dataclass(frozen=True)
class Beat:
    """What a heartbeat is answered."""

    status: JobStatus
    lock_until: datetime
    late: bool  # the lease had run out, nobody had taken the job, and it goes on


def beat(
    job_id: UUID,
    *,
    attempt_no: int,
    token: Secret,
    lease_seconds: float,
    progress: int | None = None,
    progress_message: str | None = None,
    checkpoint: Any = None,
) -> Beat:
    """One heartbeat of an attempt: extend its lease, never backwards and never beyond its deadline, and note its progress.

    The token fences, the clock does not: a late holder whose job is retrying and not yet taken goes on with the same attempt, as long as
    its deadline has not passed. Raises JobNotFound, LockLost, JobCancelled, JobAlreadyFinished; nothing has changed then.
    """
    with transaction.atomic():
        job = lock(job_id)
        if job is None:
            raise JobNotFound(f"There is no job {job_id}.")
        if job.lock_token != token_hash(token) or job.attempt_no != attempt_no:
            raise LockLost("The job has been taken over.")
        if job.status == JobStatus.CANCELLED:
            raise JobCancelled("The job was cancelled.")
        if job.status in TERMINAL:
            raise JobAlreadyFinished(f"The job has ended: it is {job.status}.")
        late = job.status == JobStatus.RETRYING
        noted = {
            name: value
            for name, value in (("progress", progress), ("progress_message", progress_message), ("checkpoint", checkpoint))
            if value is not None
        }
        until = _until(job, lease_seconds)
        if late:
            _resume(job, until, noted)
        else:
            AiRuntimeJob.objects.filter(pk=job.pk, lock_token=job.lock_token, status__in=LEASED).update(
                lock_until=Greatest(F("lock_until"), until), updated_at=Now(), **noted
            )
        job.refresh_from_db(fields=["status", "lock_until"])
    assert job.lock_until is not None  # noqa: S101 - the CHECK on leased rows
    return Beat(JobStatus(job.status), job.lock_until, late)


def _until(job: AiRuntimeJob, lease_seconds: float) -> Any:
    deadline = ExpressionWrapper(F("locked_at") + timedelta(seconds=job.timeout_seconds), output_field=DateTimeField())
    return Least(ExpressionWrapper(Now() + timedelta(seconds=lease_seconds), output_field=DateTimeField()), deadline)


def _resume(job: AiRuntimeJob, until: Any, noted: dict[str, Any]) -> None:
    if not AiRuntimeJob.objects.filter(pk=job.pk, locked_at__gt=Now() - timedelta(seconds=job.timeout_seconds)).exists():
        raise LockLost("The attempt's deadline has passed; the job will be tried again.")
    # Whoever it was offered to meanwhile finds it leased.
    step(job, JobStatus.RUNNING, "job.resumed", lock_until=until, offered_to=None, offer_until=None, **noted)
    AiJobAttempt.objects.filter(job=job, attempt_no=job.attempt_no).update(ended_at=None, outcome="", error_code="", internal_error="")


@dataclass(frozen=True)
class Pulse:
    """One job's part of a runtime's heartbeat. What is None stays as it is."""

    job_id: UUID
    attempt_no: int
    token: Secret
    lease_seconds: float
    progress: int | None = None
    progress_message: str | None = None
    checkpoint: Any = None


# All rows of a heartbeat at once, locked in one order, so that two deliveries of one heartbeat cannot block each other.
_BEAT = """
    WITH given AS (
        SELECT * FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(hashes)s::text[], %(leases)s::float8[], %(progress)s::int[],
                             %(messages)s::text[], %(checkpoints)s::jsonb[])
            AS g(id, attempt_no, lock_token, lease, progress, message, checkpoint)
    ), held AS MATERIALIZED (
        SELECT j.id FROM ai_runtime_job j JOIN given g ON j.id = g.id AND j.attempt_no = g.attempt_no AND j.lock_token = g.lock_token
        WHERE j.locked_by = %(worker)s AND j.lane = 'runtime' AND j.job_type = ANY(%(job_types)s::text[])
          AND CASE j.status WHEN 'running' THEN true WHEN 'cancel_requested' THEN true ELSE false END
        ORDER BY j.id FOR UPDATE OF j
    ), beaten AS (
        UPDATE ai_runtime_job j SET
            lock_until = greatest(j.lock_until, least(statement_timestamp() + make_interval(secs => g.lease),
                                  j.locked_at + make_interval(secs => j.timeout_seconds))),
            progress = coalesce(g.progress, j.progress), progress_message = coalesce(g.message, j.progress_message),
            checkpoint = coalesce(g.checkpoint, j.checkpoint), updated_at = statement_timestamp()
        FROM given g, held h WHERE j.id = g.id AND j.id = h.id
        RETURNING j.id, j.status, j.lock_until
    )
    SELECT id, status, lock_until FROM beaten
"""


def beat_many(pulses: Sequence[Pulse], *, worker: str, job_types: Collection[str]) -> list[Beat | ServiceError]:
    """A runtime's heartbeat for several jobs (each at most once): what each is answered, in the order given.

    The key is taken out of messages and checkpoints. One statement serves all that are held. A job whose lease has lapsed is resumed by
    `beat`, and one that is lost is looked at, one by one.
    """
    talking = {pulse.job_id for pulse in pulses if pulse.progress_message or pulse.checkpoint is not None}
    if talking:
        secrets = secrets_of(talking)
        pulses = [_without_key(pulse, secrets.get(pulse.job_id, ())) for pulse in pulses]
    parameters: dict[str, Any] = {
        "ids": [pulse.job_id for pulse in pulses],
        "attempts": [pulse.attempt_no for pulse in pulses],
        "hashes": [token_hash(pulse.token) for pulse in pulses],
        "leases": [pulse.lease_seconds for pulse in pulses],
        "progress": [pulse.progress for pulse in pulses],
        "messages": [pulse.progress_message for pulse in pulses],
        "checkpoints": [None if pulse.checkpoint is None else Jsonb(pulse.checkpoint) for pulse in pulses],
        "worker": worker,
        "job_types": list(job_types),
    }
    with connection.cursor() as cursor:
        cursor.execute(_BEAT, parameters)
        beaten = {job_id: Beat(JobStatus(status), until, late=False) for job_id, status, until in cursor.fetchall()}
    missing = [pulse.job_id for pulse in pulses if pulse.job_id not in beaten]
    known = _known(missing, job_types) if missing else {}
    return [beaten.get(pulse.job_id) or _beat_missing(pulse, worker, known.get(pulse.job_id)) for pulse in pulses]


def _without_key(pulse: Pulse, secrets: Collection[Secret]) -> Pulse:
    message = None if pulse.progress_message is None else redact(pulse.progress_message, secrets, limit=200)
    return replace(pulse, progress_message=message, checkpoint=masked_json(pulse.checkpoint, secrets))


def _known(job_ids: Sequence[UUID], job_types: Collection[str]) -> dict[UUID, AiRuntimeJob]:
    jobs = AiRuntimeJob.objects.only("id", "status", "attempt_no", "lock_token", "locked_by")
    return jobs.in_bulk(jobs.filter(pk__in=job_ids, lane=Lane.RUNTIME, job_type__in=job_types).values_list("pk", flat=True))


def _beat_missing(pulse: Pulse, worker: str, job: AiRuntimeJob | None) -> Beat | ServiceError:
    """A pulse that the statement for all did not find: late, or lost."""
    if job is None:
        return JobNotFound(f"There is no job {pulse.job_id}.")
    if job.locked_by != worker or job.lock_token != token_hash(pulse.token):
        return LockLost("The job has been taken over.")
    try:
        return beat(
            pulse.job_id,
            attempt_no=pulse.attempt_no,
            token=pulse.token,
            lease_seconds=pulse.lease_seconds,
            progress=pulse.progress,
            progress_message=pulse.progress_message,
            checkpoint=pulse.checkpoint,
        )
    except ServiceError as lost:
        return lost
