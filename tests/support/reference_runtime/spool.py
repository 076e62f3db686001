"""Terminal calls, on disk until they are answered: a crash of the runtime does not lose an answer that was paid for."""

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("reference_runtime")

# PROTOCOL.md asks for an hour at least. What an older one holds has long been done by somebody else.
KEPT_SECONDS = 86_400


@dataclass(frozen=True)
class Entry:
    """One call that nobody has answered yet."""

    file: Path
    path: str
    body: dict[str, Any]

    def done(self) -> None:
        self.file.unlink(missing_ok=True)


class Spool:
    """A directory of one runtime: files that only its user may read, since they hold lock tokens and model output."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder

    def keep(self, path: str, body: dict[str, Any]) -> Entry:
        """On disk, flushed, before this returns. An attempt has one terminal call: a second one takes the first one's place."""
        file = self._folder / f"{body['jobId']}.{body['attemptNo']}.json"
        written = file.with_suffix(".tmp")
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
            json.dump({"path": path, "body": body}, opened)
            opened.flush()
            os.fsync(opened.fileno())
        written.replace(file)
        return Entry(file, path, body)

    def left_over(self) -> Iterator[Entry]:
        """What an earlier process could not deliver, oldest first."""
        for file in sorted(self._folder.glob("*.json"), key=lambda found: found.stat().st_mtime):
            if time.time() - file.stat().st_mtime > KEPT_SECONDS:
                logger.warning("given up after %d s: %s", KEPT_SECONDS, file.name)
                file.unlink()
                continue
            kept = json.loads(file.read_text(encoding="utf-8"))
            yield Entry(file, kept["path"], kept["body"])
