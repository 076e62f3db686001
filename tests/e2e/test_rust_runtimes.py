"""Two Rust runtimes at two hundred jobs over a real server: one is killed, one is told to stop, and every job is done once."""

import base64
import os
import signal
import subprocess
import urllib.parse
from tempfile import TemporaryFile

import pytest
from django.db.models import Count, F, Sum

from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiRuntimeResult, AiUsageLog
from runtime_jobs.synthetic.models import ExtractedText
from tests.factories import KEY, CredentialFactory, JobFactory, UserFactory, payload
from tests.runtime_protocol.conftest import JOB_TYPE, issue
from tests.runtime_protocol.web import web_server
from tests.support import rust
from tests.support.processes import wait_for
from tests.support.provider_simulator import ProviderSimulator

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

JOBS = 200
SLOTS = 4
SLOW = "The Danube is 2,850 kilometres long. [[simulate: delay=0.3]]"


class RustRuntime:
    """The example as a process; what it prints is kept."""

    def __init__(self, port: int, token: str, instance: str, spool: str) -> None:
        self.output = TemporaryFile()  # noqa: SIM115 - closed by end()
        command = [
            rust.example(),
            f"http://127.0.0.1:{port}",
            "--instance",
            instance,
            "--slots",
            str(SLOTS),
            "--lease",
            "2",
            "--spool",
            spool,
        ]
        self.process = subprocess.Popen(command, env={**os.environ, "RUNTIME_TOKEN": token}, stdout=self.output, stderr=subprocess.STDOUT)

    def printed(self) -> str:
        number = self.output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.output.close()


def succeeded() -> int:
    return AiRuntimeJob.objects.filter(status="succeeded").count()


def forms(secret: str) -> set[str]:
    return {secret, urllib.parse.quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")}


def test_two_hundred_jobs_survive_a_kill_and_a_stop(transactional_db, tmp_path):
    runtimes = []
    token = issue()
    with ProviderSimulator() as provider, web_server(
        workers=2, threads=32, RUNTIME_MIN_LEASE_SECONDS=1, RUNTIME_LEASE_SECONDS=2, RETRY_BASE_SECONDS=0.1
    ) as web:  # fmt: skip
        user, credential = UserFactory(), CredentialFactory(base_url=provider.url)

        def start(name):
            # They share a spool: what the killed one leaves, the next one that starts brings.
            runtimes.append(RustRuntime(web.port, token, name, str(tmp_path / "spool")))
            return runtimes[-1].process

        try:
            killed, stopped = start("killed"), start("stopped")
            for _ in range(JOBS):
                JobFactory(user=user, credential=credential, job_type=JOB_TYPE, payload=payload(SLOW))
            wait_for(lambda: succeeded() >= JOBS // 5, 60, "a fifth is done")
            wait_for(lambda: AiJobAttempt.objects.filter(worker="killed", ended_at=None).count() > 1, 20, "it is at work")
            killed.send_signal(signal.SIGKILL)
            start("third")
            wait_for(lambda: succeeded() >= JOBS // 2, 60, "half is done")
            stopped.send_signal(signal.SIGTERM)
            assert stopped.wait(20) == 0
            wait_for(lambda: succeeded() == JOBS, 120, "all are done")
            third = runtimes[-1].process
            third.send_signal(signal.SIGTERM)
            assert third.wait(20) == 0
            printed = [runtime.printed() for runtime in runtimes]
        finally:
            for runtime in runtimes:
                runtime.end()
        server_log = web.log()

    jobs = AiRuntimeJob.objects.all()
    # Each was done once: one result, one projection.
    assert AiRuntimeResult.objects.filter(status="succeeded").count() == AiRuntimeResult.objects.count() == JOBS
    assert ExtractedText.objects.count() == JOBS
    # An attempt more for each that was held at the kill or handed back at the stop; nothing else cost one.
    assert not jobs.exclude(attempt_no=1 + F("lapse_count") + F("release_count")).exists()
    sums = jobs.aggregate(lapses=Sum("lapse_count"), releases=Sum("release_count"), retries=Sum("retry_count"))
    assert sums["retries"] == 0
    assert AiJobAttempt.objects.filter(outcome="released").count() == sums["releases"]
    assert AiJobAttempt.objects.values("job").annotate(done=Count("id")).filter(done__gt=3).count() == 0
    per_worker = dict(AiJobAttempt.objects.values_list("worker").annotate(Count("id")))
    assert set(per_worker) == {"killed", "stopped", "third"}
    lapsed = dict(AiJobAttempt.objects.filter(outcome="lapsed").values_list("worker").annotate(Count("id")))
    released = dict(AiJobAttempt.objects.filter(outcome="released").values_list("worker").annotate(Count("id")))
    print(f"attempts {per_worker}, lapsed {lapsed}, released {released}")
    assert 1 <= lapsed["killed"] <= SLOTS
    assert set(released) <= {"stopped", "third"}
    # Every attempt that got an answer of the model has reported it.
    assert AiUsageLog.objects.filter(finish_reason="stop").values("job").distinct().count() == JOBS
    assert not list((tmp_path / "spool").iterdir())

    secrets = {"the API key": KEY, "the service token": token}
    texts = {"the server": server_log, **{f"runtime {number}": text for number, text in enumerate(printed)}}
    for name, secret in secrets.items():
        for where, text in texts.items():
            assert not any(form in text for form in forms(secret)), f"{name} stands in the log of {where}"
    assert "lockToken" not in "".join(texts.values())
