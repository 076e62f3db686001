"""How the protocol says no: one envelope, a closed set of codes, whoever raised it."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from runtime_jobs.errors import ServiceError
from runtime_jobs.redaction import safe_trace
from runtime_protocol import trace
from runtime_protocol.wire.forms import issues
from runtime_protocol.wire.reading import Malformed

logger = logging.getLogger(__name__)

UNAVAILABLE_SECONDS = 2


@dataclass(frozen=True)
class Rule:
    status: int
    retryable: bool
    meaning: str
    advice: str


# Clients tell errors apart by these: never rename one. `advice` stands in PROTOCOL.md.
CODES: Mapping[str, Rule] = {
    "validation_failed": Rule(400, False, "The request breaks a rule; details.issues name each place.", "A bug: fail the attempt."),
    "malformed_json": Rule(400, False, "The body is no JSON as it is taken; details.reason says why.", "A bug: fail the attempt."),
    "job_id_mismatch": Rule(400, False, "The body's jobId is not the path's.", "A bug: fail the attempt."),
    "token_missing": Rule(401, False, "No bearer token was sent.", "Stop; an operator must configure the token."),
    "token_invalid": Rule(401, False, "The token is not known, or its secret is wrong.", "Reload the token; back off to a minute."),
    "token_expired": Rule(401, False, "The token's time is over.", "Reload the token; back off to a minute."),
    "token_revoked": Rule(401, False, "The token was taken back.", "Reload the token; back off to a minute."),
    "scope_denied": Rule(403, False, "The token lacks the scope, or may not touch that job type.", "An operator must change the token."),
    "instance_not_allowed": Rule(403, False, "The token does not speak for this instance.", "An operator must change token or name."),
    "job_not_found": Rule(404, False, "There is no such job for this token.", "Drop the job."),
    "not_found": Rule(404, False, "There is nothing at this path. Paths have no trailing slash.", "A bug."),
    "method_not_allowed": Rule(405, False, "The path does not take this method; the Allow header names those that it takes.", "A bug."),
    "not_acceptable": Rule(406, False, "The answer cannot be given in that form.", "Accept application/json."),
    "unsupported_media_type": Rule(415, False, "The body must be application/json, not compressed.", "A bug."),
    "job_lock_conflict": Rule(409, False, "The job is leased by, or reserved for, somebody else.", "Drop the job; poll again."),
    "job_lock_lost": Rule(
        409, False, "The job was taken over, or its lease has run out (details.leaseExpired).",
        "Abort the work, send nothing more for this attempt. With leaseExpired: one heartbeat, then again.",
    ),
    "job_not_lockable": Rule(409, True, "The job may not run now: not due, paused or at its limit.", "Drop the job; poll again later."),
    "job_cancelled": Rule(409, False, "The job was cancelled, or a cancel was requested.", "Abort the work, report usage, drop the job."),
    "job_already_finished": Rule(409, False, "The job has ended; it does not change any more.", "Drop the job."),
    "result_conflict": Rule(409, False, "This attempt delivered another result, or the key is another's.", "A bug: drop the job."),
    "payload_too_large": Rule(
        413, False, "The body or rawOutput is larger than details.maxBytes.", "Send one fail with output_too_large, not retryable."
    ),
    "output_hash_mismatch": Rule(422, False, "outputHash is not that of rawOutput.", "Send one fail with internal_error."),
    "invalid_model_output": Rule(422, False, "The output is empty. The attempt is over.", "Send nothing more; drop the job."),
    "schema_validation_failed": Rule(422, False, "The output breaks its schema. The attempt is over.", "Send nothing more; drop the job."),
    "business_validation_failed": Rule(422, False, "The output breaks a rule. The attempt is over.", "Send nothing more; drop the job."),
    "reference_validation_failed": Rule(
        422, False, "The output refers to what is not there. The attempt is over.", "Send nothing more; drop the job."
    ),
    "credential_unavailable": Rule(424, False, "The key is missing, revoked or unreadable.", "Send one fail with this code."),
    "upgrade_required": Rule(426, False, "The protocol version is not spoken here.", "Stop polling; an operator must upgrade."),
    "rate_limited": Rule(429, True, "Too many requests under this token.", "Wait Retry-After, then again."),
    "internal_error": Rule(
        500, True, "Something went wrong here. With details.jobStatus the attempt is over.",
        "Repeat with back-off. With details.jobStatus: send nothing more, drop the job.",
    ),
    "unavailable": Rule(503, True, "The server or its database cannot answer now.", "Wait Retry-After, then again, for an hour at least."),
}  # fmt: skip

_BY_STATUS = {
    400: "validation_failed", 401: "token_missing", 403: "scope_denied", 404: "not_found", 405: "method_not_allowed",
    406: "not_acceptable", 413: "payload_too_large", 415: "unsupported_media_type", 426: "upgrade_required", 429: "rate_limited",
    503: "unavailable",
}  # fmt: skip


class ProtocolError(exceptions.APIException):
    """A failure with its code. Nothing was changed, unless its code says otherwise."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        retryable: bool | None = None,
    ) -> None:
        rule = CODES[code]
        super().__init__(message or rule.meaning, code)
        self.code = code
        self.status_code = rule.status
        self.message = message or rule.meaning
        self.details = dict(details or {})
        self.headers = dict(headers or {})
        self.retryable = rule.retryable if retryable is None else retryable


