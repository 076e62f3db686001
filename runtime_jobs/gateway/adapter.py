"""What an adapter is: how one wire format is written and read. It judges nothing and does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runtime_jobs.model_call import FinishReason, ModelRequest, ProviderTarget, TokenUsage


@dataclass(frozen=True)
class Reading:
    """A 200 as the provider means it."""

    # Foreign text, as it came; the caller cleans it.
    model: object = None
    finish_reason: object = None
    # None: the envelope holds no answer at all (no choices, another shape).
    text: str | None = None
    finish: FinishReason = FinishReason.OTHER
    # The model said that it will not, whatever the finish reason says.
    refused: bool = False
    # An error that stands in the answer, to be classified like an error answer.
    error: Any = None


class Adapter(Protocol):
    """One wire format. Stateless, so that one instance serves all calls."""

    def path(self, base_path: str) -> str:
        """The path of the request, given that of the base_url (without a slash at its end)."""
        ...

    def headers(self, target: ProviderTarget) -> dict[str, str]:
        """The headers that carry the key and the format. The only place that reveals the key."""
        ...

    def body(self, target: ProviderTarget, request: ModelRequest) -> dict[str, Any]: ...

    def usage(self, target: ProviderTarget, usage: Mapping[str, Any]) -> TokenUsage:
        """The counts in our convention: input includes what was cached, output includes reasoning."""
        ...

    def read(self, document: dict[str, Any]) -> Reading: ...
