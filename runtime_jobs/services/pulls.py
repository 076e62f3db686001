"""How runtimes take jobs: claims that can be repeated when their answer was lost on the way."""

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from runtime_jobs import prepared
from runtime_jobs.errors import JobAlreadyFinished, JobCancelled, JobNotFound, NotLockable
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob
from runtime_jobs.services import claims
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.tokens import derived_again
from runtime_jobs.states import TERMINAL, JobStatus, Lane


def pull(
    *, service_token_id: UUID, worker: str, request_id: UUID, job_types: Sequence[str], count: int, lease_seconds: float
) -> list[Claim]:
    """Lease up to `count` jobs. The same token, worker and request get the same leases again while they are held, not extended."""
    with transaction.atomic():
        _one_at_a_time(service_token_id, worker, request_id)
        return _given_before(service_token_id, worker, request_id) or claims.claim(
            lane=Lane.RUNTIME,
            worker=worker,
            job_types=job_types,
            count=count,
            lease_seconds=lease_seconds,
            service_token_id=service_token_id,
            request_id=request_id,
        )


def asked_before(*, service_token_id: UUID, worker: str, request_id: UUID) -> bool:
    """Whether this request has taken anything before. It is cheap, and looks at no job."""
    return AiJobAttempt.objects.filter(service_token_id=service_token_id, worker=worker, request_id=request_id).exists()


def lock(job_id: UUID, *, service_token_id: UUID, worker: str, request_id: UUID, job_types: Collection[str], lease_seconds: float) -> Claim:
    """Lease this job, repeatably as `pull`.

    Raises JobNotFound (also for a type that is not in `job_types`), LockConflict, NotLockable, JobCancelled, JobAlreadyFinished.
    """
    must_exist(job_id, job_types)
    with transaction.atomic():
        _one_at_a_time(service_token_id, worker, request_id)
        before = _given_before(service_token_id, worker, request_id, job_id=job_id)
        if before:
            return before[0]
        try:
            return claims.lock_job(
                job_id,
                lane=Lane.RUNTIME,
                worker=worker,
                lease_seconds=lease_seconds,
                service_token_id=service_token_id,
                request_id=request_id,
            )
        except NotLockable as refusal:
            if refusal.details.get("status") not in TERMINAL:
                raise
            ended = JobStatus(refusal.details["status"])
    raise ended_error(ended)


def ended_error(status: JobStatus | str) -> JobCancelled | JobAlreadyFinished:
    """Why nothing more can be done to a job that has ended."""
    if status == JobStatus.CANCELLED:
        return JobCancelled("The job was cancelled.", status=str(status))
    return JobAlreadyFinished(f"The job has ended: it is {status}.", status=str(status))


def must_exist(job_id: UUID, job_types: Collection[str]) -> None:
    """Raises JobNotFound, in the same words whether there is no such job or none that the caller may know of."""
    if not AiRuntimeJob.objects.filter(pk=job_id, lane=Lane.RUNTIME, job_type__in=job_types).exists():
        raise JobNotFound(f"There is no job {job_id}.")


class Described(NamedTuple):
    """What an offer or a lease tells of a job."""

    id: UUID
    job_type: str
    target_type: str
    target_id: str
    priority: int
    attempt_no: int
    input_schema_version: str
    output_schema_version: str
    prompt_version: str
    model_provider: str
    model_name: str
    api_key_mode: str
    timeout_seconds: int
    snapshot_id: UUID
    traceparent: str
    created_at: datetime
    checkpoint: Any
    clock: datetime  # the database's


_DESCRIBED = """
    SELECT id, job_type, target_type, target_id, priority, attempt_no, input_schema_version, output_schema_version, prompt_version,
           model_provider, model_name, api_key_mode, timeout_seconds, snapshot_id, traceparent, created_at, checkpoint::text,
           statement_timestamp()
    FROM ai_runtime_job WHERE id = ANY(%(ids)s::uuid[])
"""


def described(job_ids: Collection[UUID]) -> dict[UUID, Described]:
    """By job id. Jobs that there are not are missing."""
    found = {}
    for *known, checkpoint, clock in prepared.run(_DESCRIBED, {"ids": list(job_ids)}):
        found[known[0]] = Described._make([*known, None if checkpoint is None else json.loads(checkpoint), clock])
    return found


def server_time() -> datetime:
    """The database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        row = cursor.fetchone()
    return row[0]  # type: ignore[no-any-return]


_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('pull:' || %(request)s, 0))"


def _one_at_a_time(service_token_id: UUID, worker: str, request_id: UUID) -> None:
    """A request and its repeat, both on their way: the second must see what the first took. The lock ends with the transaction."""
    prepared.run(_ONE_AT_A_TIME, {"request": f"{service_token_id}:{worker}:{request_id}"})


_GIVEN_BEFORE = """
    SELECT j.id, a.attempt_no, a.token_nonce, a.lock_token, j.job_type, j.locked_at, j.lock_until, j.timeout_seconds
    FROM ai_job_attempt a JOIN ai_runtime_job j ON j.id = a.job_id AND j.lock_token = a.lock_token
    WHERE a.service_token_id = %(service_token)s AND a.worker = %(worker)s AND a.request_id = %(request_id)s
      AND j.status IN ('cancel_requested', 'running')
    ORDER BY a.id
"""


def _given_before(service_token_id: UUID, worker: str, request_id: UUID, job_id: UUID | None = None) -> list[Claim]:
    rows = prepared.run(_GIVEN_BEFORE, {"service_token": service_token_id, "worker": worker, "request_id": request_id})
    found = []
    for held, attempt_no, nonce, lock_token, *rest in rows:
        token = derived_again(nonce, lock_token)
        if token is not None and job_id in (None, held):
            found.append(Claim(held, attempt_no, token, worker, *rest))
    return found
