"""Taking leases back that were not renewed, and giving up on jobs that no worker knows: one row at a time, and a completion always wins."""

from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.functions import Now

from runtime_jobs.errors import ErrorCode, JobNotFound, JobNotLeased
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services import notify, usage, workers
from runtime_jobs.services.events import Actor
from runtime_jobs.services.outcomes import lapse
from runtime_jobs.services.selection import QUEUED_MODELS, QUEUED_OF_MODEL, RETRYING_MODELS, RETRYING_OF_MODEL
from runtime_jobs.services.transitions import NO_HOLDER, due_in, end_attempt, error_fields, lock, step
from runtime_jobs.states import LEASED, WAITING, AttemptOutcome, JobStatus

BATCH = 100

# A lease lapses only if its holder could have renewed it: not before the database has been up for a whole lease again. For runtimes also
# not before one web process has been up without a break for a lease, up to the lease's end at least: one that fell silent before does not
# speak for the time after, however short its silence.
_EXPIRED = """
    SELECT id, lock_token FROM ai_runtime_job
    WHERE status IN ('cancel_requested', 'running') AND lock_until < statement_timestamp()
      AND pg_postmaster_start_time() < statement_timestamp() - make_interval(secs =>
          CASE lane WHEN 'runtime' THEN %(runtime)s ELSE %(engine)s END)
      AND (lane <> 'runtime' OR EXISTS (
          SELECT FROM runtime_instance WHERE kind = 'web' AND last_seen_at > statement_timestamp() - make_interval(secs => %(alive)s)
            AND started_at < statement_timestamp() - make_interval(secs => %(runtime)s) AND last_seen_at >= lock_until))
    ORDER BY lock_until LIMIT %(batch)s
"""


def reap() -> int:
    """Let expired leases lapse, at most BATCH of them. Returns how many did."""
    parameters = {
        "engine": settings.ENGINE_LEASE_SECONDS,
        "runtime": settings.RUNTIME_LEASE_SECONDS,
        "alive": workers.ALIVE_SECONDS,
        "batch": BATCH,
    }
    with connection.cursor() as cursor:
        cursor.execute(_EXPIRED, parameters)
        expired = cursor.fetchall()
    return sum(_lapse_one(job_id, token) for job_id, token in expired)


def _lapse_one(job_id: UUID, token: str) -> bool:
    with transaction.atomic():
        # Compare-and-set: whoever finished, renewed or lapsed it since, or is about to (the row is locked), wins. Found by its key alone:
        # with all of this in the WHERE, the planner walked every expired lease for each.
        job = (
            AiRuntimeJob.objects.select_for_update(of=("self",), skip_locked=True)
            .annotate(expired=ExpressionWrapper(Q(lock_until__lt=Now()), BooleanField()))
            .filter(pk=job_id)
            .first()
        )
        if job is None or job.status not in LEASED or job.lock_token != token or not job.expired:
            return False
        end_attempt(job, AttemptOutcome.LAPSED, error_code=ErrorCode.LEASE_EXPIRED)
        if job.status == JobStatus.CANCEL_REQUESTED:
            usage.close_abandoned(job.pk, job.attempt_no, ErrorCode.LEASE_EXPIRED)
            step(job, JobStatus.CANCELLED, "job.cancelled", **error_fields(ErrorCode.CANCELLED, "its worker stopped responding"))
        else:
            lapse(job, keep_token=True)
    return True


def take_from_worker(job_id: UUID, *, actor: Actor, reason: str = "") -> JobStatus:
    """A person releases the lease of a worker that is stuck: the job goes on elsewhere at once, and no budget is charged.

    The token is cleared, so whatever the old holder still sends is refused; it stops at its next renewal. A job whose cancel was requested
    is cancelled. Returns the new status. Raises JobNotFound, and JobNotLeased, naming the state, when nobody holds it.
    """
    with transaction.atomic():
        job = lock(job_id)
        if job is None:
            raise JobNotFound(f"There is no job {job_id}.")
        if job.status not in LEASED:
            raise JobNotLeased(f"The job is {job.status}; no worker holds it.", status=job.status)
        worker = {"worker": job.locked_by or "", "reason": reason}
        usage.close_abandoned(job.pk, job.attempt_no, ErrorCode.LEASE_EXPIRED)
        end_attempt(job, AttemptOutcome.RELEASED)
        if job.status == JobStatus.CANCEL_REQUESTED:
            step(job, JobStatus.CANCELLED, "job.cancelled", actor=actor, data=worker, **error_fields(ErrorCode.CANCELLED, ""))
        else:
            step(
                job, JobStatus.RETRYING, "job.released", actor=actor, data=worker,
                available_at=due_in(0), lock_until=None, **NO_HOLDER,
            )  # fmt: skip
            notify.wake(job.lane)
    return JobStatus(job.status)


