"""The two wire formats: how OpenAI and Anthropic take a request and dress an answer."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Usage:
    prompt: int  # cached ones included
    completion: int  # reasoning included
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Completion:
    """What the model said, before a provider wraps it. `finish` is in OpenAI's words."""

    id: str
    model: str
    text: str | None
    finish: str
    usage: Usage | None
    refusal: str | None = None
    choices: bool = True


def _text_of(content: Any) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _messages(body: Any) -> list[tuple[str, str]]:
    messages = body.get("messages") if isinstance(body, dict) else None
    listed = messages if isinstance(messages, list) else []
    return [(str(message.get("role")), _text_of(message.get("content"))) for message in listed if isinstance(message, dict)]


class Dialect(ABC):
    # Per HTTP status the error's type, code and message.
    errors: ClassVar[Mapping[int, tuple[str, str | None, str]]]
    other_error: ClassVar[tuple[str, str | None, str]]

    @abstractmethod
    def key(self, headers: Mapping[str, str]) -> str: ...

    def prompt(self, body: Any) -> str:
        return "\n\n".join(text for _, text in _messages(body))

    def user_text(self, body: Any) -> str:
        return "\n\n".join(text for role, text in _messages(body) if role == "user")

    @abstractmethod
    def wants_json(self, body: Mapping[str, Any]) -> bool: ...

    @abstractmethod
    def fault(self, headers: Mapping[str, str], body: Any) -> str | None:
        """Why the provider would refuse the request with a 400; None is a good one."""

    @abstractmethod
    def completion(self, completion: Completion) -> dict[str, Any]: ...

    @abstractmethod
    def events(self, completion: Completion) -> Iterable[str]:
        """The completion as a stream of server-sent events."""

    @abstractmethod
    def error(self, kind: str, code: str | int | None, message: str) -> dict[str, Any]: ...

    def error_for(self, status: int, kind: str | None = None, code: str | int | None = None, message: str | None = None) -> dict[str, Any]:
        """The body of an error as the provider words it for this status, with whatever is given in its place."""
        default_kind, default_code, default_message = self.errors.get(status, self.other_error)
        return self.error(kind or default_kind, default_code if code is None else code, message or default_message)


class OpenAi(Dialect):
    other_error = ("server_error", None, "The server had an error while processing your request. Sorry about that!")
    errors = {
        400: ("invalid_request_error", None, "We could not parse the body of your request."),
        401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
        402: ("unknown_error", "invalid_request_error", "Insufficient Balance"),
        403: ("request_forbidden", "unsupported_country_region_territory", "Country, region, or territory not supported"),
        404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
        405: ("invalid_request_error", "method_not_supported", "Not allowed to use this method here."),
        413: ("invalid_request_error", None, "Request body too large."),
        422: ("invalid_request_error", None, "Unprocessable request."),
        429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests. Please try again later."),
        503: ("server_error", "server_is_overloaded", "The server is currently overloaded. Please try again later."),
    }

    def key(self, headers: Mapping[str, str]) -> str:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def wants_json(self, body: Mapping[str, Any]) -> bool:
        wanted = body.get("response_format")
        return isinstance(wanted, dict) and wanted.get("type") in ("json_schema", "json_object")

    def fault(self, headers: Mapping[str, str], body: Any) -> str | None:
        if not isinstance(body, dict):
            return "We could not parse the JSON body of your request."
        if not body.get("model"):
            return "you must provide a model parameter"
        return None if _messages(body) else "Missing required parameter: 'messages'."

    def completion(self, completion: Completion) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": completion.text,
            "refusal": completion.refusal,
            "annotations": [],
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": completion.finish}
        return self._envelope(completion, "chat.completion") | {
            "choices": [choice] if completion.choices else [],
            **({"usage": self._usage(completion.usage)} if completion.usage else {}),
        }

    def events(self, completion: Completion) -> Iterable[str]:
        text = completion.text or ""
        deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
        deltas += [({"content": text[start : start + 40]}, None) for start in range(0, len(text), 40)]
        for delta, finish in [*deltas, ({}, completion.finish)]:
            chunk = self._envelope(completion, "chat.completion.chunk")
            yield f"data: {json.dumps(chunk | {'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"
        yield "data: [DONE]\n\n"

    def error(self, kind: str, code: str | int | None, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def _envelope(self, completion: Completion, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{completion.id}", "object": kind, "created": int(time.time()), "model": completion.model}

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
        }


class Anthropic(Dialect):
    other_error = ("api_error", None, "Internal server error")
    errors = {
        400: ("invalid_request_error", None, "messages: Field required"),
        401: ("authentication_error", None, "invalid x-api-key"),
        402: ("billing_error", None, "Your credit balance is too low to access the Anthropic API."),
        403: ("permission_error", None, "Your API key does not have permission to use the specified resource."),
        404: ("not_found_error", None, "Not found"),
        409: ("conflict_error", None, "Conflict"),
        413: ("request_too_large", None, "Request exceeds the maximum size"),
        429: ("rate_limit_error", None, "This request would exceed your organization's rate limit."),
        529: ("overloaded_error", None, "Overloaded"),
    }
    _stop_reasons = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}

    def key(self, headers: Mapping[str, str]) -> str:
        return headers.get("x-api-key", "").strip()

    def prompt(self, body: Any) -> str:
        system = _text_of(body.get("system")) if isinstance(body, dict) else ""
        return "\n\n".join(filter(None, [system, super().prompt(body)]))

    def wants_json(self, body: Mapping[str, Any]) -> bool:
        config = body.get("output_config")
        wanted = config.get("format") if isinstance(config, dict) else body.get("output_format")
        return isinstance(wanted, dict) and wanted.get("type") == "json_schema"

    def fault(self, headers: Mapping[str, str], body: Any) -> str | None:
        if "anthropic-version" not in headers:
            return "anthropic-version: header is required"
        for name in ("model", "messages", "max_tokens"):
            if not isinstance(body, dict) or not body.get(name):
                return f"{name}: Field required"
        return None

    def completion(self, completion: Completion) -> dict[str, Any]:
        said = completion.choices and completion.text is not None
        return self._envelope(completion) | {
            "content": [{"type": "text", "text": completion.text}] if said else [],
            "stop_reason": "refusal" if completion.refusal else self._stop_reasons[completion.finish],
            **({"usage": self._usage(completion.usage)} if completion.usage else {}),
        }

    def events(self, completion: Completion) -> Iterable[str]:
        said = self.completion(completion)
        delta = {"type": "text_delta", "text": completion.text or ""}
        for name, data in (
            ("message_start", {"message": said | {"content": [], "stop_reason": None}}),
            ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
            ("content_block_delta", {"index": 0, "delta": delta}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": {"stop_reason": said["stop_reason"]}, "usage": said.get("usage", {})}),
            ("message_stop", {}),
        ):
            yield f"event: {name}\ndata: {json.dumps({'type': name} | data)}\n\n"

    def error(self, kind: str, code: str | int | None, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message} | ({} if code is None else {"code": code})}

    def _envelope(self, completion: Completion) -> dict[str, Any]:
        return {
            "id": f"msg_{completion.id}",
            "type": "message",
            "role": "assistant",
            "model": completion.model,
            "stop_sequence": None,
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        # Here input_tokens does not include the cached ones.
        return {
            "input_tokens": usage.prompt - usage.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
        }


DIALECTS: Mapping[str, Dialect] = {"/v1/chat/completions": OpenAi(), "/v1/messages": Anthropic()}
