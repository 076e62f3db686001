"""How the API says no: one shape for every failure, `{"errorCode", "message", "details"?}`, whoever raised it."""

import logging
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from rest_framework import status
from rest_framework.exceptions import APIException, ParseError, ValidationError
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import exception_handler

from runtime_jobs.errors import IllegalTransition, InvalidRequest, JobNotCancellable, JobNotFound, PayloadTooLarge, ServiceError
from runtime_jobs.redaction import safe_trace

logger = logging.getLogger(__name__)

INTERNAL_ERROR = "internal_error"
# The closed set of what `errorCode` of a failed call may be. Clients tell errors apart by these: never rename one.
ERROR_CODES = (
    "not_authenticated",
    "csrf_failed",
    "permission_denied",
    "not_found",
    JobNotFound.code,
    InvalidRequest.code,
    "parse_error",
    PayloadTooLarge.code,
    "method_not_allowed",
    "not_acceptable",
    "unsupported_media_type",
    JobNotCancellable.code,
    IllegalTransition.code,
    INTERNAL_ERROR,
)

_SERVICE_STATUS: Mapping[type[ServiceError], int] = {
    InvalidRequest: status.HTTP_400_BAD_REQUEST,
    JobNotFound: status.HTTP_404_NOT_FOUND,
    PayloadTooLarge: status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
}


class BodyTooLarge(APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = PayloadTooLarge.code
    default_detail = "The request's body is too large."


def answer(error: Exception, context: dict[str, Any]) -> Response:
    """The response to an exception that a view raised. What nobody foresaw is logged without its message and says nothing outside."""
    if isinstance(error, ServiceError):
        code = _SERVICE_STATUS.get(type(error), status.HTTP_409_CONFLICT)
        return Response(_body(error.code, error.message, error.details), code)
    if isinstance(error, RequestDataTooBig):
        error = BodyTooLarge()
    elif isinstance(error, SuspiciousOperation | BadRequest):
        error = ParseError("The request cannot be read.")
    # DRF knows the status and the headers (Retry-After, WWW-Authenticate), and how to roll back; the words are ours.
    response = exception_handler(error, context)
    if response is None:
        request = context["request"]
        logger.error("%s %s failed\n%s", request.method, request.path, safe_trace(error))
        return Response(_body(INTERNAL_ERROR, "Something went wrong on our side."), status.HTTP_500_INTERNAL_SERVER_ERROR)
    if isinstance(error, ValidationError):
        details = _findings(error)
        name, sentences = next(iter(details.items()))
        response.data = _body(InvalidRequest.code, f"{name}: {sentences[0]}", details)
    elif isinstance(error, APIException):
        response.data = _body(str(error.get_codes()), str(error.detail))
    else:  # Django's own Http404 and PermissionDenied, which DRF has translated
        detail = response.data["detail"]
        response.data = _body(detail.code, str(detail))
    return response


def _body(code: str, message: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"errorCode": code, "message": message, **({"details": dict(details)} if details else {})}


def _findings(error: ValidationError) -> dict[str, list[str]]:
    """What is wrong, by the name of the parameter or member; what concerns the whole body stands under `body`."""
    found = error.detail if isinstance(error.detail, dict) else {api_settings.NON_FIELD_ERRORS_KEY: error.detail}
    return {
        "body" if name == api_settings.NON_FIELD_ERRORS_KEY else name: [str(one) for one in (said if isinstance(said, list) else [said])]
        for name, said in found.items()
    }
