"""`make run` as a newcomer meets it: it shows a job, stops without a trace, and starts again with its data."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import psutil
import pytest

from config.devstack import STACK_MARK
from tests.support.processes import ROOT, wait_for


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stack:
    """A clean shell in the project's folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = free_port()
        unset = ("DATABASE_URL", "DEBUG", "PROVIDER", "Q_CLUSTER_NAME", "RUNTIME", "SECRET_KEY")
        self.env = {name: value for name, value in os.environ.items() if name not in unset and not name.startswith("PYTEST")}
        self.env.update(DATA_DIR=str(data), PORT=str(self.port), PROVIDER_PORT=str(free_port()))
        self.runs: list[subprocess.Popen[bytes]] = []

    def start(self, seconds: float = 90) -> tuple[subprocess.Popen[bytes], Path]:
        output = self.data / f"run{len(self.runs)}.log"
        with output.open("wb") as file:
            run = subprocess.Popen(
                [sys.executable, "-m", "config.devstack"],
                cwd=ROOT,
                env=self.env,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.runs.append(run)
        wait_for(lambda: run.poll() is not None or "Ctrl-C stops everything" in output.read_text(), seconds, "the stack is up")
        assert run.poll() is None, output.read_text()
        return run, output

    def call(self, *command: str, seconds: float = 90) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=seconds)

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get(STACK_MARK) == str(self.data) or str(self.data / "postgres") in process.cmdline()
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def counts(self) -> str:
        code = (
            "from django.contrib.auth import get_user_model as u; from runtime_jobs.models import *; "
            "print('counts', u().objects.count(), AiModelCredential.objects.count(), AiRuntimeJob.objects.count(), "
            "RuntimeServiceToken.objects.filter(revoked_at=None).count())"
        )
        done = self.call("manage.py", "shell", "--no-imports", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def end(self) -> None:
        for process in [*self.processes(), *(psutil.Process(run.pid) for run in self.runs if run.poll() is None)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for run in self.runs:
            run.wait(10)


@contextlib.contextmanager
def a_stack():
    data = Path(tempfile.mkdtemp(prefix="ai-jobs-stack-"))
    data.chmod(0o755)  # as root the database runs as another user
    made = Stack(data)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(data, ignore_errors=True)


@pytest.fixture
def stack():
    with a_stack() as made:
        yield made


def test_the_stack_shows_a_job_stops_without_a_trace_and_starts_again_with_its_data(stack):
    run, output = stack.start()
    shown = output.read_text()
    assert re.search(r"succeeded\s+job\.succeeded", shown)
    assert '"paragraph": "p1"' in shown
    assert f"http://127.0.0.1:{stack.port}/admin/   login: admin   password: admin" in shown
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.port}/admin/login/", timeout=10) as page:
        assert b"AI jobs" in page.read()

    # A second shell beside it, with nothing set: the same database, the same engine.
    job = stack.call("manage.py", "create_job", "synthetic.extract_facts", "--file", "README.md", "--wait")
    assert job.returncode == 0, job.stderr
    job = stack.call("manage.py", "create_job", "synthetic.extract_facts_runtime", "--file", "README.md", "--wait")
    assert job.returncode == 0, job.stderr  # by the runtime that runs beside the engine
    assert not re.search(r"rt_[0-9a-f]{12}_", output.read_text() + job.stdout + job.stderr)
    second = stack.call("-m", "config.devstack")
    assert second.returncode == 2
    assert f"is running already here (process {run.pid})" in second.stderr

    # Ctrl-C.
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(30) == 0
    assert wait_for(lambda: not stack.processes(), 10, "no process is left")

    # Again, then a kill -9 of the whole run's head, then again: nothing is made twice.
    run, _ = stack.start()
    counts = stack.counts()
    assert counts == "counts 1 1 9 1"  # one token is not revoked: this run's
    run.kill()
    run.wait(10)
    _, output = stack.start()
    assert re.search(r"ended \d+ processes of an earlier run that was killed", output.read_text())
    assert stack.counts() == "counts 1 1 9 2"  # and the one that was killed with its run


def test_a_port_in_use_is_said_with_the_way_out(stack):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", stack.port))
        taken.listen()
        done = stack.call("-m", "config.devstack")
    assert done.returncode == 2
    assert f"Port {stack.port} is in use. Choose another: make run PORT={stack.port + 80}" in done.stderr
