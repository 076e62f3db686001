"""So many requests a second per token: in memory, per process. A guard against a runtime gone wild, not an account."""

import threading
import time
from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

# Far more than there are tokens; an attacker has none, so nothing else fills it.
_MOST_TOKENS = 10_000


class Buckets:
    """A bucket per key: `rate` a second flow in, `burst` at the most stand in it."""

    def __init__(self) -> None:
        self._level: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, key: str, rate: float, burst: float) -> float:
        """Seconds until there is one to take; 0 when one was taken."""
        now = time.monotonic()
        with self._lock:
            if len(self._level) > _MOST_TOKENS:
                self._level.clear()
            level, at = self._level.get(key, (burst, now))
            level = min(burst, level + (now - at) * rate)
            taken = level >= 1
            self._level[key] = (level - 1 if taken else level, now)
        return 0.0 if taken else (1 - level) / rate

    def clear(self) -> None:
        with self._lock:
            self._level.clear()


buckets = Buckets()


class TokenThrottle(BaseThrottle):
    _wait: float | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        rate = settings.RUNTIME_RATE_PER_SECOND
        self._wait = buckets.take(str(request.user.pk), rate, 2 * rate)
        return self._wait == 0

    def wait(self) -> float | None:
        return self._wait
