"""The endpoints: each reads its DTO, asks one service, and answers with a DTO. What they mean stands in PROTOCOL.md."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpResponse
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import OpenApiResponse
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSetMixin

from runtime_jobs.errors import ServiceError
from runtime_jobs.redaction import storable
from runtime_jobs.services import events, holders, leases, pulls, runtime_usage, submissions
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.leases import Beat, Pulse
from runtime_jobs.services.runtime_usage import ReportedCall
from runtime_jobs.services.submissions import Failure, Submission
from runtime_jobs.services.terminal import Fence, Settlement
from runtime_jobs.states import JobStatus
from runtime_protocol import dto, limits, polling, presence, requests, trace
from runtime_protocol.auth import ServiceTokenAuthentication
from runtime_protocol.envelope import OURS
from runtime_protocol.errors import ProtocolError, answer
from runtime_protocol.openapi import FILE, HOLDER_HEADERS, JOB_ID, operation
from runtime_protocol.polling import Found, Poll
from runtime_protocol.server import database
from runtime_protocol.throttling import TokenThrottle
from runtime_protocol.wire import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION

_HELD = ("job_not_found", "job_lock_lost", "job_cancelled", "job_already_finished")


class ProtocolView(APIView):
    """In the order of the checks: authentication, rate, protocol version, form of the answer; then the method and what it checks."""

    authentication_classes = [ServiceTokenAuthentication]
    permission_classes = []
    throttle_classes = [TokenThrottle]
    parser_classes = [JSONParser]  # for the contract; bodies are read by requests.read_json
    renderer_classes = [JSONRenderer]
    http_method_names = ["get", "head", "post"]
    cache_control = "no-store"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.format_kwarg = None
        self.perform_authentication(request)
        self.check_throttles(request)
        requests.check_version(request)
        request.accepted_renderer, request.accepted_media_type = self.perform_content_negotiation(request)

    def get_exception_handler(self) -> Callable[..., Response | None]:
        return answer

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if isinstance(response, Response) and response.exception:
            # A failure is JSON, whatever was asked for.
            response.accepted_renderer, response.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        response.headers.setdefault("Cache-Control", self.cache_control)
        setattr(response, OURS, True)
        # Our own line in the log tells all; Django's would tell the path.
        response._has_been_logged = True
        return response

    def on_behalf(self, request: Request) -> Any:
        """What happens to the job inside is recorded with the request's ids and the token's."""
        found = trace.of(request)
        return events.on_behalf_of(request_id=found.request_id, traceparent=found.traceparent, service_token=found.key_id)


class ProtocolViewSet(ViewSetMixin, ProtocolView):
    """The same for several methods of one thing."""


class JobsViewSet(ProtocolViewSet):
    @operation(
        "pollJobs", "Offers work; can wait for it; can lock at once", dto.RuntimePollJobsResponseDto, body=dto.RuntimePollJobsRequestDto
    )
    def poll(self, request: Request) -> Response:
        values = requests.enter(request, dto.RuntimePollJobsRequestDto, "jobs")
        caller = requests.caller_of(request)
        wanted = values.get("job_types") or []
        forbidden = [job_type for job_type in wanted if not caller.token.may_touch(job_type)]
        if forbidden:
            raise ProtocolError("scope_denied", "The token may not touch one of these job types.", details={"jobTypes": forbidden[:20]})
        touchable = caller.token.touchable()
        lease = limits.lease_seconds(values.get("lease_seconds"))
        with self.on_behalf(request):
            found = polling.poll(
                Poll(
                    token=caller.token,
                    instance=values["runtime_instance_id"],
                    job_types=tuple(job_type for job_type in touchable if not wanted or job_type in wanted),
                    count=min(values.get("max_jobs", 1), limits.MAX_JOBS_PER_POLL),
                    wait_seconds=min(values.get("wait_seconds", 0.0), limits.MAX_WAIT_SECONDS),
                    lease_seconds=lease,
                    request_id=values["request_id"] if values.get("auto_lock") else None,
                    version=values.get("runtime_version", ""),
                    labels=values.get("labels", {}),
                )
            )
        trace.of(request).job_id = ",".join(str(job_id) for job_id in found.job_ids)
        return Response(
            dto.RuntimePollJobsResponseDto.answer(
                jobs=_offers(found, lease),
                server_time=caller.server_time,
                poll_after_seconds=found.poll_after,
                directive="drain" if found.draining else "continue",
            )
        )

    @operation(
        "lockJob", "Takes the lease: attempt + 1, status running", dto.RuntimeLockJobResponseDto,
        ("job_not_found", "job_lock_conflict", "job_not_lockable", "job_cancelled", "job_already_finished"),
        body=dto.RuntimeLockJobRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def lock(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeLockJobRequestDto, "jobs")
        job_id = requests.job_id_of(request, jobId)
        caller = requests.caller_of(request)
        lease = limits.lease_seconds(values.get("lease_seconds"))
        with database(), self.on_behalf(request):
            claim = pulls.lock(
                job_id,
                service_token_id=caller.token.id,
                worker=values["runtime_instance_id"],
                request_id=values["request_id"],
                job_types=caller.token.touchable(),
                lease_seconds=lease,
            )
            row = pulls.described([job_id])[job_id]
        trace.of(request).attempt_no = str(claim.attempt_no)
        return Response(_lease(claim, row, lease))

    @operation(
        "heartbeat", "Extends the lease, reports progress, brings back continue, cancel or drain", dto.RuntimeHeartbeatResponseDto, _HELD,
        body=dto.RuntimeHeartbeatRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def heartbeat(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeHeartbeatRequestDto, "jobs")
        job_id = requests.job_id_of(request, jobId)
        [(_, beat)], draining = self._beat(request, values["runtime_instance_id"], [{"job_id": job_id, **values}])
        if isinstance(beat, ServiceError):
            raise beat
        lease = limits.lease_seconds(values.get("lease_seconds"))
        now = requests.caller_of(request).server_time
        return Response(dto.RuntimeHeartbeatResponseDto.answer(job_id=job_id, **_beaten(beat, lease, draining), server_time=now))

    @operation(
        "heartbeatAll", "The same for all jobs of one runtime; a lost job is a row that says stop, never an error of the whole call",
        dto.RuntimeBatchHeartbeatResponseDto, body=dto.RuntimeBatchHeartbeatRequestDto,
    )  # fmt: skip
    def heartbeat_all(self, request: Request) -> Response:
        values = requests.enter(request, dto.RuntimeBatchHeartbeatRequestDto, "jobs")
        beats, draining = self._beat(request, values["runtime_instance_id"], values["jobs"])
        now = requests.caller_of(request).server_time
        rows, pace = [], limits.heartbeat_seconds(limits.lease_seconds(None))
        for given, beat in beats:
            lease = limits.lease_seconds(given.get("lease_seconds"))
            pace = min(pace, limits.heartbeat_seconds(lease))
            fields = _lost(beat) if isinstance(beat, ServiceError) else {**_beaten(beat, lease, draining), "server_time": now}
            rows.append(dto.RuntimeBatchHeartbeatJobResponseDto.answer(job_id=given["job_id"], **fields))
        return Response(dto.RuntimeBatchHeartbeatResponseDto.answer(jobs=rows, server_time=now, next_heartbeat_seconds=pace))

    def _beat(
        self, request: Request, instance: str, given: list[dict[str, Any]]
    ) -> tuple[list[tuple[dict[str, Any], Beat | ServiceError]], bool]:
        draining = presence.beat(instance)
        pulses = [
            Pulse(
                job_id=job["job_id"],
                attempt_no=job["attempt_no"],
                token=requests.fence_of(job["job_id"], job, instance).token,
                lease_seconds=limits.lease_seconds(job.get("lease_seconds")),
                progress=job.get("progress"),
                progress_message=job.get("progress_message"),
                checkpoint=job.get("checkpoint"),
            )
            for job in given
        ]
        with database(), self.on_behalf(request):
            beats = leases.beat_many(pulses, worker=instance, job_types=requests.caller_of(request).token.touchable())
        return list(zip(given, beats, strict=True)), draining

    @operation(
        "getSnapshot", "The immutable input of this job, with an ETag", dto.RuntimeSnapshotResponseDto,
        (*_HELD, "scope_denied", "instance_not_allowed"), parameters=[JOB_ID, *HOLDER_HEADERS], unchanged=True,
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

    @operation(
        "submitResult", "Validates, stores, projects, succeeds", dto.RuntimeSubmitResultResponseDto,
        (
            "job_id_mismatch", *_HELD, "result_conflict", "output_hash_mismatch", "invalid_model_output", "schema_validation_failed",
            "business_validation_failed", "reference_validation_failed",
        ),
        body=dto.RuntimeSubmitResultRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def result(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeSubmitResultRequestDto, "jobs")
        requests.same_job(jobId, values["job_id"])
        raw: str = values["raw_output"]
        if len(raw.encode(errors="surrogatepass")) > limits.MAX_OUTPUT_BYTES:
            raise ProtocolError("payload_too_large", "rawOutput is too large.", details={"maxBytes": limits.MAX_OUTPUT_BYTES})
        job_types = requests.caller_of(request).token.touchable()
        fence = requests.fence_of(requests.job_id_of(request, jobId), values)
        submission = Submission(
            raw_output=raw,
            output_hash=values["output_hash"],
            schema_version=values["schema_version"],
            validated_output=values.get("validated_output"),
            idempotency_key=values.get("result_idempotency_key"),
        )
        with database(), self.on_behalf(request):
            _take_usage(fence, values, job_types)
            settled = submissions.submit_result(fence, submission, job_types)
        return _result_answer(fence, settled, sanitized=requests.is_sanitized(raw))

    @operation(
        "submitFailure", "Stores the failure; the job is retried or failed", dto.RuntimeSubmitFailureResponseDto,
        ("job_id_mismatch", *_HELD), body=dto.RuntimeSubmitFailureRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def fail(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeSubmitFailureRequestDto, "jobs")
        requests.same_job(jobId, values["job_id"])
        job_types = requests.caller_of(request).token.touchable()
        fence = requests.fence_of(requests.job_id_of(request, jobId), values)
        failure = Failure(values["error_code"], values["message"], values["retryable"], values.get("retry_after_seconds"))
        with database(), self.on_behalf(request):
            _take_usage(fence, values, job_types)
            settled, cut = submissions.submit_failure(fence, failure, job_types)
        return Response(
            dto.RuntimeSubmitFailureResponseDto.answer(
                job_id=fence.job_id,
                job_status=settled.job_status,
                attempt_no=settled.attempt_no,
                retry_count=settled.retry_count,
                max_retry_count=settled.max_retry_count,
                next_attempt_at=settled.next_attempt_at,
                duplicate=settled.duplicate,
                late=settled.late,
                sanitized=requests.is_sanitized(failure.message, failure.code),
                truncated=cut,
            )
        )

    @operation(
        "releaseJob", "Hands the job back; no budget is charged", dto.RuntimeReleaseJobResponseDto, _HELD,
        body=dto.RuntimeReleaseJobRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def release(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeReleaseJobRequestDto, "jobs")
        fence = requests.fence_of(requests.job_id_of(request, jobId), values)
        with database(), self.on_behalf(request):
            settled = submissions.release(fence, values.get("reason", ""), requests.caller_of(request).token.touchable())
        return Response(
            dto.RuntimeReleaseJobResponseDto.answer(
                job_id=fence.job_id, job_status=settled.job_status, attempt_no=settled.attempt_no, duplicate=settled.duplicate
            )
        )


class CredentialsViewSet(ProtocolViewSet):
    @operation(
        "resolveCredential", "The key for this job's model call", dto.RuntimeResolveCredentialResponseDto,
        (*_HELD, "credential_unavailable"), body=dto.RuntimeResolveCredentialRequestDto,
    )  # fmt: skip
    @sensitive_variables()
    def resolve(self, request: Request) -> Response:
        values = requests.enter(request, dto.RuntimeResolveCredentialRequestDto, "credentials")
        fence = requests.fence_of(values["job_id"], values)
        with database(), self.on_behalf(request):
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


class LogsViewSet(ProtocolViewSet):
    @operation(
        "logInvocations", "One usage row per provider call", dto.RuntimeInvocationLogAckDto, body=dto.RuntimeInvocationLogsRequestDto
    )
    def create(self, request: Request) -> Response:
        values = requests.enter(request, dto.RuntimeInvocationLogsRequestDto, "logs")
        caller = requests.caller_of(request)
        for log in values["logs"]:
            caller.require_instance(log["runtime_instance_id"])
        calls = [(requests.fence_of(log["job_id"], log), _call(log)) for log in values["logs"]]
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


class ServerViewSet(ProtocolViewSet):
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

    @operation("getContract", "This contract", OpenApiResponse({"type": "string"}, "The contract, as YAML."))
    def schema_file(self, request: Request) -> HttpResponse:
        return HttpResponse(_contract(), content_type="application/yaml")


@cache
def _contract() -> bytes:
    return FILE.read_bytes()


class Nothing(ProtocolView):
    """Whatever else is asked for, so that it too needs a token and is answered in JSON."""

    schema = None

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ProtocolError("not_found")


def _offers(found: Found, lease: float) -> list[dict[str, Any]]:
    return [_offer(found.rows[job_id], found.leases.get(job_id), lease) for job_id in found.job_ids]


def _offer(row: Any, claim: Claim | None, lease: float) -> dict[str, Any]:
    return dto.RuntimeJobOfferDto.answer(
        job_id=row.pk,
        job_type=row.job_type,
        target_type=row.target_type,
        target_id=row.target_id,
        priority=row.priority,
        attempts_made=row.attempt_no if claim is None else claim.attempt_no - 1,
        input_schema_version=row.input_schema_version,
        output_schema_version=row.output_schema_version,
        prompt_version=row.prompt_version,
        model_provider=row.model_provider,
        model_name=row.model_name,
        api_key_mode=row.api_key_mode,
        timeout_seconds=row.timeout_seconds,
        snapshot_id=row.snapshot_id,
        traceparent=row.traceparent or None,
        created_at=row.created_at,
        offer_seconds=float(settings.RUNTIME_OFFER_SECONDS) if claim is None else 0.0,
        lease=None if claim is None else _lease(claim, row, lease),
    )


def _lease(claim: Claim, row: Any, lease: float) -> dict[str, Any]:
    given = min(lease, claim.timeout_seconds)
    return dto.RuntimeLockJobResponseDto.answer(
        job_id=claim.job_id,
        attempt_no=claim.attempt_no,
        lock_token=claim.token.reveal(),
        locked_by=claim.worker,
        locked_at=claim.locked_at,
        lock_until=claim.lock_until,
        lease_seconds=given,
        heartbeat_interval_seconds=limits.heartbeat_seconds(given),
        timeout_seconds=claim.timeout_seconds,
        deadline_at=claim.locked_at + timedelta(seconds=claim.timeout_seconds),
        snapshot_id=row.snapshot_id,
        checkpoint=row.checkpoint,
        server_time=row.clock,
    )


def _beaten(beat: Beat, lease: float, draining: bool) -> dict[str, Any]:
    cancel = beat.status == JobStatus.CANCEL_REQUESTED
    return {
        "directive": "cancel" if cancel else "drain" if draining else "continue",
        "cancel_requested": cancel,
        "lock_until": beat.lock_until,
        "lease_seconds": lease,
        "next_heartbeat_seconds": limits.heartbeat_seconds(lease),
        "late": beat.late,
    }


def _lost(error: ServiceError) -> dict[str, Any]:
    return {"directive": "stop", "reason": error.code, "cancel_requested": error.code == "job_cancelled", "late": False}


def _matches(if_none_match: str, content_hash: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return f'"{content_hash}"' in tags or "*" in tags


def _call(values: dict[str, Any]) -> ReportedCall:
    known = {name: value for name, value in values.items() if name in ReportedCall.__dataclass_fields__}
    for name in ("finish_reason", "provider_request_id"):
        if name in known:
            known[name] = storable(known[name])
    return ReportedCall(**known)


def _take_usage(fence: Fence, values: dict[str, Any], job_types: list[str]) -> None:
    """Before all else, and in a transaction of its own: the money is spent, whatever becomes of the call that tells of it."""
    if values.get("usage"):
        runtime_usage.take([(fence, _call(call)) for call in values["usage"]], job_types)


def _result_answer(fence: Fence, settled: Settlement, *, sanitized: bool) -> Response:
    issues = [dto.RuntimeIssueDto.answer(**issue.as_json()) for issue in settled.issues]
    succeeded = settled.job_status == JobStatus.SUCCEEDED and settled.result_id is not None
    if not succeeded:
        # Checks or a projector of the definition that raised leave no result: the attempt is over all the same.
        code = settled.refused or "internal_error"
        details: dict[str, Any] = {
            "jobId": str(fence.job_id), "jobStatus": str(settled.job_status), "attemptNo": settled.attempt_no,
            "duplicate": settled.duplicate, "late": settled.late, "sanitized": sanitized, "validationErrors": issues,
        }  # fmt: skip
        if settled.result_id is not None:
            details["resultId"] = str(settled.result_id)
        raise ProtocolError(code, details=details, retryable=False)
    result_id: UUID | None = settled.result_id
    return Response(
        dto.RuntimeSubmitResultResponseDto.answer(
            job_id=fence.job_id,
            result_id=result_id,
            status="succeeded",
            job_status=settled.job_status,
            attempt_no=settled.attempt_no,
            duplicate=settled.duplicate,
            late=settled.late,
            sanitized=sanitized,
            validation_errors=issues,
        )
    )
