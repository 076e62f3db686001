"""The outermost layer of all under /internal/: failures of Django itself in our envelope, ids and version out, one line in the log."""

import logging
import time
from collections.abc import Callable

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase

from runtime_protocol import errors, trace
from runtime_protocol.trace import Trace
from runtime_protocol.versions import PROTOCOL_VERSION

logger = logging.getLogger("runtime_protocol.access")

PREFIX = "/internal/"
# Views set it on their answers: whatever comes without it was made by somebody else.
OURS = "is_protocol_answer"


class EnvelopeMiddleware:
    """First in MIDDLEWARE. Exceptions that come this far Django has made into pages already; they are replaced, and their text is lost."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not (request.path_info.startswith(PREFIX) or request.path_info == PREFIX[:-1]):
            return self.get_response(request)
        found = trace.begin(request)
        response = self.get_response(request)
        if not hasattr(response, OURS):
            response = _enveloped(response, found)
        response["X-Request-Id"] = found.request_id
        response["X-Protocol-Version"] = PROTOCOL_VERSION
        if found.traceparent:
            response["traceparent"] = found.traceparent
        _log(request, response, found)
        return response


def _enveloped(response: HttpResponseBase, found: Trace) -> HttpResponseBase:
    status = response.status_code if response.status_code >= 400 else 404
    code = errors.code_of_status(status)
    rule = errors.CODES[code]
    found.error_code = code
    response.close()
    made = JsonResponse(errors.body(code, rule.meaning, retryable=rule.retryable, request_id=found.request_id), status=rule.status)
    made["Cache-Control"] = "no-store"
    return made


def _log(request: HttpRequest, response: HttpResponseBase, found: Trace) -> None:
    """The route, not the path, and nothing of a body or a query: what a caller puts there may be a secret."""
    route = request.resolver_match.route if request.resolver_match else "-"
    logger.info(
        "request=%s token=%s instance=%s %s %s status=%d code=%s job=%s attempt=%s seconds=%.3f",
        found.request_id, found.key_id or "-", found.instance or "-", request.method, route, response.status_code,
        found.error_code or "-", found.job_id or "-", found.attempt_no or "-", time.monotonic() - found.started,
    )  # fmt: skip
