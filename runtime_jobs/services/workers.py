"""Who works here: each worker says so every few seconds, and learns whether it is to drain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone
from psycopg.types.json import Jsonb

from runtime_jobs.models import RuntimeInstance
from runtime_jobs.models.base import new_id
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.events import Actor

Kind = RuntimeInstance.Kind

SEEN_EVERY_SECONDS = 5
ALIVE_SECONDS = 20  # not seen for so long is not alive
# A web process notes itself more often, and a shorter silence begins its time anew: meanwhile no runtime could keep its lease.
WEB_SEEN_EVERY_SECONDS = 1
WEB_OUTAGE_SECONDS = 4

_SEEN = """
    INSERT INTO runtime_instance AS i (id, name, kind, lane, version, job_types, labels, draining, started_at, last_seen_at)
    VALUES (%(id)s, %(name)s, %(kind)s, %(lane)s, %(version)s, %(job_types)s, '{}', false, statement_timestamp(), statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET
        kind = excluded.kind, lane = excluded.lane, version = excluded.version, job_types = excluded.job_types,
        started_at = CASE WHEN i.last_seen_at < statement_timestamp() - make_interval(secs => %(silence)s)
                          THEN statement_timestamp() ELSE i.started_at END,
        last_seen_at = excluded.last_seen_at
    RETURNING i.draining
"""


# A runtime chooses its own name: it must not take the row of an engine or web process.
_RUNTIMES_SEEN = """
    INSERT INTO runtime_instance AS i (id, name, kind, lane, version, job_types, labels, draining, started_at, last_seen_at)
    SELECT g.id, g.name, 'runtime', 'runtime', g.version, g.job_types, g.labels, false, statement_timestamp(), statement_timestamp()
    FROM unnest(%(ids)s::uuid[], %(names)s::text[], %(versions)s::text[], %(job_types)s::jsonb[], %(labels)s::jsonb[])
         AS g(id, name, version, job_types, labels)
    ON CONFLICT (name) DO UPDATE SET
        version = excluded.version, job_types = excluded.job_types, labels = excluded.labels,
        started_at = CASE WHEN i.last_seen_at < statement_timestamp() - make_interval(secs => %(alive)s)
                          THEN statement_timestamp() ELSE i.started_at END,
        last_seen_at = excluded.last_seen_at
    WHERE i.kind = 'runtime'
    RETURNING i.name, i.draining
"""
_STILL_SEEN = """
    UPDATE runtime_instance i SET last_seen_at = statement_timestamp()
    FROM (SELECT id FROM runtime_instance WHERE name = ANY(%s::text[]) AND kind = 'runtime' ORDER BY name FOR UPDATE) AS known
    WHERE i.id = known.id RETURNING i.name, i.draining
"""


def seen(name: str, *, kind: RuntimeInstance.Kind, lane: str, version: str, job_types: Sequence[str]) -> bool:
    """Note that the worker is alive; after a silence its time begins anew. True when it is to drain."""
    parameters: dict[str, Any] = {
        "id": new_id(),
        "name": name,
        "kind": str(kind),
        "lane": lane,
        "version": version,
        "job_types": Jsonb(list(job_types)),
        "silence": WEB_OUTAGE_SECONDS if kind == Kind.WEB else ALIVE_SECONDS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_SEEN, parameters)
        row = cursor.fetchone()
    return bool(row and row[0])


@dataclass(frozen=True)
class Introduction:
    """A runtime as it describes itself when it polls."""

    name: str
    version: str
    job_types: tuple[str, ...]
    labels: Mapping[str, str]


def runtimes_seen(introduced: Sequence[Introduction], heard: Sequence[str] = ()) -> dict[str, bool]:
    """Note that these runtimes are alive: those that introduced themselves, and those only heard of. For each, whether it is to drain."""
    draining: dict[str, bool] = {}
    with connection.cursor() as cursor:
        if introduced:
            # In one order, so that two processes that note the same runtimes do not wait for each other in a circle.
            for name, to_drain in _note_all(cursor, sorted(introduced, key=lambda one: one.name)):
                draining[name] = to_drain
        if heard:
            cursor.execute(_STILL_SEEN, [list(heard)])
            draining.update(cursor.fetchall())
    return draining


def _note_all(cursor: Any, introduced: Sequence[Introduction]) -> list[tuple[str, bool]]:
    cursor.execute(
        _RUNTIMES_SEEN,
        {
            "ids": [new_id() for _ in introduced],
            "names": [one.name for one in introduced],
            "versions": [one.version for one in introduced],
            "job_types": [Jsonb(list(one.job_types)) for one in introduced],
            "labels": [Jsonb(dict(one.labels)) for one in introduced],
            "alive": ALIVE_SECONDS,
        },
    )
    rows: list[tuple[str, bool]] = cursor.fetchall()
    return rows


def gone(name: str) -> None:
    """The worker has ended in good order."""
    RuntimeInstance.objects.filter(name=name).delete()


def is_alive(worker: RuntimeInstance) -> bool:
    """For showing; what decides asks the database's clock."""
    return worker.last_seen_at > timezone.now() - timedelta(seconds=ALIVE_SECONDS)


def drain(name: str, *, actor: Actor, reason: str = "") -> bool:
    """Ask the worker to take nothing more and to end what it holds; it hears so when it next says that it is alive.

    False when it was asked already, or is not there (any more).
    """
    with transaction.atomic():
        if not RuntimeInstance.objects.filter(name=name, draining=False).exclude(kind=Kind.WEB).update(draining=True):
            return False
        record_staff("worker.drained", actor=actor, subject_type="worker", subject_id=name, reason=reason)
    return True
