"""What users of other job queues ran into, as far as it is about rows: each test names its number in the list of scenarios.

Those about processes (killed workers, hung sockets, deploys) are in tests/e2e; deliveries (37, 38) in test_deliveries.py.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from runtime_jobs import registry
from runtime_jobs.errors import IdempotencyConflict, JobCancelled, JobNotRerunnable, LockLost, NotLockable
from runtime_jobs.model_call import CallReport, Dispatch, ProviderTarget, TokenUsage
from runtime_jobs.models import AiModelCredential, AiRuntimeJob, AiRuntimeResult, AiUsageLog, ClaimGate, RuntimeInstance
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.registry import JobDefinition, Limits
from runtime_jobs.services import claims, fairness, gates, jobs, lapses, leases, offers, usage, workers
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.events import Actor
from runtime_jobs.services.usage import ClosedCall, OpenCall
from runtime_jobs.states import ApiKeyMode, Lane
from runtime_jobs.synthetic.ai_jobs import ExtractFacts
from runtime_jobs.synthetic.models import ExtractedText
from tests.factories import CredentialFactory, JobFactory, payload
from tests.services import worker as act
from tests.services.steps import ago, change, events, make_job, make_user, row
from tests.services.test_plans import caught, explain, load

pytestmark = pytest.mark.django_db

STAFF = Actor("7", "staff")
GRACE = 5


@pytest.fixture(autouse=True)
def _young_database(settings: Any) -> None:
    """The test server has not been up for a lease of ordinary length; without back-off a retry is due at once."""
    settings.ENGINE_LEASE_SECONDS = settings.RUNTIME_LEASE_SECONDS = 0
    settings.RETRY_BASE_SECONDS = 0


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Register a definition for this test."""

    def define(job_type: str, base: type[JobDefinition] = ExtractFacts, **attributes: Any) -> str:
        monkeypatch.setitem(registry._definitions, job_type, type("Defined", (base,), {"job_type": job_type, **attributes})())
        return job_type

    return define


@pytest.fixture
def credential() -> AiModelCredential:
    return CredentialFactory()


def renewed(held: Claim) -> str | None:
    """The status that a renewal brings back; None when the lease is lost."""
    return leases.renew([held], lease_seconds=45, grace_seconds=GRACE).get(held.job_id)


def call_provider(held: Claim) -> UUID:
    """The attempt's first call has gone out, and nothing has come back yet."""
    job = AiRuntimeJob.objects.get(pk=held.job_id)
    target = ProviderTarget("simulator", "https://provider.example/v1", job.model_name, Secret("k" * 20), ApiKeyMode.PLATFORM)
    call_id = new_id()
    assert usage.open_calls([OpenCall(call_id, job.pk, held.token, 1, target)]) == [True]
    return call_id


def reap() -> int:
    return lapses.reap()


# --- duplicates and zombies ------------------------------------------------------------------------------------------------------


def test_a_job_of_twelve_minutes_on_a_lease_of_45_seconds_is_executed_once():
    """Engine 1: everybody else looks for work all the time."""
    job = make_job(timeout_seconds=900)
    held = act.take_one("slow", lease=45)
    for _ in range(36):
        act.let_time_pass(20)
        assert renewed(held) == "running"
        assert reap() == 0
        assert act.take("greedy", count=5) == []
    assert act.deliver(held).job_status == "succeeded"
    assert events(job) == ["job.created", "job.claimed", "job.succeeded"]
    assert row(job)["attempt_no"] == job.attempts.count() == 1


def test_a_job_that_hangs_cannot_renew_for_ever():
    """Engine 1, from the other side: beyond its deadline a renewal extends nothing, and the job goes on elsewhere."""
    make_job(timeout_seconds=60)
    held = act.take_one("hung", lease=45)
    for _ in range(8):
        act.let_time_pass(10)
        renewed(held)
    assert reap() == 1
    assert act.take_one("next").attempt_no == 2
    assert renewed(held) is None


