"""Anthropic's Messages API, version 2023-06-01."""

from collections.abc import Mapping
from typing import Any

from runtime_jobs.gateway.adapter import Reading
from runtime_jobs.gateway.structured import instruction, strict_schema
from runtime_jobs.gateway.usage import tokens
from runtime_jobs.model_call import FinishReason, ModelRequest, ProviderTarget, TokenUsage

# The API requires max_tokens; this stands in when a definition sets none. Every model of the last years allows it.
DEFAULT_MAX_TOKENS = 8_192

_FINISH: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    # The window was full before max_tokens was reached: cut off all the same.
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


class AnthropicMessages:
    """The native adapter."""

    def path(self, base_path: str) -> str:
        # The base_url is written with and without the version.
        return f"{base_path}/messages" if base_path.endswith("/v1") else f"{base_path}/v1/messages"

    def headers(self, target: ProviderTarget) -> dict[str, str]:
        return {"x-api-key": target.api_key.reveal(), "anthropic-version": "2023-06-01"}

    def body(self, target: ProviderTarget, request: ModelRequest) -> dict[str, Any]:
        system = [message.content for message in request.messages if message.role == "system"]
        body: dict[str, Any] = {
            "model": target.model,
            "max_tokens": request.max_output_tokens or DEFAULT_MAX_TOKENS,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages if message.role != "system"],
        }
        if request.response_schema is not None:
            # output_config.format is the API's own structured output (the successor of the beta's output_format): no beta header.
            schema = strict_schema(request.response_schema, all_required=False)
            if schema is not None:
                body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
            else:
                system.append(instruction(request.response_schema))
        if system:
            body["system"] = "\n\n".join(system)
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return body

    def usage(self, target: ProviderTarget, usage: Mapping[str, Any]) -> TokenUsage:
        """`input_tokens` excludes what was read from and written to the cache: both are added, once."""
        fresh = tokens(usage, "input_tokens")
        read, written = tokens(usage, "cache_read_input_tokens"), tokens(usage, "cache_creation_input_tokens")
        return TokenUsage(
            input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
            output_tokens=tokens(usage, "output_tokens"),
            cached_input_tokens=read,
            reasoning_tokens=tokens(usage, "output_tokens_details", "thinking_tokens"),
        )

    def read(self, document: dict[str, Any]) -> Reading:
        if document.get("error"):
            return Reading(model=document.get("model"), error=document)
        content, reason = document.get("content"), document.get("stop_reason")
        # An empty list with a stop reason is an answer without text; with a refusal or a cut it is the usual form.
        if not isinstance(content, list) or (not content and _FINISH.get(str(reason)) in (None, FinishReason.STOP)):
            return Reading(model=document.get("model"))
        texts = (block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text")
        return Reading(
            model=document.get("model"),
            finish_reason=reason,
            text="".join(text for text in texts if isinstance(text, str)),
            finish=_FINISH.get(str(reason), FinishReason.OTHER),
        )
