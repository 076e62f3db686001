"""The benchmarks run at all. What they measure here means nothing; that they measure it at all is what must not rot."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest

from tests.benchmarks.running import ROOT
from tests.support.processes import wait_for

NO_PEER = "PROCRASTINATE IS NOT INSTALLED, so our engine is compared with nothing here: pip install -e '.[bench]' (make bench does)"


def run(*arguments):
    # Its own database, not the test's.
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--smoke", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("pickup", ["pickup 50/s ours", "pickup 50/s django-q2"]),
        ("drain", ["drain ours, no-op", "drain ours, 5 rows", "drain django-q2, no-op", "drain django-q2 save_limit=-1, no-op"]),
        ("ceiling", ["ceiling pgbench, 2 clients", "ceiling pgbench, 4 clients"]),
        ("inflight", ["20 calls of 0.5 s ours"]),
        ("admin", ["admin list, 1,000 jobs", "admin dashboard, 2,000 jobs", "admin job page, 2,000 jobs"]),
        (
            "protocol",
            ["protocol ours, 2 runtimes", "protocol plain view, 2 runtimes", "protocol pgbench, 2 runtimes", "protocol ours, result"],
        ),
    ],
)
def test_a_measure_runs_to_its_table(measure, expected):
    table = run(measure)
    rows = [" ".join(line.split()) for line in table.splitlines()]
    for start in expected:
        assert any(line.startswith(start) for line in rows), f"no row {start!r} in\n{table}"
    if measure in ("pickup", "drain"):
        if find_spec("procrastinate") is None:
            assert "SKIPPED" in table
            pytest.skip(NO_PEER)
        assert "× procrastinate" in table


def test_an_interrupted_run_leaves_no_process_and_no_folder():
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks", "inflight"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        (engine,) = wait_for(lambda: [one for one in family(started.pid) if is_engine(one)][:1], 120)
        (name,) = re.findall(r"ai-jobs-bench-\w+", unquote(engine.environ()["DATABASE_URL"]))
        left = family(started.pid)
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 130
        _, alive = psutil.wait_procs(left, timeout=10)
        assert not alive
        assert not [process for process in psutil.process_iter(["cmdline"]) if name in " ".join(process.info.get("cmdline") or [])]
        assert not (Path(tempfile.gettempdir()) / name).exists()
    finally:
        started.terminate()
        started.wait(60)


def family(pid):
    """The process's descendants. One that ends while it is looked at is left out."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def is_engine(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[1:3] == ["manage.py", "run_engine"]
    return False
