"""`/healthz`: alive and ready, for load balancers. It needs no login and tells no details."""

import logging

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from runtime_protocol.server import database

logger = logging.getLogger(__name__)


@require_safe
def healthz(_: HttpRequest) -> JsonResponse:
    """200 when the database answers, else 503."""
    try:
        # A lent connection: else every thread that ever answered here would keep one of its own.
        with database(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        logger.exception("healthz: the database does not answer")
        return JsonResponse({"status": "unavailable"}, status=503)
    return JsonResponse({"status": "ok"})
