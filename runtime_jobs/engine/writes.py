"""What every attempt writes: the row before a provider call, and the success. A lane's attempts write these together.

Twenty attempts that were claimed at once reach the same point at about the same time. Whoever comes while a write is under way goes with
the next one, which is one statement and one commit for all of them. Nobody waits for company: a write that finds none under way starts.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from runtime_jobs.engine.connections import persist
from runtime_jobs.services import terminal, usage
from runtime_jobs.services.settlements import Settlement
from runtime_jobs.services.success import Success
from runtime_jobs.services.usage import OpenCall

_MOST = 50  # rows a statement

T = TypeVar("T")
R = TypeVar("R")


class Writes(Protocol):
    def open_call(self, call: OpenCall) -> bool:
        """As `usage.open_calls`."""

    def succeed(self, success: Success) -> Settlement | None:
        """As `terminal.submit_plain_results`."""


class WritesAlone:
    """Each at once, by itself."""

    def open_call(self, call: OpenCall) -> bool:
        return _open([call])[0]

    def succeed(self, success: Success) -> Settlement | None:
        return _succeed([success])[0]


class WritesTogether:
    """Shared by the threads of a process, none of which may be in a transaction of its own."""

    def __init__(self) -> None:
        self._opens: Group[OpenCall, bool] = Group(_open)
        self._successes: Group[Success, Settlement | None] = Group(_succeed)

    def open_call(self, call: OpenCall) -> bool:
        return self._opens.write(call)

    def succeed(self, success: Success) -> Settlement | None:
        return self._successes.write(success)


def _open(calls: Sequence[OpenCall]) -> list[bool]:
    return persist(lambda: usage.open_calls(calls))


def _succeed(successes: Sequence[Success]) -> list[Settlement | None]:
    return persist(lambda: terminal.submit_plain_results(successes))


class _Entry(Generic[T, R]):
    def __init__(self, item: T) -> None:
        self.item = item
        self.answers: list[R] = []  # none or one
        self.grouped = False
        self._woken = threading.Lock()
        self._woken.acquire()

    def sleep(self) -> None:
        self._woken.acquire()

    def wake(self) -> None:
        self._woken.release()


class Group(Generic[T, R]):
    """`write` takes several items and answers each, in order. It can be repeated: what failed for several is tried by each alone."""

    def __init__(self, write: Callable[[Sequence[T]], Sequence[R]]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._waiting: list[_Entry[T, R]] = []
        self._is_led = False

    def write(self, item: T) -> R:
        """The item's answer. Raises what `write` raises for this item alone."""
        entry = _Entry[T, R](item)
        with self._lock:
            self._waiting.append(entry)
            leads, self._is_led = not self._is_led, True
        if not leads:
            entry.sleep()
        if not entry.grouped:
            self._lead()
        return entry.answers[0] if entry.answers else self._write([item])[0]

    def _lead(self) -> None:
        """Write for all that wait by now, the caller being the first, then wake them and whoever is to lead next."""
        with self._lock:
            group, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        try:
            for entry, answer in zip(group, self._write([entry.item for entry in group]), strict=True):
                entry.answers.append(answer)
        except Exception:
            if len(group) == 1:
                raise
        finally:
            with self._lock:
                next_leader = self._waiting[:1]
                self._is_led = bool(next_leader)
            for entry in group:
                entry.grouped = True
            for entry in (*group[1:], *next_leader):
                entry.wake()
