"""The runtime under test: a command, started as often as a scenario needs it, and everything it prints."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent.parent


class Program:
    """`command` may hold {base_url}, {token}, {token_file}, {instance} and {spool}; RUNTIME_TOKEN is in its environment as well."""

    def __init__(self, command: str, base_url: str, token: str, folder: Path) -> None:
        self._command, self._base_url, self._token, self._folder = command, base_url, token, folder
        self._token_file = folder / "token"
        self._token_file.write_text(token)
        self._running: list[subprocess.Popen[bytes]] = []
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    @property
    def has_spool(self) -> bool:
        return "{spool}" in self._command

    def start(self) -> subprocess.Popen[bytes]:
        """Each start is another instance over the same spool."""
        filled = self._command.format(
            base_url=self._base_url, token=self._token, token_file=self._token_file, spool=self._folder / "spool",
            instance=f"conformance-{uuid.uuid4().hex[:12]}",
        )  # fmt: skip
        process = subprocess.Popen(
            shlex.split(filled), cwd=ROOT, env={**os.environ, "RUNTIME_TOKEN": self._token}, stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._running.append(process)
        return process

    def printed(self) -> str:
        # Not by seek and read: the processes write where this file's one position is.
        number = self._output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        self._output.close()
