"""Poll and lock: how a runtime comes to its jobs."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs.services import pulls
from runtime_jobs.services.claims import Claim
from runtime_protocol import dto, limits, polling, requests, trace
from runtime_protocol.errors import ProtocolError
from runtime_protocol.openapi import JOB_ID, operation
from runtime_protocol.polling import Found, Poll
from runtime_protocol.server import database
from runtime_protocol.views.base import ProtocolViewSet, on_behalf


class LeasingViewSet(ProtocolViewSet):
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
        with on_behalf(request):
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
        with database(), on_behalf(request):
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
        return Response(lease_of(claim, row, lease))


def _offers(found: Found, lease: float) -> list[dict[str, Any]]:
    return [_offer(found.rows[job_id], found.leases.get(job_id), lease) for job_id in found.job_ids]


def _offer(row: Any, claim: Claim | None, lease: float) -> dict[str, Any]:
    return dto.RuntimeJobOfferDto.answer(
        job_id=row.id,
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
        lease=None if claim is None else lease_of(claim, row, lease),
    )


def lease_of(claim: Claim, row: Any, lease: float) -> dict[str, Any]:
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
