"""The id of a request in the back office: in what it records, in its answer, and for a POST in the log."""

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from uuid_utils.compat import uuid7

logger = logging.getLogger("admin.access")

_USABLE = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)


def with_request_id(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    @functools.wraps(view)
    def within(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        from runtime_jobs.services.events import on_behalf_of  # models are not there yet when the admin site is imported

        request_id = _id_of(request)
        with on_behalf_of(request_id=request_id):
            response = view(request, *args, **kwargs)
        response["X-Request-Id"] = request_id
        if request.method == "POST":
            # The route, not the path or the form: what people type may be a secret.
            route = request.resolver_match.route if request.resolver_match else "-"
            logger.info("request=%s user=%s POST %s status=%d", request_id, request.user.pk, route, response.status_code)
        return response

    return within


def _id_of(request: HttpRequest) -> str:
    """The proxy's X-Request-Id where it sends a usable one, else our own."""
    given = request.headers.get("X-Request-Id", "")
    return given if _USABLE.fullmatch(given) else str(uuid7())
