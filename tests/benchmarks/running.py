"""Processes of a run: started in sessions of their own, ended with all their children whatever happens."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TypeVar

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
T = TypeVar("T")

_running: set["Running"] = set()


class Running:
    """A child process with its output in a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(self)

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        return []

    def check(self) -> None:
        """Raises RuntimeError, with its last lines, when the process has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.process.args!r} ended with status {self.process.returncode}:\n{self.output()[-4_000:]}")

    def end(self) -> None:
        if self not in _running:
            return
        left = self.tree()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        psutil.wait_procs(left, timeout=10)
        self._output.close()
        _running.discard(self)


def end_all() -> None:
    for process in list(_running):
        process.end()


@contextlib.contextmanager
def running(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> Iterator[list[Running]]:
    """Several at once; none is left behind."""
    started: list[Running] = []
    try:
        for command, environment in commands:
            started.append(Running(command, environment))
        yield started
    finally:
        for process in started:
            process.end()


def run(command: Sequence[str], environment: Mapping[str, str], seconds: float = 900) -> str:
    """Run to its end; its standard output. Raises RuntimeError with all that it said when it fails."""
    with running([(command, environment)]) as (process,):
        status = process.process.wait(seconds)
        if status:
            raise RuntimeError(f"{' '.join(command)} ended with status {status}:\n{process.output()[-4_000:]}")
        return process.output()


def wait_until(condition: Callable[[], T], seconds: float, what: str, watch: Sequence[Running] = (), every: float = 0.05) -> T:
    """The condition's first true value. Raises TimeoutError after the deadline, RuntimeError when a watched process ends."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        for process in watch:
            process.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}\n" + "\n".join(process.output()[-2_000:] for process in watch))
        time.sleep(every)
    return value


def allow_many_files() -> None:
    """Thousands of sockets; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pss_bytes(processes: Sequence[psutil.Process]) -> int:
    """Proportional set size: shared pages are split among those that share them, so that a sum counts each once."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Processor time of the processes and of their children that have ended. Unlike a rate it hardly changes with the machine's load."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total
