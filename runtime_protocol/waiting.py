"""The waiting room of the long polls: threads that hold no database connection until there is something for them."""

import threading
import time
from collections.abc import Mapping

# For so long "there is nothing" is believed: a little more than the time between two looks.
_BELIEVED_SECONDS = 1.5


class _Waiter:
    __slots__ = ("job_types", "woken")

    def __init__(self, job_types: frozenset[str]) -> None:
        self.job_types = job_types
        self.woken = threading.Event()


class WaitingRoom:
    """At most `size` waiters. The youngest is woken first: of those who wait long, some are clients that have gone meanwhile."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiters: list[_Waiter] = []
        self._inside = 0  # woken ones, until they leave, included
        self._hints = 0
        # What the last look found left over, and when it began.
        self._left: Mapping[str, int] = {}
        self._looked_at = float("-inf")
        self._looked_hints = -1

    @property
    def occupied(self) -> int:
        """How many wait."""
        return len(self._waiters)

    @property
    def hints(self) -> int:
        """A number that grows with every hint: to be read before one looks for work oneself."""
        return self._hints

    def hint(self) -> None:
        """Somebody says that there is work."""
        with self._lock:
            self._hints += 1

    def may_find(self, job_types: frozenset[str]) -> bool:
        """False when a look of a moment ago found nothing for these types, and no hint came since: asking the database is no use."""
        with self._lock:
            believed = time.monotonic() - self._looked_at < _BELIEVED_SECONDS and self._looked_hints == self._hints
            return not believed or any(self._left.get(job_type) for job_type in job_types)

    def wait(self, job_types: frozenset[str], seconds: float, hints: int) -> bool | None:
        """True when there may be work, False when the time is over, None when there is no room.

        `hints` is what `hints` said before the caller looked for work: one that came meanwhile is not missed.
        """
        waiter = _Waiter(job_types)
        with self._lock:
            if hints != self._hints:
                return True
            if self._inside >= self._size:
                return None
            self._inside += 1
            self._waiters.append(waiter)
        try:
            return waiter.woken.wait(seconds)
        finally:
            with self._lock:
                self._inside -= 1
                if not waiter.woken.is_set():
                    self._waiters.remove(waiter)

    def wake(self, found: Mapping[str, int], hints: int) -> None:
        """Wake a waiter per job; `hints` is what `hints` said before the look that found them."""
        left = dict(found)
        with self._lock:
            self._looked_at, self._looked_hints = time.monotonic(), hints
            staying = []
            for waiter in reversed(self._waiters):
                job_type = next((name for name in left if left[name] and name in waiter.job_types), None)
                if job_type is None:
                    staying.append(waiter)
                else:
                    left[job_type] -= 1
                    waiter.woken.set()
            self._waiters = staying[::-1]
            self._left = left