def test_a_completion_between_the_reapers_look_and_its_write_wins(monkeypatch):
    """Engine 3."""
    job = make_job()
    held = act.take_one()
    act.run_out(job.pk)
    lapse_one = lapses._lapse_one

    def too_late(job_id: UUID, token: str) -> bool:
        act.deliver(held)
        return lapse_one(job_id, token)

    monkeypatch.setattr(lapses, "_lapse_one", too_late)
    assert reap() == 0
    assert events(job) == ["job.created", "job.claimed", "job.succeeded"]
    assert job.result is not None


def test_a_renewal_between_the_reapers_look_and_its_write_wins(monkeypatch):
    """Engine 3."""
    job = make_job()
    held = act.take_one()
    act.run_out(job.pk)
    lapse_one = lapses._lapse_one

    def too_late(job_id: UUID, token: str) -> bool:
        assert renewed(held) == "running"
        return lapse_one(job_id, token)

    monkeypatch.setattr(lapses, "_lapse_one", too_late)
    assert reap() == 0
    assert row(job)["status"] == "running"


def test_a_live_job_that_was_declared_dead_is_told_to_stop_and_its_key_makes_no_second_one(credential):
    """Engine 4."""
    user = make_user()
    request = {"user": user, "job_type": act.INTERACTIVE, "payload": payload(), "target_type": "report", "target_id": "nightly"}
    job = jobs.create_job(**request, idempotency_key="nightly", credential=credential)
    first = act.take_one("first")
    act.run_out(job.pk)
    assert reap() == 1
    assert jobs.create_job(**request, idempotency_key="nightly", credential=credential).pk == job.pk
    second = act.take_one("second")
    assert act.take("third") == []
    assert renewed(first) is None
    with pytest.raises(LockLost):
        leases.beat(job.pk, attempt_no=first.attempt_no, token=first.token, lease_seconds=45)
    assert renewed(second) == "running"
    assert AiRuntimeJob.objects.count() == 1


def test_a_late_result_of_an_overtaken_attempt_is_refused_and_its_cost_is_kept():
    """Engine 5, acceptance 12."""
    job = make_job()
    first = act.take_one("first")
    call_id = call_provider(first)
    act.run_out(job.pk)
    reap()
    second = act.take_one("second")
    before = row(job)
    with pytest.raises(LockLost):
        act.deliver(first)
    report = CallReport(dispatch=Dispatch.SENT, usage=TokenUsage(input_tokens=700, output_tokens=80))
    usage.close_call(ClosedCall(call_id, AiUsageLog.Outcome.SUCCEEDED, report))
    assert row(job) == before
    assert AiRuntimeResult.objects.count() == ExtractedText.objects.count() == 0
    spent = AiUsageLog.objects.get()
    assert (spent.attempt_no, spent.outcome, spent.dispatch, spent.input_tokens) == (1, "succeeded", "sent", 700)
    act.deliver(second)
    assert list(job.results.values_list("attempt_no", "status")) == [(2, "succeeded")]
    assert job.result == job.results.get()
    assert ExtractedText.objects.count() == 1


# --- stuck, crashed --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_lapse", "goes_on"), [("retry", True), ("fail", False)])
def test_a_worker_that_dies_during_a_paid_call_leaves_maybe_sent_and_the_definition_decides(define, on_lapse, goes_on):
    """Engine 8: never a silent second bill."""
    job = make_job(job_type=define("test.paid", on_lapse=on_lapse))
    held = act.take_one()
    call_provider(held)
    act.run_out(job.pk)
    assert reap() == 1
    call = AiUsageLog.objects.get()
    assert (call.outcome, call.dispatch, call.error_code, call.attempt_no) == ("aborted", "maybe_sent", "lease_expired", 1)
    assert call.closed_at is not None
    stored = row(job)
    assert (stored["status"], stored["error_code"]) == ("retrying" if goes_on else "failed", "lease_expired")
    assert [claim.attempt_no for claim in act.take("next")] == ([2] if goes_on else [])


