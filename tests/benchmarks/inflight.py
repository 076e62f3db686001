"""Many provider calls at the same time: what waiting for them costs in memory and connections, and whether it stays waiting."""

import socket
import time
from typing import Any

from tests.benchmarks.peers import OURS, WORKERS
from tests.benchmarks.report import Report
from tests.benchmarks.running import pss_bytes, running, wait_until
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Size

_SPAN = "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM ai_runtime_job"
_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
    "AND pid <> pg_backend_pid()"
)
_MOST_AT_ONCE = "SELECT count(*) FROM ai_usage_log WHERE outcome = 'started'"
_RETRIED = "SELECT count(*) FROM ai_runtime_job WHERE attempt_no > 1"
_SAMPLE_SECONDS = 0.5


def _value(connection: Any, statement: str) -> Any:
    return connection.execute(statement).fetchone()[0]


def measure(server: Server, size: Size, report: Report) -> None:
    port = free_port()
    simulator: tuple[list[str], dict[str, str]] = (["-m", "tests.support.provider_simulator", "--port", str(port), "--latency", "0"], {})
    with running([simulator]):
        for _ in range(size.inflight_rounds):
            for calls in size.inflight:
                one_round(server, calls, size.call_seconds, f"http://127.0.0.1:{port}/v1", report)


def one_round(server: Server, calls: int, seconds: float, base_url: str, report: Report) -> None:
    name = f"{calls:,} calls of {seconds:g} s"
    template = OURS.prepared(server, "slow", calls, warm=False, base_url=base_url, seconds=seconds)
    database = OURS.copy(server, template)
    memory = connections = at_once = 0
    with (
        server.connect(database) as connection,
        running(OURS.workers(server, database, ENGINE_CONCURRENCY=-(-calls // WORKERS), ENGINE_CONNECTIONS=4)) as (engine,),
    ):
        # Memory is read less often: the kernel walks every page of the processes for it.
        next_look = 0.0

        def all_done() -> bool:
            nonlocal memory, connections, at_once, next_look
            connections = max(connections, _value(connection, _CONNECTIONS))
            at_once = max(at_once, _value(connection, _MOST_AT_ONCE))
            if time.monotonic() >= next_look:
                memory = max(memory, pss_bytes(engine.tree()))
                next_look = time.monotonic() + 2
            return OURS.count_done(connection)[1] >= calls

        wait_until(all_done, 60 + 10 * seconds, f"{name}: all are done", [engine], _SAMPLE_SECONDS)
        memory = max(memory, pss_bytes(engine.tree()))
        span = _value(connection, _SPAN)
        retried = _value(connection, _RETRIED)
    done = report.figure(name, "ours", "s until all are done")
    done.add(span)
    done.ratio = f"{done.median / seconds:.2f} × the call"
    report.figure(name, "ours", "MB PSS, all processes").add(memory / 1_000_000)
    report.figure(name, "ours", "connections").add(connections)
    report.figure(name, "ours", "most in flight").add(at_once)
    if retried:
        report.notes.append(f"{name}: {retried} jobs needed more than one attempt")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
