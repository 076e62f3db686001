"""Who works here: each worker says so every few seconds, and learns whether it is to drain."""

from collections.abc import Sequence
from typing import Any

from django.db import connection
from psycopg.types.json import Jsonb

from runtime_jobs.models import RuntimeInstance
from runtime_jobs.models.base import new_id

SEEN_EVERY_SECONDS = 5
ALIVE_SECONDS = 20  # not seen for so long is not alive

_SEEN = """
    INSERT INTO runtime_instance AS i (id, name, kind, lane, version, job_types, labels, draining, started_at, last_seen_at)
    VALUES (%(id)s, %(name)s, %(kind)s, %(lane)s, %(version)s, %(job_types)s, '{}', false, statement_timestamp(), statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET
        kind = excluded.kind, lane = excluded.lane, version = excluded.version, job_types = excluded.job_types,
        started_at = CASE WHEN i.last_seen_at < statement_timestamp() - make_interval(secs => %(alive)s)
                          THEN statement_timestamp() ELSE i.started_at END,
        last_seen_at = excluded.last_seen_at
    RETURNING i.draining
"""


def seen(name: str, *, kind: RuntimeInstance.Kind, lane: str, version: str, job_types: Sequence[str]) -> bool:
    """Note that the worker is alive. True when it is to drain."""
    parameters: dict[str, Any] = {
        "id": new_id(),
        "name": name,
        "kind": str(kind),
        "lane": lane,
        "version": version,
        "job_types": Jsonb(list(job_types)),
        "alive": ALIVE_SECONDS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_SEEN, parameters)
        row = cursor.fetchone()
    return bool(row and row[0])


def gone(name: str) -> None:
    """The worker has ended in good order."""
    RuntimeInstance.objects.filter(name=name).delete()
