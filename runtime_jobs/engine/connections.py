"""A few database connections per process, lent to attempts for as long as they need one: none is held during a provider call."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DEFAULT_DB_ALIAS


class ConnectionLender:
    """At most `size` connections, last in, first out, so that a quiet process keeps few busy."""

    def __init__(self, size: int) -> None:
        self._idle: queue.LifoQueue[BaseDatabaseWrapper] = queue.LifoQueue()
        for _ in range(size):
            wrapper = connections.create_connection(DEFAULT_DB_ALIAS)
            wrapper.inc_thread_sharing()
            self._idle.put(wrapper)
        self._size = size

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Django's default connection is a lent one inside. One that an error has made unusable is closed at the next loan."""
        wrapper = self._idle.get()
        own = getattr(connections._connections, DEFAULT_DB_ALIAS, None)  # type: ignore[attr-defined]
        connections[DEFAULT_DB_ALIAS] = wrapper
        try:
            wrapper.close_if_unusable_or_obsolete()
            yield
        finally:
            if own is None:
                del connections[DEFAULT_DB_ALIAS]
            else:
                connections[DEFAULT_DB_ALIAS] = own
            self._idle.put(wrapper)

    def close(self) -> None:
        """Close all; waits for those that are lent."""
        for _ in range(self._size):
            self._idle.get().close()


_lender: ConnectionLender | None = None


def use_lender(lender: ConnectionLender | None) -> None:
    """Set once per worker process. Without one (a test, a command) the thread's own connection serves."""
    global _lender
    _lender = lender


@contextmanager
def database() -> Iterator[None]:
    """A section that uses the database. Nothing in it may wait for the network."""
    if _lender is None:
        yield
    else:
        with _lender.lend():
            yield


@contextmanager
def without_database() -> Iterator[None]:
    """A section of foreign code that may take long: a connection that it opens of its own is closed behind it."""
    try:
        yield
    finally:
        if _lender is not None:
            connections.close_all()
