"""Full cycles of the runtime protocol over HTTP, beside a plain Django view with the same statements, beside the statements alone."""

import http.client
import json
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.inflight import free_port
from tests.benchmarks.peers import OURS, WORKERS
from tests.benchmarks.protocol_calls import CYCLE, Call
from tests.benchmarks.report import Report
from tests.benchmarks.running import Running, cpu_seconds, running, wait_until
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Size

NAME = "protocol"
RATE = "cycles/s"
CPU = "CPU ms/call, web"
THREADS = 16
# Of pgbench: a claim looks at 8 candidates more than it wants, and a script cannot look again when all of them are locked by others.
MOST_CLIENTS = 8
_WARM_UP = 20


@dataclass(frozen=True)
class Bench:
    """A database with waiting jobs, a token for it, and the recorded statements."""

    template: str
    token: str
    said: Path
    script: Path


class Runtime:
    """One connection, one call after the other. `call` sends one request and notes in the lease what comes back."""

    def __init__(self, port: int, token: str, instance: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._authorization = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._instance = instance

    def lease(self) -> dict[str, Any]:
        return {"lockedBy": self._instance, "requestId": uuid.uuid4()}

    def call(self, made: Call, lease: dict[str, Any]) -> bool:
        """False when there was no job to lease."""
        body = made.body(lease)
        answer = self._send(made.method, f"/internal/runtime/{made.path(lease)}", body, made.headers(lease))
        if made.name == "poll":
            if not answer["jobs"]:
                return False
            lease |= answer["jobs"][0]["lease"]
        return True

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, body=data, headers={**self._authorization, **headers})
        response = self._connection.getresponse()
        said = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {said[:500]!r}")
        return json.loads(said)

    def close(self) -> None:
        self._connection.close()


class PlainRuntime(Runtime):
    """The same against the plain view, which is told the job and the token's hash, and nothing else."""

    def call(self, made: Call, lease: dict[str, Any]) -> bool:
        answer = self._send("POST", f"/{made.name}", {name: lease.get(name) for name in ("jobId", "hash")}, {})
        lease |= {"jobId": answer["jobId"], "hash": answer["hash"]}
        return bool(answer["jobId"] != "None")


@dataclass(frozen=True)
class System:
    subject: str
    runtime: type[Runtime]
    application: str
    settings: str


SYSTEMS = (
    System("ours", Runtime, "config.wsgi:application", "config.settings"),
    System("plain view", PlainRuntime, "tests.benchmarks.plain.wsgi:application", "tests.benchmarks.plain.settings"),
)


def measure(server: Server, size: Size, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="ai-jobs-bench-") as folder:
        bench = _prepare(server, size, Path(folder), report)
        for _ in range(size.rounds):
            for runtimes in size.protocol_runtimes:
                for system in SYSTEMS:
                    cycles(server, bench, system, runtimes, size, report)
                if runtimes <= MOST_CLIENTS:
                    statements_alone(server, bench, runtimes, size, report)
            for system in SYSTEMS:
                cpu_of_each(server, bench, system, size, report)
    for runtimes in size.protocol_runtimes:
        ours = f"ours, {_count(runtimes)}"
        report.compare(NAME, ours, RATE, f"plain view, {_count(runtimes)}")
        report.compare(NAME, ours, RATE, f"pgbench, {_count(max(n for n in size.protocol_runtimes if n <= MOST_CLIENTS))}")
    for made in CYCLE:
        report.compare(NAME, f"ours, {made.name}", CPU, f"plain view, {made.name}")


def _prepare(server: Server, size: Size, folder: Path, report: Report) -> Bench:
    with_token = "ours_pulled_token"
    server.create(with_token, template=OURS.prepared(server, "pulled", size.protocol_jobs))
    token = OURS.load(server, with_token, "token", name="bench")
    said = folder / "said.pickle"
    recorded = OURS.load(server, OURS.copy(server, with_token), "capture_protocol", token=token, file=str(said))
    script = folder / "cycle.sql"
    script.write_text(recorded["script"])
    report.figure(NAME, "ours", "statements/cycle").add(recorded["statements"])
    report.figure(NAME, "ours", "transactions/cycle").add(recorded["transactions"])
    return Bench(with_token, token, said, script)


