"""Pytest plugin, loaded before Django's settings: without DATABASE_URL the run gets a throw-away PostgreSQL of its own."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# What is thrown away need not survive a power cut.
THROW_AWAY_CONFIG = """
fsync = off
synchronous_commit = off
full_page_writes = off
"""


def _start() -> None:
    # DATABASE_URL alone would turn development mode off.
    os.environ.setdefault("DEBUG", "1")
    os.environ.setdefault("EXTRA_APPS", "tests.support.app")
    if os.environ.get("DATABASE_URL"):
        return  # the developer's own server, or an xdist worker, which joins the run's
    from config.embedded import start_or_join

    folder = Path(tempfile.mkdtemp(prefix="ai-jobs-test-"))
    folder.chmod(0o755)  # as root the server runs as another user
    server = start_or_join(folder / "postgres", extra_config=THROW_AWAY_CONFIG, stop_with_last_user=False)

    def throw_away(owner: int = os.getpid()) -> None:
        if os.getpid() == owner:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(throw_away)
    os.environ["DATABASE_URL"] = server.get_uri()


_start()
