"""Provider calls as they are reported."""

from runtime_protocol import limits
from runtime_protocol.dto.choices import ERROR_CODES, KEY_MODES
from runtime_protocol.dto.examples import HOLDER, JOB, NOW
from runtime_protocol.dto.holder import HolderDto
from runtime_protocol.wire.fields import Choice, Flag, FreeText, Id, Moment, Money, Text, Whole, optional
from runtime_protocol.wire.forms import Dto, many


class RuntimeUsageDto(Dto):
    example = {
        "invocationId": "call-1", "provider": "openai", "model": "gpt-5-mini", "credentialMode": "platform", "inputTokens": 812,
        "outputTokens": 144, "latencyMs": 1380, "costUsd": "0.00041", "finishReason": "stop", "startedAt": NOW,
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


class RuntimeInvocationLogDto(HolderDto, RuntimeUsageDto):
    example = {"jobId": JOB, **HOLDER, **RuntimeUsageDto.example}
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
