"""Threads that use the database, and waiting with a deadline."""

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import connections

SECONDS = 20


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


class Worker(threading.Thread):
    """A thread with a connection of its own, closed at its end; `join_or_raise` gives what it returned."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self._made: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._made = self._work()
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def join_or_raise(self) -> Any:
        self.join(SECONDS)
        assert not self.is_alive(), "the worker hangs"
        if self._error is not None:
            raise self._error
        return self._made
