"""How many waiting jobs a second two worker processes end."""

from dataclasses import dataclass

from tests.benchmarks.peers import DJANGO_Q, DJANGO_Q_UNSAVED, OURS, OURS_ALONE, PROCRASTINATE, Peer, missing
from tests.benchmarks.report import Report
from tests.benchmarks.running import cpu_seconds, running, wait_until
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Size

NAME = "drain"
RATE = "jobs/s"
OURS_NOOP = "ours, no-op"
OURS_ALONE_NOOP = "ours, no-op, a commit a job"
_SLOWEST = 20  # jobs a second; who is slower than that has stopped


@dataclass(frozen=True)
class Variant:
    subject: str
    peer: Peer
    kind: str
    slow: bool = False


VARIANTS = (
    Variant(OURS_NOOP, OURS, "noop"),
    Variant("procrastinate, no-op", PROCRASTINATE, "noop"),
    Variant(OURS_ALONE_NOOP, OURS_ALONE, "noop"),
    Variant("ours, 5 rows", OURS, "rows"),
    Variant("procrastinate, 5 rows", PROCRASTINATE, "rows"),
    Variant("django-q2 save_limit=-1, no-op", DJANGO_Q_UNSAVED, "noop"),
    Variant("django-q2, no-op", DJANGO_Q, "noop", slow=True),
)


def measure(server: Server, size: Size, report: Report) -> None:
    variants = [variant for variant in VARIANTS if not missing(variant.peer)]
    for variant in VARIANTS:
        if variant not in variants:
            report.skip(NAME, variant.subject, missing(variant.peer))
    for _ in range(size.rounds):
        for variant in variants:
            one_round(server, variant, size.slow_drain_jobs if variant.slow else size.drain_jobs, report)
    report.compare(NAME, OURS_NOOP, RATE, "procrastinate, no-op")
    report.compare(NAME, OURS_NOOP, RATE, "django-q2 save_limit=-1, no-op")
    report.compare(NAME, OURS_ALONE_NOOP, RATE, "procrastinate, no-op")
    for unit in ("CPU ms/job, workers", "CPU ms/job, database"):
        report.compare(NAME, OURS_NOOP, unit, "procrastinate, no-op")
    report.compare(NAME, "ours, 5 rows", RATE, "procrastinate, 5 rows")


@dataclass(frozen=True)
class Look:
    """What was seen at one moment."""

    at: float
    done: int
    cpu_workers: float
    cpu_database: float


def one_round(server: Server, variant: Variant, jobs: int, report: Report) -> None:
    peer = variant.peer
    database = peer.copy(server, peer.prepared(server, variant.kind, jobs))
    every = 0.1 if jobs < 5_000 else 0.4  # looking is not free
    looks: list[Look] = []

    with server.connect(database) as connection:
        before = _written(connection)
        done_before = peer.count_done(connection)[1]
        with running(peer.workers(server, database)) as workers:

            def all_done() -> bool:
                at, done = peer.count_done(connection)
                done -= done_before
                trees = [process for worker in workers for process in worker.tree()]
                looks.append(Look(at, done, cpu_seconds(trees), cpu_seconds(server.processes())))
                return done >= jobs

            wait_until(all_done, 60 + jobs / _SLOWEST, f"{variant.subject}: {looks[-1:]} of {jobs}", workers, every)
            # Sessions report their counters late.
            wait_until(lambda: _written(connection)[0] > before[0], 5, "statistics")
        after = _written(connection)
    # From the last look before a tenth was done to the end: processes that start, and the first claim, are left out.
    first, last = max((look for look in looks if look.done <= jobs / 10), key=lambda look: look.at), looks[-1]
    done = last.done - first.done
    report.figure(NAME, variant.subject, RATE).add(done / (last.at - first.at))
    report.figure(NAME, variant.subject, "CPU ms/job, workers").add((last.cpu_workers - first.cpu_workers) / done * 1_000)
    report.figure(NAME, variant.subject, "CPU ms/job, database").add((last.cpu_database - first.cpu_database) / done * 1_000)
    report.figure(NAME, variant.subject, "commits/job").add((after[0] - before[0]) / jobs)
    report.figure(NAME, variant.subject, "WAL bytes/job").add((after[1] - before[1]) / jobs)


def _written(connection) -> tuple[int, int]:
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute(
        "SELECT xact_commit, (SELECT wal_bytes FROM pg_stat_wal)::bigint FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return row[0], row[1]
