"""What a failure below HTTP means: one table from the client's exceptions to our codes."""

import ssl
import traceback
from dataclasses import dataclass

import httpcore2

from runtime_jobs.errors import RULES, ErrorCode
from runtime_jobs.gateway.addresses import AddressRefused
from runtime_jobs.gateway.names import NameTimeout, NameUnresolved


class TransportFailure(Exception):
    """An exchange without an answer. `what` is our own words: a client's text may hold a header's value, hence the key."""

    def __init__(self, code: ErrorCode, what: str, *, retryable: bool) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.retryable = retryable


@dataclass(frozen=True)
class Failure:
    code: ErrorCode
    what: str
    retryable: bool


_C = ErrorCode
# The first that fits. Whether something was sent, and may be billed, stands in the report.
_TABLE: tuple[tuple[type[Exception], ErrorCode, str], ...] = (
    (NameTimeout, _C.PROVIDER_TIMEOUT, "resolving the provider's name took too long"),
    (NameUnresolved, _C.PROVIDER_UNAVAILABLE, "the provider's name could not be resolved"),
    (httpcore2.ConnectTimeout, _C.PROVIDER_TIMEOUT, "connecting took too long"),
    (httpcore2.TimeoutException, _C.PROVIDER_TIMEOUT, "the provider stopped in the middle"),
    (httpcore2.ConnectError, _C.PROVIDER_UNAVAILABLE, "connection refused, unreachable, or TLS failed"),
    (httpcore2.RemoteProtocolError, _C.PROVIDER_UNAVAILABLE, "the answer is not HTTP, or ends before its end"),
    (httpcore2.NetworkError, _C.PROVIDER_UNAVAILABLE, "the connection broke"),
    (OSError, _C.PROVIDER_UNAVAILABLE, "the connection broke"),
)


def failure_of(error: Exception) -> Failure:
    """What an exception out of an exchange means."""
    if isinstance(error, AddressRefused):
        return Failure(_C.PROVIDER_REJECTED_REQUEST, str(error), retryable=False)
    if isinstance(error, httpcore2.ConnectError) and _is_about_the_certificate(error):
        return Failure(_C.PROVIDER_REJECTED_REQUEST, "the provider's certificate is not valid", retryable=False)
    for kind, code, what in _TABLE:
        if isinstance(error, kind):
            return Failure(code, what, RULES[code].retryable)
    # A bug, ours or the client's. Its text may hold a header; its place is enough to find it.
    place = traceback.extract_tb(error.__traceback__)[-1]
    return Failure(_C.INTERNAL_ERROR, f"{type(error).__name__} at {place.filename.rsplit('/', 1)[-1]}:{place.lineno}", retryable=False)


def _is_about_the_certificate(error: BaseException) -> bool:
    """Anywhere below: httpcore2 keeps the cause as the first argument, and anyio wraps it once more."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        below = pending.pop()
        if below is None or id(below) in seen:
            continue
        if isinstance(below, ssl.SSLCertVerificationError):
            return True
        seen.add(id(below))
        pending += [below.__cause__, below.__context__, *(part for part in below.args if isinstance(part, BaseException))]
    return False
