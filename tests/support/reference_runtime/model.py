"""The provider call: exactly one HTTP request, aborted when the attempt must end, and what it cost."""

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.support.reference_runtime.attempt import Attempt

INSTRUCTION = (
    "You extract facts from numbered paragraphs. Answer with one JSON object: "
    '{"summary": "...", "facts": [{"text": "...", "paragraph": "the id of its paragraph"}]}.'
)
RETRYABLE = {"provider_timeout", "provider_rate_limited", "provider_unavailable", "internal_error"}
_TOKENS = {"inputTokens": "prompt_tokens", "outputTokens": "completion_tokens"}
_CODES = {401: "provider_auth_failed", 403: "provider_auth_failed", 402: "provider_quota_exhausted", 429: "provider_rate_limited"}


@dataclass(frozen=True)
class ModelCall:
    """The model's text, what the call cost, and why it failed."""

    raw: str
    usage: dict[str, Any]
    code: str
    retry_after: float | None


def call_model(attempt: Attempt, payload: Any, key: dict[str, Any]) -> ModelCall:
    text = "\n\n".join(f"[{part['id']}] {part['text']}" for part in payload["paragraphs"])
    request = {
        "model": key["modelName"], "max_tokens": 4_000, "response_format": {"type": "json_object"},
        "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}],
    }  # fmt: skip
    usage: dict[str, Any] = {
        "invocationId": str(uuid.uuid4()), "provider": key["modelProvider"], "model": key["modelName"], "credentialMode": key["apiKeyMode"]
    }  # fmt: skip
    started = time.monotonic()
    answer, raw, code, retry_after = _call(attempt, request, key)
    usage["latencyMs"] = round((time.monotonic() - started) * 1000)
    tokens = answer.get("usage") or {}
    usage |= {name: tokens[theirs] for name, theirs in _TOKENS.items() if theirs in tokens}
    usage |= {"errorCode": code} if code else {"finishReason": answer["choices"][0]["finish_reason"]}
    return ModelCall(raw, usage, code, retry_after)


def _call(attempt: Attempt, request: dict[str, Any], key: dict[str, Any]) -> tuple[dict[str, Any], str, str, float | None]:
    retry_after = None
    try:
        response = asyncio.run(_post(attempt, f"{key['baseUrl']}/chat/completions", request, key["apiKey"]))
        retry_after = float(response.headers.get("Retry-After", 0)) or None
        if response.status_code != 200:
            return {}, "", _code_of(response.status_code), retry_after
        answer = response.json()
        return answer, answer["choices"][0]["message"]["content"], "", retry_after
    except httpx2.TimeoutException:
        return {}, "", "provider_timeout", None
    except asyncio.CancelledError:
        return {}, "", "cancelled" if attempt.why == "cancel" else "internal_error", None
    except (httpx2.TransportError, ValueError, LookupError, TypeError):
        return {}, "", "provider_unavailable", retry_after


def _code_of(status: int) -> str:
    if status in (408, 504):
        return "provider_timeout"
    return _CODES.get(status, "provider_unavailable" if status >= 500 else "provider_rejected_request")


async def _post(attempt: Attempt, url: str, request: dict[str, Any], key: str) -> httpx2.Response:
    """Cancelling the task closes the socket at once, which a call in another thread would not notice."""
    timeout = httpx2.Timeout(attempt.lease["timeoutSeconds"], connect=5)
    async with httpx2.AsyncClient(timeout=timeout, trust_env=False) as provider:
        call = asyncio.create_task(provider.post(url, json=request, headers={"Authorization": f"Bearer {key}"}))
        while not call.done():
            await asyncio.wait({call}, timeout=0.1)
            if attempt.must_end:
                call.cancel()
        return await call
