"""Which runtimes are there, and whether staff want them to drain.

The first time that an instance is met here it is noted at once; from then on all that were heard of are noted together, every few seconds.
"""

import threading
import time
from dataclasses import dataclass, field

from runtime_jobs.services import workers
from runtime_jobs.services.workers import Introduction
from runtime_protocol import server
from runtime_protocol.server import database

_FORGOTTEN_AFTER_SECONDS = 120.0


@dataclass
class _Known:
    introduction: Introduction | None = None  # None: it only beats here
    draining: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    to_note: bool = False


_known: dict[str, _Known] = {}
_lock = threading.Lock()


def polled(introduction: Introduction) -> bool:
    """It polls. True when it is to drain."""
    return _heard(introduction.name, introduction)


def beat(instance: str) -> bool:
    """It works. True when it is to drain."""
    return _heard(instance, None)


def _heard(name: str, introduction: Introduction | None) -> bool:
    with _lock:
        known = _known.get(name)
        if known is not None and server.current() is not None and (introduction is None or known.introduction is not None):
            known.introduction = introduction or known.introduction
            known.heard_at, known.to_note = time.monotonic(), True
            return known.draining
    with database():
        draining = workers.runtimes_seen([introduction] if introduction else [], [] if introduction else [name]).get(name, False)
    with _lock:
        _known[name] = _Known(introduction, draining)
    return draining


def forget() -> None:
    """As a process that has just started."""
    with _lock:
        _known.clear()


def note_all() -> None:
    """Write down who was heard of since the last time, and learn who is to drain. Called by the process's own thread, with a connection."""
    now = time.monotonic()
    with _lock:
        for name in [name for name, known in _known.items() if now - known.heard_at > _FORGOTTEN_AFTER_SECONDS]:
            del _known[name]
        heard = {name: known for name, known in _known.items() if known.to_note}
        for known in heard.values():
            known.to_note = False
    if not heard:
        return
    draining = workers.runtimes_seen(
        [known.introduction for known in heard.values() if known.introduction is not None],
        [name for name, known in heard.items() if known.introduction is None],
    )
    with _lock:
        for name, known in heard.items():
            known.draining = draining.get(name, False)


server.every_few_seconds(note_all)
