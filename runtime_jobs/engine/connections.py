"""A few database connections per process, lent to attempts for as long as they need one: none is held during a provider call."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connections

from runtime_jobs.services.lending import ConnectionLender

PATIENCE_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)

T = TypeVar("T")


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
