"""What PostgreSQL can do with the statements of our engine and nothing else: no Python, no gateway, no threads."""

import re
import tempfile
from pathlib import Path

from tests.benchmarks.drain import NAME as DRAIN
from tests.benchmarks.drain import OURS_ALONE_NOOP, OURS_NOOP, RATE
from tests.benchmarks.peers import OURS
from tests.benchmarks.report import Report
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Size

NAME = "ceiling"
# A claim looks at 8 candidates more than it wants, so as many may be locked by the other clients without one coming back short.
CLIENTS_AND_BATCH = ((2, 8), (4, 2), (8, 1))


def measure(server: Server, size: Size, report: Report) -> None:
    template = OURS.prepared(server, "noop", size.ceiling_jobs)
    for clients, batch in CLIENTS_AND_BATCH:
        subject = f"pgbench, {clients} clients, claims of {batch}"
        said = OURS.load(server, OURS.copy(server, template), "capture", batch=batch)
        for _ in range(size.rounds):
            report.figure(NAME, subject, RATE).add(one_round(server, template, said["script"], clients, batch, size.ceiling_jobs))
        report.figure(NAME, subject, "statements/job").add(said["statements"] / batch)
        report.figure(NAME, subject, "transactions/job").add(said["transactions"] / batch)
        for ours in (OURS_NOOP, OURS_ALONE_NOOP):
            report.compare(DRAIN, ours, RATE, subject, peer_measure=NAME)


def one_round(server: Server, template: str, script: str, clients: int, batch: int, waiting: int) -> float:
    database = OURS.copy(server, template)
    turns = int(waiting * 0.8) // (clients * batch)
    with server.connect(database) as connection:
        done_before = OURS.count_done(connection)[1]
    with tempfile.TemporaryDirectory(prefix="ai-jobs-bench-") as folder:
        file = Path(folder) / "engine.sql"
        file.write_text(script)
        said = server.pgbench(database, "-n", "-D", "new=1", "-c", str(clients), "-j", str(clients), "-t", str(turns), "-f", str(file))
    with server.connect(database) as connection:
        done = OURS.count_done(connection)[1] - done_before
    # A claim that meets others at work may come back short, and a script cannot look again.
    if done < 0.9 * turns * clients * batch:
        raise RuntimeError(f"the replayed statements ended {done} jobs of {turns * clients * batch}: the script is not the engine's work")
    return done / (turns * clients) * float(re.search(r"tps = ([\d.]+)", said)[1])  # type: ignore[index]
