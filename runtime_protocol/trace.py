"""What is known of the request that is being answered: its ids, in and out, and what its one line in the access log tells."""

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
# W3C Trace Context §3.2: version 00; all-zero ids are invalid.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


@dataclass
class Trace:
    request_id: str
    traceparent: str
    started: float = field(default_factory=time.monotonic)
    key_id: str = ""
    instance: str = ""
    job_id: str = ""
    attempt_no: str = ""
    error_code: str = ""


def begin(request: HttpRequest) -> Trace:
    """Take the ids of the request, or make one; keep them with it."""
    given, parent = request.headers.get("X-Request-Id", ""), request.headers.get("traceparent", "")
    made = Trace(
        request_id=given if _REQUEST_ID.fullmatch(given) else str(uuid.uuid4()),
        traceparent=parent if _TRACEPARENT.fullmatch(parent) else "",
    )
    request.protocol_trace = made  # type: ignore[attr-defined]
    return made


def of(request: Any) -> Trace:
    """The trace of a Django or DRF request."""
    plain = getattr(request, "_request", request)
    found = getattr(plain, "protocol_trace", None)
    return found if isinstance(found, Trace) else begin(plain)
