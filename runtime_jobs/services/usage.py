"""The usage log: a row before each provider call, closed after it. Money spent is never rolled back with the job."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.db.models.functions import Now

from runtime_jobs.model_call import CallReport, Dispatch, ProviderTarget
from runtime_jobs.models import AiUsageLog
from runtime_jobs.redaction import Secret
from runtime_jobs.services.given import GivenStatement
from runtime_jobs.services.tokens import token_hash

Outcome = AiUsageLog.Outcome


@dataclass(frozen=True)
class OpenCall:
    """A provider call that is about to be made. Its id goes out with the request."""

    id: UUID
    job_id: UUID
    lock_token: Secret
    call_no: int  # of the attempt's calls, from 1
    target: ProviderTarget

    def as_row(self) -> dict[str, Any]:
        """By _OPEN's columns, as JSON has it."""
        return {
            "id": str(self.id),
            "job_id": str(self.job_id),
            "lock_token": token_hash(self.lock_token),
            "call_no": self.call_no,
            "mode": str(self.target.credential_mode),
            "provider": self.target.provider,
            "host": urlsplit(self.target.base_url).hostname or "",
            "model": self.target.model,
        }


# The last look before money is spent and the row that notes it are one statement: no row, no call. (The CASE: as in services/selection.py.)
_OPEN = GivenStatement(
    {
        "id": "uuid", "job_id": "uuid", "lock_token": "text", "call_no": "integer", "mode": "text", "provider": "text", "host": "text",
        "model": "text",
    },
    """
    INSERT INTO ai_usage_log (id, job_id, user_id, attempt_no, call_no, invocation_id, credential_mode, provider, base_url_host,
        model_requested, outcome, dispatch, model_used, error_code, provider_error_code, provider_request_id, finish_reason, usage_raw,
        warnings)
    SELECT g.id, j.id, j.user_id, j.attempt_no, g.call_no, g.id::text, g.mode, g.provider, g.host, g.model,
           'started', 'not_sent', '', '', '', '', '', '{}', '[]'
    FROM given g JOIN ai_runtime_job j ON j.id = g.job_id AND j.lock_token = g.lock_token
    WHERE CASE j.status WHEN 'running' THEN true ELSE false END
    ON CONFLICT (id) DO UPDATE SET outcome = 'started'
    RETURNING id
""",
)  # fmt: skip

CALL_COLUMNS = {
    "call_id": "uuid", "call_outcome": "text", "call_dispatch": "text", "call_error": "text", "call_retryable": "boolean",
    "call_retry_after_ms": "bigint", "call_http_status": "smallint", "call_provider_error": "text", "call_provider_request": "text",
    "call_finish": "text", "call_model": "text", "call_input": "bigint", "call_output": "bigint", "call_cached": "bigint",
    "call_reasoning": "bigint", "call_cost": "numeric", "call_raw": "jsonb", "call_warnings": "jsonb", "call_latency": "integer",
    "call_sent": "integer", "call_received": "integer",
}  # fmt: skip
# Of a GivenStatement with these columns.
CLOSE = """
    UPDATE ai_usage_log u SET
        outcome = g.call_outcome, closed_at = statement_timestamp(), dispatch = g.call_dispatch, error_code = g.call_error,
        retryable = g.call_retryable, retry_after_ms = g.call_retry_after_ms, http_status = g.call_http_status,
        provider_error_code = g.call_provider_error, provider_request_id = g.call_provider_request, finish_reason = g.call_finish,
        model_used = g.call_model, input_tokens = g.call_input, output_tokens = g.call_output, cached_input_tokens = g.call_cached,
        reasoning_tokens = g.call_reasoning, cost_usd = g.call_cost, usage_raw = g.call_raw, warnings = g.call_warnings,
        latency_ms = g.call_latency, request_bytes = g.call_sent, response_bytes = g.call_received
    FROM given g WHERE u.id = g.call_id
"""
_CLOSE_ALONE = GivenStatement(CALL_COLUMNS, CLOSE)


@dataclass(frozen=True)
class ClosedCall:
    """A call that is over, and what is known of it."""

    id: UUID | None
    outcome: AiUsageLog.Outcome = Outcome.SUCCEEDED
    report: CallReport = field(default_factory=CallReport)
    error_code: str = ""
    retryable: bool | None = None
    cost_usd: Decimal | None = None

    def as_row(self) -> dict[str, Any]:
        """By CALL_COLUMNS, as JSON has it."""
        report, tokens = self.report, self.report.usage
        return {
            "call_id": None if self.id is None else str(self.id),
            "call_outcome": str(self.outcome),
            "call_dispatch": str(report.dispatch),
            "call_error": str(self.error_code),
            "call_retryable": self.retryable,
            "call_retry_after_ms": report.retry_after_ms,
            "call_http_status": report.http_status,
            "call_provider_error": report.provider_error_code[:100],
            "call_provider_request": report.provider_request_id[:200],
            "call_finish": report.finish_reason[:40],
            "call_model": report.model_used[:200],
            "call_input": tokens.input_tokens,
            "call_output": tokens.output_tokens,
            "call_cached": tokens.cached_input_tokens,
            "call_reasoning": tokens.reasoning_tokens,
            "call_cost": None if self.cost_usd is None else str(self.cost_usd),
            "call_raw": report.usage_raw,
            "call_warnings": report.warnings,
            "call_latency": report.latency_ms,
            "call_sent": report.request_bytes,
            "call_received": report.response_bytes,
        }


NO_CALL = ClosedCall(None)


def open_calls(calls: Sequence[OpenCall]) -> list[bool]:
    """Note, of several attempts, that each is about to make a call. Repeatable.

    False for an attempt that does not hold the job any more, or whose cancel was requested: then no call may be made.
    """
    noted = {call_id for (call_id,) in _OPEN.run([call.as_row() for call in calls])}
    return [call.id in noted for call in calls]


def close_call(call: ClosedCall) -> None:
    """Close an open row with what is known of the call; one that a reaper closed meanwhile is completed."""
    _CLOSE_ALONE.run([call.as_row()])


def close_abandoned(job_id: UUID, attempt_no: int, error_code: str) -> int:
    """Close what a dead worker left open: nobody knows whether the request went out."""
    return AiUsageLog.objects.filter(job_id=job_id, attempt_no=attempt_no, outcome=Outcome.STARTED).update(
        outcome=Outcome.ABORTED, dispatch=Dispatch.MAYBE_SENT, closed_at=Now(), error_code=error_code
    )
