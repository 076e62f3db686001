"""The states of a job and the only steps between them. The database holds the same table as a trigger (models/job.py)."""

from enum import StrEnum


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    CANCEL_REQUESTED = "cancel_requested"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Lane(StrEnum):
    """Who executes a job: one of the engine's two clusters, or a runtime that pulls it over the protocol."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"
    RUNTIME = "runtime"


class AttemptOutcome(StrEnum):
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"  # the output chain refused its result
    FAILED = "failed"
    LAPSED = "lapsed"  # its lease ended unrenewed
    RELEASED = "released"  # handed back, as at a shutdown
    CANCELLED = "cancelled"


class ApiKeyMode(StrEnum):
    PLATFORM = "platform"
    USER = "user"


ENGINE_LANES = frozenset({Lane.INTERACTIVE, Lane.BACKGROUND})

WAITING = frozenset({JobStatus.QUEUED, JobStatus.RETRYING})
LEASED = frozenset({JobStatus.RUNNING, JobStatus.CANCEL_REQUESTED})
TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED})

_S = JobStatus
TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    # claim; cancel; unknown_job_type
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED, _S.FAILED}),
    # result; error or lapse with budget, release; error or lapse without; cancel
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.RETRYING, _S.FAILED, _S.CANCEL_REQUESTED}),
    # claim, or heartbeat of a late holder; late result; late permanent error, unknown_job_type; cancel
    _S.RETRYING: frozenset({_S.RUNNING, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
    # whatever its holder does next, or the end of its lease
    _S.CANCEL_REQUESTED: frozenset({_S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}


def may_become(old: JobStatus, new: JobStatus) -> bool:
    return new in TRANSITIONS[old]