def test_a_worker_that_dies_while_its_job_is_being_cancelled_leaves_maybe_sent_too():
    """Engine 8, engine 17: else the call would count as under way for ever."""
    job = make_job()
    held = act.take_one()
    call_provider(held)
    jobs.cancel_job(job.pk, actor=STAFF)
    act.run_out(job.pk)
    assert reap() == 1
    assert row(job)["status"] == "cancelled"
    call = AiUsageLog.objects.get()
    assert (call.outcome, call.dispatch) == ("aborted", "maybe_sent")
    assert call.closed_at is not None


# --- cancel and rerun ------------------------------------------------------------------------------------------------------------


def test_a_cancel_of_a_running_job_shows_at_once_and_holds_although_the_answer_comes_later():
    """Engine 17."""
    job = make_job()
    held = act.take_one()
    call_id = call_provider(held)
    assert jobs.cancel_job(job.pk, actor=STAFF, reason="wrong file").status == "cancel_requested"
    assert renewed(held) == "cancel_requested"
    report = CallReport(dispatch=Dispatch.SENT, usage=TokenUsage(input_tokens=700, output_tokens=80))
    usage.close_call(ClosedCall(call_id, AiUsageLog.Outcome.SUCCEEDED, report))
    settled = act.deliver(held)
    assert (settled.job_status, settled.refused, settled.result_id) == ("cancelled", "job_cancelled", None)
    assert row(job)["status"] == "cancelled"
    assert AiRuntimeResult.objects.count() == ExtractedText.objects.count() == 0
    assert AiUsageLog.objects.get().output_tokens == 80
    assert events(job) == ["job.created", "job.claimed", "job.cancel_requested", "job.cancelled"]
    with pytest.raises(JobCancelled):
        act.deliver(held, "another answer")


@pytest.mark.parametrize("offered", [False, True])
def test_a_job_that_is_cancelled_while_a_worker_has_its_id_in_hand_never_starts(offered):
    """Engine 19."""
    job = make_job(job_type=act.RUNTIME)
    if offered:
        assert offers.offer(lane=Lane.RUNTIME, worker="r", job_types=[act.RUNTIME], count=1, offer_seconds=60) == [job.pk]
    jobs.cancel_job(job.pk, actor=STAFF)
    with pytest.raises(NotLockable, match="cancelled"):
        claims.lock_job(job.pk, lane=Lane.RUNTIME, worker="r", lease_seconds=45)
    assert act.take("r", lane=Lane.RUNTIME) == []
    assert (row(job)["attempt_no"], job.attempts.count()) == (0, 0)


def test_a_rerun_by_two_staff_is_one_new_job_and_the_old_one_keeps_its_result():
    """Engine 20. At the same moment: test_races.py."""
    job = make_job()
    act.deliver(act.take_one())
    before, result = row(job), job.results.values().get()
    one = jobs.rerun_job(job.pk, actor=STAFF)
    other = jobs.rerun_job(job.pk, actor=Actor("8", "colleague"))
    assert (other.job.pk, one.created, other.created) == (one.job.pk, True, False)
    act.deliver(act.take_one(), "a better answer")
    assert (row(job), job.results.values().get()) == (before, result)
    assert one.job.results.get().raw_output == "a better answer"


def test_a_rerun_while_the_job_of_its_key_is_active_is_refused_clearly(credential):
    """Engine 21: and once it has ended the rerun takes no key with it, so nothing collides."""
    request = {"user": make_user(), "job_type": act.INTERACTIVE, "payload": payload(), "target_type": "report", "target_id": "1"}
    job = jobs.create_job(**request, idempotency_key="key", credential=credential)
    held = act.take_one()
    with pytest.raises(JobNotRerunnable, match="running"):
        jobs.rerun_job(job.pk, actor=STAFF)
    act.deliver(held)
    rerun = jobs.rerun_job(job.pk, actor=STAFF).job
    assert jobs.create_job(**request, idempotency_key="key", credential=credential).pk == job.pk
    with pytest.raises(IdempotencyConflict):
        jobs.create_job(**{**request, "target_id": "2"}, idempotency_key="key", credential=credential)
    assert set(AiRuntimeJob.objects.values_list("pk", flat=True)) == {job.pk, rerun.pk}


