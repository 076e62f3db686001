"""The first path through the whole system: a text becomes a job, a job a result, and nothing is lost on the way."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from runtime_jobs.models import AiRuntimeJob, AiRuntimeResult, AiUsageLog, RuntimeInstance
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.synthetic.models import ExtractedText
from tests.factories import JobFactory, payload
from tests.support.processes import ROOT, engine, environment, wait_for
from tests.support.provider_simulator import Behaviour

pytestmark = pytest.mark.django_db(transaction=True)

RIVERS = "The Rhine is 1,230 kilometres long.\n\nThe Elbe rises in the Giant Mountains and ends in the North Sea."
COFFEE = "The first coffee house of Vienna opened in 1685.\n\nBy 1819 the city counted 150 of them."


def run_create_job(*arguments, **options):
    return subprocess.run(
        [sys.executable, "manage.py", "create_job", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def job_for(user, text, **more):
    return JobFactory(user=user, payload=payload(text), credential=None, **more)


def status_of(job):
    return AiRuntimeJob.objects.values_list("status", flat=True).get(pk=job.pk)


def test_a_text_file_becomes_a_job_whose_facts_stand_in_that_text(platform, provider, tmp_path):
    file = tmp_path / "rivers.txt"
    file.write_text(RIVERS)
    with engine():
        done = run_create_job("synthetic.extract_facts", "--file", str(file), "--wait")
        other = run_create_job("synthetic.extract_facts", "--file", "-", "--wait", input=COFFEE)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  ") and "job." in line] == [
        "queued",
        "running",
        "succeeded",
    ]
    job = AiRuntimeJob.objects.get(target_id="rivers.txt")
    assert job.result
    output: Any = job.result.validated_output
    assert output["facts"]
    paragraphs = {part["id"]: part["text"] for part in job.snapshot.payload["paragraphs"]}
    assert all(fact["text"] in paragraphs[fact["paragraph"]] for fact in output["facts"])
    # Another text, another result.
    assert other.returncode == 0, other.stderr
    other_result = AiRuntimeJob.objects.get(target_id="stdin").result
    assert other_result
    coffee: Any = other_result.validated_output
    assert {fact["text"] for fact in coffee["facts"]}.isdisjoint(fact["text"] for fact in output["facts"])
    # One usage row with tokens, whose id the provider saw; artifacts; the events in order.
    call = AiUsageLog.objects.get(job=job)
    assert (call.outcome, call.attempt_no, call.call_no, call.credential_mode) == ("succeeded", 1, 1, "platform")
    assert call.input_tokens
    assert call.output_tokens
    assert str(call.pk) in {request.client_request_id for request in provider.requests}
    assert ExtractedText.objects.count() == 2
    assert list(job.events.order_by("seq").values_list("seq", "name")) == [(1, "job.created"), (2, "job.claimed"), (3, "job.succeeded")]


@pytest.mark.parametrize(
    ("arguments", "text", "sentence"),
    [
        (["synthetic.extract_facts", "--file", "/no/such/file"], None, "Cannot read /no/such/file: No such file or directory."),
        (["synthetic.extract_facts", "--file", "-"], b"", "The text is empty."),
        (["synthetic.extract_facts", "--file", "-"], b"\xff\xfe\x00", "is not UTF-8 text"),
        (["synthetic.extract_facts", "--file", "-"], b"word " * 300_000, "The text is larger than 1,048,576 bytes"),
        (["synthetic.extract_facts", "--file", "-"], b"word\n\n" * 500, "The text has 500 paragraphs; the limit is 400."),
        (["nonsense", "--file", "-"], b"text", "Unknown job type 'nonsense'. Known: "),
        (["synthetic.extract_facts", "--file", "-", "--user", "nobody"], b"text", "There is no user 'nobody'."),
        (["synthetic.extract_facts", "--file", "-", "--priority", "10"], b"text", "priority must be a whole number from 0 to 9."),
    ],
)
def test_what_cannot_become_a_job_is_a_sentence_and_exit_status_two(platform, arguments, text, sentence):
    done = subprocess.run(
        [sys.executable, "manage.py", "create_job", *arguments], cwd=ROOT, env=environment(), input=text, capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert sentence in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    assert not AiRuntimeJob.objects.exists()


def test_a_job_that_fails_makes_the_command_fail_and_say_why(platform):
    with engine():
        done = run_create_job("synthetic.extract_facts", "--file", "-", "--wait", input=f"{RIVERS} [[simulate: status=401]]")
    assert done.returncode == 1
    assert "The job is failed: provider_auth_failed: The AI provider refused the key." in done.stderr


def test_a_worker_killed_during_the_call_costs_one_lease_and_nothing_else(platform, provider):
    provider.script(RIVERS[:20], Behaviour.parse("delay=30"))
    with engine() as running:
        job = job_for(platform, RIVERS)
        wait_for(lambda: provider.requests, what="the provider has the request")
        (worker,) = running.workers()
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: status_of(job) == "succeeded", what="the job succeeds in another worker")
    job.refresh_from_db()
    assert (job.attempt_no, job.lapse_count, job.retry_count) == (2, 1, 0)
    assert list(job.attempts.order_by("attempt_no").values_list("outcome", flat=True)) == ["lapsed", "succeeded"]
    assert job.results.filter(status=AiRuntimeResult.Status.SUCCEEDED).count() == 1
    assert list(job.usage.order_by("attempt_no").values_list("outcome", "dispatch")) == [("aborted", "maybe_sent"), ("succeeded", "sent")]
    assert ExtractedText.objects.filter(job_id=job.pk).count() == 1


def test_cancelling_a_running_job_closes_the_providers_socket_within_a_second(platform, provider):
    provider.script(RIVERS[:20], Behaviour.parse("delay=60"))
    with engine():
        job = job_for(platform, RIVERS)
        wait_for(lambda: provider.requests, what="the provider has the request")
        asked = time.monotonic()
        cancel_job(job.pk, actor=Actor.of(platform), reason="not needed")
        closed = provider.wait_for(lambda requests: requests[0].closed_by_peer_at)
        wait_for(lambda: status_of(job) == "cancelled", what="the job is cancelled")
    assert closed - asked < 1
    assert job.usage.get().outcome == "aborted"
    assert not ExtractedText.objects.exists()


def test_sigterm_to_the_whole_group_hands_running_jobs_back_and_ends_in_time(platform, provider):
    provider.script(lambda _: True, *[Behaviour.parse("delay=60")] * 4)
    with engine(workers=2) as first:
        jobs = [job_for(platform, f"{RIVERS} {number}") for number in range(4)]
        wait_for(lambda: len(provider.requests) == 4, what="all four run")
        first.signal_group(signal.SIGTERM)
        assert first.process.wait(10) == 0
    assert {status_of(job) for job in jobs} == {"retrying"}
    with engine():
        wait_for(lambda: {status_of(job) for job in jobs} == {"succeeded"}, what="they go on in another cluster")
    for job in jobs:
        job.refresh_from_db()
        assert (job.attempt_no, job.release_count, job.retry_count, job.lapse_count) == (2, 1, 0, 0)


def test_workers_whose_main_process_was_killed_end_themselves(platform):
    with engine(workers=2) as running:
        tree = running.tree()
        os.kill(running.process.pid, signal.SIGKILL)
        wait_for(lambda: not any(process.is_running() and process.status() != "zombie" for process in tree), what="no orphan is left")


def test_an_idle_worker_that_is_killed_is_replaced_and_the_lane_serves_again(platform):
    with engine() as running:
        (worker,) = running.workers()
        os.kill(worker, signal.SIGKILL)
        job = job_for(platform, RIVERS)
        wait_for(lambda: status_of(job) == "succeeded", what="the replaced worker runs the job")


def test_the_engine_refuses_a_lane_that_does_not_exist(transactional_db):
    done = subprocess.run(
        [sys.executable, "manage.py", "run_engine"],
        cwd=ROOT,
        env=environment(Q_CLUSTER_NAME="interactve"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Set Q_CLUSTER_NAME to interactive or background, not 'interactve'" in done.stderr
    assert not RuntimeInstance.objects.exists()


def test_12_a_restarted_worker_does_not_repeat_finished_jobs(platform, provider):
    """acceptance 12 of the engine"""
    with engine():
        done = job_for(platform, RIVERS)
        wait_for(lambda: status_of(done) == "succeeded", what="the first job's success")
    done.refresh_from_db()
    with engine():
        other = job_for(platform, COFFEE)
        wait_for(lambda: status_of(other) == "succeeded", what="the second engine works")
    again = AiRuntimeJob.objects.get(pk=done.pk)
    assert (again.status, again.attempt_no, again.updated_at) == ("succeeded", 1, done.updated_at)
    assert len(provider.requests) == 2