@contextmanager
def serving(server: Server, bench: Bench, system: System) -> Iterator[tuple[Running, str, int]]:
    """A web server as in production on a fresh copy: the process, the database and the port."""
    database, port = OURS.copy(server, bench.template), free_port()
    command = ["-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port), "--workers", str(WORKERS)]
    environment = {
        **OURS.env(server, database), "DJANGO_SETTINGS_MODULE": system.settings, "GRANIAN_BLOCKING_THREADS": str(THREADS),
        "RUNTIME_RATE_PER_SECOND": "100000", "RUNTIME_CONNECTIONS": "8", "ALLOWED_HOSTS": "127.0.0.1", "BENCH_SAID": str(bench.said),
    }  # fmt: skip
    with running([([*command, "--log-level", "warning", system.application], environment)]) as (web,):

        def answers() -> bool:
            try:
                with closing(system.runtime(port, bench.token, "warm-up")) as runtime:
                    return run_cycle(runtime)
            except OSError:
                return False

        try:
            wait_until(answers, 60, f"{system.subject}: the web server answers", [web])
            with closing(system.runtime(port, bench.token, "warm-up")) as runtime:
                for _ in range(_WARM_UP):
                    run_cycle(runtime)
            yield web, database, port
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{web.output()[-4_000:]}") from None


def run_cycle(runtime: Runtime) -> bool:
    lease = runtime.lease()
    return all(runtime.call(made, lease) for made in CYCLE)


def cycles(server: Server, bench: Bench, system: System, runtimes: int, size: Size, report: Report) -> None:
    """As many cycles as so many runtimes get done."""
    done: list[int] = []
    with serving(server, bench, system) as (web, database, port), server.connect(database) as connection:
        before = OURS.count_done(connection)[1]
        ends = time.monotonic() + size.protocol_seconds

        def work(number: int) -> None:
            count = 0
            with closing(system.runtime(port, bench.token, f"bench-{number}")) as runtime:
                while time.monotonic() < ends and run_cycle(runtime):
                    count += 1
            done.append(count)

        started = time.monotonic()
        _together(work, runtimes)
        seconds = time.monotonic() - started
        web.check()
        after = OURS.count_done(connection)[1]
    if after - before != sum(done) or len(done) != runtimes:
        raise RuntimeError(
            f"{system.subject}: {sum(done)} cycles of {len(done)} runtimes ended {after - before} jobs:\n{web.output()[-2_000:]}"
        )
    report.figure(NAME, f"{system.subject}, {_count(runtimes)}", RATE).add(sum(done) / seconds)


def statements_alone(server: Server, bench: Bench, runtimes: int, size: Size, report: Report) -> None:
    """The recorded statements of the cycle, by pgbench."""
    database = OURS.copy(server, bench.template)
    options = ("-n", "-D", "new=1", "-c", str(runtimes), "-j", str(min(runtimes, WORKERS)), "-T", str(max(1, round(size.protocol_seconds))))
    said = server.pgbench(database, *options, "-f", str(bench.script))
    with server.connect(database) as connection:
        done = OURS.count_done(connection)[1]
    # A claim that came back empty among so many is no cycle.
    turns = int(re.search(r"actually processed: (\d+)", said)[1])  # type: ignore[index]
    if done < 0.9 * turns:
        raise RuntimeError(f"{turns} replayed cycles ended {done} jobs: the script is not a cycle's work")
    rate = float(re.search(r"tps = ([\d.]+)", said)[1])  # type: ignore[index]
    report.figure(NAME, f"pgbench, {_count(runtimes)}", RATE).add(rate * done / turns)


def cpu_of_each(server: Server, bench: Bench, system: System, size: Size, report: Report) -> None:
    """Processor time of the web server for each call, one after the other, so that nothing waits for anything."""
    with serving(server, bench, system) as (web, _, port), closing(system.runtime(port, bench.token, "bench-1")) as runtime:
        leases = [runtime.lease() for _ in range(size.protocol_calls)]
        for made in CYCLE:
            before = cpu_seconds(web.tree())
            for lease in leases:
                if not runtime.call(made, lease):
                    raise RuntimeError(f"{system.subject}: the jobs are used up")
            report.figure(NAME, f"{system.subject}, {made.name}", CPU).add((cpu_seconds(web.tree()) - before) / len(leases) * 1_000)


def _together(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _count(runtimes: int) -> str:
    return f"{runtimes} runtime{'s' if runtimes > 1 else ''}"
