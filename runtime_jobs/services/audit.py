"""Who of the staff did or saw what. What they do to a job is an event of that job, written by the step itself; the rest is written here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db import transaction

from runtime_jobs.models import AiStaffEvent
from runtime_jobs.models.base import new_id
from runtime_jobs.services.events import Actor, NewEvent, record, with_origin
from runtime_jobs.services.transitions import lock

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def record_staff(
    name: str, *, actor: Actor, subject_type: str, subject_id: str = "", reason: str = "", data: Mapping[str, Any] = _NOTHING
) -> None:
    """Note a staff action that is no step of one job, in the transaction of what it tells. `name` is dotted and stable."""
    AiStaffEvent.objects.create(
        id=new_id(),
        name=name,
        actor_id=actor.id,
        actor_name=actor.name,
        subject_type=subject_type,
        subject_id=subject_id[:300],
        reason=reason[:500],
        data=with_origin(data),
    )


def sensitive_viewed(job_id: UUID, *, actor: Actor, what: str) -> None:
    """Note in the job's timeline that somebody is about to see its texts in clear. `what` names them, such as "input"."""
    with transaction.atomic():
        if lock(job_id) is not None:
            record([NewEvent(job_id, "job.sensitive_viewed", actor=actor, data={"what": what})])
