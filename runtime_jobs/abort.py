"""The abort signal of an attempt: pulled once, with a reason, by whichever comes first of deadline, cancel, lost lease and shutdown."""

import threading
import time
from collections.abc import Callable
from enum import StrEnum


class AbortReason(StrEnum):
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"


class Aborted(Exception):
    """Raised by `AbortSignal.check()` once the signal is pulled."""

    def __init__(self, reason: AbortReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class AbortSignal:
    """Thread-safe. Listeners run once, in the thread that pulls (or at once when it is pulled already); they must not block."""

    def __init__(self, timeout_seconds: float) -> None:
        self.deadline = time.monotonic() + timeout_seconds
        self._lock = threading.Lock()
        self._reason: AbortReason | None = None
        self._listeners: list[Callable[[AbortReason], None]] = []

    @property
    def reason(self) -> AbortReason | None:
        """Why it was pulled; a deadline that has passed pulls it."""
        if self._reason is None and time.monotonic() >= self.deadline:
            self.abort(AbortReason.TIMEOUT)
        return self._reason

    def remaining_seconds(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def abort(self, reason: AbortReason) -> None:
        """Pull it. The first reason stands."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(reason)

    def on_abort(self, listener: Callable[[AbortReason], None]) -> None:
        with self._lock:
            if self._reason is None:
                self._listeners.append(listener)
                return
            reason = self._reason
        listener(reason)

    def check(self) -> None:
        """Raise Aborted if it was pulled."""
        reason = self.reason
        if reason is not None:
            raise Aborted(reason)
