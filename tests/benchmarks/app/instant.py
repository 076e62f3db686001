"""A provider without HTTP: everything around the call stays as it is, the call itself is answered at once."""

from typing import Any

from runtime_jobs.gateway import AiGatewayService
from runtime_jobs.model_call import CallReport, Dispatch, FinishReason, ModelAnswer, ModelRequest, ProviderTarget, TokenUsage

INSTANT = "instant"


def answer_at_once() -> None:
    """From now on calls of provider `instant` are answered by this process."""
    over_http = AiGatewayService.complete

    async def complete(
        self: AiGatewayService, target: ProviderTarget, request: ModelRequest, report: CallReport, **options: Any
    ) -> ModelAnswer:
        if target.provider != INSTANT:
            return await over_http(self, target, request, report, **options)
        report.dispatch, report.http_status, report.latency_ms = Dispatch.SENT, 200, 0
        report.model_used, report.finish_reason = target.model, "stop"
        report.usage, report.request_bytes, report.response_bytes = TokenUsage(20, 5), 400, 300
        report.usage_raw = {"prompt_tokens": 20, "completion_tokens": 5}
        return ModelAnswer('{"ok": true}', FinishReason.STOP, target.model, report.usage)

    AiGatewayService.complete = complete  # type: ignore[method-assign]
