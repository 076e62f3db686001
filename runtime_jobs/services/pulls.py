"""How runtimes take jobs: claims that can be repeated when their answer was lost on the way."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from runtime_jobs.errors import JobAlreadyFinished, JobCancelled, JobNotFound, NotLockable
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob
from runtime_jobs.services import claims
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.tokens import derived_again
from runtime_jobs.states import LEASED, TERMINAL, JobStatus, Lane


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


def described(job_ids: Collection[UUID]) -> dict[UUID, Any]:
    """What an offer or a lease tells of these jobs, with the database's time as `clock`."""
    rows: QuerySet[AiRuntimeJob] = AiRuntimeJob.objects.only(
        "id", "job_type", "target_type", "target_id", "priority", "attempt_no", "input_schema_version", "output_schema_version",
        "prompt_version", "model_provider", "model_name", "api_key_mode", "timeout_seconds", "snapshot", "traceparent", "created_at",
        "checkpoint",
    )  # fmt: skip
    return {row.pk: row for row in rows.filter(pk__in=job_ids).annotate(clock=Now())}


def server_time() -> datetime:
    """The database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        row = cursor.fetchone()
    return row[0]  # type: ignore[no-any-return]


def _one_at_a_time(service_token_id: UUID, worker: str, request_id: UUID) -> None:
    """A request and its repeat, both on their way: the second must see what the first took. The lock ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('pull:' || %s || ':' || %s || ':' || %s, 0))",
            [str(service_token_id), worker, str(request_id)],
        )


def _given_before(service_token_id: UUID, worker: str, request_id: UUID, **only: Any) -> list[Claim]:
    attempts = AiJobAttempt.objects.select_related("job").filter(
        service_token_id=service_token_id,
        worker=worker,
        request_id=request_id,
        job__lock_token=F("lock_token"),
        job__status__in=LEASED,
        **only,
    )
    found = []
    for attempt in attempts.order_by("id"):
        job, token = attempt.job, derived_again(attempt.token_nonce, attempt.lock_token)
        if token is not None and job.locked_at is not None and job.lock_until is not None:
            found.append(Claim(job.pk, attempt.attempt_no, token, worker, job.job_type, job.locked_at, job.lock_until, job.timeout_seconds))
    return found
