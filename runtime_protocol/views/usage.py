"""Provider calls, in a call of their own or with the end of an attempt."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs.redaction import storable
from runtime_jobs.services import runtime_usage
from runtime_jobs.services.runtime_usage import ReportedCall
from runtime_jobs.services.settlements import Fence
from runtime_protocol import dto, requests
from runtime_protocol.openapi import operation
from runtime_protocol.server import database
from runtime_protocol.views.base import ProtocolViewSet


class LogsViewSet(ProtocolViewSet):
    @operation(
        "logInvocations", "One usage row per provider call", dto.RuntimeInvocationLogAckDto, body=dto.RuntimeInvocationLogsRequestDto
    )
    def create(self, request: Request) -> Response:
        values = requests.enter(request, dto.RuntimeInvocationLogsRequestDto, "logs")
        caller = requests.caller_of(request)
        for log in values["logs"]:
            caller.require_instance(log["runtime_instance_id"])
        calls = [(requests.fence_of(log["job_id"], log), call_of(log)) for log in values["logs"]]
        with database():
            taken = runtime_usage.take(calls, caller.token.touchable())
        return Response(
            dto.RuntimeInvocationLogAckDto.answer(
                accepted=taken.accepted,
                duplicates=taken.duplicates,
                rejected=[
                    dto.RuntimeInvocationLogRejectionDto.answer(index=one.index, invocation_id=one.invocation_id, error_code=one.code)
                    for one in taken.rejected
                ],
                sanitized=any(requests.is_sanitized(log.get("finish_reason"), log.get("provider_request_id")) for log in values["logs"]),
            )
        )


def take_usage(fence: Fence, values: dict[str, Any], job_types: list[str]) -> None:
    """Before all else, and in a transaction of its own: the money is spent, whatever becomes of the call that tells of it."""
    if values.get("usage"):
        runtime_usage.take([(fence, call_of(call)) for call in values["usage"]], job_types)


def call_of(values: dict[str, Any]) -> ReportedCall:
    known = {name: value for name, value in values.items() if name in ReportedCall.__dataclass_fields__}
    for name in ("finish_reason", "provider_request_id"):
        if name in known:
            known[name] = storable(known[name])
    return ReportedCall(**known)
