"""Pausing a lane, a job type, or a provider's model: nothing of it is claimed until it is resumed or its time is over."""

from datetime import datetime

from django.db import transaction

from runtime_jobs.models import ClaimGate
from runtime_jobs.models.base import new_id
from runtime_jobs.services import notify
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.states import Lane

Kind = ClaimGate.Kind


def pause(kind: ClaimGate.Kind, key: str, *, actor: Actor, reason: str = "", until: datetime | None = None) -> ClaimGate:
    """Pause `key`: a lane, a job type, or "provider/model". What runs goes on. Pausing again replaces reason and end."""
    changes = {"reason": reason[:500], "closed_by": actor.name, "until": until}
    with transaction.atomic():
        gate, _ = ClaimGate.objects.update_or_create(kind=kind, key=key, defaults=changes, create_defaults=changes | {"id": new_id()})
        end = {"until": until.isoformat()} if until else {}
        record_staff("claims.paused", actor=actor, subject_type=str(kind), subject_id=key, reason=reason, data=end)
    return gate


def resume(kind: ClaimGate.Kind | str, key: str, *, actor: Actor = SYSTEM, reason: str = "") -> bool:
    """Lift the pause (or close the breaker) and wake the workers. False when there was none."""
    with transaction.atomic():
        lifted, _ = ClaimGate.objects.filter(kind=kind, key=key).delete()
        if lifted:
            record_staff("claims.resumed", actor=actor, subject_type=str(kind), subject_id=key, reason=reason)
            for lane in Lane:
                notify.wake(lane)
    return bool(lifted)
