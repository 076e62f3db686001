"""Handlers of job events: an app says `@on("job.succeeded")` in its `ai_jobs.py`, and services/deliveries.py feeds it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True)
class JobEvent:
    """An event as a handler gets it. The same event may come twice (id tells); per job the order is that of `seq`."""

    id: UUID
    job_id: UUID
    seq: int
    name: str
    attempt_no: int | None
    actor_name: str
    data: Mapping[str, Any]
    created_at: datetime


Handler = Callable[[JobEvent], None]

_handlers: dict[str, tuple[frozenset[str], Handler]] = {}


def on(*names: str, handler_name: str | None = None) -> Callable[[Handler], Handler]:
    """Decorator: call the function with every event of these names.

    It runs in a transaction of its own, which also marks the event as delivered. The handler's stored name is `handler_name` or its
    dotted path: renaming a function without keeping it leaves what is under way undelivered.
    """

    def decorate(handler: Handler) -> Handler:
        key = handler_name or f"{handler.__module__}.{handler.__qualname__}"
        if key in _handlers and _handlers[key][1] is not handler:
            raise ImproperlyConfigured(f"The event handler name {key} is taken.")
        _handlers[key] = (frozenset(names), handler)
        return handler

    return decorate


def handlers_of(event_name: str) -> list[str]:
    return sorted(key for key, (names, _) in _handlers.items() if event_name in names)


def handler(key: str) -> Handler | None:
    found = _handlers.get(key)
    return found[1] if found else None


def known() -> list[str]:
    return sorted(_handlers)
