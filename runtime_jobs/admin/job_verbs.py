"""What staff may do to jobs."""

from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs.admin.verbs import Verb
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job, rerun_job
from runtime_jobs.services.lapses import take_from_worker
from runtime_jobs.states import LEASED, TERMINAL, JobStatus


def _rerun(job_id: UUID, actor: Actor, reason: str) -> str:
    if rerun_job(job_id, actor=actor, reason=reason).created:
        return ""
    return _("an unfinished rerun exists already")


def _cancel(job_id: UUID, actor: Actor, reason: str) -> str:
    return "" if cancel_job(job_id, actor=actor, reason=reason).cancel_reason == reason[:500] else _("its cancel was requested already")


def _release(job_id: UUID, actor: Actor, reason: str) -> str:
    take_from_worker(job_id, actor=actor, reason=reason)
    return ""


def _has_ended(job: Any) -> bool:
    return job.status in TERMINAL


def _is_cancellable(job: Any) -> bool:
    return job.status not in TERMINAL and job.status != JobStatus.CANCEL_REQUESTED


def _is_leased(job: Any) -> bool:
    return job.status in LEASED


RERUN = Verb(
    name="rerun",
    permission="runtime_jobs.rerun_job",
    title=gettext_lazy("Rerun jobs"),
    explanation=gettext_lazy(
        "Each job that has ended is run again as a new job from the same input. The old job and its result stay as they are."
    ),
    button=gettext_lazy("Rerun"),
    action=gettext_lazy("Rerun selected jobs"),
    run=_rerun,
    offered=_has_ended,
)
CANCEL = Verb(
    name="cancel",
    permission="runtime_jobs.cancel_job",
    title=gettext_lazy("Cancel jobs"),
    explanation=gettext_lazy(
        "A waiting job ends at once. A running one is asked to stop; what its provider call has cost so far stays recorded."
    ),
    button=gettext_lazy("Cancel the job"),
    action=gettext_lazy("Cancel selected jobs"),
    run=_cancel,
    offered=_is_cancellable,
    destructive=True,
)
RELEASE = Verb(
    name="release",
    permission="runtime_jobs.release_lease",
    title=gettext_lazy("Release leases"),
    explanation=gettext_lazy(
        "Each job is taken from the worker that holds it and goes on elsewhere at once, as for a worker that is stuck. What the old worker"
        " still delivers is refused, and a provider call that it has made may be paid twice."
    ),
    button=gettext_lazy("Release the lease"),
    action=gettext_lazy("Release the leases of selected jobs"),
    run=_release,
    offered=_is_leased,
    destructive=True,
)
JOB_VERBS = (RERUN, CANCEL, RELEASE)
