"""Chat completions: OpenAI and everybody who speaks like it.

DeepSeek, DashScope, Mistral, OpenRouter, Groq, vLLM, Ollama, llama.cpp, Gemini's own endpoint for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runtime_jobs.gateway.adapter import Reading
from runtime_jobs.gateway.rules import ALIASES
from runtime_jobs.gateway.structured import instruction, strict_schema
from runtime_jobs.gateway.usage import tokens
from runtime_jobs.model_call import FinishReason, Message, ModelRequest, ProviderTarget, TokenUsage


@dataclass(frozen=True)
class Dialect:
    """Where a provider differs from the rest."""

    max_tokens: str = "max_tokens"
    # "strict": cut down to what OpenAI's strict mode takes. "whole": as it is, bounds and all, which local servers enforce.
    # "json_object": any JSON, and the schema in the prompt.
    schema: Literal["strict", "whole", "json_object"] = "whole"
    # Reasoning is not in completion_tokens but only in the total.
    reasoning_outside: bool = False


DIALECTS: Mapping[str, Dialect] = {
    # OpenAI's reasoning models answer 400 to max_tokens; all its models know the newer name.
    "openai": Dialect(max_tokens="max_completion_tokens", schema="strict"),
    # Its v1 endpoint (…/openai/v1), which takes the key as a bearer like everybody else.
    "azure": Dialect(max_tokens="max_completion_tokens", schema="strict"),
    "openrouter": Dialect(schema="strict"),
    "groq": Dialect(schema="strict"),
    "cerebras": Dialect(schema="strict"),
    "deepseek": Dialect(schema="json_object"),
    "dashscope": Dialect(schema="json_object"),
    "zai": Dialect(schema="json_object"),
    "gemini": Dialect(reasoning_outside=True),
    "xai": Dialect(reasoning_outside=True),
}

_FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "recitation": FinishReason.CONTENT_FILTER,
    "blocklist": FinishReason.CONTENT_FILTER,
    "spii": FinishReason.CONTENT_FILTER,
    "prohibited_content": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
}


def dialect_of(provider: str) -> Dialect:
    name = provider.lower()
    return DIALECTS.get(ALIASES.get(name, name), Dialect())


class OpenAiCompatible:
    """The adapter for every provider that has none of its own."""

    def path(self, base_path: str) -> str:
        return f"{base_path}/chat/completions"

    def headers(self, target: ProviderTarget) -> dict[str, str]:
        return {"authorization": f"Bearer {target.api_key.reveal()}"}

    def body(self, target: ProviderTarget, request: ModelRequest) -> dict[str, Any]:
        dialect = dialect_of(target.provider)
        messages = list(request.messages)
        body: dict[str, Any] = {"model": target.model, "stream": False}
        if request.response_schema is not None:
            if dialect.schema == "json_object":
                # DeepSeek and DashScope want the word JSON in the prompt, else they answer 400 or white space without end.
                messages.insert(0, Message("system", instruction(request.response_schema)))
                body["response_format"] = {"type": "json_object"}
            else:
                body["response_format"] = _response_format(request.response_schema, dialect)
        body["messages"] = [{"role": message.role, "content": message.content} for message in messages]
        if request.max_output_tokens is not None:
            body[dialect.max_tokens] = request.max_output_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return body

    def usage(self, target: ProviderTarget, usage: Mapping[str, Any]) -> TokenUsage:
        given, made = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
        total = tokens(usage, "total_tokens")
        reasoning = tokens(usage, "completion_tokens_details", "reasoning_tokens")
        if dialect_of(target.provider).reasoning_outside and given is not None and made is not None and total is not None:
            outside = max(0, total - given - made)
            made += outside
            reasoning = outside if reasoning is None and outside else reasoning
        cached = tokens(usage, "prompt_tokens_details", "cached_tokens")
        # DeepSeek's own name for it.
        cached = tokens(usage, "prompt_cache_hit_tokens") if cached is None else cached
        return TokenUsage(given, made, cached, reasoning)

    def read(self, document: dict[str, Any]) -> Reading:
        if document.get("error"):
            return Reading(model=document.get("model"), error=document)
        if _blocked(document):
            return Reading(model=document.get("model"), text="", refused=True)
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return Reading(model=document.get("model"))
        reason = choice.get("finish_reason")
        if reason == "error":
            # OpenRouter: its upstream failed after the 200 was sent.
            return Reading(model=document.get("model"), finish_reason=reason, error={"error": choice.get("error") or {}})
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        refusal = message.get("refusal")
        return Reading(
            model=document.get("model"),
            finish_reason=reason,
            text=_text(message.get("content")),
            finish=_FINISH.get(str(reason).lower(), FinishReason.OTHER),
            refused=isinstance(refusal, str) and bool(refusal.strip()),
        )


def _response_format(schema: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    strict = strict_schema(schema, all_required=True)
    sent = strict if strict is not None and dialect.schema == "strict" else dict(schema)
    # A schema that strict mode cannot express is sent as a hint: with strict it would be a 400.
    return {"type": "json_schema", "json_schema": {"name": "output", "strict": strict is not None, "schema": sent}}


def _text(content: Any) -> str:
    """The content, which some providers (Mistral's reasoning models) send in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _blocked(document: dict[str, Any]) -> bool:
    """Gemini refused the prompt itself."""
    feedback = document.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason"))
