"""Real processes for tests: an engine cluster on the test's database, ended with all its children whatever happens."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import psutil
from django.db import connection

from runtime_jobs.models import RuntimeInstance

ROOT = Path(__file__).resolve().parent.parent.parent
T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 30, what: str = "") -> T:
    """The condition's first true value; AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.02)
    return value


def database_url() -> str:
    """Where the current test's database is, for another process."""
    at = connection.settings_dict
    user = quote(at["USER"], safe="") + (f":{quote(at['PASSWORD'], safe='')}" if at["PASSWORD"] else "")
    options = {name: value for name, value in at["OPTIONS"].items() if isinstance(value, str)}
    host = f"{at['HOST']}:{at['PORT']}" if at["PORT"] else at["HOST"]
    return f"postgresql://{user}@{host}/{quote(at['NAME'], safe='')}?{urlencode(options)}"


def environment(**more: Any) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": database_url(), "DEBUG": "1", **{name: str(value) for name, value in more.items()}}


def wait_until_alone() -> None:
    """Return when no killed process has a session in the test's database any more: one that was busy notices a little later, and a
    database with sessions cannot be dropped.
    """
    others = """
        SELECT pid, application_name, state, wait_event, query FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
    """
    found: list[Any] = []

    def alone() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(others)
            found[:] = cursor.fetchall()
        return not found

    try:
        wait_for(alone, what="nobody else is in the database")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


class Engine:
    """One `manage.py run_engine`. Lease, retries and drain are short unless said otherwise."""

    def __init__(self, lane: str = "interactive", *, workers: int = 1, **settings: Any) -> None:
        self.lane = lane
        self._before = set(RuntimeInstance.objects.values_list("name", flat=True))
        self._output = TemporaryFile()  # noqa: SIM115 - closed by end()
        defaults = {
            "ENGINE_LEASE_SECONDS": 2,
            "RETRY_BASE_SECONDS": 0.1,
            "ENGINE_DRAIN_SECONDS": 1,
            "BREAKER_REST_SECONDS": 0.3,
            "ENGINE_WORKERS": workers,
        }
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "run_engine"],
            cwd=ROOT,
            env=environment(Q_CLUSTER_NAME=lane, **{**defaults, **settings}),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(lambda: len(self.workers()) >= workers, what="the engine's workers are there")
        except BaseException:
            print(self.log())
            self.end()
            raise

    def workers(self) -> list[int]:
        """Process ids of the workers that have said that they are alive."""
        names = RuntimeInstance.objects.filter(lane=self.lane).exclude(name__in=self._before).values_list("name", flat=True)
        return [pid for name in names if psutil.pid_exists(pid := int(name.split(":")[1]))]

    def tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        return []

    def log(self) -> str:
        # Not by seek and read: the processes write where this file's one position is.
        number = self._output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def signal_group(self, number: int = signal.SIGTERM) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill whatever of it is left."""
        left = self.tree()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        psutil.wait_procs(left, timeout=10)
        self._output.close()


@contextlib.contextmanager
def engine(lane: str = "interactive", **options: Any) -> Iterator[Engine]:
    running = Engine(lane, **options)
    try:
        yield running
    except BaseException:
        print(running.log())
        raise
    finally:
        running.end()
