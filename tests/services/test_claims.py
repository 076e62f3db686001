"""One claim for both kinds of worker; leases, offers, pauses, lapses."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from runtime_jobs import queries, registry
from runtime_jobs.errors import JobAlreadyFinished, JobCancelled, JobNotFound, LockConflict, LockLost, NotLockable
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeJob, ClaimGate, RuntimeInstance
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.registry import Limits
from runtime_jobs.services import claims, gates, lapses, leases, offers, workers
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.services.outcomes import LAPSE_LIMIT, RELEASE_LIMIT
from runtime_jobs.services.terminal import release
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.states import Lane
from tests.conftest import triggers_off
from tests.services.steps import (
    RUNTIME_TYPE,
    TYPE,
    ago,
    attempts,
    change,
    deliver,
    events,
    expire,
    fence,
    hence,
    make_job,
    retake,
    row,
    running,
    take,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _any_database_has_been_up_long_enough(settings):
    settings.ENGINE_LEASE_SECONDS = 0


@pytest.fixture
def limit(monkeypatch):
    def set_limit(**limits):
        monkeypatch.setattr(type(registry.get(TYPE)), "limits", Limits(**limits))

    return set_limit


def ids(found):
    return [claim.job_id for claim in found]


def retrying(**more):
    """A job that was released, hence is due again."""
    job, claim = running(**more)
    release(fence(claim))
    job.refresh_from_db()
    return job


# --- what is claimed, and in which order ------------------------------------------------------------------------------------------


def test_a_claim_makes_the_job_run_under_a_new_token_and_says_so_in_attempt_and_event():
    job = make_job()
    (claim,) = take(worker="w1", lease_seconds=30)
    job.refresh_from_db()
    assert (job.status, job.attempt_no, job.locked_by, job.lock_token) == ("running", 1, "w1", token_hash(claim.token))
    assert job.lock_until - job.locked_at == timedelta(seconds=30)
    assert (claim.job_id, claim.attempt_no, claim.lock_until, claim.timeout_seconds) == (job.pk, 1, job.lock_until, job.timeout_seconds)
    attempt = AiJobAttempt.objects.get(job=job)
    assert (attempt.attempt_no, attempt.lock_token, attempt.worker, attempt.outcome) == (1, job.lock_token, "w1", "")
    event = AiJobEvent.objects.get(job=job, name="job.claimed")
    assert (event.attempt_no, event.actor_name, event.data) == (1, "w1", {"status": "running"})


def test_the_token_itself_is_stored_nowhere():
    make_job()
    (claim,) = take()
    with connection.cursor() as cursor:
        for table in ("ai_runtime_job", "ai_job_attempt", "ai_job_event"):
            cursor.execute(f"SELECT string_agg(t::text, '') FROM {table} t")
            assert claim.token.reveal() not in cursor.fetchone()[0]


def test_the_next_attempt_has_the_next_number_and_another_token_and_keeps_the_first_start():
    job, first = running()
    started = job.started_at
    release(fence(first))
    second = retake(job, "w2")
    assert (second.attempt_no, job.locked_by, job.started_at) == (2, "w2", started)
    assert second.token.reveal() != first.token.reveal()
    assert attempts(job) == [(1, "released"), (2, "")]


def test_queued_and_retrying_jobs_are_taken_in_one_order_by_sort_at():
    queued_late, queued_early = make_job(sort_at=ago(10)), make_job(sort_at=ago(30))
    due_late, due_early = retrying(), retrying()
    change(due_late, sort_at=ago(20))
    change(due_early, sort_at=ago(40))
    assert ids(take(4)) == [due_early.pk, queued_early.pk, due_late.pk, queued_late.pk]


def test_of_equal_places_the_older_job_is_first():
    at = timezone.now()
    jobs = [make_job(sort_at=at) for _ in range(3)]
    assert ids(take(3)) == [job.pk for job in jobs]


def test_a_claim_takes_as_many_as_were_asked_for_and_no_more():
    jobs = [make_job() for _ in range(3)]
    assert len(take(2)) == 2
    assert len(take(2)) == 1
    assert take(2) == []
    assert {attempt.job_id for attempt in AiJobAttempt.objects.all()} == {job.pk for job in jobs}


def test_a_retry_that_is_not_due_is_left():
    job = retrying()
    change(job, available_at=hence(60))
    assert take() == []
    change(job, available_at=ago(0))
    assert ids(take()) == [job.pk]


def test_a_queued_job_whose_place_lies_in_the_future_is_due_all_the_same():
    job = make_job(sort_at=hence(3_600))
    assert ids(take()) == [job.pk]


def test_types_that_were_not_asked_for_and_other_lanes_are_left():
    job = make_job()
    assert take(types=["another"]) == []
    assert take(types=[]) == []
    assert take(lane=Lane.BACKGROUND) == []
    assert ids(take(types=["another", TYPE])) == [job.pk]


def test_a_type_of_which_no_definition_is_known_here_can_be_claimed_by_a_worker_that_knows_it():
    job = change(make_job(), job_type="elsewhere.made")
    assert ids(take(types=["elsewhere.made"])) == [job.pk]


def test_both_kinds_of_worker_use_the_same_claim():
    job = make_job(job_type=RUNTIME_TYPE)
    request_id = new_id()
    assert ids(take(lane=Lane.RUNTIME, types=[RUNTIME_TYPE], worker="rust-1", request_id=request_id)) == [job.pk]
    attempt = AiJobAttempt.objects.get(job=job)
    assert (attempt.worker, attempt.request_id) == ("rust-1", request_id)


@pytest.fixture
def other():
    """A connection of somebody else, in a transaction of its own."""
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as theirs:
        yield theirs
        theirs.rollback()


@pytest.mark.django_db(transaction=True)
def test_a_worker_gets_a_job_although_others_hold_all_the_first_ones_at_that_moment(other):
    jobs = [make_job() for _ in range(40)]
    # More rows than a claim of one looks at.
    other.execute("SELECT id FROM ai_runtime_job WHERE id = ANY(%s) FOR UPDATE", [[job.pk for job in jobs[:39]]])
    assert ids(take()) == [jobs[39].pk]


@pytest.mark.django_db(transaction=True)
def test_a_claim_waits_for_nobody(other):
    job = make_job()
    other.execute("SELECT id FROM ai_runtime_job FOR UPDATE")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1ms'")
    try:
        assert take() == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")
    other.rollback()
    assert ids(take()) == [job.pk]


# --- limits -----------------------------------------------------------------------------------------------------------------------


def test_no_more_jobs_of_a_type_run_than_its_limit_says(limit):
    limit(running=2)
    jobs = [make_job() for _ in range(4)]
    first = take(4)
    assert ids(first) == [job.pk for job in jobs[:2]]
    assert take(4) == []
    deliver(first[0])
    assert ids(take(4)) == [jobs[2].pk]


def test_a_job_that_is_to_be_cancelled_still_counts_as_running(limit):
    limit(running=1)
    job, _ = running()
    make_job()
    cancel_job(job.pk, actor=SYSTEM)
    assert take() == []


def test_a_limited_type_does_not_hold_up_others(limit):
    limit(running=1)
    limited = [make_job(sort_at=ago(60)) for _ in range(3)]
    free = change(make_job(), job_type="free")
    assert ids(take(3, types=[TYPE, "free"])) == [limited[0].pk, free.pk]


def test_the_limit_of_a_model_holds_for_that_model_alone(limit):
    limit(running_per_model=1)
    one = [make_job(sort_at=ago(60), model_name="one") for _ in range(2)]
    two = [make_job(model_name="two") for _ in range(2)]
    assert ids(take(4)) == [one[0].pk, two[0].pk]
    assert take(4) == []


def test_a_backlog_of_a_model_at_its_limit_does_not_hide_the_jobs_of_another(limit):
    limit(running_per_model=1)
    for _ in range(15):  # more than a claim looks at
        make_job(sort_at=ago(60), model_name="one")
    job = make_job(model_name="two")
    assert len(take()) == 1
    assert ids(take()) == [job.pk]


def test_live_offers_count_towards_the_limit_until_they_run_out(limit):
    limit(running=1)
    offered, job = make_job(sort_at=ago(60)), make_job()
    assert offers.offer(lane=Lane.INTERACTIVE, worker="w1", job_types=[TYPE], count=5, offer_seconds=60) == [offered.pk]
    assert take(worker="w2") == []
    change(offered, offer_until=ago(1), sort_at=hence(60))
    assert ids(take(worker="w2")) == [job.pk]


def test_an_own_offer_counts_once_its_holder_takes_it_at_the_limit(limit):
    limit(running=1, running_per_model=1)
    (offered,) = [make_job(sort_at=hence(60))]
    offers.offer(lane=Lane.INTERACTIVE, worker="w1", job_types=[TYPE], count=1, offer_seconds=60)
    make_job()  # before it, but there is no room for one more
    assert ids(take(5, worker="w1")) == [offered.pk]


def test_an_own_offer_can_be_locked_at_the_limit(limit):
    limit(running=1, running_per_model=1)
    job = make_job()
    offers.offer(lane=Lane.INTERACTIVE, worker="w1", job_types=[TYPE], count=1, offer_seconds=60)
    assert claims.lock_job(job.pk, lane=Lane.INTERACTIVE, worker="w1", lease_seconds=30).attempt_no == 1


@pytest.mark.django_db(transaction=True)
def test_two_claimers_at_once_never_exceed_a_limit(limit):
    limit(running=1)
    # Each wants a job of its own, so that nothing but the count can stop the second one.
    jobs = {"w1": make_job(), "w2": make_job()}
    start = threading.Barrier(2, timeout=30)

    def claimer(worker):
        start.wait()
        return take(worker=worker, job_id=jobs[worker].pk)

    def goodbye(_):
        start.wait()  # each thread once
        connections.close_all()

    winners: set[str] = set()
    try:
        with ThreadPoolExecutor(2) as pool:
            for round_no in range(2_000):
                if round_no >= 200 and len(winners) == 2:
                    break
                taken = [claim for found in pool.map(claimer, jobs) for claim in found]
                assert len(taken) == AiRuntimeJob.objects.filter(status="running").count() == 1
                winners.add(taken[0].worker)
                with triggers_off():
                    AiRuntimeJob.objects.update(status="queued", lock_token=None, locked_by=None, locked_at=None, lock_until=None)
            list(pool.map(goodbye, range(2)))
    finally:
        start.abort()
    assert winners == {"w1", "w2"}  # they did race


# --- offers -----------------------------------------------------------------------------------------------------------------------


def offer(worker="w1", count=1, seconds=60.0):
    return offers.offer(lane=Lane.INTERACTIVE, worker=worker, job_types=[TYPE], count=count, offer_seconds=seconds)


def test_an_offered_job_is_hidden_from_others_and_still_its_holders():
    job = make_job()
    assert offer("w1") == [job.pk]
    assert take(worker="w2") == []
    assert offer("w2") == []
    assert ids(take(worker="w1")) == [job.pk]


def test_an_offer_costs_no_attempt_and_is_gone_once_the_job_runs():
    job = make_job()
    offer("w1")
    job.refresh_from_db()
    assert (job.status, job.attempt_no, job.offered_to) == ("queued", 0, "w1")
    take(worker="w1")
    job.refresh_from_db()
    assert (job.offered_to, job.offer_until) == (None, None)


def test_a_job_is_not_offered_twice_not_even_to_its_holder():
    first, second = make_job(), make_job()
    assert offer("w1") == [first.pk]
    assert offer("w1", count=5) == [second.pk]
    assert offer("w1", count=5) == []


def test_an_offer_runs_out():
    job = make_job()
    offer("w1")
    change(job, offer_until=ago(0))
    assert offer("w2") == [job.pk]
    assert take(worker="w1") == []
    assert ids(take(worker="w2")) == [job.pk]


def test_offers_come_best_first():
    late, early = make_job(sort_at=ago(10)), make_job(sort_at=ago(20))
    assert offer(count=2) == [early.pk, late.pk]


# --- the lock of one job ----------------------------------------------------------------------------------------------------------


def lock(job, worker="w1", **more):
    return claims.lock_job(job.pk, lane=more.pop("lane", Lane.INTERACTIVE), worker=worker, lease_seconds=30)


def test_a_lock_takes_this_job_although_others_stand_before_it():
    make_job(sort_at=ago(60))
    job = make_job()
    assert lock(job).job_id == job.pk


def test_the_holder_of_an_offer_may_lock_it_and_another_may_not():
    job = make_job()
    offer("w1")
    with pytest.raises(LockConflict):
        lock(job, "w2")
    assert lock(job, "w1").worker == "w1"


def test_a_job_that_runs_is_a_lock_conflict_for_its_own_holder_too():
    job, _ = running()
    for worker in ("w1", "w2"):
        with pytest.raises(LockConflict):
            lock(job, worker)


def test_a_job_of_another_lane_or_none_at_all_is_not_found():
    job = make_job()
    with pytest.raises(JobNotFound):
        lock(job, lane=Lane.RUNTIME)
    with pytest.raises(JobNotFound):
        claims.lock_job(new_id(), lane=Lane.INTERACTIVE, worker="w1", lease_seconds=30)


def test_a_job_that_has_ended_is_not_lockable_and_its_state_is_named():
    job = make_job()
    cancel_job(job.pk, actor=SYSTEM)
    with pytest.raises(NotLockable, match="cancelled"):
        lock(job)


def test_a_job_that_is_not_due_is_not_lockable():
    job = retrying()
    change(job, available_at=hence(60))
    with pytest.raises(NotLockable, match="not due"):
        lock(job)


def test_a_job_at_its_limit_is_not_lockable(limit):
    limit(running=1)
    running()
    with pytest.raises(NotLockable, match="limit"):
        lock(make_job())


def test_a_paused_job_is_not_lockable_and_an_offer_that_has_run_out_does_not_hide_why():
    job = make_job()
    offer("w2")
    change(job, offer_until=ago(1))
    gates.pause(ClaimGate.Kind.JOB_TYPE, TYPE, actor=SYSTEM)
    with pytest.raises(NotLockable, match="paused"):
        lock(job, "w1")


# --- pauses -----------------------------------------------------------------------------------------------------------------------

GATES = [("lane", "interactive"), ("job_type", TYPE), ("model", "simulator/simulator-1")]


@pytest.mark.parametrize(("kind", "key"), GATES)
def test_what_is_paused_is_neither_claimed_nor_offered_until_it_is_resumed(kind, key):
    job = make_job()
    gates.pause(kind, key, actor=Actor("7", "ann"), reason="provider is down")
    assert take() == []
    assert offer() == []
    assert gates.resume(kind, key) is True
    assert ids(take()) == [job.pk]


@pytest.mark.parametrize(("kind", "key"), [("lane", "background"), ("job_type", "another"), ("model", "simulator/simulator-2")])
def test_a_pause_of_something_else_changes_nothing(kind, key):
    job = make_job()
    gates.pause(kind, key, actor=SYSTEM)
    assert ids(take()) == [job.pk]


def test_a_pause_ends_when_its_time_is_over():
    job = make_job()
    gates.pause(ClaimGate.Kind.LANE, "interactive", actor=SYSTEM, until=timezone.now() + timedelta(hours=1))
    assert take() == []
    gates.pause(ClaimGate.Kind.LANE, "interactive", actor=SYSTEM, until=timezone.now() - timedelta(seconds=1))
    assert ids(take()) == [job.pk]


def test_pausing_again_replaces_reason_and_end():
    gates.pause(ClaimGate.Kind.LANE, "interactive", actor=Actor("1", "ann"), reason="one", until=timezone.now())
    gates.pause(ClaimGate.Kind.LANE, "interactive", actor=Actor("2", "bob"), reason="two")
    gate = ClaimGate.objects.get()
    assert (gate.reason, gate.closed_by, gate.until) == ("two", "bob", None)


def test_resuming_what_is_not_paused_says_so():
    assert gates.resume(ClaimGate.Kind.LANE, "interactive") is False


def test_what_runs_goes_on_during_a_pause():
    job, claim = running()
    gates.pause(ClaimGate.Kind.LANE, "interactive", actor=SYSTEM)
    assert leases.renew([claim], lease_seconds=60, grace_seconds=0) == {job.pk: "running"}
    assert deliver(claim).job_status == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_resuming_wakes_the_workers_of_every_lane(other):
    gates.pause(ClaimGate.Kind.JOB_TYPE, TYPE, actor=SYSTEM)
    other.autocommit = True
    for lane in Lane:
        other.execute(f"LISTEN runtime_jobs_{lane}")
    gates.resume(ClaimGate.Kind.JOB_TYPE, TYPE)
    heard = {notification.channel for notification in other.notifies(timeout=10, stop_after=len(Lane))}
    assert heard == {f"runtime_jobs_{lane}" for lane in Lane}


# --- renewals ---------------------------------------------------------------------------------------------------------------------


def test_a_renewal_extends_the_lease():
    job, claim = running()
    assert leases.renew([claim], lease_seconds=60, grace_seconds=5) == {job.pk: "running"}
    before, job = job, AiRuntimeJob.objects.get(pk=job.pk)
    assert job.lock_until
    assert job.locked_at
    assert timedelta(seconds=29) < job.lock_until - before.lock_until
    assert timedelta(seconds=59) < job.lock_until - job.locked_at < timedelta(seconds=90)


def test_a_renewal_never_moves_a_lease_backwards():
    job, claim = running()
    leases.renew([claim], lease_seconds=1, grace_seconds=5)
    assert row(job)["lock_until"] == claim.lock_until


def test_a_renewal_never_reaches_beyond_the_deadline_and_its_grace():
    job, claim = running(timeout_seconds=40)
    leases.renew([claim], lease_seconds=3_600, grace_seconds=5)
    assert row(job)["lock_until"] == claim.locked_at + timedelta(seconds=45)


def test_a_renewal_with_another_token_changes_nothing():
    job, claim = running()
    before = row(job)
    stale = claims.Claim(**{**vars(claim), "token": Secret("wrong")})
    assert leases.renew([stale], lease_seconds=60, grace_seconds=5) == {}
    assert row(job) == before


def test_a_renewal_brings_the_wish_to_cancel_back_and_keeps_the_lease():
    job, claim = running()
    cancel_job(job.pk, actor=SYSTEM)
    assert leases.renew([claim], lease_seconds=60, grace_seconds=5) == {job.pk: "cancel_requested"}
    assert row(job)["lock_until"] > claim.lock_until


def test_many_leases_are_renewed_at_once_and_the_lost_ones_are_missing():
    (kept, one), (lapsed, two), (done, three) = running(), running(), running()
    expire(lapsed)
    deliver(three)
    assert leases.renew([one, two, three], lease_seconds=60, grace_seconds=5) == {kept.pk: "running"}
    assert (row(lapsed)["status"], row(done)["status"]) == ("retrying", "succeeded")


def test_the_status_of_a_held_lease_is_none_once_it_is_lost():
    job, claim = running()
    assert leases.held_status(claim) == "running"
    expire(job)
    assert leases.held_status(claim) is None


# --- heartbeats -------------------------------------------------------------------------------------------------------------------


def beat(claim, **more):
    more.setdefault("lease_seconds", 60)
    return leases.beat(claim.job_id, attempt_no=claim.attempt_no, token=claim.token, **more)


def test_a_heartbeat_extends_the_lease_and_stores_progress_and_checkpoint():
    job, claim = running()
    answer = beat(claim, progress=40, progress_message="reading", checkpoint={"page": 3})
    job.refresh_from_db()
    assert (job.progress, job.progress_message, job.checkpoint) == (40, "reading", {"page": 3})
    assert (answer.status, answer.lock_until, answer.late) == ("running", job.lock_until, False)
    assert job.lock_until > claim.lock_until


def test_a_heartbeat_without_progress_keeps_what_was_noted():
    job, claim = running()
    beat(claim, progress=40, progress_message="reading", checkpoint={"page": 3})
    beat(claim)
    job.refresh_from_db()
    assert (job.progress, job.progress_message, job.checkpoint) == (40, "reading", {"page": 3})


def test_a_new_attempt_starts_without_progress_and_with_the_checkpoint():
    job, claim = running()
    beat(claim, progress=40, progress_message="reading", checkpoint={"page": 3})
    release(fence(claim))
    job.refresh_from_db()
    retake(job, "w2")
    assert (job.progress, job.progress_message, job.checkpoint) == (None, "", {"page": 3})


def test_a_heartbeat_never_moves_a_lease_backwards_and_never_beyond_the_deadline():
    _, claim = running(timeout_seconds=40)
    assert beat(claim, lease_seconds=1).lock_until == claim.lock_until
    assert beat(claim, lease_seconds=3_600).lock_until == claim.locked_at + timedelta(seconds=40)


def test_a_heartbeat_of_a_job_that_is_to_be_cancelled_says_so():
    job, claim = running()
    cancel_job(job.pk, actor=SYSTEM)
    assert beat(claim).status == "cancel_requested"


def test_a_late_holder_goes_on_with_the_same_attempt():
    job, claim = running()
    expire(job)
    assert attempts(job) == [(1, "lapsed")]
    answer = beat(claim, progress=50)
    job.refresh_from_db()
    assert (answer.status, answer.late) == ("running", True)
    assert (job.status, job.attempt_no, job.lock_token, job.progress) == ("running", 1, token_hash(claim.token), 50)
    assert attempts(job) == [(1, "")]
    assert events(job)[-2:] == ["job.lapsed", "job.resumed"]
    assert deliver(claim).job_status == "succeeded"


def test_a_late_holder_goes_on_although_the_job_has_been_offered_to_another():
    job, claim = running()
    expire(job)
    change(job, available_at=ago(1))
    assert offer("w2") == [job.pk]
    assert beat(claim).late
    job.refresh_from_db()
    assert (job.status, job.offered_to, job.offer_until) == ("running", None, None)
    with pytest.raises(LockConflict):
        lock(job, "w2")


def test_an_overtaken_holder_is_refused_and_disturbs_nobody():
    job, first = running()
    expire(job)
    retake(job, "w2")
    before = row(job)
    with pytest.raises(LockLost):
        beat(first, progress=99)
    assert row(job) == before


def test_a_late_holder_whose_deadline_has_passed_is_refused():
    job, claim = running(timeout_seconds=40)
    expire(job)
    change(job, locked_at=ago(41))
    before = row(job)
    with pytest.raises(LockLost, match="deadline"):
        beat(claim)
    assert row(job) == before


def test_a_heartbeat_of_a_job_that_has_ended_says_how():
    (_, succeeded), (cancelled, held) = running(), running()
    deliver(succeeded)
    with pytest.raises(JobAlreadyFinished, match="succeeded"):
        beat(succeeded)
    expire(cancelled)
    cancel_job(cancelled.pk, actor=SYSTEM)
    with pytest.raises(JobCancelled):
        beat(held)


def test_a_heartbeat_with_another_token_number_or_job_is_refused():
    job, claim = running()
    before = row(job)
    with pytest.raises(LockLost):
        leases.beat(job.pk, attempt_no=1, token=Secret("wrong"), lease_seconds=60)
    with pytest.raises(LockLost):
        leases.beat(job.pk, attempt_no=2, token=claim.token, lease_seconds=60)
    with pytest.raises(JobNotFound):
        leases.beat(new_id(), attempt_no=1, token=claim.token, lease_seconds=60)
    assert row(job) == before


# --- lapses -----------------------------------------------------------------------------------------------------------------------


def test_acceptance_6_a_lease_that_ran_out_lapses_and_one_that_did_not_stays():
    (gone, claim), (held, _) = running(), running()
    change(gone, lock_until=ago(1))
    assert lapses.reap() == 1
    gone.refresh_from_db()
    assert (gone.status, gone.lapse_count, gone.retry_count, gone.lock_until) == ("retrying", 1, 0, None)
    assert gone.lock_token == token_hash(claim.token)  # a late holder may still deliver
    assert (gone.error_code, gone.available_at > gone.updated_at) == ("lease_expired", True)
    assert attempts(gone) == [(1, "lapsed")]
    assert row(held)["status"] == "running"
    assert lapses.reap() == 0


def test_after_three_lapses_the_next_one_fails_the_job():
    job = make_job()
    for number in range(1, LAPSE_LIMIT + 1):
        retake(job)
        expire(job)
        assert (job.status, job.lapse_count) == ("retrying", number)
    retake(job)
    expire(job)
    assert (job.status, job.error_code, job.lapse_count, job.retry_count) == ("failed", "lease_expired", LAPSE_LIMIT, 0)
    assert attempts(job) == [(number, "lapsed") for number in range(1, LAPSE_LIMIT + 2)]
    assert LAPSE_LIMIT == 3


def test_a_definition_may_want_a_lapse_to_fail(monkeypatch):
    monkeypatch.setattr(type(registry.get(TYPE)), "on_lapse", "fail")
    job, _ = running()
    expire(job)
    assert (job.status, job.error_code, job.lapse_count) == ("failed", "lease_expired", 0)


def test_a_lapse_of_a_job_that_is_to_be_cancelled_cancels_it():
    job, _ = running()
    cancel_job(job.pk, actor=SYSTEM)
    expire(job)
    assert (job.status, job.error_code) == ("cancelled", "cancelled")
    assert attempts(job) == [(1, "lapsed")]


def test_five_releases_cost_nothing_and_the_next_one_counts_as_a_lapse():
    job = make_job()
    for number in range(1, RELEASE_LIMIT + 1):
        release(fence(retake(job)))
        job.refresh_from_db()
        assert (job.status, job.release_count, job.lapse_count, job.lock_token) == ("retrying", number, 0, None)
        assert job.available_at <= job.updated_at  # due at once
    release(fence(retake(job)))
    job.refresh_from_db()
    assert (job.status, job.release_count, job.lapse_count, job.retry_count) == ("retrying", RELEASE_LIMIT, 1, 0)
    assert (job.lock_token, job.available_at > job.updated_at) == (None, True)
    assert RELEASE_LIMIT == 5


def test_whoever_finished_renewed_or_was_replaced_between_scan_and_lapse_wins():
    (done, finished), (kept, renewed), (taken, _) = running(), running(), running()
    tokens = {job.pk: row(job)["lock_token"] for job in (done, kept, taken)}
    for job in (done, kept, taken):
        change(job, lock_until=ago(1))
    deliver(finished)
    leases.renew([renewed], lease_seconds=60, grace_seconds=5)
    assert lapses.reap() == 1  # taken
    retake(taken, "w2")
    change(taken, lock_until=ago(1))  # the new holder's has run out as well, but it is not the one that was seen
    before = [row(job) for job in (done, kept, taken)]
    assert [lapses._lapse_one(job, token) for job, token in tokens.items()] == [False, False, False]
    assert [row(job) for job in (done, kept, taken)] == before


@pytest.mark.django_db(transaction=True)
def test_leases_lapse_row_by_row_and_a_row_in_use_is_left_for_later(other):
    (busy, _), (free, _) = running(), running()
    for job in (busy, free):
        change(job, lock_until=ago(1))
    other.execute("SELECT id FROM ai_runtime_job WHERE id = %s FOR UPDATE", [busy.pk])
    assert lapses.reap() == 1
    assert (row(busy)["status"], row(free)["status"]) == ("running", "retrying")
    other.rollback()
    assert lapses.reap() == 1
    assert row(busy)["status"] == "retrying"


def test_one_reap_is_bounded(monkeypatch):
    monkeypatch.setattr(lapses, "BATCH", 2)
    for _ in range(3):
        change(running()[0], lock_until=ago(1))
    assert [lapses.reap(), lapses.reap(), lapses.reap()] == [2, 1, 0]


def test_engine_leases_lapse_only_once_the_database_has_been_up_for_a_lease(settings):
    settings.ENGINE_LEASE_SECONDS = 10 * 365 * 86_400
    change(running()[0], lock_until=ago(1))
    assert lapses.reap() == 0
    settings.ENGINE_LEASE_SECONDS = 0
    assert lapses.reap() == 1


def test_runtime_leases_lapse_only_once_a_web_server_has_been_up_for_a_lease(settings):
    settings.RUNTIME_LEASE_SECONDS = 0.5
    change(running(job_type=RUNTIME_TYPE)[0], lock_until=ago(1))
    assert lapses.reap() == 0  # nobody could have taken its heartbeats
    workers.seen("web 1", kind=RuntimeInstance.Kind.WEB, lane=Lane.RUNTIME, version="", job_types=[])
    settings.RUNTIME_LEASE_SECONDS = 600
    assert lapses.reap() == 0  # up, but not for a lease yet
    settings.RUNTIME_LEASE_SECONDS = 0.5
    web = RuntimeInstance.objects.filter(name="web 1")
    web.update(started_at=ago(600), last_seen_at=ago(workers.ALIVE_SECONDS + 1))
    assert lapses.reap() == 0  # gone again
    web.update(last_seen_at=ago(0))
    assert lapses.reap() == 1


def web_seen(name):
    workers.seen(name, kind=RuntimeInstance.Kind.WEB, lane=Lane.RUNTIME, version="", job_types=[])


def test_a_short_outage_of_the_web_servers_charges_no_lapse(settings):
    """Less than ALIVE_SECONDS, so that the process that was up before still counts as alive."""
    settings.RUNTIME_LEASE_SECONDS = 3  # this database has been up for longer
    job, _ = running(job_type=RUNTIME_TYPE)
    web_seen("before")
    RuntimeInstance.objects.filter(name="before").update(started_at=ago(600), last_seen_at=ago(6))
    change(job, lock_until=ago(3))  # in the outage
    assert lapses.reap() == 0
    web_seen("after")
    assert lapses.reap() == 0  # up again: one lease of grace
    RuntimeInstance.objects.filter(name="after").update(started_at=ago(4))
    assert lapses.reap() == 1


def test_a_lease_that_ended_while_a_web_server_was_up_lapses_although_it_went_since(settings):
    settings.RUNTIME_LEASE_SECONDS = 3  # this database has been up for longer
    job, _ = running(job_type=RUNTIME_TYPE)
    web_seen("before")
    RuntimeInstance.objects.filter(name="before").update(started_at=ago(600), last_seen_at=ago(6))
    change(job, lock_until=ago(7))
    assert lapses.reap() == 1


@pytest.mark.parametrize(("silence", "begins_anew"), [(workers.WEB_OUTAGE_SECONDS + 1, True), (workers.WEB_OUTAGE_SECONDS - 1, False)])
def test_a_web_process_that_was_silent_begins_anew(silence, begins_anew):
    """It hung, or the database was out of its reach: meanwhile it took no heartbeat."""
    web_seen("web 1")
    web = RuntimeInstance.objects.filter(name="web 1")
    web.update(started_at=ago(600), last_seen_at=ago(silence))
    web_seen("web 1")
    assert web.filter(started_at__gt=ago(5)).exists() is begins_anew


# --- who works here ---------------------------------------------------------------------------------------------------------------


def seen(name="engine 1", lane=Lane.INTERACTIVE, kind=RuntimeInstance.Kind.ENGINE, types=(TYPE,)):
    return workers.seen(name, kind=kind, lane=lane, version="1", job_types=types)


def test_a_worker_has_been_up_since_it_was_seen_without_a_gap():
    seen()
    worker = RuntimeInstance.objects.filter(name="engine 1")
    worker.update(started_at=ago(600), last_seen_at=ago(workers.ALIVE_SECONDS - 1))
    seen()
    (instance,) = worker
    assert instance.last_seen_at - instance.started_at > timedelta(seconds=590)
    worker.update(last_seen_at=ago(workers.ALIVE_SECONDS + 1))
    seen()
    (instance,) = worker
    assert instance.last_seen_at == instance.started_at


def test_a_worker_learns_that_it_is_to_drain_and_is_forgotten_when_it_is_gone():
    assert seen() is False
    RuntimeInstance.objects.update(draining=True)
    assert seen() is True
    workers.gone("engine 1")
    assert not RuntimeInstance.objects.exists()


@pytest.fixture
def unknown(settings):
    """A queued job whose type nobody knows, older than the grace; and an engine that has been up for longer."""
    settings.UNKNOWN_JOB_TYPE_GRACE_SECONDS = 60
    job = change(make_job(), job_type="nobody.knows", created_at=ago(120))
    seen()
    RuntimeInstance.objects.update(started_at=ago(120))
    return job


def test_a_queued_job_whose_type_nobody_knows_fails_and_its_neighbours_stay(unknown):
    neighbour = make_job()
    other_unknown = change(make_job(), job_type="zzz.unknown", created_at=ago(120))
    assert lapses.give_up_unknown_types() == 2
    for job in (unknown, other_unknown):
        job.refresh_from_db()
        assert (job.status, job.error_code, job.attempt_no) == ("failed", "unknown_job_type", 0)
    assert row(neighbour)["status"] == "queued"


def test_a_retrying_job_whose_type_was_removed_is_given_up_too(unknown):
    job = AiRuntimeJob.objects.filter(pk=unknown.pk)
    job.update(status="running", lock_token="t", locked_by="w", locked_at=ago(1), lock_until=hence(9))
    job.update(status="retrying", lock_until=None, available_at=ago(1))
    assert lapses.give_up_unknown_types() == 1
    unknown.refresh_from_db()
    assert (unknown.status, unknown.error_code) == ("failed", "unknown_job_type")


def test_a_type_that_any_worker_of_the_lane_knows_is_not_given_up(unknown):
    seen("engine 2", types=["nobody.knows"])
    assert lapses.give_up_unknown_types() == 0


def test_a_worker_that_left_within_the_grace_may_come_back(unknown):
    seen("engine 2", types=["nobody.knows"])
    RuntimeInstance.objects.filter(name="engine 2").update(last_seen_at=ago(50))
    assert lapses.give_up_unknown_types() == 0
    RuntimeInstance.objects.filter(name="engine 2").update(last_seen_at=ago(70))
    assert lapses.give_up_unknown_types() == 1


def test_nothing_is_given_up_while_no_worker_has_been_up_for_the_grace(unknown):
    RuntimeInstance.objects.update(started_at=ago(50))
    assert lapses.give_up_unknown_types() == 0
    RuntimeInstance.objects.update(started_at=ago(600), last_seen_at=ago(30))
    assert lapses.give_up_unknown_types() == 0


def test_a_job_younger_than_the_grace_is_not_given_up(unknown):
    change(unknown, created_at=ago(30))
    assert lapses.give_up_unknown_types() == 0


def test_in_lane_runtime_the_web_servers_decide_since_they_hold_the_definitions(settings):
    settings.UNKNOWN_JOB_TYPE_GRACE_SECONDS = 60
    job = change(make_job(job_type=RUNTIME_TYPE), job_type="nobody.knows", created_at=ago(120))
    seen("rust 1", lane=Lane.RUNTIME, kind=RuntimeInstance.Kind.RUNTIME, types=[RUNTIME_TYPE])
    RuntimeInstance.objects.update(started_at=ago(120))
    assert lapses.give_up_unknown_types() == 0
    seen("web 1", lane=Lane.RUNTIME, kind=RuntimeInstance.Kind.WEB, types=[RUNTIME_TYPE])
    RuntimeInstance.objects.update(started_at=ago(120))
    assert lapses.give_up_unknown_types() == 1
    assert row(job)["status"] == "failed"


def test_a_job_that_was_claimed_meanwhile_is_not_given_up():
    job, _ = running()
    with transaction.atomic():
        assert lapses.give_up_unknown_type(job.pk) is False
    assert row(job)["status"] == "running"


# --- one statement -----------------------------------------------------------------------------------------------------------------


def events_fail_once(sql_state):
    """Until the transaction ends the first new event is refused, as when somebody else wrote one between our snapshot and our lock."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE first_events")
        cursor.execute(
            "CREATE FUNCTION refuse_first_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('first_events') = 1 THEN RAISE EXCEPTION 'event_seq_once_per_job' USING ERRCODE = '{sql_state}'; END IF; "
            "RETURN NEW; END $$"
        )
        cursor.execute("CREATE TRIGGER refuse BEFORE INSERT ON ai_job_event FOR EACH ROW EXECUTE FUNCTION refuse_first_event()")


def test_a_claim_that_an_event_overtook_looks_again():
    job = make_job()
    events_fail_once("unique_violation")

    [claim] = take()

    assert claim.job_id == job.pk
    assert events(job) == ["job.created", "job.claimed"]
    assert len(attempts(job)) == 1


def test_a_claim_brings_what_the_attempt_needs():
    job = make_job()

    [(claim, work)] = claims.claim_work(lane="interactive", worker="w", job_types=[TYPE], count=5, lease_seconds=30)

    assert claim.job_id == work.job.job_id == job.pk
    assert work == queries.work_item(job.pk)
    assert row(job)["lock_token"] == token_hash(claim.token)
    assert events(job) == ["job.created", "job.claimed"]
    assert claims.claim_work(lane="interactive", worker="w", job_types=[TYPE], count=5, lease_seconds=30) == []
