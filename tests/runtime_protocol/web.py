"""A real web server on the test's database."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Any

import psutil

from tests.conformance import calls
from tests.conformance.calls import Send
from tests.support.processes import ROOT, environment, wait_for


class WebServer:
    """granian as in production: worker processes with blocking threads."""

    def __init__(self, *, workers: int = 1, threads: int = 16, **settings: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._output = TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(self.port), "--workers",
                str(workers), "--blocking-threads", str(threads), "--log-level", "warning", "config.wsgi:application",
            ],
            cwd=ROOT,
            env=environment(GRANIAN_BLOCKING_THREADS=threads, ALLOWED_HOSTS="127.0.0.1", **settings),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(self._answers, what="the web server answers")
        except BaseException:
            print(self.log())
            self.end()
            raise

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return through_http(self.port)("GET", "/healthz", {}, None).status == 200
        return False

    def log(self) -> str:
        # Not by seek and read: the processes write where this file's one position is.
        number = self._output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def end(self) -> None:
        left = []
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            left = [main, *main.children(recursive=True)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        psutil.wait_procs(left, timeout=10)
        self._output.close()


@contextlib.contextmanager
def web_server(**options: Any) -> Iterator[WebServer]:
    running = WebServer(**options)
    try:
        yield running
    except BaseException:
        print(running.log()[-20_000:])
        raise
    finally:
        running.end()


def through_http(port: int, timeout: float = 40) -> Send:
    return calls.through_http(f"http://127.0.0.1:{port}", timeout)
