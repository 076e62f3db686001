"""How long the server takes for the pages of the back office, with few jobs and with many behind them."""

import json
import tempfile

from tests.benchmarks.peers import OURS
from tests.benchmarks.report import Report
from tests.benchmarks.running import run
from tests.benchmarks.server import Server
from tests.benchmarks.sizes import Size

NAME = "admin"


def measure(server: Server, size: Size, report: Report) -> None:
    few, many = size.admin_jobs
    with tempfile.TemporaryDirectory(prefix="ai-jobs-bench-static-") as static:
        for jobs in size.admin_jobs:
            server.create(_database(jobs))
            _pages(server, jobs, static, "fill", jobs)
        for _ in range(size.rounds):
            for jobs in size.admin_jobs:
                for page, milliseconds in json.loads(_pages(server, jobs, static, "time", size.admin_requests)).items():
                    report.figure(NAME, _subject(page, jobs), "ms").add(milliseconds)
    for subject in report.subjects(NAME):
        if subject.endswith(f", {many:,} jobs"):
            report.compare(NAME, subject, "ms", subject.replace(f", {many:,} jobs", f", {few:,} jobs"))


def _pages(server: Server, jobs: int, static: str, action: str, count: int) -> str:
    """Run admin_pages.py on one of the databases; its last line."""
    environment = {**OURS.env(server, _database(jobs)), "ALLOWED_HOSTS": "testserver", "STATIC_ROOT": static, "EXTRA_APPS": ""}
    return run(["-m", "tests.benchmarks.admin_pages", action, str(count)], environment, seconds=1_800).strip().splitlines()[-1]


def _database(jobs: int) -> str:
    return f"ours_admin_{jobs}"


def _subject(page: str, jobs: int) -> str:
    return f"{page}, {jobs:,} jobs"
