"""Poll and lock: offers and leases."""

from typing import Any

from rest_framework import serializers

from runtime_protocol import limits
from runtime_protocol.dto.choices import KEY_MODES, POLL_DIRECTIVES
from runtime_protocol.dto.examples import DEADLINE, INSTANCE, JOB, LATER, NOW, REQUEST, SNAPSHOT, TOKEN
from runtime_protocol.dto.holder import lease_wish
from runtime_protocol.wire.fields import (
    Choice,
    Flag,
    Id,
    InstanceId,
    Json,
    Labels,
    LockToken,
    Moment,
    Number,
    Text,
    Texts,
    Whole,
    optional,
    sometimes,
)
from runtime_protocol.wire.forms import Dto


class RuntimePollJobsRequestDto(Dto):
    example = {
        "runtimeInstanceId": INSTANCE, "jobTypes": ["synthetic.extract_facts_runtime"], "maxJobs": 1, "waitSeconds": 20,
        "autoLock": True, "requestId": REQUEST, "leaseSeconds": 60, "runtimeVersion": "1.4.0", "labels": {"zone": "a"},
    }  # fmt: skip
    runtime_instance_id = InstanceId()
    job_types = optional(Texts, most=100, of=100, help_text="Empty or left out: all that the token may touch.")
    max_jobs = optional(Whole, least=1, help_text=f"Default 1; more than {limits.MAX_JOBS_PER_POLL} is clamped.")
    wait_seconds = optional(Number, help_text=f"How long to wait for work. Default 0; more than {limits.MAX_WAIT_SECONDS} is clamped.")
    auto_lock = optional(Flag, help_text="Lock at once; default false.")
    request_id = optional(Id, help_text="Needed with autoLock: makes the poll repeatable. A new one for each poll.")
    lease_seconds = lease_wish()
    runtime_version = optional(Text, most=100, least=0)
    labels = optional(Labels)

    also = {
        "if": {"required": ["autoLock"], "properties": {"autoLock": {"const": True}}},
        "then": {"required": ["requestId"], "properties": {"requestId": {"type": "string"}}},
    }

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("auto_lock") and "request_id" not in attrs:
            raise serializers.ValidationError({"requestId": ["With autoLock a requestId is needed."]}, code="required")
        return attrs


class RuntimeLockJobResponseDto(Dto):
    example = {
        "jobId": JOB, "attemptNo": 1, "lockToken": TOKEN, "lockedBy": INSTANCE, "lockedAt": NOW, "lockUntil": LATER,
        "leaseSeconds": 60.0, "heartbeatIntervalSeconds": 10.0, "timeoutSeconds": 120, "deadlineAt": DEADLINE, "snapshotId": SNAPSHOT,
        "checkpoint": {"page": 3}, "serverTime": NOW,
    }  # fmt: skip
    job_id = Id()
    attempt_no = Whole(least=1)
    lock_token = LockToken()
    locked_by = InstanceId()
    locked_at = Moment()
    lock_until = Moment()
    lease_seconds = Number(help_text="From serverTime to lockUntil at most.")
    heartbeat_interval_seconds = Number()
    timeout_seconds = Whole(least=1)
    deadline_at = Moment(help_text="lockedAt + timeoutSeconds. lockUntil never passes it.")
    snapshot_id = Id()
    checkpoint = sometimes(Json, help_text="The last one that an attempt of this job left.")
    server_time = Moment()


class RuntimeJobOfferDto(Dto):
    example = {
        "jobId": JOB, "jobType": "synthetic.extract_facts_runtime", "targetType": "document", "targetId": "42", "priority": 5,
        "attemptsMade": 0, "inputSchemaVersion": "1", "outputSchemaVersion": "1", "promptVersion": "extract-facts-1",
        "modelProvider": "openai", "modelName": "gpt-5-mini", "apiKeyMode": "platform", "timeoutSeconds": 120, "snapshotId": SNAPSHOT,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "createdAt": NOW, "offerSeconds": 0.0,
        "lease": RuntimeLockJobResponseDto.example,
    }  # fmt: skip
    job_id = Id()
    job_type = Text(most=100)
    target_type = Text(most=100)
    target_id = Text(most=200)
    priority = Whole(most=9, help_text="0 to 9, higher is sooner.")
    attempts_made = Whole(help_text="Executions before this one.")
    input_schema_version = Text(most=50)
    output_schema_version = Text(most=50)
    prompt_version = Text(most=50)
    model_provider = Text(most=50)
    model_name = Text(most=200)
    api_key_mode = Choice(choices=KEY_MODES)
    timeout_seconds = Whole(least=1)
    snapshot_id = Id()
    traceparent = sometimes(Text, most=55)
    created_at = Moment()
    offer_seconds = Number(help_text="For so long it is hidden from others; 0 when it comes with its lease.")
    lease = RuntimeLockJobResponseDto(required=False, help_text="With autoLock.")


class RuntimePollJobsResponseDto(Dto):
    example = {"jobs": [RuntimeJobOfferDto.example], "serverTime": NOW, "pollAfterSeconds": 0.0, "directive": "continue"}
    jobs = RuntimeJobOfferDto(many=True)
    server_time = Moment()
    poll_after_seconds = Number(help_text="What the server asks the runtime to wait before it polls again.")
    directive = Choice(choices=POLL_DIRECTIVES, help_text="drain: finish what runs, take nothing new.")


class RuntimeLockJobRequestDto(Dto):
    example = {"runtimeInstanceId": INSTANCE, "requestId": REQUEST, "leaseSeconds": 60}
    runtime_instance_id = InstanceId()
    request_id = Id(help_text="Makes the lock repeatable. A new one for each lock.")
    lease_seconds = lease_wish()
