"""Keeping a lease: renewals in bulk for the engine, heartbeats one by one for runtimes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import DateTimeField, ExpressionWrapper, F
from django.db.models.functions import Greatest, Least, Now

from runtime_jobs.errors import JobAlreadyFinished, JobCancelled, JobNotFound, LockLost
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob
from runtime_jobs.redaction import Secret
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.services.transitions import lock, step
from runtime_jobs.states import LEASED, TERMINAL, JobStatus

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
    step(job, JobStatus.RUNNING, "job.resumed", lock_until=until, **noted)
    AiJobAttempt.objects.filter(job=job, attempt_no=job.attempt_no).update(ended_at=None, outcome="", error_code="", internal_error="")
