"""One HTTP answer of a provider as it came, and its JSON document if it has one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HttpAnswer:
    """Status, headers by lower-case name, and the raw body: never decoded, never larger than the cap."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    # The body went on after the cap.
    cut: bool = False

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_event_stream(self) -> bool:
        """A stream of server-sent events, which nobody asked for. Some proxies send one whatever `stream` says."""
        return self.headers.get("content-type", "").startswith("text/event-stream") or self.body.lstrip()[:6].startswith(
            (b"data:", b"event:")
        )

    def document(self) -> Any:
        """The body as JSON, None where it is none.

        A body of nothing but "[" makes `json` raise RecursionError, a number of 5,000 digits a ValueError that is no
        JSONDecodeError.
        """
        if self.cut:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None
