"""The thread of each worker process that keeps the dashboard's figures fresh. Whichever comes first counts; the others find nothing due."""

import logging
import random
import threading
import time

import psycopg
from django.db import Error as DatabaseError
from django.db import connections

from runtime_jobs.redaction import safe_trace
from runtime_jobs.services import figures

logger = logging.getLogger(__name__)

_SHARE = 20  # counting takes at most one part in so many of the time, however busy an hour is
_STOP_SECONDS = 5.0


class FiguresThread:
    """Counts between `start()` and `stop()`, on a connection of its own that it closes after each pass."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        # Not all workers of a cluster at once.
        wait = random.uniform(0, 2)  # noqa: S311
        while not self._stopping.wait(wait):
            wait = self._pass()

    def _pass(self) -> float:
        """Seconds until the next one."""
        started = time.monotonic()
        try:
            if not figures.roll_up():
                figures.forget_old()
        except (DatabaseError, psycopg.Error) as error:
            logger.warning("figures: the database does not answer (%s); trying again", type(error).__name__)
        except Exception as error:  # the thread outlives whatever happens in it
            logger.error("figures: a pass failed\n%s", safe_trace(error))
        finally:
            connections.close_all()
        return max(figures.EVERY_SECONDS / 4, (time.monotonic() - started) * _SHARE)
