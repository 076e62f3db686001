"""The reference runtime against a real web server and a provider on loopback: what PROTOCOL.md tells a runtime to do, done."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiRuntimeResult, AiUsageLog
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.synthetic.models import ExtractedText
from tests.conformance.plane import page
from tests.conformance.proxy import ALWAYS, FaultProxy, instead
from tests.factories import CredentialFactory, JobFactory, UserFactory, payload
from tests.runtime_protocol.conftest import JOB_TYPE, Runtime, issue, lapse, status_of
from tests.runtime_protocol.web import through_http, web_server
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
def start(web, tmp_path):
    """Starts runtimes, each with its spool; whatever is left of them is killed."""
    started = []

    def one(instance="reference-1", *, port=None, lease=2, token=None, token_file=None):
        command = [sys.executable, "-m", "tests.support.reference_runtime", "--base-url", f"http://127.0.0.1:{port or web.port}"]
        command += ["--instance", instance, "--lease", str(lease), "--spool", str(tmp_path / instance)]
        command += ["--token-file", str(token_file)] if token_file else []
        environ = {**os.environ, "RUNTIME_TOKEN": token or issue()}
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def proxy(web):
    made = FaultProxy(f"http://127.0.0.1:{web.port}")
    yield made
    made.close()


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


def test_s05_an_overtaken_runtime_aborts_its_call_and_sends_no_result(make_job, start, web, provider):
    job = make_job(f"{TEXT} [[simulate: delay=60 times=1]]")
    start()
    wait_for(lambda: provider.requests, 20)
    other = Runtime(through_http(web.port), issue(), "other")

    def overtaken():
        # A heartbeat that comes between may take the lapsed job up again.
        if status_of(job) == "running":
            lapse(job)
        return other.lock(job)

    wait_for(lambda: overtaken().status == 200, 20)
    wait_for(lambda: provider.requests[0].closed_by_peer_at, 10)
    lease = AiJobAttempt.objects.get(job=job, worker="other")
    assert AiRuntimeJob.objects.get(pk=job.pk).attempt_no == lease.attempt_no
    wait_for(lambda: AiUsageLog.objects.filter(job=job).count() == 1, 10, "the call that was aborted is reported all the same")
    assert not AiRuntimeResult.objects.exists()


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


def test_s50_a_new_token_is_taken_while_a_result_waits_for_it(make_job, start, provider, tmp_path):
    from runtime_jobs.services import service_tokens

    file = tmp_path / "token"
    file.write_text(old := issue())
    job = make_job(f"{TEXT} [[simulate: delay=1]]")
    start(token_file=file)
    wait_for(lambda: provider.requests, 20)
    service_tokens.revoke(old.split("_")[1])
    spool = tmp_path / "reference-1"
    wait_for(lambda: list(spool.glob("*.json")), 20, "the result waits")
    file.write_text(issue())
    wait_for(lambda: succeeded(job), 20)
    job.refresh_from_db()
    assert (job.attempt_no, len(provider.requests)) == (1, 1)


def test_s30_a_result_that_nobody_answers_outlives_its_runtime_and_is_taken_late(make_job, start, proxy, provider, tmp_path):
    away = proxy.fault("result", instead(page(503)), ALWAYS)
    job = make_job()
    first = start(port=proxy.port)
    spool = tmp_path / "reference-1"
    [kept] = wait_for(lambda: list(spool.glob("*.json")), 20, "the result is on disk")
    assert kept.stat().st_mode & 0o077 == 0  # it holds the lock token
    wait_for(lambda: away.met >= 3, 20, "it goes on trying")
    first.kill()
    first.wait()
    wait_for(lambda: status_of(job) == "retrying", 20, "its lease has lapsed")
    away.end()
    start(port=proxy.port)
    wait_for(lambda: succeeded(job), 20)
    wait_for(lambda: not list(spool.glob("*")), 10)
    job.refresh_from_db()
    assert (job.attempt_no, job.lapse_count, len(provider.requests)) == (1, 1, 1)
    assert AiUsageLog.objects.filter(job=job).count() == 1


def test_s30_a_result_that_comes_back_too_late_is_dropped(make_job, start, proxy, tmp_path):
    away = proxy.fault("result", instead(page(503)), ALWAYS)
    job = make_job()
    first = start(port=proxy.port)
    spool = tmp_path / "reference-1"
    wait_for(lambda: list(spool.glob("*.json")), 20, "the result is on disk")
    first.kill()
    first.wait()
    start("reference-2")
    wait_for(lambda: succeeded(job), 20)
    job.refresh_from_db()
    assert job.attempt_no == 2
    away.end()
    start(port=proxy.port)
    wait_for(lambda: not list(spool.glob("*")), 20, "the server said that it is over")
    assert AiRuntimeResult.objects.filter(job=job).count() == 1


def test_s44_lost_heartbeats_do_not_end_the_loop(make_job, start, proxy, provider):
    job = make_job(f"{TEXT} [[simulate: delay=9 times=1]]")
    start(port=proxy.port, lease=6)
    wait_for(lambda: provider.requests, 20)
    away = proxy.fault("heartbeat", instead(page(503)), ALWAYS)
    wait_for(lambda: away.met >= 3, 10)
    away.end()
    wait_for(lambda: succeeded(job), 30)
    job.refresh_from_db()
    assert (job.attempt_no, job.lapse_count) == (1, 0)


def test_s44_past_its_own_deadline_the_call_is_aborted(make_job, start, proxy, provider):
    proxy.fault("heartbeat", instead(page(503)), ALWAYS)
    make_job(f"{TEXT} [[simulate: delay=60]]")
    start(port=proxy.port)
    wait_for(lambda: provider.requests, 20)
    wait_for(lambda: provider.requests[0].closed_by_peer_at, 10)
