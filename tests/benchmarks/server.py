"""The throw-away PostgreSQL of a run: durable as in production, its settings pinned, gone with the run."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql

from config.embedded import start_or_join

# Pinned, so that two runs on one machine mean the same. No checkpoint falls into a round by chance.
CONFIG = """
fsync = on
synchronous_commit = on
full_page_writes = on
shared_buffers = 512MB
max_wal_size = 8GB
checkpoint_timeout = 30min
autovacuum = on
"""


class Server:
    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.bin = Path(handle.bin_path)

    def processes(self) -> list[psutil.Process]:
        postmaster = psutil.Process(self._handle.get_pid())
        return [postmaster, *postmaster.children()]

    def url(self, database: str) -> str:
        return str(self._handle.get_uri(database=database))

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def create(self, database: str, *, template: str | None = None) -> None:
        """Made anew, as a copy of the template where one is named."""
        with self.connect() as connection:
            name = sql.Identifier(database)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            of = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name) + of)
            connection.execute("CHECKPOINT")

    def exists(self, database: str) -> bool:
        with self.connect() as connection:
            return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone() is not None

    def vacuum(self, database: str) -> None:
        with self.connect(database) as connection:
            connection.execute("VACUUM (ANALYZE)")

    def pgbench(self, database: str, *options: str) -> str:
        done = subprocess.run([self.bin / "pgbench", *options, self.url(database)], capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise RuntimeError(f"pgbench ended with status {done.returncode}:\n{done.stderr[-4_000:]}")
        return done.stdout

    def describe(self) -> str:
        with self.connect() as connection:
            version, buffers, fsync = connection.execute(
                "SELECT current_setting('server_version'), current_setting('shared_buffers'), current_setting('fsync')"
            ).fetchone()  # type: ignore[misc]
        return f"PostgreSQL {version}, shared_buffers {buffers}, fsync {fsync}; workers, load and database share the machine"


@contextlib.contextmanager
def throw_away_server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="ai-jobs-bench-"))
    folder.chmod(0o755)  # as root the server runs as another user
    handle = None
    try:
        handle = start_or_join(folder / "postgres", extra_config=CONFIG, stop_with_last_user=False)
        yield Server(handle)
    finally:
        if handle is not None:
            handle.stop()
        shutil.rmtree(folder, ignore_errors=True)
