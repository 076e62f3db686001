"""One step of the state table: checked in code, written by compare-and-set, recorded as an event. All services go through here."""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from runtime_jobs.errors import ErrorCode, IllegalTransition, public_error
from runtime_jobs.models import AiJobAttempt, AiRuntimeJob
from runtime_jobs.services.events import SYSTEM, Actor, NewEvent, record
from runtime_jobs.states import TERMINAL, AttemptOutcome, JobStatus, may_become

# What an end clears; the token is kept, so that a late holder learns how the job ended.
_ENDED: dict[str, Any] = {"finished_at": Now(), "lock_until": None, "offered_to": None, "offer_until": None}
NO_HOLDER: dict[str, Any] = {"lock_token": None, "locked_by": None, "locked_at": None}
NO_ERROR: dict[str, Any] = {"error_code": "", "error_message": "", "internal_error": ""}


def lock(job_id: Any) -> AiRuntimeJob | None:
    """The job's row, locked until the transaction ends; rows that point at it may be written meanwhile."""
    return AiRuntimeJob.objects.select_for_update(of=("self",), no_key=True).filter(pk=job_id).first()


def step(
    job: AiRuntimeJob, new: JobStatus, event: str, *, actor: Actor = SYSTEM, data: dict[str, Any] | None = None, **changes: Any
) -> None:
    """Take a locked job to `new`, with `changes`, and record `event`.

    Raises IllegalTransition when the state table has no such step. `job.status` is the new one afterwards.
    """
    old = JobStatus(job.status)
    if not may_become(old, new):
        raise IllegalTransition(old, new)
    ended = _ENDED if new in TERMINAL else {}
    # The row is locked, so this cannot miss; the fence stays in the WHERE all the same, for whoever forgets to lock.
    written = AiRuntimeJob.objects.filter(pk=job.pk, status=old, lock_token=job.lock_token).update(
        status=new, updated_at=Now(), **{**ended, **changes}
    )
    if written != 1:
        raise IllegalTransition(old, new)
    job.status = new
    record([NewEvent(job.pk, event, attempt_no=job.attempt_no or None, actor=actor, data={"status": str(new), **(data or {})})])


def error_fields(code: ErrorCode, internal: str) -> dict[str, Any]:
    return {"error_code": str(code), "error_message": public_error(code), "internal_error": internal}


def due_in(seconds: float) -> Any:
    """The database's now plus a duration, for `available_at`."""
    return Now() + timedelta(seconds=seconds)


def end_attempt(job: AiRuntimeJob, outcome: AttemptOutcome, *, error_code: str = "", internal: str = "") -> None:
    """Close the job's current attempt. One that lapsed and then delivers after all gets its real outcome."""
    AiJobAttempt.objects.filter(job=job, attempt_no=job.attempt_no, outcome__in=["", AttemptOutcome.LAPSED]).update(
        ended_at=Now(), outcome=outcome, error_code=error_code, internal_error=internal
    )
