"""The only writer of events. Each is written in the transaction of what it tells, with its deliveries beside it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db import connection
from psycopg.types.json import Jsonb

from runtime_jobs import prepared, subscribers
from runtime_jobs.models.base import new_id


@dataclass(frozen=True)
class Actor:
    """Who did it: kept as text, so that the record outlives the person."""

    id: str
    name: str

    @classmethod
    def of(cls, user: Any) -> "Actor":
        return cls(str(user.pk), user.get_username())


SYSTEM = Actor("", "system")

# The request that events are written for, such as its id: kept in each event's data, so that the job's timeline leads to the logs.
_origin: ContextVar[Mapping[str, str]] = ContextVar("origin", default=MappingProxyType({}))


def with_origin(data: Mapping[str, Any]) -> dict[str, Any]:
    """An event's data as it is stored."""
    return {**data, **_origin.get()}


@contextmanager
def on_behalf_of(**request: str) -> Iterator[None]:
    """Whatever is recorded inside carries these; empty ones are left out."""
    token = _origin.set({name: value for name, value in request.items() if value})
    try:
        yield
    finally:
        _origin.reset(token)


@dataclass(frozen=True)
class NewEvent:
    job_id: UUID
    name: str
    attempt_no: int | None = None
    actor: Actor = SYSTEM
    data: Mapping[str, Any] = field(default_factory=dict)


# The numbers are read after the rows were locked (an earlier statement), hence nobody else counts for these jobs now.
_INSERT = """
    INSERT INTO ai_job_event (id, job_id, seq, name, attempt_no, actor_id, actor_name, data)
    SELECT e.id, e.job_id, (SELECT coalesce(max(seq), 0) + 1 FROM ai_job_event o WHERE o.job_id = e.job_id),
           e.name, e.attempt_no, e.actor_id, e.actor_name, e.data
    FROM unnest(%(ids)s::uuid[], %(jobs)s::uuid[], %(names)s::text[], %(attempts)s::text[]::int[], %(actor_ids)s::text[],
                %(actor_names)s::text[], %(data)s::jsonb[])
         AS e(id, job_id, name, attempt_no, actor_id, actor_name, data)
    RETURNING id, job_id, seq, name
"""
_DELIVERIES = """
    INSERT INTO ai_event_delivery (id, event_id, handler, job_id, seq, tries, last_error)
    SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::uuid[], %s::int[]) AS d(id, event_id, handler, job_id, seq),
                  (VALUES (0, '')) AS start(tries, last_error)
"""


def record(events: Sequence[NewEvent]) -> None:
    """Append events, at most one per job. The caller holds the lock of each job's row."""
    if not events:
        return
    columns: dict[str, list[Any]] = {
        "ids": [new_id() for _ in events],
        "jobs": [event.job_id for event in events],
        "names": [event.name for event in events],
        # As text: ints would be sent as int2 or int4, each a statement of its own.
        "attempts": [None if event.attempt_no is None else str(event.attempt_no) for event in events],
        "actor_ids": [event.actor.id for event in events],
        "actor_names": [event.actor.name for event in events],
        "data": [Jsonb(with_origin(event.data)) for event in events],
    }
    deliver_to_handlers(prepared.run(_INSERT, columns))


def deliver_to_handlers(events: Sequence[tuple[Any, ...]]) -> None:
    """Put events, each (id, job id, seq, name), on their way to the handlers that wait for them. In the transaction that wrote them."""
    due = [(event_id, handler, job_id, seq) for event_id, job_id, seq, name in events for handler in subscribers.handlers_of(name)]
    if not due:
        return
    event_ids, handlers, job_ids, seqs = zip(*due, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(_DELIVERIES, [[new_id() for _ in due], list(event_ids), list(handlers), list(job_ids), list(seqs)])