# --- uniqueness and maintenance --------------------------------------------------------------------------------------------------


def worker_seen(name: str, *job_types: str, up_for: float) -> None:
    workers.seen(name, kind=RuntimeInstance.Kind.ENGINE, lane=Lane.INTERACTIVE, version="1", job_types=job_types)
    RuntimeInstance.objects.filter(name=name).update(started_at=ago(up_for))


def test_a_worker_neither_takes_nor_discards_a_type_that_it_does_not_know(define, settings):
    """Engine 24: a rolling deploy; the new version alone knows the new type."""
    settings.UNKNOWN_JOB_TYPE_GRACE_SECONDS = 60
    job = make_job(job_type=define("test.new"))
    act.let_time_pass(3_600)
    worker_seen("old version", act.INTERACTIVE, up_for=3_600)
    assert act.take("old version", job_types=[act.INTERACTIVE]) == []
    worker_seen("new version", act.INTERACTIVE, "test.new", up_for=1)
    assert lapses.give_up_unknown_types() == 0
    assert row(job)["status"] == "queued"
    workers.gone("new version")
    # Nobody who is alive knows the type, and somebody has been for the whole grace: now it is a mistake, not a deploy.
    assert lapses.give_up_unknown_types() == 1
    stored = row(job)
    assert (stored["status"], stored["error_code"], stored["attempt_no"]) == ("failed", "unknown_job_type", 0)


@pytest.mark.parametrize("up_for", [None, 59])
def test_a_stopped_deploy_discards_nothing(define, settings, up_for):
    """Engine 24: with no worker, or none that has been up for the grace, an unknown type waits, however old it is."""
    settings.UNKNOWN_JOB_TYPE_GRACE_SECONDS = 60
    make_job(job_type=define("test.new"))
    act.let_time_pass(86_400)
    if up_for is not None:
        worker_seen("old version", act.INTERACTIVE, up_for=up_for)
    assert lapses.give_up_unknown_types() == 0
    assert AiRuntimeJob.objects.get().status == "queued"


# --- a blocked backlog -----------------------------------------------------------------------------------------------------------

BLOCKED = 100_000
# A claim reads some 60 pages, and some 180 where it has to count what runs, more where earlier tests have left dead rows; the backlog at
# the head is 7,000.
PAGES_OF_A_CLAIM = 2_000


def pages_of_a_claim(*, takes: UUID, job_types: list[str]) -> int:
    """How many pages the claim reads that takes this job."""
    statements = caught(lambda: act.take(job_types=job_types))
    assert row(AiRuntimeJob(pk=takes))["status"] == "queued"  # that was taken back
    with transaction.atomic():
        assert [held.job_id for held in act.take(job_types=job_types)] == [takes]
        transaction.set_rollback(True)
    return max(explain(statement).blocks for statement in statements if "claimed AS" in statement.sql)


@pytest.fixture
def backlog(define, credential) -> Any:
    """100,000 jobs of type test.blocked and model `blocked` stand before everything else. Gives their user."""
    define("test.blocked")
    user = make_user()
    JobFactory(user=user, credential=credential, job_type="test.blocked", model_name="blocked", target_id="template")
    load(1, BLOCKED, {"user_id": str(user.pk), "sort_at": "now() - interval '1 hour' + n * interval '1 ms'"})
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ai_runtime_job")
    return user


