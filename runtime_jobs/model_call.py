"""One call of a model, as definitions, engine and gateway speak of it. No provider's own names appear here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from runtime_jobs.redaction import Secret
from runtime_jobs.states import ApiKeyMode


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ModelRequest:
    messages: tuple[Message, ...]
    # The JSON Schema that the answer should have; sent as structured output where the provider knows it. The chain checks in any case.
    response_schema: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True)
class TokenUsage:
    """Tokens as the provider reported them; None is "not reported", never 0. `input_tokens` includes the cached ones."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


@dataclass(frozen=True)
class ModelAnswer:
    text: str
    finish_reason: FinishReason
    model: str
    usage: TokenUsage


@dataclass(frozen=True)
class ProviderTarget:
    """Where a call goes and with whose key."""

    provider: str
    base_url: str
    model: str
    api_key: Secret
    credential_mode: ApiKeyMode


class Dispatch(StrEnum):
    """Whether the request left this machine, hence whether it may be billed."""

    NOT_SENT = "not_sent"
    MAYBE_SENT = "maybe_sent"
    SENT = "sent"


@dataclass
class CallReport:
    """What is known of a call, filled in while it runs, so that an aborted one leaves what was known by then."""

    dispatch: Dispatch = Dispatch.NOT_SENT
    http_status: int | None = None
    model_used: str = ""
    finish_reason: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    usage_raw: dict[str, Any] = field(default_factory=dict)  # numbers only
    provider_error_code: str = ""
    provider_request_id: str = ""
    retry_after_ms: int | None = None
    latency_ms: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    warnings: list[str] = field(default_factory=list)


class BoundGateway(Protocol):
    """The gateway as an executor gets it: bound to the job's credential, model, usage log and abort signal."""

    def complete(self, request: ModelRequest) -> ModelAnswer:
        """Make exactly one provider call. Raises AttemptError, or Aborted when the signal is pulled."""
        ...