def give_up_unknown_type(job_id: UUID) -> bool:
    """Fail a waiting job whose type nobody knows. False when it no longer waits."""
    with transaction.atomic():
        job = lock(job_id)
        if job is None or job.status not in WAITING:
            return False
        code = ErrorCode.UNKNOWN_JOB_TYPE
        step(
            job, JobStatus.FAILED, "job.failed", data={"error_code": str(code)},
            **error_fields(code, f"no worker of lane {job.lane} knows {job.job_type}"),
        )  # fmt: skip
    return True


# A rolling or stopped deploy discards nothing: only when the lane has had a live worker (in lane runtime: a web server, which holds the
# definitions) for the whole grace, and none that was alive in it knew the type.
_UNKNOWN = """
    WITH RECURSIVE alive AS (
        SELECT lane, job_types, started_at, last_seen_at FROM runtime_instance
        WHERE kind <> 'runtime' AND last_seen_at > statement_timestamp() - make_interval(secs => greatest(%(grace)s, %(alive)s))
    ), settled AS (
        SELECT DISTINCT lane FROM alive WHERE started_at < statement_timestamp() - make_interval(secs => %(grace)s)
          AND last_seen_at > statement_timestamp() - make_interval(secs => %(alive)s)
    ), types AS (
        -- A step along the index per type; DISTINCT would read the whole backlog.
        SELECT s.lane, t.job_type FROM settled s CROSS JOIN LATERAL (
            WITH RECURSIVE waiting AS (
                (SELECT job_type FROM ai_runtime_job WHERE status = '{status}' AND lane = s.lane ORDER BY job_type LIMIT 1)
                UNION ALL
                SELECT next.job_type FROM waiting w CROSS JOIN LATERAL (
                    SELECT job_type FROM ai_runtime_job WHERE status = '{status}' AND lane = s.lane AND job_type > w.job_type
                    ORDER BY job_type LIMIT 1) next
            ) SELECT job_type FROM waiting
        ) t WHERE NOT EXISTS (SELECT FROM alive a WHERE a.lane = s.lane AND a.job_types ? t.job_type)
    ), {models}
    SELECT old.id FROM {status}_models w CROSS JOIN LATERAL (
        SELECT j.id FROM {of_model} AND j.created_at < statement_timestamp() - make_interval(secs => %(grace)s)
        ORDER BY j.{order}, j.id LIMIT %(batch)s
    ) old LIMIT %(batch)s
"""


def give_up_unknown_types() -> int:
    """Fail waiting jobs whose type nobody alive knows, after UNKNOWN_JOB_TYPE_GRACE_SECONDS, at most two BATCHes. Returns how many."""
    parameters = {"grace": settings.UNKNOWN_JOB_TYPE_GRACE_SECONDS, "alive": workers.ALIVE_SECONDS, "batch": BATCH}
    found: list[UUID] = []
    with connection.cursor() as cursor:
        # Each along its own claim index.
        for status, order, models, of_model in (
            (JobStatus.QUEUED, "sort_at", QUEUED_MODELS, QUEUED_OF_MODEL),
            (JobStatus.RETRYING, "available_at", RETRYING_MODELS, RETRYING_OF_MODEL),
        ):
            cursor.execute(_UNKNOWN.format(status=status, order=order, models=models, of_model=of_model), parameters)
            found += [row[0] for row in cursor.fetchall()]
    return sum(give_up_unknown_type(job_id) for job_id in found)
