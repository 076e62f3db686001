"""Deploys and deaths: what becomes of the jobs that run."""

import os
import signal
import time

import pytest

from runtime_jobs.models import AiRuntimeJob
from tests.e2e.conftest import System
from tests.e2e.test_engine_acceptance import OK
from tests.support.processes import engine, wait_for
from tests.support.provider_simulator import Behaviour

pytestmark = pytest.mark.django_db(transaction=True)


def statuses(jobs):
    return set(AiRuntimeJob.objects.filter(pk__in=[job.pk for job in jobs]).values_list("status", flat=True))


def test_twenty_running_jobs_survive_a_deploy_at_no_cost(platform, provider):
    """engine 12, 13"""
    provider.script(lambda request: "first round" in request.prompt, *[Behaviour.parse("delay=60")] * 20)
    provider.script(lambda _: True, *[OK] * 40)
    drain = 1
    with engine(workers=2, ENGINE_CONCURRENCY=10, ENGINE_DRAIN_SECONDS=drain, ENGINE_LEASE_SECONDS=30) as first:
        system = System(platform, provider, first)
        jobs = [system.create(f"first round {number}") for number in range(20)]
        wait_for(lambda: len(provider.requests) == 20, what="all twenty run")
        with engine(workers=2, ENGINE_CONCURRENCY=10, ENGINE_LEASE_SECONDS=30):
            asked = time.monotonic()
            first.signal_group(signal.SIGTERM)
            late = system.create("after the signal")
            assert first.process.wait(drain + 5) == 0
            assert time.monotonic() - asked < drain + 5
            wait_for(lambda: statuses([*jobs, late]) == {"succeeded"}, what="they go on in the other cluster")
    for job in jobs:
        job.refresh_from_db()
        assert (job.attempt_no, job.release_count, job.retry_count, job.lapse_count) == (2, 1, 0, 0)
        released, again = job.attempts.order_by("attempt_no")
        assert released.outcome == "released"
        assert released.ended_at
        assert (again.started_at - released.ended_at).total_seconds() < 1
    # Nothing new was claimed by a cluster that was told to go.
    late.refresh_from_db()
    assert late.attempts.get().worker not in {attempt.worker for job in jobs for attempt in job.attempts.filter(attempt_no=1)}


def test_a_cluster_whose_sentinel_was_killed_ends_so_that_a_supervisor_starts_it_again(platform, provider):
    """engine 11"""
    with engine(workers=2) as running:
        sentinel = next(child for child in running.tree()[1:] if child.ppid() == running.process.pid)
        tree = running.tree()
        os.kill(sentinel.pid, signal.SIGKILL)
        assert running.process.wait(15) == 1
        wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in tree), what="no orphan is left")
    provider.script(lambda _: True, OK)
    with engine() as running:
        system = System(platform, provider, running)
        assert system.ended(system.create("after the restart")).status == "succeeded"


def test_a_worker_recycles_without_killing_the_attempts_that_run(platform, provider):
    provider.script(lambda request: "slow" in request.prompt, Behaviour.parse("delay=2"))
    provider.script(lambda _: True, *[OK] * 10)
    with engine(ENGINE_RECYCLE_ATTEMPTS=3) as running:
        system = System(platform, provider, running)
        (before,) = running.workers()
        jobs = [system.create("slow"), *(system.create(f"quick {number}") for number in range(5))]
        wait_for(lambda: statuses(jobs) <= {"succeeded", "failed"}, what="all have ended")
        wait_for(lambda: before not in running.workers(), what="the worker was replaced")
    for job in jobs[1:]:
        job.refresh_from_db()
        assert (job.status, job.attempt_no) == ("succeeded", 1)
    slow = AiRuntimeJob.objects.get(pk=jobs[0].pk)
    # The simulator's own answer is no answer to this type; what counts is that the attempt was let end.
    assert (slow.attempt_no, slow.release_count, slow.lapse_count) == (1, 0, 0)


def test_a_lapse_of_a_job_that_may_have_been_billed_is_left_to_a_person(platform, provider):
    """provider_calls 18, engine 8"""
    provider.script(lambda _: True, Behaviour.parse("delay=60"))
    with engine() as running:
        system = System(platform, provider, running)
        job = system.create("paid", job_type="test.paid_once")
        wait_for(lambda: provider.requests, what="the call is out")
        os.kill(running.workers()[0], signal.SIGKILL)
        job = system.ended(job)
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "lease_expired", 1)
    assert (job.usage.get().outcome, job.usage.get().dispatch) == ("aborted", "maybe_sent")
    assert len(provider.requests) == 1


def test_a_cluster_whose_workers_show_no_pulse_ends_so_that_a_supervisor_starts_it_again(platform):
    with engine(workers=2, ENGINE_WATCHDOG_SECONDS=5) as running:
        tree = running.tree()
        for worker in running.workers():
            os.kill(worker, signal.SIGSTOP)
        assert running.process.wait(20) == 1
        assert "no worker has shown a pulse" in running.log()
        wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in tree), what="no process is left")
