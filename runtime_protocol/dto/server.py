"""The server itself: its limits, its health, how it says no."""

from runtime_protocol.dto.choices import ERROR_CODES
from runtime_protocol.dto.examples import NOW
from runtime_protocol.wire.fields import Choice, Flag, Json, Moment, Number, Text, Whole, sometimes
from runtime_protocol.wire.forms import Dto


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
        "status": "ok", "serverTime": NOW, "protocolVersion": "1.0", "minProtocolVersion": "1.0", "limits": RuntimeLimitsDto.example,
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
