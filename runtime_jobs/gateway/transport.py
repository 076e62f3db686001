"""One HTTP exchange: connect to a checked address, send once, read up to the cap, close.

It stands on httpcore2, the lower half of httpx2, because that half lets the connection be pinned (a network backend is public
there) and has none of what a key and a prompt must be kept from: no redirects, no cookies, no proxies or .netrc from the
environment, no decoding, no log line with the URL.

Every exchange has a connection of its own. A kept one saves a handshake of a call that takes seconds, and costs certainty: when
the peer has closed it meanwhile, nothing tells whether the request was taken, so an unsent call would have to count as perhaps
billed.
"""

import contextlib
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpcore2

from runtime_jobs.gateway.addresses import AddressPolicy, BaseUrl
from runtime_jobs.gateway.answer import HttpAnswer
from runtime_jobs.gateway.failures import TransportFailure, failure_of
from runtime_jobs.gateway.names import resolve
from runtime_jobs.model_call import CallReport, Dispatch

# An error's body is read for its code and message only.
_MAX_ERROR_BODY_BYTES = 64 * 1024


@dataclass(frozen=True)
class HttpCall:
    """What to send. Its repr says nothing of the headers, which hold the key, or of the content."""

    url: BaseUrl
    path: str
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)
    policy: AddressPolicy


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects only to addresses that the policy allows. TLS and the Host header keep the name: they are set above this."""

    def __init__(self, policy: AddressPolicy, *, plain: bool) -> None:
        self._policy = policy
        self._plain = plain
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        deadline = time.monotonic() + (timeout or 10.0)
        # A name in brackets is an IPv6 address.
        addresses = await resolve(host.strip("[]"), port, timeout_seconds=deadline - time.monotonic())
        self._policy.judge(addresses, plain=self._plain)
        # The addresses in turn, within one time limit; a share is kept for the second, in case the first swallows packets.
        for position, address in enumerate(addresses):
            left = max(0.1, deadline - time.monotonic())
            last = position == len(addresses) - 1 or left <= 0.1
            try:
                return await self._inner.connect_tcp(str(address), port, left if last else left / 2, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if last:
                    raise
        raise httpcore2.ConnectError("no address")  # pragma: no cover - resolve() gives at least one

    async def sleep(self, seconds: float) -> None:  # pragma: no cover - retries are off
        await self._inner.sleep(seconds)


class Transport:
    """Stateless but for its settings, so that it serves any number of calls on any loop."""

    def __init__(self, *, max_response_bytes: int, connect_timeout_seconds: float, ssl_context: ssl.SSLContext | None) -> None:
        self._max_response_bytes = max_response_bytes
        self._connect_timeout_seconds = connect_timeout_seconds
        self._ssl_context = ssl_context

    async def exchange(self, call: HttpCall, report: CallReport) -> HttpAnswer:
        """Send exactly one request. Raises TransportFailure; cancelling closes the socket before the CancelledError goes on.

        The failure is raised outside the handler: `from None` hides the client's exception from print but leaves it reachable,
        and with it the frames that hold the key.
        """
        try:
            return await self._exchange(call, report)
        except Exception as error:
            failure = failure_of(error)
        raise TransportFailure(failure.code, failure.what, retryable=failure.retryable)

    async def _exchange(self, call: HttpCall, report: CallReport) -> HttpAnswer:
        backend = CheckedBackend(call.policy, plain=call.url.plain)
        host = f"[{call.url.host}]" if ":" in call.url.host else call.url.host
        url = httpcore2.URL(scheme=call.url.scheme, host=host, port=call.url.port, target=call.path)
        # No limit for a read or a write: they are per step, which a peer that drips never meets. The caller's deadline counts.
        extensions = {
            "timeout": {"connect": self._connect_timeout_seconds},
            "sni_hostname": call.url.host,
            "trace": _DispatchTrace(report),
        }
        tls = None if call.url.plain else self._tls()
        async with (
            httpcore2.AsyncConnectionPool(tls, max_connections=1, retries=0, network_backend=backend) as pool,
            pool.stream("POST", url, headers=list(call.headers.items()), content=call.content, extensions=extensions) as response,
        ):
            report.http_status = response.status
            return await self._read(response, report)

    async def _read(self, response: httpcore2.Response, report: CallReport) -> HttpAnswer:
        ok = 200 <= response.status < 300
        cap = self._max_response_bytes if ok else min(_MAX_ERROR_BODY_BYTES, self._max_response_bytes)
        body = bytearray()
        cut = False
        # Closed here: a generator that is left half-way would be closed by the garbage collector, some time later.
        async with contextlib.aclosing(response.aiter_stream()) as chunks:
            async for chunk in chunks:
                report.response_bytes = (report.response_bytes or 0) + len(chunk)
                if len(body) + len(chunk) > cap:
                    cut = True
                    break
                body += chunk
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return HttpAnswer(response.status, headers, bytes(body), cut)

    def _tls(self) -> ssl.SSLContext:
        # Made late and once: loading the authorities of the system takes tens of milliseconds.
        if self._ssl_context is None:
            self._ssl_context = httpcore2.default_ssl_context()
        return self._ssl_context


class _DispatchTrace:
    """Moves the report to maybe_sent with the first byte of the request, and to sent with its last one or with an answer."""

    def __init__(self, report: CallReport) -> None:
        self._report = report

    async def __call__(self, event: str, _info: dict[str, Any]) -> None:
        if event == "http11.send_request_headers.started":
            self._report.dispatch = Dispatch.MAYBE_SENT
        elif event in ("http11.send_request_body.complete", "http11.receive_response_headers.complete"):
            self._report.dispatch = Dispatch.SENT
