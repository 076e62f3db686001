"""The thread of each worker process that feeds events to their handlers, apart from leases and attempts: a handler may be slow."""

import logging
import threading

import psycopg
from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from runtime_jobs.redaction import safe_trace
from runtime_jobs.services import deliveries

logger = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1.0
_BATCH = 20
_STOP_SECONDS = 5.0  # what a handler gets to end; after that the server rolls it back, and another worker delivers


class OutboxThread:
    """Delivers what is due between `start()` and `stop()`; without a registered handler it never touches the database.

    It has a connection of its own rather than a lent one: handlers are foreign code, and one that hangs must hold up neither the renewal
    of leases (ENGINE_CONNECTIONS may be 1) nor the end of the process (the lender waits for what is lent).
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            logger.warning("an event handler is still busy; its delivery is rolled back and repeated elsewhere")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._deliver():
                    self._stopping.wait(_LOOK_EVERY_SECONDS)
        finally:
            connections.close_all()

    def _deliver(self) -> bool:
        """True when there may be more."""
        close_old_connections()
        try:
            return deliveries.deliver(_BATCH) == _BATCH
        except (DatabaseError, psycopg.Error) as error:
            logger.warning("outbox: the database does not answer (%s); trying again", type(error).__name__)
        except Exception as error:  # the thread outlives whatever happens in it
            logger.error("outbox: a pass failed\n%s", safe_trace(error))
        return False
