"""How long a job waits for a worker that has nothing else to do: from its commit to the call of its executor."""

import statistics

from tests.benchmarks.peers import DJANGO_Q, OURS, PROCRASTINATE, Peer, missing
from tests.benchmarks.report import Report
from tests.benchmarks.running import running, wait_until
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Size

PEERS = (OURS, PROCRASTINATE, DJANGO_Q)
_WARM_UP = 20
_DJANGO_Q_ROUNDS = 2  # it is forty times as slow: that shows at once


def measure(server: Server, size: Size, report: Report) -> None:
    for rate, jobs in size.pickup:
        name = f"pickup {rate:g}/s"
        samples: dict[str, list[float]] = {}
        for number in range(size.rounds):
            for peer in PEERS:
                if missing(peer):
                    if number == 0:
                        report.skip(name, peer.name, missing(peer))
                    continue
                if peer is DJANGO_Q and number >= _DJANGO_Q_ROUNDS:
                    continue
                waits = one_round(server, peer, rate, jobs, seed=number)
                samples.setdefault(peer.name, []).extend(waits)
                for unit, value in (("p50 ms", percentile(waits, 50)), ("p99 ms", percentile(waits, 99)), ("max ms", max(waits))):
                    report.figure(name, peer.name, unit).add(value)
        for subject, waits in samples.items():
            report.notes.append(
                f"{name}, all rounds together: {subject}: n {len(waits):,}, p50 {percentile(waits, 50):.1f}, "
                f"p99 {percentile(waits, 99):.1f}, max {max(waits):.1f} ms"
            )
        for unit in ("p50 ms", "p99 ms"):
            report.compare(name, OURS.name, unit, PROCRASTINATE.name)
            report.compare(name, OURS.name, unit, DJANGO_Q.name)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def one_round(server: Server, peer: Peer, rate: float, jobs: int, seed: int) -> list[float]:
    """Milliseconds, one a job."""
    database = peer.copy(server, peer.prepared(server))
    with server.connect(database) as connection, running(peer.workers(server, database)) as workers:

        def called(prefix: str) -> dict[str, float]:
            rows = connection.execute("SELECT key, extract(epoch FROM at)::float8 FROM bench_called WHERE key LIKE %s", [f"{prefix}%"])
            return dict(rows.fetchall())

        # All are up, connected, and have run a job or two.
        peer.load(server, database, "arrivals", rate=100, jobs=_WARM_UP, seed=0, prefix="warm")
        wait_until(lambda: len(called("warm")) >= _WARM_UP, 120, f"{peer.name}: the warm-up", workers, 0.2)
        said = peer.load(server, database, "arrivals", rate=rate, jobs=jobs, seed=seed, prefix="job")
        wait_until(lambda: len(called("job")) >= jobs, 120, f"{peer.name}: {jobs} jobs", workers, 0.2)
        calls = called("job")
    return [(calls[key] - committed) * 1_000 for key, committed in said["committed"].items()]
