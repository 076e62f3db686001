"""Feeding events to their handlers (subscribers.py): each at least once, in order per job and handler.

A delivery is picked by its state, never by "later than the last id": one that commits late is not skipped. Handler and mark share a
transaction, so what a handler writes to this database takes effect exactly once; what it does elsewhere may be repeated after a crash.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Greatest, Now

from runtime_jobs import subscribers
from runtime_jobs.models import AiEventDelivery, AiJobEvent
from runtime_jobs.redaction import safe_trace
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.backoff import delay_seconds
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.services.transitions import due_in
from runtime_jobs.subscribers import Handler, JobEvent

logger = logging.getLogger(__name__)

# With the usual RETRY_ settings the last try is one to two hours after the first: an outage of an hour parks nothing.
MAX_TRIES = 15
COUNT_CAP = 100_000

_LAST_ERROR_LENGTH = 4_000
# The condition of the partial indexes delivery_due and delivery_order.
_WAITING: dict[str, Any] = {"delivered_at": None, "parked_at": None}


@dataclass(frozen=True)
class Pass:
    """What one round over the due deliveries came to."""

    delivered: int
    failed: int


@dataclass(frozen=True)
class Backlog:
    """Counts end at COUNT_CAP."""

    waiting: int
    waiting_for_unknown_handlers: int  # of these, what no handler in this process takes
    parked: int


def deliver(batch: int = 100) -> int:
    """Try up to `batch` due deliveries, one transaction each. Returns how many were delivered.

    Any number of callers share the work. A handler that raises is logged and tried again later, MAX_TRIES times; then its delivery is
    parked, and later events of the job go on. Deliveries to handlers that this process does not know are left to those that do. Raises
    only what the database raises when it cannot be used; not to be called inside a transaction.
    """
    return deliver_due(batch).delivered


def deliver_due(limit: int) -> Pass:
    """As `deliver`, and tells how many tries failed too."""
    handlers = {name: found for name in subscribers.known() if (found := subscribers.handler(name))}
    delivered = failed = 0
    since: datetime | None = None
    while handlers and delivered + failed < limit:
        delivery, succeeded = _try_next(handlers, since)
        if delivery is None:
            if since is None:
                break
            since = None  # once more from the front: what was delivered may have let a later event of its job through
            continue
        since = delivery.next_try_at
        delivered += succeeded
        failed += not succeeded
    return Pass(delivered, failed)


def retry_parked(delivery_id: UUID, *, actor: Actor = SYSTEM, reason: str = "") -> bool:
    """Give a parked delivery all its tries again, from now. False when it is not parked (any more).

    Later events of the job may have been delivered meanwhile; those that still wait stay behind it again.
    """
    parked = AiEventDelivery.objects.filter(pk=delivery_id, parked_at__isnull=False)
    with transaction.atomic():
        if parked.update(parked_at=None, tries=0, next_try_at=Now()) != 1:
            return False
        record_staff("delivery.retried", actor=actor, subject_type="event delivery", subject_id=str(delivery_id), reason=reason)
    return True


def backlog() -> Backlog:
    waiting = AiEventDelivery.objects.filter(**_WAITING)
    return Backlog(
        waiting=waiting[:COUNT_CAP].count(),
        waiting_for_unknown_handlers=waiting.exclude(handler__in=subscribers.known())[:COUNT_CAP].count(),
        parked=AiEventDelivery.objects.filter(parked_at__isnull=False)[:COUNT_CAP].count(),
    )


def _try_next(handlers: Mapping[str, Handler], since: datetime | None) -> tuple[AiEventDelivery | None, bool]:
    """The next due delivery after a try, None when nothing is due; and whether it was delivered."""
    delivery = None
    try:
        with transaction.atomic(durable=True):
            delivery = _next_due(handlers, since)
            return delivery, delivery is not None and _deliver(delivery, handlers[delivery.handler])
    except Exception as error:
        # The handler has lost the connection, or wrote what the commit refuses (foreign keys are checked there): nothing of the try is
        # there, not even that it failed. Counted in a transaction of its own, or this delivery would come first for ever.
        if delivery is None:
            raise
        with transaction.atomic(durable=True):
            failed = _record_failure(delivery, error)
        if not failed:
            logger.error("delivery %s stands, but something after its commit failed\n%s", delivery.pk, safe_trace(error))
        return delivery, not failed


def _next_due(handlers: Iterable[str], since: datetime | None) -> AiEventDelivery | None:
    """Lock the first due delivery, not before `since`, whose job has no earlier one waiting for the same handler.

    Events of a job are written under its row lock, so an earlier one is committed before a later one can be seen. `since` spares a
    pass what it has walked over already: index entries of rows it delivered, which stay as long as anyone's old snapshot does.
    """
    earlier = AiEventDelivery.objects.filter(job_id=OuterRef("job_id"), handler=OuterRef("handler"), seq__lt=OuterRef("seq"), **_WAITING)
    # A scalar subquery is one probe of delivery_order per row that is looked at; NOT EXISTS could become a join over all that waits.
    # (After a burst that the statistics do not know yet the planner walks delivery_due instead: 2 ms with 20,000 waiting, until ANALYZE.)
    due = AiEventDelivery.objects.alias(earlier=Subquery(earlier.order_by("seq").values("seq")[:1])).filter(
        earlier=None, handler__in=list(handlers), next_try_at__lte=Now(), **_WAITING
    )
    if since is not None:
        due = due.filter(next_try_at__gte=since)
    return due.select_for_update(skip_locked=True).order_by("next_try_at").first()


def _deliver(delivery: AiEventDelivery, handler: Handler) -> bool:
    """Run the handler on a locked delivery and mark what came of it."""
    try:
        with transaction.atomic():
            handler(_as_handlers_see_it(delivery.event))
    except Exception as error:  # a handler is foreign code: whatever it raises holds up its own job's events, nobody else's
        if connection.needs_rollback:
            raise  # the connection is gone, and the savepoint with it
        _record_failure(delivery, error)
        return False
    AiEventDelivery.objects.filter(pk=delivery.pk, **_WAITING).update(delivered_at=Now())
    return True


def _as_handlers_see_it(event: AiJobEvent) -> JobEvent:
    return JobEvent(
        id=event.pk,
        job_id=event.job_id,
        seq=event.seq,
        name=event.name,
        attempt_no=event.attempt_no,
        actor_name=event.actor_name,
        data=event.data,
        created_at=event.created_at,
    )


def _record_failure(delivery: AiEventDelivery, error: Exception) -> bool:
    """Count the try, and park the delivery after the last. False when it was delivered, or counted by another, meanwhile."""
    tries = delivery.tries + 1
    trace = safe_trace(error)
    parked = tries >= MAX_TRIES
    end = {"parked_at": Now()} if parked else {"next_try_at": due_in(delay_seconds(tries))}
    counted = AiEventDelivery.objects.filter(pk=delivery.pk, tries=delivery.tries, **_WAITING).update(
        tries=tries, last_error=trace[:_LAST_ERROR_LENGTH], **end
    )
    if not counted:
        return False
    if not parked:
        _hold_back_later(delivery)
    logger.log(
        logging.ERROR if parked else logging.WARNING,
        "event %s of job %s: handler %s failed, try %d of %d%s\n%s",
        delivery.event_id, delivery.job_id, delivery.handler, tries, MAX_TRIES, ", parked" if parked else "", trace,
    )  # fmt: skip
    return True


def _hold_back_later(delivery: AiEventDelivery) -> None:
    """Take what waits behind a failed delivery out of the due range: thousands of such rows would be walked over at every look."""
    head = AiEventDelivery.objects.filter(pk=delivery.pk).values("next_try_at")
    AiEventDelivery.objects.filter(job_id=delivery.job_id, handler=delivery.handler, seq__gt=delivery.seq, **_WAITING).update(
        next_try_at=Greatest(F("next_try_at"), head[:1])
    )
