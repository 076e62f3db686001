"""A few database connections per process, lent to threads for as long as they need one.

A web server or an engine worker has many more threads than there may be connections: each would keep one of its own.
"""

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DEFAULT_DB_ALIAS

# A connection that was used so recently is not asked first whether it still lives.
_FRESH_SECONDS = 5.0


class ConnectionLender:
    """At most `size` connections, last in, first out, so that a quiet process keeps few busy. Each is opened when it is first used."""

    def __init__(self, size: int, *, patience_seconds: float | None = 10) -> None:
        self._idle: queue.LifoQueue[tuple[BaseDatabaseWrapper, float]] = queue.LifoQueue()
        self._size, self._patience = size, patience_seconds
        for _ in range(size):
            wrapper = connections.create_connection(DEFAULT_DB_ALIAS)
            wrapper.inc_thread_sharing()
            self._idle.put((wrapper, 0.0))

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Django's default connection is a lent one inside. Raises OperationalError when none is free within `patience_seconds`."""
        try:
            wrapper, used_at = self._idle.get(timeout=self._patience)
        except queue.Empty:
            raise OperationalError("all database connections of this process are in use") from None
        own = getattr(connections._connections, DEFAULT_DB_ALIAS, None)  # type: ignore[attr-defined]
        connections[DEFAULT_DB_ALIAS] = wrapper
        try:
            wrapper.close_if_unusable_or_obsolete()
            if time.monotonic() - used_at < _FRESH_SECONDS:
                wrapper.health_check_done = True  # type: ignore[attr-defined]
            yield
        finally:
            if own is None:
                del connections[DEFAULT_DB_ALIAS]
            else:
                connections[DEFAULT_DB_ALIAS] = own
            self._idle.put((wrapper, time.monotonic()))

    def close(self) -> None:
        """Close all; waits for those that are lent."""
        for _ in range(self._size):
            self._idle.get()[0].close()
