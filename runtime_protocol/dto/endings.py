"""The terminal calls: result, failure, release."""

from runtime_protocol import limits
from runtime_protocol.dto.choices import JOB_STATUSES, RESULT_STATUSES
from runtime_protocol.dto.examples import HASH, HOLDER, JOB, LATER, OUTPUT, RAW, RESULT
from runtime_protocol.dto.holder import HolderDto
from runtime_protocol.dto.holding import HASH_FORM
from runtime_protocol.dto.usage import RuntimeUsageDto
from runtime_protocol.wire.fields import Choice, Flag, FreeText, Id, Json, Moment, Number, Text, Whole, optional, sometimes
from runtime_protocol.wire.forms import Dto, many


class RuntimeSubmitResultRequestDto(HolderDto):
    example = {
        "jobId": JOB, **HOLDER, "schemaVersion": "1", "rawOutput": RAW, "validatedOutput": OUTPUT, "outputHash": HASH,
        "usage": [RuntimeUsageDto.example],
    }  # fmt: skip
    job_id = Id()
    schema_version = Text(most=50)
    raw_output = FreeText(help_text=f"The model's text, as it came; at most {limits.MAX_OUTPUT_BYTES:,} bytes of UTF-8.")
    validated_output = optional(
        Json, container=True, help_text="The structured payload. Left out: the server reads and repairs rawOutput itself."
    )
    output_hash = Text(most=64, pattern=HASH_FORM, help_text="Lower-case hex SHA-256 of the UTF-8 bytes of rawOutput.")
    result_idempotency_key = optional(Text, most=200, help_text="Default: jobId:attemptNo:outputHash.")
    usage = many(RuntimeUsageDto, most=limits.MAX_LOGS, required=False)


class RuntimeIssueDto(Dto):
    example = {"path": "/facts/0/paragraph", "rule": "known_paragraph", "message": "This paragraph is not in the input."}
    path = Text(most=600, least=0, help_text="A JSON pointer into what was sent.")
    rule = Text(most=100)
    message = Text(most=1_000)


class RuntimeSubmitResultResponseDto(Dto):
    example = {
        "jobId": JOB, "resultId": RESULT, "status": "succeeded", "jobStatus": "succeeded", "attemptNo": 1, "duplicate": False,
        "late": False, "sanitized": False, "validationErrors": [],
    }  # fmt: skip
    job_id = Id()
    result_id = Id()
    status = Choice(choices=RESULT_STATUSES, help_text="Of the result; one that was rejected is answered 422.")
    job_status = Choice(choices=JOB_STATUSES)
    attempt_no = Whole(least=1)
    duplicate = Flag(help_text="This call was answered before; this is the first answer again.")
    late = Flag(help_text="The lease was found to have run out, and nobody had taken the job.")
    sanitized = Flag(help_text="NUL or lone surrogates in rawOutput were stored as U+FFFD.")
    validation_errors = RuntimeIssueDto(many=True)


class RuntimeSubmitFailureRequestDto(HolderDto):
    example = {
        "jobId": JOB, **HOLDER, "errorCode": "provider_rate_limited", "message": "429 after 0.3 s", "retryable": True,
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
        "jobId": JOB, "jobStatus": "retrying", "attemptNo": 1, "retryCount": 1, "maxRetryCount": 3, "nextAttemptAt": LATER,
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
    example = {**HOLDER, "reason": "shutdown"}
    reason = optional(FreeText, help_text="For staff; the first 200 characters are kept.")


class RuntimeReleaseJobResponseDto(Dto):
    example = {"jobId": JOB, "jobStatus": "retrying", "attemptNo": 1, "duplicate": False}
    job_id = Id()
    job_status = Choice(choices=JOB_STATUSES)
    attempt_no = Whole(least=1)
    duplicate = Flag()