def body(code: str, message: str, *, retryable: bool, request_id: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The envelope."""
    made: dict[str, Any] = {"errorCode": code, "message": message, "retryable": retryable, "requestId": request_id}
    if details:
        made["details"] = dict(details)
    return made


def code_of_status(status: int) -> str:
    """For answers that Django itself made."""
    return _BY_STATUS.get(status, "validation_failed" if status < 500 else "internal_error")


def answer(error: Exception, context: Mapping[str, Any]) -> Response:
    """The response to whatever a view raised. What nobody foresaw is logged without its message and says nothing outside."""
    request = context["request"]
    known = translate(error)
    if known is None:
        logger.error("request %s failed\n%s", trace.of(request).request_id, safe_trace(error))
        known = ProtocolError("internal_error")
    found = trace.of(request)
    found.error_code = known.code
    made = body(known.code, known.message, retryable=known.retryable, request_id=found.request_id, details=known.details)
    return Response(made, known.status_code, headers=known.headers)


def translate(error: Exception) -> ProtocolError | None:
    """The failure that an exception is; None for those that nobody foresaw."""
    if isinstance(error, ProtocolError):
        return error
    if isinstance(error, ServiceError):
        return _service(error)
    if isinstance(error, Malformed):
        place = {} if error.position is None else {"position": error.position}
        return ProtocolError("malformed_json", details={"reason": error.reason, **place})
    if isinstance(error, OperationalError | InterfaceError):
        return unavailable()
    if isinstance(error, Http404):
        return ProtocolError("not_found")
    if isinstance(error, PermissionDenied):
        return ProtocolError("scope_denied")
    if isinstance(error, RequestDataTooBig):
        return ProtocolError("payload_too_large")
    if isinstance(error, SuspiciousOperation):
        return ProtocolError("validation_failed")
    return _rest_framework(error)


def unavailable(message: str | None = None) -> ProtocolError:
    return ProtocolError(
        "unavailable", message, details={"retryAfterSeconds": UNAVAILABLE_SECONDS}, headers={"Retry-After": str(UNAVAILABLE_SECONDS)}
    )


def unauthorized(code: str, message: str | None = None) -> ProtocolError:
    return ProtocolError(code, message, headers={"WWW-Authenticate": "Bearer"})


def _service(error: ServiceError) -> ProtocolError | None:
    if error.code not in CODES:
        return None
    if error.code == "unavailable":
        return unavailable(error.message)
    if CODES[error.code].status == 401:
        return unauthorized(error.code, error.message)
    # A lapsed lease can be brought back by a heartbeat.
    retryable = True if error.details.get("leaseExpired") else None
    return ProtocolError(error.code, error.message, details=error.details, retryable=retryable)


def _rest_framework(error: Exception) -> ProtocolError | None:
    if isinstance(error, exceptions.ValidationError):
        found = list(issues(error.detail))
        first = found[0]
        return ProtocolError("validation_failed", f"{first['path'] or 'body'}: {first['message']}"[:500], details={"issues": found[:20]})
    if isinstance(error, exceptions.Throttled):
        seconds = max(1, math.ceil(getattr(error, "wait", None) or 1))
        return ProtocolError("rate_limited", details={"retryAfterSeconds": seconds}, headers={"Retry-After": str(seconds)})
    if isinstance(error, exceptions.APIException):
        code = code_of_status(error.status_code)
        return ProtocolError(code)
    return None