def test_a_paused_type_or_one_at_its_limit_at_the_head_costs_the_others_nothing(backlog, credential, define):
    """Engine 31."""
    types = [act.INTERACTIVE, "test.blocked"]
    job = make_job(user=backlog, credential=credential)
    gates.pause(ClaimGate.Kind.JOB_TYPE, "test.blocked", actor=STAFF)
    assert pages_of_a_claim(takes=job.pk, job_types=types) < PAGES_OF_A_CLAIM
    gates.resume(ClaimGate.Kind.JOB_TYPE, "test.blocked")
    define("test.blocked", limits=Limits(running=2))
    assert len(act.take(count=5, job_types=["test.blocked"])) == 2
    assert pages_of_a_claim(takes=job.pk, job_types=types) < PAGES_OF_A_CLAIM


@pytest.mark.parametrize("how", ["paused", "at its limit"])
def test_a_blocked_model_at_the_head_costs_the_others_nothing(backlog, credential, define, how):
    """Engine 31: jobs of another type, and of the same type with another model."""
    if how == "paused":
        gates.pause(ClaimGate.Kind.MODEL, "simulator/blocked", actor=STAFF)
    else:
        define("test.blocked", limits=Limits(running_per_model=1))
        assert len(act.take(count=5, job_types=["test.blocked"])) == 1
    for job_type in (act.INTERACTIVE, "test.blocked"):
        job = make_job(user=backlog, credential=credential, job_type=job_type, model_name="free")
        assert pages_of_a_claim(takes=job.pk, job_types=[act.INTERACTIVE, "test.blocked"]) < PAGES_OF_A_CLAIM
        jobs.cancel_job(job.pk, actor=STAFF)


# --- fairness --------------------------------------------------------------------------------------------------------------------


def test_one_job_of_a_user_does_not_wait_behind_the_thousands_of_another(credential):
    """Engine 32: it is third at the latest, behind the head and what stands a step behind that, and the other still gets its share."""
    crowd, single = make_user(), make_user()
    JobFactory(user=crowd, credential=credential, target_id="template")
    load(1, 20_000, {"user_id": str(crowd.pk), "sort_at": "t.sort_at + n * interval '1 s'"})
    for _ in range(10):
        make_job(user=single, credential=credential)
        owners = [AiRuntimeJob.objects.get(pk=act.take_one().job_id).user_id for _ in range(3)]
        assert sorted(owners) == [crowd.pk, crowd.pk, single.pk]


def test_a_user_with_many_jobs_waits_behind_the_first_of_each_other_user(credential):
    """Engine 32, through create_job alone."""
    crowd = make_user()
    for _ in range(50):
        make_job(user=crowd, credential=credential)
    others = {make_job(user=make_user(), credential=credential).user_id for _ in range(5)}
    first = [AiRuntimeJob.objects.get(pk=held.job_id).user_id for held in act.take(count=7)]
    assert others <= set(first)


def ticks_until_started(job: AiRuntimeJob, credential: AiModelCredential, *, urgent_per_tick: int, user: Any = None, most: int) -> int:
    """The lane starts a job a second, and as many or more urgent ones come: after how many seconds this one starts."""
    for tick in range(most):
        act.let_time_pass(1)
        for _ in range(urgent_per_tick):
            make_job(user=user or make_user(), credential=credential, priority=9)
        held = act.take_one()
        if held.job_id == job.pk:
            return tick
        jobs.cancel_job(held.job_id, actor=STAFF)
        act.hand_back(held)
    pytest.fail(f"it has not started within {most} seconds")


def test_a_stream_of_urgent_jobs_of_ever_new_users_holds_up_the_least_urgent_for_its_patience_only(credential):
    """Engine 33: the stream takes every slot that there is."""
    lowest = make_job(credential=credential, priority=0)
    waited = ticks_until_started(lowest, credential, urgent_per_tick=1, most=fairness.PATIENCE_SECONDS + 5)
    assert waited > 5  # else the priority would mean nothing


def test_a_user_whose_urgent_jobs_are_more_than_the_lane_can_run_holds_up_the_least_urgent_by_the_head_start_only(credential):
    """Engine 33: each further job of a user stands a step further back, hence behind the lowest after so many steps."""
    head_start = fairness.HEAD_START_STEPS * 9
    lowest = make_job(credential=credential, priority=0)
    waited = ticks_until_started(lowest, credential, urgent_per_tick=2, user=make_user(), most=head_start + 10)
    assert waited > 5


