"""What reached the simulator: every request, and how it ended."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Outcome(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"  # all that was to be sent has been handed to the socket, a deliberately short answer too
    RESET = "reset"  # the simulator sent RST
    CLOSED_BY_PEER = "closed_by_peer"  # before the answer was complete
    STOPPED = "stopped"  # the simulator ended first


@dataclass(frozen=True)
class RecordedRequest:
    """One HTTP request, as it was read. Headers, body and prompt stay out of the repr, and with them the key."""

    id: int
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)  # names in lower case; the key is whole
    body: Any = field(repr=False)  # the JSON document; None where there is none
    prompt: str = field(repr=False)  # the text of all messages, the system's first
    at: float  # time.monotonic() when the request had been read
    status: int | None = None  # what was answered, known before the first byte of the answer
    outcome: Outcome = Outcome.OPEN
    ended_at: float | None = None  # time.monotonic()
    closed_by_peer_at: float | None = None  # time.monotonic() when the peer closed before the answer was complete, else None

    @property
    def model(self) -> str:
        """The model asked for, with its suffix of behaviours."""
        return str(self.body.get("model", "")) if isinstance(self.body, dict) else ""

    @property
    def client_request_id(self) -> str:
        return self.headers.get("x-client-request-id", "")

    def as_json(self) -> dict[str, Any]:
        """For other processes and the access log: no key, no text."""
        return {
            "method": self.method,
            "path": self.path,
            "client_request_id": self.client_request_id,
            "prompt_length": len(self.prompt),
            "model": self.model,
            "status": self.status,
            "outcome": str(self.outcome),
            "at": self.at,
            "ended_at": self.ended_at,
            "closed_by_peer_at": self.closed_by_peer_at,
        }


class Records:
    """The requests so far. Safe to use from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: dict[int, RecordedRequest] = {}
        self._next_id = 1

    def add(self, method: str, path: str, headers: Mapping[str, str], body: Any, prompt: str) -> RecordedRequest:
        with self._changed:
            request = RecordedRequest(self._next_id, method, path, headers, body, prompt, time.monotonic())
            self._next_id += 1
            self._requests[request.id] = request
            self._changed.notify_all()
        return request

    def update(self, request: RecordedRequest, **changes: Any) -> RecordedRequest:
        """The changed request; one that has been cleared away stays so."""
        with self._changed:
            # What was given may be older than what is known.
            changed = replace(self._requests.get(request.id, request), **changes)
            if request.id in self._requests:
                self._requests[request.id] = changed
                self._changed.notify_all()
        return changed

    def all(self) -> list[RecordedRequest]:
        with self._changed:
            return list(self._requests.values())

    def clear(self) -> None:
        with self._changed:
            self._requests.clear()
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[list[RecordedRequest]], T], timeout: float) -> T:
        """The predicate's first truthy value. Raises TimeoutError, telling what had happened by then."""
        deadline = time.monotonic() + timeout
        while True:
            requests = self.all()
            if value := predicate(requests):
                return value
            if time.monotonic() >= deadline:
                seen = ", ".join(f"{request.path} {request.outcome}" for request in requests) or "no request"
                raise TimeoutError(f"Not within {timeout} s; the simulator saw: {seen}.")
            # The predicate may look at other things than the requests, so a change of these is not all to wait for.
            with self._changed:
                self._changed.wait(0.02)
