"""What the holder of a lease may see: the input of its job, and the key for the model call."""

from django.views.decorators.debug import sensitive_variables
from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs.services import holders
from runtime_protocol import dto, requests, trace
from runtime_protocol.openapi import HOLDER_HEADERS, JOB_ID, operation
from runtime_protocol.server import database
from runtime_protocol.views.base import HELD, ProtocolViewSet, on_behalf


class SnapshotsViewSet(ProtocolViewSet):
    @operation(
        "getSnapshot", "The immutable input of this job, with an ETag", dto.RuntimeSnapshotResponseDto,
        (*HELD, "scope_denied", "instance_not_allowed"), parameters=[JOB_ID, *HOLDER_HEADERS], unchanged=True,
    )  # fmt: skip
    def snapshot(self, request: Request, jobId: str) -> Response:
        values = dto.HolderDto.parse(requests.holder_headers(request))
        caller = requests.caller_of(request)
        caller.require("jobs")
        caller.require_instance(values["runtime_instance_id"])
        found = trace.of(request)
        found.instance, found.attempt_no = values["runtime_instance_id"], str(values["attempt_no"])
        job_id = requests.job_id_of(request, jobId)
        with database():
            stored = holders.snapshot(requests.fence_of(job_id, values), caller.token.touchable())
        headers = {"ETag": f'"{stored.content_hash}"', "Cache-Control": "private, no-cache"}
        if _matches(request.headers.get("If-None-Match", ""), stored.content_hash):
            return Response(status=304, headers=headers)
        made = dto.RuntimeSnapshotResponseDto.answer(
            job_id=job_id,
            snapshot_id=stored.snapshot_id,
            input_schema_version=stored.schema_version,
            payload=stored.payload,
            content_hash=stored.content_hash,
            created_at=stored.created_at,
        )
        return Response(made, headers=headers)


class CredentialsViewSet(ProtocolViewSet):
    @operation(
        "resolveCredential", "The key for this job's model call", dto.RuntimeResolveCredentialResponseDto,
        (*HELD, "credential_unavailable"), body=dto.RuntimeResolveCredentialRequestDto,
    )  # fmt: skip
    @sensitive_variables()
    def resolve(self, request: Request) -> Response:
        values = requests.enter(request, dto.RuntimeResolveCredentialRequestDto, "credentials")
        fence = requests.fence_of(values["job_id"], values)
        with database(), on_behalf(request):
            key = holders.resolve_key(fence, requests.caller_of(request).token.touchable())
        return Response(
            dto.RuntimeResolveCredentialResponseDto.answer(
                job_id=fence.job_id,
                credential_id=key.credential_id,
                api_key_mode=key.target.credential_mode,
                model_provider=key.target.provider,
                model_name=key.target.model,
                base_url=key.target.base_url or None,
                api_key=key.target.api_key.reveal(),
                expires_in_seconds=round(key.expires_in.total_seconds(), 3),
            )
        )


def _matches(if_none_match: str, content_hash: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return f'"{content_hash}"' in tags or "*" in tags
