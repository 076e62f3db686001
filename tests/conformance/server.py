"""The server under test: a runtime instance that calls it, and what makes and cancels jobs on it."""

import contextlib
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from tests.conformance.calls import JOB_TYPE, Answer, Runtime, through_http
from tests.conformance.program import ROOT
from tests.conformance.scenarios import Skip, check

CREATE_JOB = f"{sys.executable} manage.py create_job {JOB_TYPE} --file runtime_jobs/synthetic/demo.txt"
CANCEL_JOB = (
    f'{sys.executable} manage.py shell -v 0 -c "from runtime_jobs.services.jobs import cancel_job; '
    "from runtime_jobs.services.events import SYSTEM; cancel_job('{job_id}', actor=SYSTEM)\""
)
# Beyond a lease: the server has to notice (one that has just started gives a lease of grace), and the job's back-off has to pass.
SLACK = 100.0


def by_command(command: str) -> Callable[..., None]:
    """Runs it, with the job's id in the place of {job_id}. Raises Skip when there is none, or when it fails."""

    def run(job_id: str = "") -> None:
        if not command:
            raise Skip("there is no command for it")
        filled = shlex.split(command.replace("{job_id}", job_id))
        done = subprocess.run(filled, cwd=ROOT, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise Skip(f"`{command[:60]}…` failed: {(done.stderr or done.stdout).strip()[-200:]}")

    return run


class Server:
    """A server, a runtime instance that calls it, and what makes and cancels jobs on it."""

    def __init__(self, base_url: str, token: str, *, create_job: Callable[[], object], cancel_job: Callable[[str], object]) -> None:
        self._send = through_http(base_url.rstrip("/"))
        self.token = token
        self.make_job = create_job
        self._cancel = cancel_job
        self._leases: list[tuple[Runtime, dict[str, Any]]] = []
        self.runtime = self.another()

    def another(self) -> Runtime:
        """An instance that nobody knows yet."""
        return Runtime(self._send, self.token, f"conformance-{uuid.uuid4().hex[:12]}")

    @contextlib.contextmanager
    def context(self) -> Iterator["Server"]:
        try:
            yield self
        finally:
            # What a scenario leaves would be the next one's job. A call that is refused here has nothing left to end.
            for runtime, lease in self._leases:
                runtime.fail(lease, "internal_error", retryable=False)
            self._leases.clear()

    @cached_property
    def limits(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.runtime.get("health")["limits"]
        return answer

    def cancel(self, lease: dict[str, Any]) -> None:
        self._cancel(lease["jobId"])

    def lease(self, runtime: Runtime | None = None, **more: Any) -> dict[str, Any]:
        """A job of its own, under a lease."""
        runtime = runtime or self.runtime
        self.make_job()
        # Long enough for a slow command; where a lease has to run out, the scenario says so.
        offers = runtime.pull(**{"jobTypes": [JOB_TYPE], "waitSeconds": 10, "leaseSeconds": 60, **more})["jobs"]
        check(offers, "a job that was just made is given out")
        return self.ends(runtime, offers[0]["lease"])

    def ends(self, runtime: Runtime, lease: dict[str, Any]) -> dict[str, Any]:
        """Whatever comes, the job is ended with the scenario."""
        self._leases.append((runtime, lease))
        return lease

    @cached_property
    def overtaken(self) -> tuple[Runtime, dict[str, Any], Runtime, dict[str, Any]]:
        """The holder of an attempt that lapsed and its lease; the successor and its lease."""
        first, second = self.another(), self.another()
        lease = self.lease(first, leaseSeconds=self.limits["minLeaseSeconds"])
        deadline = time.monotonic() + lease["leaseSeconds"] + SLACK
        while time.monotonic() < deadline:
            offers = second.pull(jobTypes=[JOB_TYPE], waitSeconds=5, leaseSeconds=60)["jobs"]
            taken = [self.ends(second, offer["lease"]) for offer in offers]
            if ours := [one for one in taken if one["jobId"] == lease["jobId"]]:
                # It outlives its scenario: others look at it, and the last one ends it.
                self._leases = [one for one in self._leases if one[1]["jobId"] != lease["jobId"]]
                return first, lease, second, ours[0]
        raise AssertionError("a lease that nobody renews is given to another runtime")


def same(answer: Answer, status: int, code: str | None = None, /, **fields: Any) -> None:
    """AssertionError unless the answer is this."""
    said = f"{answer.status} {answer.code or ''}"
    check((answer.status, answer.code) == (status, code), f"answered {said.strip()}, not {status} {code or ''}")
    for name, value in fields.items():
        check(answer.body.get(name) == value, f"{name} is {answer.body.get(name)!r}, not {value!r}")
