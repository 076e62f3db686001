"""What a job does, the same for all systems."""

import os
import threading
from typing import Any

import psycopg

_lock = threading.Lock()
_connection: psycopg.Connection[Any] | None = None


def stamp(key: str) -> None:
    """Note that the executor was called: on one connection a process, which stays, and without waiting for the disk."""
    global _connection
    with _lock:
        if _connection is None:
            _connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=0)
            _connection.execute("SET synchronous_commit = off")
        _connection.execute("INSERT INTO bench_called (key, at) VALUES (%s, clock_timestamp())", [key])


def write_rows(job: str) -> None:
    """Five rows through the ORM in two statements, as a projector with a parent and its parts does."""
    from tests.benchmarks.app.models import Artifact

    rows = Artifact._default_manager
    rows.create(job=job, position=0, text="summary")
    rows.bulk_create(Artifact(job=job, position=position, text=f"part {position}") for position in range(1, 5))
