"""What holds when everything breaks at once."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.processes import ROOT


def test_two_hundred_jobs_end_as_they_must_while_workers_die_and_the_database_restarts():
    """provider_calls 14"""
    folder = Path(tempfile.mkdtemp(prefix="ai-jobs-chaos-"))
    folder.chmod(0o755)  # as root the database runs as another user
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.chaos", str(folder), "200"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
            capture_output=True,
            text=True,
            timeout=280,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    seen = json.loads(done.stdout)
    print(seen)
    assert sum(seen["statuses"].values()) == seen["jobs"] == 200
    assert seen["lapses"] > 0
    assert seen["dispatches"]["maybe_sent"] > 0
