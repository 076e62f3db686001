"""A proxy that loses answers, delays, doubles and cuts them, on the way between a runtime and a server."""

import http.client
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from tests.conformance.http import NOTHING, Listening, Reply, Request

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


# What becomes of a request, given the way on to the server: an answer, or None for a socket that is cut.
Deliver = Callable[[Callable[[], Reply]], Reply | None]
ALWAYS = sys.maxsize


@dataclass
class Fault:
    """For the next `times` requests of this verb (`*`: of any)."""

    verb: str
    times: int
    deliver: Deliver
    met: int = 0  # requests so far

    def end(self) -> None:
        self.times = 0


def lose(forward: Callable[[], Reply]) -> Reply | None:
    """The server does its work, and its answer is lost."""
    forward()
    return NOTHING


def cut(forward: Callable[[], Reply]) -> Reply | None:
    """The connection breaks in the middle of the answer."""
    reply = forward()
    return replace(reply, cut_after=len(reply.body) // 2)


def refuse(forward: Callable[[], Reply]) -> Reply | None:
    """The connection breaks before the server hears of the request."""
    return NOTHING


def double(forward: Callable[[], Reply]) -> Reply | None:
    """The request arrives twice; the second answer comes back."""
    forward()
    return forward()


def delay(seconds: float) -> Deliver:
    """The answer is under way for so long."""

    def late(forward: Callable[[], Reply]) -> Reply | None:
        reply = forward()
        time.sleep(seconds)
        return reply

    return late


def hold(seconds: float) -> Deliver:
    """The request is under way for so long."""

    def late(forward: Callable[[], Reply]) -> Reply | None:
        time.sleep(seconds)
        return forward()

    return late


def instead(reply: Reply) -> Deliver:
    """The server never hears of the request; somebody else answers."""
    return lambda _: reply


class FaultProxy:
    """In front of the server at this address."""

    def __init__(self, to: str) -> None:
        self._to = urlsplit(to).netloc
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._listening = Listening(self._answer)
        self.url, self.port = self._listening.url, self._listening.port

    def close(self) -> None:
        self._listening.close()

    def fault(self, verb: str, deliver: Deliver, times: int = 1) -> Fault:
        fault = Fault(verb, times, deliver)
        with self._lock:
            self._faults.append(fault)
        return fault

    def _answer(self, request: Request) -> Reply | None:
        verb = request.path.rsplit("/", 1)[-1]
        with self._lock:
            fault = next((one for one in self._faults if one.times and one.verb in (verb, "*")), None)
            if fault:
                fault.times -= 1
                fault.met += 1
        return fault.deliver(lambda: self._forward(request)) if fault else self._forward(request)

    def _forward(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection(self._to, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(request.method, request.path, body=request.body or None, headers=headers)
            response = connection.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            return Reply(response.status, response.read(), kept)
        finally:
            connection.close()
