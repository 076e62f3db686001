"""Which behaviour a request gets."""

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.provider_simulator.behaviours import Behaviour, directives
from tests.support.provider_simulator.records import RecordedRequest

Match = str | Callable[[RecordedRequest], bool]


class DirectiveError(Exception):
    """The prompt or the model's name holds a directive that cannot be read; the text says why."""


@dataclass
class _Scripted:
    behaviour: Behaviour
    left: int


class Script:
    """Scripted behaviours, and the counters behind `times`. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: list[tuple[Match, deque[_Scripted]]] = []
        self._served: Counter[tuple[str, ...]] = Counter()

    def add(self, match: Match, behaviours: Sequence[Behaviour]) -> None:
        with self._lock:
            self._queues.append((match, deque(_Scripted(behaviour, behaviour.times or 1) for behaviour in behaviours)))

    def clear(self) -> None:
        with self._lock:
            self._queues.clear()
            self._served.clear()

    def behaviour_for(self, request: RecordedRequest) -> Behaviour:
        """Counts as served. Raises DirectiveError."""
        with self._lock:
            scripted = self._scripted(request)
            return scripted or self._directed(request) or Behaviour()

    def _scripted(self, request: RecordedRequest) -> Behaviour | None:
        for match, queue in self._queues:
            if queue and (match in request.prompt if isinstance(match, str) else match(request)):
                queue[0].left -= 1
                return queue[0].behaviour if queue[0].left else queue.popleft().behaviour
        return None

    def _directed(self, request: RecordedRequest) -> Behaviour | None:
        _, _, suffix = request.model.partition(";")
        written = [*directives(request.prompt), *([suffix] if suffix.strip() else [])]
        if not written:
            return None
        prompt = hashlib.sha256(request.prompt.encode(errors="replace")).hexdigest()
        for place, text in enumerate(written):
            try:
                behaviour = Behaviour.parse(text)
            except ValueError as error:
                raise DirectiveError(str(error)) from None
            if behaviour.times is None:
                return behaviour
            key = (prompt, str(place), text)
            if self._served[key] < behaviour.times:
                self._served[key] += 1
                return behaviour
        return None
