"""Poll: offers or leases, at once or after a wait that holds no database connection."""

import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.conf import settings

from runtime_jobs.services import offers, pulls, service_tokens
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.service_tokens import ServiceToken
from runtime_jobs.services.workers import Introduction
from runtime_jobs.states import Lane
from runtime_protocol import limits, presence, server
from runtime_protocol.server import database


@dataclass(frozen=True)
class Poll:
    """What a runtime asks for, within the bounds."""

    token: ServiceToken
    instance: str
    job_types: tuple[str, ...]
    count: int
    wait_seconds: float
    lease_seconds: float
    request_id: UUID | None  # None: offers, no leases
    version: str
    labels: dict[str, str]


@dataclass(frozen=True)
class Found:
    """Jobs in order, what is told of each, and the leases of those that are locked."""

    job_ids: list[UUID] = field(default_factory=list)
    rows: dict[UUID, Any] = field(default_factory=dict)
    leases: dict[UUID, Claim] = field(default_factory=dict)
    poll_after: float = 0.0
    draining: bool = False


def poll(request: Poll) -> Found:
    """Raises TokenRevoked, TokenExpired when the token ended while its caller waited."""
    introduction = Introduction(request.instance, request.version, request.job_types, request.labels)
    if presence.polled(introduction):
        return Found(poll_after=limits.POLL_AFTER_DRAIN_SECONDS, draining=True)
    process = server.current()
    if process is None or request.wait_seconds <= 0 or not request.job_types:
        return _take(request) or Found(poll_after=limits.POLL_AFTER_SECONDS)
    room, types = process.room, frozenset(request.job_types)
    deadline = time.monotonic() + request.wait_seconds
    hints = room.hints
    found = _take(request) if room.may_find(types) or _is_repeat(request) else None
    while found is None:
        left = deadline - time.monotonic()
        woken = room.wait(types, left, hints) if left > 0 else False
        if woken is None:
            return Found(poll_after=limits.POLL_AFTER_FULL_SECONDS)
        if not woken:
            return Found()
        hints = room.hints
        found = _take(request, again=True)
    return found


def _take(request: Poll, *, again: bool = False) -> Found | None:
    """One look for work; None when there is none. After a wait the token is looked at once more."""
    if not request.job_types:
        return None
    with database():
        if again:
            service_tokens.still_valid(request.token)
        if request.request_id is None:
            job_ids = offers.offer(
                lane=Lane.RUNTIME,
                worker=request.instance,
                job_types=request.job_types,
                count=request.count,
                offer_seconds=settings.RUNTIME_OFFER_SECONDS,
            )
            leases = {}
        else:
            taken = pulls.pull(
                service_token_id=request.token.id,
                worker=request.instance,
                request_id=request.request_id,
                job_types=request.job_types,
                count=request.count,
                lease_seconds=request.lease_seconds,
            )
            leases = {claim.job_id: claim for claim in taken}
            job_ids = list(leases)
        return Found(job_ids, pulls.described(job_ids), leases) if job_ids else None


def _is_repeat(request: Poll) -> bool:
    """A repeated poll must find what its first delivery took, even where there is nothing new."""
    if request.request_id is None:
        return False
    with database():
        return pulls.asked_before(service_token_id=request.token.id, worker=request.instance, request_id=request.request_id)
