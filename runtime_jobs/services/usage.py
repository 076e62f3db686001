"""The usage log: a row before each provider call, closed after it, in transactions of their own. Money spent is never rolled back."""

from decimal import Decimal
from urllib.parse import urlsplit
from uuid import UUID

from django.db.models.functions import Now

from runtime_jobs.model_call import CallReport, Dispatch, ProviderTarget
from runtime_jobs.models import AiUsageLog
from runtime_jobs.models.base import new_id


def open_call(*, job_id: UUID, user_id: int, attempt_no: int, call_no: int, target: ProviderTarget) -> UUID:
    """Note that a call is about to be made. The id goes out with the request."""
    row_id = new_id()
    AiUsageLog.objects.bulk_create(
        [
            AiUsageLog(
                id=row_id,
                job_id=job_id,
                user_id=user_id,
                attempt_no=attempt_no,
                call_no=call_no,
                invocation_id=str(row_id),
                credential_mode=target.credential_mode,
                provider=target.provider,
                base_url_host=urlsplit(target.base_url).hostname or "",
                model_requested=target.model,
            )
        ]
    )
    return row_id


def close_call(
    row_id: UUID, report: CallReport, outcome: AiUsageLog.Outcome, *, error_code: str = "", retryable: bool | None = None
) -> None:
    """Close an open row with what is known of the call; one that a reaper closed meanwhile is completed."""
    usage = report.usage
    AiUsageLog.objects.filter(pk=row_id).update(
        outcome=outcome,
        closed_at=Now(),
        dispatch=report.dispatch,
        error_code=error_code,
        retryable=retryable,
        retry_after_ms=report.retry_after_ms,
        http_status=report.http_status,
        provider_error_code=report.provider_error_code[:100],
        provider_request_id=report.provider_request_id[:200],
        finish_reason=report.finish_reason[:40],
        model_used=report.model_used[:200],
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_usd=cost_usd(report),
        usage_raw=report.usage_raw,
        warnings=report.warnings,
        latency_ms=report.latency_ms,
        request_bytes=report.request_bytes,
        response_bytes=report.response_bytes,
    )


def cost_usd(report: CallReport) -> Decimal | None:
    """What the provider itself says the call cost (OpenRouter does); None is unknown, never 0."""
    cost = report.usage_raw.get("cost")
    return Decimal(str(cost)) if isinstance(cost, int | float) and cost >= 0 else None


def close_abandoned(job_id: UUID, attempt_no: int, error_code: str) -> int:
    """Close what a dead worker left open: nobody knows whether the request went out."""
    return AiUsageLog.objects.filter(job_id=job_id, attempt_no=attempt_no, outcome=AiUsageLog.Outcome.STARTED).update(
        outcome=AiUsageLog.Outcome.ABORTED, dispatch=Dispatch.MAYBE_SENT, closed_at=Now(), error_code=error_code
    )
