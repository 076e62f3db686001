"""A few database connections per process, lent to attempts for as long as they need one: none is held during a provider call."""

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DEFAULT_DB_ALIAS

# A connection that was used so lately is not asked whether it is still there: that would be a round trip more for each section.
_TRUSTED_SECONDS = 5.0
PATIENCE_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)

T = TypeVar("T")


@dataclass
class _Lent:
    wrapper: BaseDatabaseWrapper
    used_at: float = float("-inf")


class ConnectionLender:
    """At most `size` connections, last in, first out, so that a quiet process keeps few busy."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: queue.LifoQueue[_Lent] = queue.LifoQueue()
        for _ in range(size):
            wrapper = connections.create_connection(DEFAULT_DB_ALIAS)
            wrapper.inc_thread_sharing()
            self._idle.put(_Lent(wrapper))

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Django's default connection is a lent one inside. One that an error has made unusable is closed at the next loan."""
        lent = self._idle.get()
        own = getattr(connections._connections, DEFAULT_DB_ALIAS, None)  # type: ignore[attr-defined]
        connections[DEFAULT_DB_ALIAS] = lent.wrapper
        try:
            lent.wrapper.health_check_enabled = time.monotonic() - lent.used_at > _TRUSTED_SECONDS  # type: ignore[attr-defined]
            lent.wrapper.close_if_unusable_or_obsolete()
            yield
        finally:
            lent.used_at = time.monotonic()
            if own is None:
                del connections[DEFAULT_DB_ALIAS]
            else:
                connections[DEFAULT_DB_ALIAS] = own
            self._idle.put(lent)

    def close(self) -> None:
        """Close all; waits for those that are lent."""
        for _ in range(self._size):
            self._idle.get().wrapper.close()


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


def persist(write: Callable[[], T]) -> T:
    """What must not be lost because the database restarts just now: tried again while it is away, for as long as PATIENCE says.

    `write` must be repeatable: after a connection that broke in its commit nobody knows whether it counted.
    """
    for pause in PATIENCE_SECONDS:
        try:
            with database():
                return write()
        except (OperationalError, InterfaceError):
            time.sleep(pause)
    with database():
        return write()


@contextmanager
def without_database() -> Iterator[None]:
    """A section of foreign code that may take long: a connection that it opens of its own is closed behind it."""
    try:
        yield
    finally:
        if _lender is not None:
            connections.close_all()
