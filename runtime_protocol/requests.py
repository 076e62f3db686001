"""From a request to the values of its DTO, in the order of the checks: body, scope, instance."""

import re
from collections.abc import Mapping
from io import BytesIO
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from rest_framework.request import Request

from runtime_jobs.errors import JobNotFound
from runtime_jobs.redaction import Secret, storable
from runtime_jobs.services.settlements import Fence
from runtime_protocol import trace
from runtime_protocol.auth import Caller
from runtime_protocol.errors import ProtocolError
from runtime_protocol.versions import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from runtime_protocol.wire.forms import Dto
from runtime_protocol.wire.reading import read
from runtime_protocol.wire.texts import parse_uuid

T = TypeVar("T", bound=Dto)

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_MOST_DISCARDED = 67_108_864
_HOLDER_HEADERS = {"runtimeInstanceId": "X-Runtime-Instance-Id", "attemptNo": "X-Attempt-No", "lockToken": "X-Lock-Token"}


def check_version(request: Request) -> None:
    """A caller that says nothing speaks the version of this server."""
    given = request.headers.get("X-Protocol-Version")
    if given is None:
        return
    match = _VERSION.fullmatch(given)
    if match is None:
        raise ProtocolError("validation_failed", "X-Protocol-Version must be two numbers, such as 1.0.")
    major, minor = int(match[1]), int(match[2])
    least_major, least_minor = map(int, MIN_PROTOCOL_VERSION.split("."))
    if (major, minor) < (least_major, least_minor) or major > int(PROTOCOL_VERSION.split(".")[0]):
        raise ProtocolError("upgrade_required", details={"protocolVersion": PROTOCOL_VERSION, "minProtocolVersion": MIN_PROTOCOL_VERSION})


def read_json(request: Request) -> Any:
    """The body's JSON. Its size is looked at before anything is read or parsed."""
    most = settings.RUNTIME_MAX_BODY_BYTES
    plain = request._request
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if plain.content_type != "application/json" or encoding != "identity":
        raise ProtocolError("unsupported_media_type")
    length = request.headers.get("Content-Length", "")
    stream: Any
    if length:
        too_large, stream = not length.isdigit() or int(length) > most, plain
    else:
        # Chunked: without a length Django's own stream is empty.
        too_large, stream = False, plain.META["wsgi.input"] if "Transfer-Encoding" in request.headers else BytesIO()
    try:
        body = b"" if too_large else stream.read(most + 1)
        if too_large or len(body) > most:
            _discard(stream)
            raise ProtocolError("payload_too_large", details={"maxBytes": most})
    except OSError:
        raise ProtocolError("malformed_json", "The body ended early.", details={"reason": "truncated"}) from None
    return read(body)


def _discard(stream: Any) -> None:
    """A client that still sends when the connection is closed sees a broken pipe instead of the answer: it is heard out, up to a bound."""
    left = _MOST_DISCARDED
    while left > 0 and (piece := stream.read(65_536)):
        left -= len(piece)


def caller_of(request: Request) -> Caller:
    found = request.user
    assert isinstance(found, Caller)  # noqa: S101 - every view authenticates
    return found


def enter(request: Request, dto: type[Dto], scope: str) -> dict[str, Any]:
    """The values of the body, once the caller has the scope and speaks for the instance."""
    values = dto.parse(read_json(request))
    caller = caller_of(request)
    caller.require(scope)
    if "runtime_instance_id" in values:
        caller.require_instance(values["runtime_instance_id"])
    found = trace.of(request)
    found.instance = values.get("runtime_instance_id", "")
    found.attempt_no = str(values.get("attempt_no", ""))
    found.job_id = found.job_id or str(values.get("job_id", ""))
    return values


def job_id_of(request: Request, text: str) -> UUID:
    """The path's job id. What is no UUID is the id of no job."""
    found = parse_uuid(text)
    if found is None:
        raise JobNotFound("There is no such job.")
    trace.of(request).job_id = str(found)
    return found


def same_job(path_id: str, body_id: UUID) -> None:
    if parse_uuid(path_id) != body_id:
        raise ProtocolError("job_id_mismatch")


def fence_of(job_id: UUID, values: Mapping[str, Any], instance: str | None = None) -> Fence:
    return Fence(job_id, values["attempt_no"], Secret(values["lock_token"]), instance or values["runtime_instance_id"])


def holder_headers(request: Request) -> dict[str, Any]:
    """A GET has no body: who speaks stands in its headers, under the rules of the body's fields."""
    given: dict[str, Any] = {name: request.headers[header] for name, header in _HOLDER_HEADERS.items() if header in request.headers}
    if re.fullmatch(r"[1-9][0-9]{0,9}", given.get("attemptNo", ""), re.ASCII):
        given["attemptNo"] = int(given["attemptNo"])
    return given


def is_sanitized(*texts: str | None) -> bool:
    """Whether storing them changed them."""
    return any(text is not None and storable(text) != text for text in texts)
