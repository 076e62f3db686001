"""Heartbeats: of one job, and of all that an instance holds."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs.errors import ServiceError
from runtime_jobs.services import leases
from runtime_jobs.services.leases import Beat, Pulse
from runtime_jobs.states import JobStatus
from runtime_protocol import dto, limits, presence, requests
from runtime_protocol.openapi import JOB_ID, operation
from runtime_protocol.server import database
from runtime_protocol.views.base import HELD, ProtocolViewSet, on_behalf


class HeartbeatsViewSet(ProtocolViewSet):
    @operation(
        "heartbeat", "Extends the lease, reports progress, brings back continue, cancel or drain", dto.RuntimeHeartbeatResponseDto, HELD,
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
        with database(), on_behalf(request):
            beats = leases.beat_many(pulses, worker=instance, job_types=requests.caller_of(request).token.touchable())
        return list(zip(given, beats, strict=True)), draining


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
