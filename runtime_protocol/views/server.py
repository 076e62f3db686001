"""The server itself: its health and its contract."""

from functools import cache

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs.services import pulls
from runtime_protocol import dto, limits, requests
from runtime_protocol.files import CONTRACT
from runtime_protocol.openapi import operation
from runtime_protocol.server import database
from runtime_protocol.versions import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from runtime_protocol.views.base import ProtocolViewSet


class HealthViewSet(ProtocolViewSet):
    @operation("getHealth", "Server time, protocol version, limits, database reachable", dto.RuntimeHealthResponseDto)
    def health(self, request: Request) -> Response:
        try:
            with database():
                now, reachable = pulls.server_time(), True
        except DatabaseError:
            now, reachable = requests.caller_of(request).server_time, False
        return Response(
            dto.RuntimeHealthResponseDto.answer(
                status="ok" if reachable else "degraded",
                server_time=now,
                protocol_version=PROTOCOL_VERSION,
                min_protocol_version=MIN_PROTOCOL_VERSION,
                limits=dto.RuntimeLimitsDto.answer(
                    max_body_bytes=settings.RUNTIME_MAX_BODY_BYTES,
                    max_output_bytes=limits.MAX_OUTPUT_BYTES,
                    max_wait_seconds=float(limits.MAX_WAIT_SECONDS),
                    max_jobs_per_poll=limits.MAX_JOBS_PER_POLL,
                    min_lease_seconds=float(settings.RUNTIME_MIN_LEASE_SECONDS),
                    max_lease_seconds=float(settings.RUNTIME_MAX_LEASE_SECONDS),
                ),
                database_ok=reachable,
            )
        )


class ContractRenderer(JSONRenderer):
    """Only for the choice by Accept; the file is sent as it is."""

    media_type = "application/yaml"
    format = "yaml"


class ContractViewSet(ProtocolViewSet):
    renderer_classes = [ContractRenderer, JSONRenderer]

    @operation("getContract", "This contract", OpenApiResponse({"type": "object"}, "OpenAPI 3.1, as YAML."), media_type="application/yaml")
    def schema_file(self, request: Request) -> HttpResponse:
        return HttpResponse(_contract(), content_type="application/yaml")


@cache
def _contract() -> bytes:
    return CONTRACT.read_bytes()
