"""The reference runtime against a real web server and a provider on loopback: what PROTOCOL.md tells a runtime to do, done."""

import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from runtime_jobs.models import AiUsageLog
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.synthetic.models import ExtractedText
from tests.factories import CredentialFactory, JobFactory, UserFactory, payload
from tests.runtime_protocol.conftest import JOB_TYPE, issue, status_of
from tests.runtime_protocol.web import web_server
from tests.support.processes import ROOT, wait_for
from tests.support.provider_simulator import ProviderSimulator

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "The Danube is 2,850 kilometres long.\n\nIt rises in the Black Forest."


def succeeded(job):
    return status_of(job) == "succeeded"


@pytest.fixture
def provider():
    with ProviderSimulator() as simulator:
        yield simulator


@pytest.fixture
def make_job(transactional_db, provider):
    credential, user = CredentialFactory(base_url=provider.url), UserFactory()
    return lambda text=TEXT, **more: JobFactory(user=user, credential=credential, job_type=JOB_TYPE, payload=payload(text), **more)


@pytest.fixture
def web(make_job):
    with web_server(workers=1, threads=16, RUNTIME_MIN_LEASE_SECONDS=1, RUNTIME_LEASE_SECONDS=2, RETRY_BASE_SECONDS=0.1) as running:
        yield running


@pytest.fixture
def start(web):
    """Starts runtimes; whatever is left of them is killed."""
    started = []

    def one(instance="reference-1", token=None):
        command = [sys.executable, "-m", "tests.support.reference_runtime", "--base-url", f"http://127.0.0.1:{web.port}"]
        process = subprocess.Popen(
            [*command, "--token", token or issue(), "--instance", instance, "--lease", "2"], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def test_acceptance_5_jobs_go_through_it_to_projected_results(make_job, start):
    jobs = [make_job() for _ in range(3)]
    start()
    for job in jobs:
        wait_for(partial(succeeded, job), 30)
    assert ExtractedText.objects.count() == 3
    assert AiUsageLog.objects.filter(outcome="succeeded").count() == 3


def test_acceptance_6_a_failure_of_the_provider_is_reported_with_whether_it_may_be_retried(make_job, start):
    busy, refused = make_job(f"{TEXT} [[simulate: status=503 times=1]]"), make_job(f"{TEXT} [[simulate: status=401]]")
    start()
    wait_for(lambda: status_of(busy) == "succeeded", 30)
    wait_for(lambda: status_of(refused) == "failed", 30)
    busy.refresh_from_db()
    refused.refresh_from_db()
    assert (busy.attempt_no, busy.retry_count) == (2, 1)
    assert (refused.attempt_no, refused.error_code) == (1, "provider_auth_failed")


def test_s43_a_cancel_reaches_the_provider_call(make_job, start, provider):
    job = make_job(f"{TEXT} [[simulate: delay=60]]")
    start()
    wait_for(lambda: provider.requests, 20)
    cancel_job(job.pk, actor=SYSTEM)
    wait_for(lambda: status_of(job) == "cancelled", 10)
    wait_for(lambda: provider.requests[0].closed_by_peer_at, 5)
    assert AiUsageLog.objects.get(job=job).error_code == "cancelled"


def test_s39_sigterm_hands_its_jobs_back_and_they_go_on_elsewhere(make_job, start, provider):
    job = make_job(f"{TEXT} [[simulate: delay=60 times=1]]")
    first = start("reference-1")
    wait_for(lambda: provider.requests, 20)
    start("reference-2")
    time.sleep(1.5)
    first.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    assert first.wait(15) == 0
    wait_for(lambda: status_of(job) == "succeeded", 20)
    job.refresh_from_db()
    assert (job.attempt_no, job.release_count, job.lapse_count, job.retry_count) == (2, 1, 0, 0)
    assert time.monotonic() - asked < 15


def test_s11_a_killed_runtime_costs_one_lease(make_job, start, provider):
    job = make_job(f"{TEXT} [[simulate: delay=60 times=1]]")
    first = start("reference-1")
    wait_for(lambda: provider.requests, 20)
    first.kill()
    start("reference-2")
    wait_for(lambda: status_of(job) == "succeeded", 20)
    job.refresh_from_db()
    # One lease, unless the machine is so busy that the second runtime's beats come late as well.
    assert job.lapse_count == job.attempt_no - 1 >= 1
    assert job.retry_count == 0


def test_s50_a_revoked_token_makes_it_back_off(start):
    from runtime_jobs.services import service_tokens

    token = issue()
    service_tokens.revoke(token.split("_")[1])
    process = start(token=token)
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=10)[1]
    assert said.count("poll refused: token_revoked") == 1
