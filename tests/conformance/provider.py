"""A model provider that answers as OpenAI's chat completions do, when it is let."""

import threading
import time
from dataclasses import dataclass

from tests.conformance.calls import RAW
from tests.conformance.http import Listening, Reply, Request, as_json


@dataclass
class ModelCall:
    at: float
    key: str
    gone_at: float | None = None  # when who asked closed the connection before the answer


class Provider:
    """While `hold` is set, calls wait; one whose caller goes away ends."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []
        self.hold = threading.Event()
        self._listening = Listening(self._answer)
        self.url = f"{self._listening.url}/v1"

    def close(self) -> None:
        self.hold.clear()
        self._listening.close()

    def _answer(self, request: Request) -> Reply | None:
        call = ModelCall(time.monotonic(), request.headers.get("Authorization", "").removeprefix("Bearer "))
        self.calls.append(call)
        while self.hold.is_set():
            if request.is_gone():
                call.gone_at = time.monotonic()
                return None
            time.sleep(0.02)
        message = {"role": "assistant", "content": RAW}
        return as_json(200, {
            "id": "c", "object": "chat.completion", "model": "simulator-1", "usage": {"prompt_tokens": 12, "completion_tokens": 7},
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        })  # fmt: skip
