"""What one web process shares: a few database connections, the waiting room of the long polls, and one thread that looks after both.

The thread LISTENs, says every second how much there is to do, tells that this process is alive (no lease of a runtime lapses while no web
process is), and takes back leases that ran out, since no engine may be running. It starts with the WSGI application, and again in a child
that was forked since. Without it (a command, the test client) each thread uses its own connection and nobody waits.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from django.conf import settings
from django.db import Error as DatabaseError

from runtime_jobs import registry
from runtime_jobs.redaction import safe_trace
from runtime_jobs.services import lapses, offers, workers
from runtime_jobs.services.lending import ConnectionLender
from runtime_jobs.services.listening import Listener
from runtime_jobs.services.notify import lane_channel
from runtime_jobs.states import Lane
from runtime_protocol.waiting import WaitingRoom

logger = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1.0
_GIVE_UP_EVERY_SECONDS = 10.0
# A burst of hints is one look.
_BREATH_SECONDS = 0.01


class WebProcess:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lender = ConnectionLender(settings.RUNTIME_CONNECTIONS)
        self.room = WaitingRoom(settings.RUNTIME_MAX_WAITERS)
        self._name = f"web:{socket.gethostname()}:{self.pid}"
        self._due = {"look": 0.0, "seen": 0.0, "chores": 0.0, "give_up": 0.0}
        self._thread = threading.Thread(target=self._run, name="runtime-protocol", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        listener = Listener([lane_channel(Lane.RUNTIME)], name="ai-jobs web listen")
        while True:
            try:
                self._round(listener)
            except (DatabaseError, psycopg.Error) as error:
                logger.warning("runtime protocol: the database does not answer (%s); trying again", type(error).__name__)
                time.sleep(1)
            except Exception as error:  # this thread must outlive whatever a chore raises
                logger.error("runtime protocol: a chore failed\n%s", safe_trace(error))
                time.sleep(1)

    def _round(self, listener: Listener) -> None:
        if listener.wait(max(0.0, self._due["look"] - time.monotonic())):
            self.room.hint()
            if self.room.occupied:
                self._look()
                time.sleep(_BREATH_SECONDS)
        if self._is_due("look", _LOOK_EVERY_SECONDS):
            if self.room.occupied:
                self._look()
            with self.lender.lend():
                lapses.reap()
        if self._is_due("seen", workers.WEB_SEEN_EVERY_SECONDS):
            with self.lender.lend():
                workers.seen(self._name, kind=workers.Kind.WEB, lane=Lane.RUNTIME, version=settings.VERSION, job_types=registry.job_types())
        if self._is_due("chores", workers.SEEN_EVERY_SECONDS):
            with self.lender.lend():
                for chore in _also:
                    chore()
        if self._is_due("give_up", _GIVE_UP_EVERY_SECONDS):
            with self.lender.lend():
                lapses.give_up_unknown_types()

    def _look(self) -> None:
        """Wake as many as there are jobs for: what is paused, at its limit or offered to somebody wakes nobody."""
        seen = self.room.hints
        with self.lender.lend():
            found = offers.available(lane=Lane.RUNTIME, job_types=registry.job_types(Lane.RUNTIME), count=self.room.occupied)
        self.room.wake(found, seen)

    def _is_due(self, chore: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due[chore]:
            return False
        self._due[chore] = now + every
        return True


_also: list[Callable[[], None]] = []


def every_few_seconds(chore: Callable[[], None]) -> None:
    """Register what the process's thread is to do with a connection, beside its own chores."""
    _also.append(chore)


_enabled = False
_process: WebProcess | None = None
_lock = threading.Lock()


def start() -> None:
    """Called by the WSGI application when it is loaded."""
    global _enabled
    _enabled = True
    current()


def current() -> WebProcess | None:
    """This process's; a child that was forked after the start makes its own. None where nothing was started."""
    global _process
    if not _enabled:
        return None
    if _process is None or _process.pid != os.getpid():
        with _lock:
            if _process is None or _process.pid != os.getpid():
                _process = WebProcess()
    return _process


@contextmanager
def database() -> Iterator[None]:
    """A section of a request that uses the database; nothing in it waits for the network or for work."""
    process = current()
    if process is None:
        yield
    else:
        with process.lender.lend():
            yield
