"""The bodies of the protocol, field by field, under the names that the runtime project uses (C: the customer's list)."""

from typing import Any

from rest_framework import serializers

from runtime_jobs.states import ApiKeyMode, JobStatus
from runtime_protocol import limits
from runtime_protocol.errors import CODES
from runtime_protocol.wire import (
    Choice,
    Dto,
    Flag,
    FreeText,
    Id,
    InstanceId,
    Json,
    Labels,
    LockToken,
    Moment,
    Money,
    Number,
    Text,
    Texts,
    Whole,
    many,
    optional,
    sometimes,
)

_JOB = "01932f5e-8d3c-7b1a-9f00-3c5d2a7e4b10"
_SNAPSHOT = "01932f5e-8d3b-7a55-8c11-9a0b1c2d3e4f"
_CREDENTIAL = "01932f5e-0000-7c3d-a1b2-c3d4e5f60718"
_RESULT = "01932f60-11aa-7e02-b3c4-d5e6f7081920"
_REQUEST = "5f0c1f0a-6a39-4a4c-9d5e-0d6a4b1c2e3f"
_INSTANCE = "runtime-7f3a"
_TOKEN = "4f1d…64 characters…9c20"  # noqa: S105 - an example
_NOW, _LATER, _DEADLINE = "2026-11-29T12:00:00.000Z", "2026-11-29T12:01:00.000Z", "2026-11-29T12:02:00.000Z"
_RAW = '{"summary": "A river.", "facts": [{"text": "It is long.", "paragraph": "p1"}]}'
_OUTPUT = {"summary": "A river.", "facts": [{"text": "It is long.", "paragraph": "p1"}]}
_HASH = "12b8a6c9f6dd9ae0c3ee7f5b9a4f6d2a38d8a62c4a3bb0f6a2d8a50f1c9e7b44"
_HOLDER: dict[str, Any] = {"runtimeInstanceId": _INSTANCE, "attemptNo": 1, "lockToken": _TOKEN}

JOB_STATUSES = [(str(status), str(status)) for status in JobStatus]
KEY_MODES = [(str(mode), str(mode)) for mode in ApiKeyMode]
RESULT_STATUSES = [("succeeded", "succeeded"), ("rejected", "rejected")]
DIRECTIVES = [("continue", "continue"), ("cancel", "cancel"), ("drain", "drain")]
POLL_DIRECTIVES = [("continue", "continue"), ("drain", "drain")]
BATCH_DIRECTIVES = [*DIRECTIVES, ("stop", "stop")]
ERROR_CODES = [(code, code) for code in CODES]

_HASH_FORM = "[0-9a-f]{64}"


def _lease_wish() -> Any:
    return optional(Number, most=86_400, help_text="Seconds; clamped to the limits that /health tells. Left out: the server's default.")


class HolderDto(Dto):
    """Who speaks: fields that every call of an attempt carries."""

    runtime_instance_id = InstanceId()
    attempt_no = Whole(least=1, most=2**31 - 1)
    lock_token = LockToken()


class RuntimePollJobsRequestDto(Dto):
    example = {
        "runtimeInstanceId": _INSTANCE, "jobTypes": ["synthetic.extract_facts_runtime"], "maxJobs": 1, "waitSeconds": 20,
        "autoLock": True, "requestId": _REQUEST, "leaseSeconds": 60, "runtimeVersion": "1.4.0", "labels": {"zone": "a"},
    }  # fmt: skip
    runtime_instance_id = InstanceId()
    job_types = optional(Texts, most=100, of=100, help_text="Empty or left out: all that the token may touch.")
    max_jobs = optional(Whole, least=1, help_text=f"Default 1; more than {limits.MAX_JOBS_PER_POLL} is clamped.")
    wait_seconds = optional(Number, help_text=f"How long to wait for work. Default 0; more than {limits.MAX_WAIT_SECONDS} is clamped.")
    auto_lock = optional(Flag, help_text="Lock at once; default false.")
    request_id = optional(Id, help_text="Needed with autoLock: makes the poll repeatable. A new one for each poll.")
    lease_seconds = _lease_wish()
    runtime_version = optional(Text, most=100, least=0)
    labels = optional(Labels)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("auto_lock") and "request_id" not in attrs:
            raise serializers.ValidationError({"requestId": ["With autoLock a requestId is needed."]}, code="required")
        return attrs


