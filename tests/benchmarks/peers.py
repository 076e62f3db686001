"""The systems that are compared: how each is prepared, started and counted. No Django here; what needs it runs in processes of its own."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from psycopg import Connection

from tests.benchmarks.running import run, running, wait_until
from tests.benchmarks.server import Server

WORKERS = 2
_WARM_UP = 300  # jobs
# What each is fastest with on two cores; tried from 1 to 50, ours to 80.
OUR_CONCURRENCY = int(os.environ.get("BENCH_OUR_CONCURRENCY", "80"))
OUR_CONNECTIONS = int(os.environ.get("BENCH_OUR_CONNECTIONS", "8"))
PROCRASTINATE_CONCURRENCY = int(os.environ.get("BENCH_PROCRASTINATE_CONCURRENCY", "10"))

Command = tuple[Sequence[str], Mapping[str, str]]


@dataclass(frozen=True)
class Peer:
    """One system in one setting."""

    name: str
    system: str  # the sender in load.py
    settings: str
    done: str  # SQL: a number that every job that is done raises by one
    environment: Mapping[str, str] = field(default_factory=dict)

    def env(self, server: Server, database: str) -> dict[str, str]:
        return {**self.environment, "DJANGO_SETTINGS_MODULE": self.settings, "DATABASE_URL": server.url(database)}

    def load(self, server: Server, database: str, action: str, **options: Any) -> Any:
        """Run load.py for this system; what it prints as JSON."""
        said = run(["-m", "tests.benchmarks.load", self.system, action, json.dumps(options)], self.env(server, database))
        return json.loads(said.strip().splitlines()[-1])

    def prepared(self, server: Server, kind: str = "empty", jobs: int = 0, *, warm: bool = True, **options: Any) -> str:
        """The name of a database with tables and that many waiting jobs, made once in a run; to be copied, never used.

        A warm one has run jobs before, so that the planner knows the tables: of those that a vacuum found empty it expects no rows.
        """
        database = f"{self.system}_{'warm' if warm else 'cold'}_{kind}_{jobs}"
        if not server.exists(database):
            if jobs:
                server.create(database, template=self.prepared(server, warm=warm))
                self.load(server, database, "prefill", kind=kind, jobs=jobs, **options)
            elif warm:
                server.create(database, template=self.prepared(server, "noop", _WARM_UP, warm=False))
                self._run_all(server, database, _WARM_UP)
            else:
                server.create(database)
                self.load(server, database, "tables")
            server.vacuum(database)
        return database

    def _run_all(self, server: Server, database: str, jobs: int) -> None:
        with server.connect(database) as connection, running(self.workers(server, database)) as workers:
            before = self.count_done(connection)[1]
            wait_until(lambda: self.count_done(connection)[1] - before >= jobs, 120, f"{self.name}: the warm-up", workers)

    def copy(self, server: Server, template: str) -> str:
        """A fresh copy for one round."""
        database = f"{self.system}_round"
        server.create(database, template=template)
        return database

    def workers(self, server: Server, database: str, **settings: Any) -> list[Command]:
        """The commands that start two worker processes."""
        env = self.env(server, database)
        if self.system == "ours":
            return [(["manage.py", "run_engine"], {**env, **{name: str(value) for name, value in settings.items()}})]
        if self.system == "procrastinate":
            return [(["-m", "tests.benchmarks.procrastinate_app", str(PROCRASTINATE_CONCURRENCY)], env)] * WORKERS
        return [(["-m", "django", "qcluster"], env)]

    def count_done(self, connection: Connection[Any]) -> tuple[float, int]:
        """The database's clock in seconds, and a number that grows by one with every job that is done."""
        row = connection.execute(f"SELECT extract(epoch FROM clock_timestamp())::float8, ({self.done})").fetchone()
        assert row is not None
        return row[0], row[1]


OURS = Peer(
    "ours",
    "ours",
    "config.settings",
    "SELECT count(*) FROM ai_runtime_job WHERE status = 'succeeded'",
    {
        # As in production: in development mode Django remembers every query.
        "DEBUG": "0",
        "SECRET_KEY": "a-key-for-benchmarks-that-is-long-enough-to-be-taken",
        "CREDENTIAL_KEYS": "bench:YmVuY2htYXJrcy1vbmx5LWNyZWRlbnRpYWwta2V5ISE=",
        "ALLOW_LOOPBACK_PROVIDERS": "1",
        "EXTRA_APPS": "tests.benchmarks.app",
        "LOG_LEVEL": "WARNING",
        "Q_CLUSTER_NAME": "interactive",
        "ENGINE_WORKERS": str(WORKERS),
        "ENGINE_CONCURRENCY": str(OUR_CONCURRENCY),
        "ENGINE_CONNECTIONS": str(OUR_CONNECTIONS),
        "ENGINE_RECYCLE_ATTEMPTS": "1000000",
        "ENGINE_DRAIN_SECONDS": "1",
    },
)
OURS_ALONE = replace(OURS, environment={**OURS.environment, "BENCH_WRITES_ALONE": "1"})
PROCRASTINATE = Peer(
    "procrastinate",
    "procrastinate",
    "tests.benchmarks.peer_settings",
    "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
)
# A message is deleted when its task is done.
_LEFT = "SELECT -count(*) FROM django_q_ormq"
DJANGO_Q = Peer("django-q2", "django_q", "tests.benchmarks.peer_settings", _LEFT)
DJANGO_Q_UNSAVED = Peer("django-q2 save_limit=-1", "django_q", "tests.benchmarks.peer_settings", _LEFT, {"BENCH_SAVE_LIMIT": "-1"})


def missing(peer: Peer) -> str:
    """Why a peer cannot take part; empty when it can."""
    if peer.system == "procrastinate" and find_spec("procrastinate") is None:
        return "procrastinate is not installed: pip install -c config/constraints.txt -e '.[bench]' (or make bench)"
    return ""
