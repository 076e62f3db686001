"""The usage log: a row before each provider call, closed after it. Money spent is never rolled back with the job."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from runtime_jobs import prepared
from runtime_jobs.model_call import CallReport, Dispatch, ProviderTarget
from runtime_jobs.models import AiUsageLog
from runtime_jobs.redaction import Secret
from runtime_jobs.services.tokens import token_hash

Outcome = AiUsageLog.Outcome

# The last look before money is spent and the row that notes it are one statement: no row, no call.
_OPEN = """
    INSERT INTO ai_usage_log (id, job_id, user_id, attempt_no, call_no, invocation_id, credential_mode, provider, base_url_host,
        model_requested, outcome, dispatch, model_used, error_code, provider_error_code, provider_request_id, finish_reason, usage_raw,
        warnings)
    SELECT %(id)s, j.id, j.user_id, j.attempt_no, %(call_no)s::text::int, %(invocation_id)s, %(mode)s, %(provider)s, %(host)s, %(model)s,
           'started', 'not_sent', '', '', '', '', '', '{}', '[]'
    FROM ai_runtime_job j WHERE j.id = %(job_id)s AND j.lock_token = %(lock_token)s AND j.status = 'running'
    ON CONFLICT (id) DO UPDATE SET outcome = 'started'
    RETURNING 1
"""

# Numbers come as text: psycopg sends an int as int2, int4 or int8 by its size, and each mix would be a prepared statement of its own.
CLOSE = """
    UPDATE ai_usage_log SET
        outcome = %(call_outcome)s, closed_at = statement_timestamp(), dispatch = %(call_dispatch)s, error_code = %(call_error)s,
        retryable = %(call_retryable)s::boolean, retry_after_ms = %(call_retry_after_ms)s::text::bigint,
        http_status = %(call_http_status)s::text::smallint,
        provider_error_code = %(call_provider_error)s, provider_request_id = %(call_provider_request)s, finish_reason = %(call_finish)s,
        model_used = %(call_model)s, input_tokens = %(call_input)s::text::bigint, output_tokens = %(call_output)s::text::bigint,
        cached_input_tokens = %(call_cached)s::text::bigint, reasoning_tokens = %(call_reasoning)s::text::bigint,
        cost_usd = %(call_cost)s::text::numeric, usage_raw = %(call_raw)s, warnings = %(call_warnings)s,
        latency_ms = %(call_latency)s::text::int, request_bytes = %(call_sent)s::text::int, response_bytes = %(call_received)s::text::int
    WHERE id = %(call_id)s
"""


@dataclass(frozen=True)
class ClosedCall:
    """A call that is over, and what is known of it."""

    id: UUID | None
    outcome: AiUsageLog.Outcome = Outcome.SUCCEEDED
    report: CallReport = field(default_factory=CallReport)
    error_code: str = ""
    retryable: bool | None = None
    cost_usd: Decimal | None = None

    def parameters(self) -> dict[str, Any]:
        report, tokens = self.report, self.report.usage
        return {
            "call_id": self.id,
            "call_outcome": str(self.outcome),
            "call_dispatch": str(report.dispatch),
            "call_error": str(self.error_code),
            "call_retryable": self.retryable,
            "call_retry_after_ms": _text(report.retry_after_ms),
            "call_http_status": _text(report.http_status),
            "call_provider_error": report.provider_error_code[:100],
            "call_provider_request": report.provider_request_id[:200],
            "call_finish": report.finish_reason[:40],
            "call_model": report.model_used[:200],
            "call_input": _text(tokens.input_tokens),
            "call_output": _text(tokens.output_tokens),
            "call_cached": _text(tokens.cached_input_tokens),
            "call_reasoning": _text(tokens.reasoning_tokens),
            "call_cost": _text(self.cost_usd),
            "call_raw": Jsonb(report.usage_raw),
            "call_warnings": Jsonb(report.warnings),
            "call_latency": _text(report.latency_ms),
            "call_sent": _text(report.request_bytes),
            "call_received": _text(report.response_bytes),
        }


NO_CALL = ClosedCall(None)


def _text(number: int | Decimal | None) -> str | None:
    return None if number is None else str(number)


def open_call(call_id: UUID, *, job_id: UUID, lock_token: Secret, call_no: int, target: ProviderTarget) -> bool:
    """Note that the attempt is about to make a call, whose id goes out with the request. Repeatable.

    False when the attempt does not hold the job any more, or a cancel was requested: then no call may be made.
    """
    noted = prepared.run(
        _OPEN,
        {
            "id": call_id,
            "job_id": job_id,
            "lock_token": token_hash(lock_token),
            "call_no": str(call_no),
            "invocation_id": str(call_id),
            "mode": str(target.credential_mode),
            "provider": target.provider,
            "host": urlsplit(target.base_url).hostname or "",
            "model": target.model,
        },
    )
    return bool(noted)


def close_call(call: ClosedCall) -> None:
    """Close an open row with what is known of the call; one that a reaper closed meanwhile is completed."""
    prepared.run(CLOSE, call.parameters())


def close_abandoned(job_id: UUID, attempt_no: int, error_code: str) -> int:
    """Close what a dead worker left open: nobody knows whether the request went out."""
    return AiUsageLog.objects.filter(job_id=job_id, attempt_no=attempt_no, outcome=Outcome.STARTED).update(
        outcome=Outcome.ABORTED, dispatch=Dispatch.MAYBE_SENT, closed_at=Now(), error_code=error_code
    )