class RuntimeLockJobResponseDto(Dto):
    example = {
        "jobId": _JOB, "attemptNo": 1, "lockToken": _TOKEN, "lockedBy": _INSTANCE, "lockedAt": _NOW, "lockUntil": _LATER,
        "leaseSeconds": 60.0, "heartbeatIntervalSeconds": 10.0, "timeoutSeconds": 120, "deadlineAt": _DEADLINE, "snapshotId": _SNAPSHOT,
        "checkpoint": {"page": 3}, "serverTime": _NOW,
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
        "jobId": _JOB, "jobType": "synthetic.extract_facts_runtime", "targetType": "document", "targetId": "42", "priority": 5,
        "attemptsMade": 0, "inputSchemaVersion": "1", "outputSchemaVersion": "1", "promptVersion": "extract-facts-1",
        "modelProvider": "openai", "modelName": "gpt-5-mini", "apiKeyMode": "platform", "timeoutSeconds": 120, "snapshotId": _SNAPSHOT,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "createdAt": _NOW, "offerSeconds": 0.0,
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
    example = {"jobs": [RuntimeJobOfferDto.example], "serverTime": _NOW, "pollAfterSeconds": 0.0, "directive": "continue"}
    jobs = RuntimeJobOfferDto(many=True)
    server_time = Moment()
    poll_after_seconds = Number(help_text="What the server asks the runtime to wait before it polls again.")
    directive = Choice(choices=POLL_DIRECTIVES, help_text="drain: finish what runs, take nothing new.")


class RuntimeLockJobRequestDto(Dto):
    example = {"runtimeInstanceId": _INSTANCE, "requestId": _REQUEST, "leaseSeconds": 60}
    runtime_instance_id = InstanceId()
    request_id = Id(help_text="Makes the lock repeatable. A new one for each lock.")
    lease_seconds = _lease_wish()


def _progress() -> dict[str, Any]:
    return {
        "lease_seconds": _lease_wish(),
        "progress": optional(Whole, most=100, help_text="Percent."),
        "progress_message": optional(Text, most=200, least=0),
        "checkpoint": optional(
            Json, most_bytes=limits.MAX_CHECKPOINT_BYTES, help_text=f"Any JSON of at most {limits.MAX_CHECKPOINT_BYTES:,} bytes."
        ),
    }


class RuntimeHeartbeatRequestDto(HolderDto):
    example = {**_HOLDER, "leaseSeconds": 60, "progress": 40, "progressMessage": "page 3 of 7", "checkpoint": {"page": 3}}
    lease_seconds, progress, progress_message, checkpoint = _progress().values()


class RuntimeHeartbeatResponseDto(Dto):
    example = {
        "jobId": _JOB, "directive": "continue", "cancelRequested": False, "lockUntil": _LATER, "leaseSeconds": 60.0,
        "nextHeartbeatSeconds": 10.0, "late": False, "serverTime": _NOW,
    }  # fmt: skip
    job_id = Id()
    directive = Choice(choices=DIRECTIVES)
    cancel_requested = Flag()
    lock_until = Moment()
    lease_seconds = Number()
    next_heartbeat_seconds = Number()
    late = Flag(help_text="The lease had run out; nobody had taken the job, and the attempt goes on.")
    server_time = Moment()


class RuntimeBatchHeartbeatJobDto(Dto):
    example = {"jobId": _JOB, "attemptNo": 1, "lockToken": _TOKEN, "progress": 40}
    job_id = Id()
    attempt_no = Whole(least=1, most=2**31 - 1)
    lock_token = LockToken()
    lease_seconds, progress, progress_message, checkpoint = _progress().values()


class RuntimeBatchHeartbeatRequestDto(Dto):
    example = {"runtimeInstanceId": _INSTANCE, "jobs": [RuntimeBatchHeartbeatJobDto.example]}
    runtime_instance_id = InstanceId()
    jobs = many(RuntimeBatchHeartbeatJobDto, least=1, most=limits.MAX_BATCH)

    def validate_jobs(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({job["job_id"] for job in jobs}) != len(jobs):
            raise serializers.ValidationError("A job stands twice in the list.", code="unique")
        return jobs


class RuntimeBatchHeartbeatJobResponseDto(Dto):
    example = {"jobId": _JOB, "directive": "stop", "reason": "job_lock_lost", "cancelRequested": False, "late": False}
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
        "jobs": [{**RuntimeHeartbeatResponseDto.example}, RuntimeBatchHeartbeatJobResponseDto.example], "serverTime": _NOW,
        "nextHeartbeatSeconds": 10.0,
    }  # fmt: skip
    jobs = RuntimeBatchHeartbeatJobResponseDto(many=True)
    server_time = Moment()
    next_heartbeat_seconds = Number()


class RuntimeSnapshotResponseDto(Dto):
    example = {
        "jobId": _JOB, "snapshotId": _SNAPSHOT, "inputSchemaVersion": "1",
        "payload": {"paragraphs": [{"id": "p1", "text": "A river is long."}]}, "contentHash": _HASH, "createdAt": _NOW,
    }  # fmt: skip
    job_id = Id()
    snapshot_id = Id()
    input_schema_version = Text(most=50)
    payload = Json(help_text="The input: a JSON object of the definition's input schema.")
    content_hash = Text(most=64, pattern=_HASH_FORM, help_text="Equal for equal inputs; also the ETag.")
    created_at = Moment()


class RuntimeResolveCredentialRequestDto(HolderDto):
    example = {"jobId": _JOB, **_HOLDER}
    job_id = Id()


class RuntimeResolveCredentialResponseDto(Dto):
    example = {
        "jobId": _JOB, "credentialId": _CREDENTIAL, "apiKeyMode": "platform", "modelProvider": "openai", "modelName": "gpt-5-mini",
        "baseUrl": "https://api.openai.com/v1", "apiKey": "the key in clear", "expiresInSeconds": 119.2,
    }  # fmt: skip
    job_id = Id()
    credential_id = Id()
    api_key_mode = Choice(choices=KEY_MODES)
    model_provider = Text(most=50)
    model_name = Text(most=200)
    base_url = sometimes(Text, most=500)
    api_key = Text(most=10_000, help_text="Keep it in memory only, for this call only.")
    expires_in_seconds = Number(help_text="Until the attempt's deadline: then drop the key.")


class RuntimeUsageDto(Dto):
    example = {
        "invocationId": "call-1", "provider": "openai", "model": "gpt-5-mini", "credentialMode": "platform", "inputTokens": 812,
        "outputTokens": 144, "latencyMs": 1380, "costUsd": "0.00041", "finishReason": "stop", "startedAt": _NOW,
    }  # fmt: skip
    invocation_id = Text(most=100, help_text="Unique within the job: a repeat is stored once.")
    provider = Text(most=50)
    model = Text(most=200)
    credential_mode = Choice(choices=KEY_MODES)
    input_tokens = optional(Whole, help_text="Cached ones included. Not reported by the provider: leave it out, never 0.")
    output_tokens = optional(Whole, help_text="Reasoning included.")
    cached_input_tokens = optional(Whole)
    reasoning_tokens = optional(Whole)
    latency_ms = optional(Whole, most=2**31 - 1)
    cost_usd = optional(Money)
    finish_reason = optional(FreeText)
    error_code = optional(Text, most=100, help_text="Of a call that failed.")
    provider_request_id = optional(FreeText)
    started_at = optional(Moment, help_text="By the runtime's clock: stored as information.")


class RuntimeSubmitResultRequestDto(HolderDto):
    example = {
        "jobId": _JOB, **_HOLDER, "schemaVersion": "1", "rawOutput": _RAW, "validatedOutput": _OUTPUT, "outputHash": _HASH,
        "usage": [RuntimeUsageDto.example],
    }  # fmt: skip
    job_id = Id()
    schema_version = Text(most=50)
    raw_output = FreeText(help_text=f"The model's text, as it came; at most {limits.MAX_OUTPUT_BYTES:,} bytes of UTF-8.")
    validated_output = optional(
        Json, container=True, help_text="The structured payload. Left out: the server reads and repairs rawOutput itself."
    )
    output_hash = Text(most=64, pattern=_HASH_FORM, help_text="Lower-case hex SHA-256 of the UTF-8 bytes of rawOutput.")
    result_idempotency_key = optional(Text, most=200, help_text="Default: jobId:attemptNo:outputHash.")
    usage = many(RuntimeUsageDto, most=limits.MAX_LOGS, required=False)


class RuntimeIssueDto(Dto):
    example = {"path": "/facts/0/paragraph", "rule": "known_paragraph", "message": "This paragraph is not in the input."}
    path = Text(most=600, least=0, help_text="A JSON pointer into what was sent.")
    rule = Text(most=100)
    message = Text(most=1_000)


class RuntimeSubmitResultResponseDto(Dto):
    example = {
        "jobId": _JOB, "resultId": _RESULT, "status": "succeeded", "jobStatus": "succeeded", "attemptNo": 1, "duplicate": False,
        "late": False, "sanitized": False, "validationErrors": [],
    }  # fmt: skip
    job_id = Id()
    result_id = Id()
    status = Choice(choices=RESULT_STATUSES, help_text="Of the result; one that was rejected is answered 422.")
    job_status = Choice(choices=JOB_STATUSES)
    attempt_no = Whole(least=1)
    duplicate = Flag(help_text="This call was answered before; this is the first answer again.")
    late = Flag(help_text="The lease had run out, and nobody had taken the job.")
    sanitized = Flag(help_text="NUL or lone surrogates in rawOutput were stored as U+FFFD.")
    validation_errors = RuntimeIssueDto(many=True)


class RuntimeSubmitFailureRequestDto(HolderDto):
    example = {
        "jobId": _JOB, **_HOLDER, "errorCode": "provider_rate_limited", "message": "429 after 0.3 s", "retryable": True,
        "retryAfterSeconds": 12.5, "usage": [],
    }  # fmt: skip
    job_id = Id()
    error_code = FreeText(help_text="One of the error table; an unknown one is stored as internal_error with the original beside it.")
    message = FreeText(help_text=f"For staff. At most {limits.MAX_MESSAGE_BYTES:,} bytes are kept; no key, no text of the input.")
    retryable = Flag(help_text="Decides, within the job's budget.")
    retry_after_seconds = optional(Number, help_text="Not before then; more than 900 is clamped.")
    usage = many(RuntimeUsageDto, most=limits.MAX_LOGS, required=False)


class RuntimeSubmitFailureResponseDto(Dto):
    example = {
        "jobId": _JOB, "jobStatus": "retrying", "attemptNo": 1, "retryCount": 1, "maxRetryCount": 3, "nextAttemptAt": _LATER,
        "duplicate": False, "late": False, "sanitized": False, "truncated": False,
    }  # fmt: skip
    job_id = Id()
    job_status = Choice(choices=JOB_STATUSES)
    attempt_no = Whole(least=1)
    retry_count = Whole()
    max_retry_count = Whole()
    next_attempt_at = sometimes(Moment)
    duplicate = Flag()
    late = Flag()
    sanitized = Flag()
    truncated = Flag(help_text="The message was cut.")


class RuntimeReleaseJobRequestDto(HolderDto):
    example = {**_HOLDER, "reason": "shutdown"}
    reason = optional(FreeText, help_text="For staff; the first 200 characters are kept.")


class RuntimeReleaseJobResponseDto(Dto):
    example = {"jobId": _JOB, "jobStatus": "retrying", "attemptNo": 1, "duplicate": False}
    job_id = Id()
    job_status = Choice(choices=JOB_STATUSES)
    attempt_no = Whole(least=1)
    duplicate = Flag()


class RuntimeInvocationLogDto(HolderDto, RuntimeUsageDto):
    example = {"jobId": _JOB, **_HOLDER, **RuntimeUsageDto.example}
    job_id = Id()


class RuntimeInvocationLogsRequestDto(Dto):
    example = {"logs": [RuntimeInvocationLogDto.example]}
    logs = many(RuntimeInvocationLogDto, least=1, most=limits.MAX_LOGS)


class RuntimeInvocationLogRejectionDto(Dto):
    example = {"index": 1, "invocationId": "call-2", "errorCode": "job_lock_lost"}
    index = Whole(help_text="In logs, from 0.")
    invocation_id = Text(most=100)
    error_code = Choice(choices=ERROR_CODES)


class RuntimeInvocationLogAckDto(Dto):
    example = {"accepted": 1, "duplicates": 0, "rejected": [RuntimeInvocationLogRejectionDto.example], "sanitized": False}
    accepted = Whole()
    duplicates = Whole()
    rejected = RuntimeInvocationLogRejectionDto(many=True)
    sanitized = Flag()


class RuntimeLimitsDto(Dto):
    example = {
        "maxBodyBytes": 8_388_608, "maxOutputBytes": 1_048_576, "maxWaitSeconds": 20.0, "maxJobsPerPoll": 32, "minLeaseSeconds": 10.0,
        "maxLeaseSeconds": 900.0,
    }  # fmt: skip
    max_body_bytes = Whole()
    max_output_bytes = Whole()
    max_wait_seconds = Number()
    max_jobs_per_poll = Whole()
    min_lease_seconds = Number()
    max_lease_seconds = Number()


class RuntimeHealthResponseDto(Dto):
    example = {
        "status": "ok", "serverTime": _NOW, "protocolVersion": "1.0", "minProtocolVersion": "1.0", "limits": RuntimeLimitsDto.example,
        "databaseOk": True,
    }  # fmt: skip
    status = Choice(choices=[("ok", "ok"), ("degraded", "degraded")])
    server_time = Moment()
    protocol_version = Text(most=10)
    min_protocol_version = Text(most=10)
    limits = RuntimeLimitsDto()
    database_ok = Flag()


class RuntimeErrorDto(Dto):
    """Every failure of every path under /internal/."""

    example = {
        "errorCode": "job_lock_lost", "message": "The job has been taken over.", "retryable": False, "requestId": "req-81f2",
    }  # fmt: skip
    error_code = Choice(choices=ERROR_CODES)
    message = Text(most=2_000, help_text="For people.")
    retryable = Flag(help_text="Whether the same request may succeed later.")
    request_id = Text(most=128)
    details = sometimes(Json, help_text="What the code says more, see the error table.")