# --- retries, time ---------------------------------------------------------------------------------------------------------------


def test_three_hundred_jobs_that_fail_at_once_come_back_spread_and_none_before_retry_after(credential, settings):
    """Engine 35."""
    settings.RETRY_BASE_SECONDS = 20
    JobFactory(user=make_user(), credential=credential, target_id="template")
    load(1, 299, {"user_id": "t.user_id"})
    held = act.take(count=300)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (started,) = cursor.fetchone()
    for claim in held:
        act.fail(claim, retry_after=30)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (ended,) = cursor.fetchone()
    # Each is told its delay, from the moment of its own failure.
    told = [
        float(delay)
        for delay in AiRuntimeJob.objects.filter(events__name="job.retry_scheduled").values_list("events__data__delay_seconds", flat=True)
    ]
    assert len(told) == 300
    assert min(told) >= 30
    assert len(set(told)) > 290
    for low in (30, 35, 40, 45):  # the jitter's 20 seconds, in quarters: 75 each on average
        assert 35 <= sum(low <= delay < low + 5 for delay in told) <= 125
    due = AiRuntimeJob.objects.values_list("available_at", flat=True)
    assert min(due) >= started + timedelta(seconds=30)
    assert max(due) <= ended + timedelta(seconds=51)
    assert act.take(count=5) == []
    assert set(AiRuntimeJob.objects.values_list("retry_count", flat=True)) == {1}


@pytest.mark.parametrize("off", [-600, 600])
def test_a_host_whose_clock_is_ten_minutes_off_neither_takes_back_early_nor_starts_late(monkeypatch, settings, off):
    """Engine 36: only the database's clock decides, and it writes every time that is stored."""
    settings.RETRY_BASE_SECONDS = 0
    right_time, right_now = time.time, timezone.now
    monkeypatch.setattr(time, "time", lambda: right_time() + off)
    monkeypatch.setattr(timezone, "now", lambda: right_now() + timedelta(seconds=off))
    assert abs((timezone.now() - datetime.now(UTC)).total_seconds() - off) < 5
    job = make_job()
    held = act.take_one(lease=60)
    assert reap() == 0
    assert renewed(held) == "running"
    assert reap() == 0
    leases.beat(job.pk, attempt_no=1, token=held.token, lease_seconds=60)
    assert reap() == 0
    act.fail(held, retry_after=60)
    assert act.take() == []
    act.let_time_pass(61, job.pk)
    again = act.take_one(lease=60)
    act.let_time_pass(61, job.pk)
    assert reap() == 1
    assert offers.offer(lane=Lane.INTERACTIVE, worker="r", job_types=[act.INTERACTIVE], count=1, offer_seconds=60) == [job.pk]
    assert act.take("another") == []
    change(job, offer_until=ago(1))
    last = act.take_one("another")
    assert (again.attempt_no, last.attempt_no) == (2, 3)
    act.deliver(last)
    within = AiRuntimeJob.objects.filter(pk=job.pk, updated_at__gt=ago(60), finished_at__gt=ago(60), locked_at__gt=ago(60))
    assert within.filter(updated_at__lte=Now(), finished_at__lte=F("updated_at"), locked_at__lte=Now()).exists()
    assert not job.events.filter(created_at__lt=ago(60)).exists()
    assert not job.events.filter(created_at__gt=Now()).exists()
    assert not job.attempts.filter(ended_at__gt=Now()).exists()


def test_a_new_secret_key_loses_no_job(settings):
    """Engine 41: nothing of a job is signed with it, waiting or running."""
    waiting, running = make_job(), make_job()
    held = act.take_one()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another " * 8, []
    assert renewed(held) == "running"
    act.deliver(held)
    act.deliver(act.take_one())
    assert {row(job)["status"] for job in (waiting, running)} == {"succeeded"}
