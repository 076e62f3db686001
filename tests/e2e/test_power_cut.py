"""What holds when the database server falls over and forgets what nobody waited for."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.processes import ROOT


def test_a_claim_that_was_forgotten_was_never_made_and_one_with_a_call_is_never_forgotten():
    folder = Path(tempfile.mkdtemp(prefix="ai-jobs-cut-"))
    folder.chmod(0o755)  # as root the database runs as another user
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.power_cut", str(folder)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert json.loads(done.stdout) == {
        # Nothing was paid for: the job waits as before, and who had claimed it may not call.
        "claimed": {"status": "queued", "attempt_no": 0, "attempts": 0, "calls": 0, "may_call": False},
        "may_call": True,
        "claimed and opened": {"status": "running", "attempt_no": 1, "attempts": 1, "calls": 1},
    }
