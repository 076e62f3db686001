"""Heartbeats, of one job and of all."""

from typing import Any

from rest_framework import serializers

from runtime_protocol import limits
from runtime_protocol.dto.choices import BATCH_DIRECTIVES, DIRECTIVES, ERROR_CODES
from runtime_protocol.dto.examples import HOLDER, INSTANCE, JOB, LATER, NOW, TOKEN
from runtime_protocol.dto.holder import HolderDto, lease_wish
from runtime_protocol.wire.fields import Choice, Flag, Id, InstanceId, Json, LockToken, Moment, Number, Text, Whole, optional, sometimes
from runtime_protocol.wire.forms import Dto, many


def _progress() -> dict[str, Any]:
    return {
        "lease_seconds": lease_wish(),
        "progress": optional(Whole, most=100, help_text="Percent."),
        "progress_message": optional(Text, most=200, least=0),
        "checkpoint": optional(
            Json, most_bytes=limits.MAX_CHECKPOINT_BYTES, help_text=f"Any JSON of at most {limits.MAX_CHECKPOINT_BYTES:,} bytes."
        ),
    }


class RuntimeHeartbeatRequestDto(HolderDto):
    example = {**HOLDER, "leaseSeconds": 60, "progress": 40, "progressMessage": "page 3 of 7", "checkpoint": {"page": 3}}
    lease_seconds, progress, progress_message, checkpoint = _progress().values()


class RuntimeHeartbeatResponseDto(Dto):
    example = {
        "jobId": JOB, "directive": "continue", "cancelRequested": False, "lockUntil": LATER, "leaseSeconds": 60.0,
        "nextHeartbeatSeconds": 10.0, "late": False, "serverTime": NOW,
    }  # fmt: skip
    job_id = Id()
    directive = Choice(choices=DIRECTIVES)
    cancel_requested = Flag()
    lock_until = Moment()
    lease_seconds = Number()
    next_heartbeat_seconds = Number()
    late = Flag(help_text="The lease was found to have run out; nobody had taken the job, and the attempt goes on.")
    server_time = Moment()


class RuntimeBatchHeartbeatJobDto(Dto):
    example = {"jobId": JOB, "attemptNo": 1, "lockToken": TOKEN, "progress": 40}
    job_id = Id()
    attempt_no = Whole(least=1, most=2**31 - 1)
    lock_token = LockToken()
    lease_seconds, progress, progress_message, checkpoint = _progress().values()


class RuntimeBatchHeartbeatRequestDto(Dto):
    example = {"runtimeInstanceId": INSTANCE, "jobs": [RuntimeBatchHeartbeatJobDto.example]}
    runtime_instance_id = InstanceId()
    jobs = many(RuntimeBatchHeartbeatJobDto, least=1, most=limits.MAX_BATCH)

    def validate_jobs(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({job["job_id"] for job in jobs}) != len(jobs):
            raise serializers.ValidationError("A job stands twice in the list.", code="unique")
        return jobs


class RuntimeBatchHeartbeatJobResponseDto(Dto):
    example = {"jobId": JOB, "directive": "stop", "reason": "job_lock_lost", "cancelRequested": False, "late": False}
    job_id = Id()
    directive = Choice(choices=BATCH_DIRECTIVES, help_text="stop: this job is not yours any more; `reason` says why.")
    reason = sometimes(Choice, choices=ERROR_CODES)
    cancel_requested = Flag()
    lock_until = sometimes(Moment)
    lease_seconds = sometimes(Number)
    next_heartbeat_seconds = sometimes(Number)
    late = Flag()
    server_time = sometimes(Moment)


class RuntimeBatchHeartbeatResponseDto(Dto):
    example = {
        "jobs": [{**RuntimeHeartbeatResponseDto.example}, RuntimeBatchHeartbeatJobResponseDto.example], "serverTime": NOW,
        "nextHeartbeatSeconds": 10.0,
    }  # fmt: skip
    jobs = RuntimeBatchHeartbeatJobResponseDto(many=True)
    server_time = Moment()
    next_heartbeat_seconds = Number()
