"""Pausing a lane, a job type, or a provider's model: nothing of it is claimed until it is resumed or its time is over."""

from datetime import datetime

from django.db import transaction

from runtime_jobs.models import ClaimGate
from runtime_jobs.models.base import new_id
from runtime_jobs.services import notify
from runtime_jobs.services.events import Actor
from runtime_jobs.states import Lane

Kind = ClaimGate.Kind


def pause(kind: ClaimGate.Kind, key: str, *, actor: Actor, reason: str = "", until: datetime | None = None) -> ClaimGate:
    """Pause `key`: a lane, a job type, or "provider/model". What runs goes on. Pausing again replaces reason and end."""
    return ClaimGate.objects.update_or_create(
        kind=kind, key=key, defaults={"reason": reason[:500], "closed_by": actor.name, "until": until}, create_defaults={
            "id": new_id(), "reason": reason[:500], "closed_by": actor.name, "until": until,
        },
    )[0]  # fmt: skip


def resume(kind: ClaimGate.Kind, key: str) -> bool:
    """Lift the pause and wake the workers. False when there was none."""
    with transaction.atomic():
        lifted, _ = ClaimGate.objects.filter(kind=kind, key=key).delete()
        if lifted:
            for lane in Lane:
                notify.wake(lane)
    return bool(lifted)
