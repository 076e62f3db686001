"""How attempts end: the terminal part of the state table, replays, conflicts, late holders, budgets."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction

from runtime_jobs.errors import (
    RULES,
    AttemptError,
    ErrorCode,
    Issue,
    JobAlreadyFinished,
    JobCancelled,
    JobNotFound,
    LockLost,
    ResultConflict,
    ServiceError,
    public_error,
)
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeResult
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.services import offers
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.services.settlements import Fence, Settlement
from runtime_jobs.services.terminal import reject_result, release, submit_failure
from runtime_jobs.synthetic.ai_jobs import ExtractFacts
from runtime_jobs.synthetic.models import ExtractedFact, ExtractedText
from tests.services.steps import (
    OUTPUT,
    TYPE,
    ago,
    attempts,
    change,
    deliver,
    delivery,
    events,
    expire,
    fence,
    make_job,
    retake,
    row,
    running,
)

pytestmark = pytest.mark.django_db

RETRYABLE = AttemptError(ErrorCode.PROVIDER_UNAVAILABLE, "503 from the provider")
PERMANENT = AttemptError(ErrorCode.PROVIDER_AUTH_FAILED, "401 from the provider")
CANARY = "canary-7f3a-of-a-snapshot"


@pytest.fixture(autouse=True)
def _any_database_has_been_up_long_enough(settings):
    settings.ENGINE_LEASE_SECONDS = 0


def late(**more):
    """A job that lapsed and waits to be retried, and the claim of its holder."""
    job, claim = running(**more)
    expire(job)
    assert job.status == "retrying"
    return job, claim


def cancelling():
    job, claim = running()
    cancel_job(job.pk, actor=SYSTEM)
    job.refresh_from_db()
    assert job.status == "cancel_requested"
    return job, claim


def fail(claim, error=RETRYABLE):
    return submit_failure(fence(claim), error)


def reject(claim, text="not json", code=ErrorCode.SCHEMA_VALIDATION_FAILED, **more):
    issue = Issue("/facts", "required", "A member is missing.")
    return reject_result(fence(claim), delivery(text, validated_output=None, **more), AttemptError(code, issues=(issue,)))


CALLS: dict[str, Callable[..., Settlement]] = {
    "result": deliver,
    "failure": fail,
    "rejected result": reject,
    "release": lambda claim: release(fence(claim), "shutdown"),
}


# --- the table of states ----------------------------------------------------------------------------------------------------------


def ended(job, status):
    job.refresh_from_db()
    assert (job.status, job.lock_until, job.offered_to, job.offer_until) == (status, None, None, None)
    assert job.finished_at is not None
    return True


@pytest.mark.parametrize("start", [running, late], ids=["running", "late"])
def test_a_valid_result_is_projected_and_ends_the_job_as_succeeded(start):
    job, claim = start()
    settlement = deliver(claim, repairs=["closed a brace"])
    assert ended(job, "succeeded")
    assert (job.error_code, job.error_message, job.internal_error) == ("", "", "")
    assert settlement.job_status == "succeeded"
    assert settlement.late is (start is late)
    result = AiRuntimeResult.objects.get(job=job)
    assert (result.pk, result.status, result.attempt_no, result.validated_output) == (settlement.result_id, "succeeded", 1, OUTPUT)
    assert (result.user_id, result.runtime_instance_id, result.repairs) == (job.user_id, "w1", ["closed a brace"])
    assert job.result == result
    assert ExtractedText.objects.get(job_id=job.pk).summary == "A river."
    assert ExtractedFact.objects.filter(text__job_id=job.pk).count() == 1
    assert attempts(job) == [(1, "succeeded")]
    assert events(job)[-1] == "job.succeeded"


@pytest.mark.parametrize("start", [running, late], ids=["running", "late"])
def test_a_permanent_error_fails_the_job(start):
    job, claim = start()
    settlement = fail(claim, PERMANENT)
    assert ended(job, "failed")
    assert (job.error_code, job.error_message) == ("provider_auth_failed", public_error(ErrorCode.PROVIDER_AUTH_FAILED))
    assert job.internal_error == "401 from the provider"
    assert (settlement.job_status, settlement.late, settlement.next_attempt_at) == ("failed", start is late, None)
    assert job.retry_count == 0
    assert attempts(job) == [(1, "failed")]
    assert events(job)[-1] == "job.failed"


def test_a_retryable_error_is_charged_and_retried_with_back_off_while_the_budget_lasts():
    job, claim = running(max_retry_count=2)
    settlement = fail(claim)
    job.refresh_from_db()
    assert (job.status, job.retry_count, job.lapse_count, job.release_count) == ("retrying", 1, 0, 0)
    assert (job.lock_token, job.locked_by, job.locked_at, job.lock_until) == (None, None, None, None)
    assert job.available_at > job.updated_at
    assert settlement.next_attempt_at == job.available_at
    assert (settlement.retry_count, settlement.max_retry_count) == (1, 2)
    assert attempts(job) == [(1, "failed")]
    assert events(job)[-1] == "job.retry_scheduled"


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_last_retry_that_fails_makes_the_job_failed(most):
    job = make_job(max_retry_count=most)
    for number in range(most):
        fail(retake(job))
        job.refresh_from_db()
        assert (job.status, job.retry_count) == ("retrying", number + 1)
    fail(retake(job))
    assert ended(job, "failed")
    assert (job.retry_count, job.attempt_no, job.error_code) == (most, most + 1, "provider_unavailable")


def test_a_late_retryable_error_charges_nothing_and_leaves_the_scheduled_retry():
    job, claim = late()
    due = job.available_at
    settlement = fail(claim)
    job.refresh_from_db()
    assert (job.status, job.retry_count, job.lapse_count, job.available_at) == ("retrying", 0, 1, due)
    assert (job.lock_token, job.locked_by) == (None, None)
    assert (settlement.late, settlement.next_attempt_at) == (True, due)
    assert attempts(job) == [(1, "failed")]
    with pytest.raises(LockLost):
        deliver(claim)


def test_a_release_hands_the_job_back_at_once_and_charges_nothing():
    job, claim = running()
    settlement = release(fence(claim), "shutdown")
    job.refresh_from_db()
    assert (job.status, job.release_count, job.retry_count, job.lapse_count) == ("retrying", 1, 0, 0)
    assert (job.lock_token, job.error_code) == (None, "")
    assert job.available_at <= job.updated_at
    assert settlement.job_status == "retrying"
    assert attempts(job) == [(1, "released")]
    assert AiJobEvent.objects.get(job=job, name="job.released").data["reason"] == "shutdown"


def test_a_late_release_lets_go_and_leaves_the_scheduled_retry():
    job, claim = late()
    due = job.available_at
    assert release(fence(claim)).next_attempt_at == due
    job.refresh_from_db()
    assert (job.status, job.release_count, job.lapse_count, job.available_at, job.lock_token) == ("retrying", 0, 1, due, None)
    assert attempts(job) == [(1, "lapsed")]


def test_the_release_and_the_lapse_too_many_fail_the_job_as_lease_expired():
    job, claim = running()
    change(job, release_count=5, lapse_count=3)
    assert release(fence(claim)).job_status == "failed"
    assert ended(job, "failed")
    assert job.error_code == "lease_expired"


@pytest.mark.parametrize("call", CALLS)
def test_whatever_the_holder_of_a_job_that_is_to_be_cancelled_does_the_job_is_cancelled(call):
    job, claim = cancelling()
    settlement = CALLS[call](claim)
    assert ended(job, "cancelled")
    assert settlement.job_status == "cancelled"
    # A result is refused; that one ends, fails or lets go is what was asked for.
    assert settlement.refused == ("job_cancelled" if "result" in call else "")
    assert (job.error_code, job.error_message) == ("cancelled", public_error(ErrorCode.CANCELLED))
    assert not AiRuntimeResult.objects.exists()
    assert not ExtractedText.objects.exists()
    assert attempts(job) == [(1, "cancelled")]
    assert events(job)[-2:] == ["job.cancel_requested", "job.cancelled"]


def test_a_late_success_takes_back_what_was_offered_to_another():
    job, claim = late()
    change(job, available_at=ago(1))
    assert offers.offer(lane="interactive", worker="w2", job_types=[TYPE], count=1, offer_seconds=60) == [job.pk]
    deliver(claim)
    assert ended(job, "succeeded")


ENDS = {
    "succeeded": lambda job, claim: deliver(claim),
    "failed": lambda job, claim: fail(claim, PERMANENT),
    # Late, hence with its token still the row's.
    "cancelled": lambda job, claim: cancel_job(job.pk, actor=SYSTEM),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_has_ended_does_not_change_any_more(end, call):
    job, claim = late()
    ENDS[end](job, claim)
    before, known = row(job), (events(job), attempts(job), AiRuntimeResult.objects.count())
    refusal: type[ServiceError] = JobCancelled if end == "cancelled" else JobAlreadyFinished
    if end == "succeeded" and call == "rejected result":
        refusal = ResultConflict
    if end == "succeeded" and call == "result":
        assert deliver(claim).duplicate
    else:
        with pytest.raises(refusal):
            CALLS[call](claim)
    assert row(job) == before
    assert (events(job), attempts(job), AiRuntimeResult.objects.count()) == known


# --- the fence --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_an_overtaken_holder_writes_nothing(call):
    job, first = late()
    retake(job, "w2")
    before = row(job)
    with pytest.raises(LockLost):
        CALLS[call](first)
    assert row(job) == before
    assert attempts(job) == [(1, "lapsed"), (2, "")]


@pytest.mark.parametrize("forged", ["token", "attempt", "job"])
def test_a_call_with_another_token_number_or_job_writes_nothing(forged):
    job, claim = running()
    true = fence(claim)
    changes: Any = {"token": {"token": Secret("wrong")}, "attempt": {"attempt_no": 2}, "job": {"job_id": new_id()}}[forged]
    false: Fence = dataclasses.replace(true, **changes)
    before = row(job)
    with pytest.raises(JobNotFound if forged == "job" else LockLost):
        submit_failure(false, PERMANENT)
    assert row(job) == before


def test_the_token_of_one_job_opens_no_other():
    (job, _), (_, other) = running(), running()
    with pytest.raises(LockLost):
        submit_failure(dataclasses.replace(fence(other), job_id=job.pk), PERMANENT)
    assert row(job)["status"] == "running"


# --- replays ----------------------------------------------------------------------------------------------------------------------


def same_but_a_duplicate(first: Settlement, again: Settlement) -> bool:
    return again == dataclasses.replace(first, duplicate=True) and not first.duplicate


def test_acceptance_10_the_same_job_attempt_and_output_hash_again_is_idempotent():
    job, claim = running()
    first = deliver(claim)
    before = row(job)
    for _ in range(2):
        assert same_but_a_duplicate(first, deliver(claim))
    assert row(job) == before
    assert AiRuntimeResult.objects.filter(job=job).count() == 1
    assert ExtractedText.objects.filter(job_id=job.pk).count() == 1
    assert events(job).count("job.succeeded") == 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("start", [running, late, cancelling], ids=["running", "late", "cancel requested"])
def test_a_repeated_call_gets_the_same_answer_and_does_nothing(start, call):
    job, claim = start()
    first = CALLS[call](claim)
    before, known = row(job), events(job)
    assert same_but_a_duplicate(first, CALLS[call](claim))
    assert (row(job), events(job)) == (before, known)


@pytest.mark.parametrize("call", ["failure", "release"])
def test_a_repeat_gets_its_answer_also_after_another_has_taken_the_job_over_and_finished_it(call):
    job, claim = running()
    first = CALLS[call](claim)
    second = retake(job, "w2")
    assert same_but_a_duplicate(first, CALLS[call](claim))
    deliver(second)
    before = row(job)
    assert same_but_a_duplicate(first, CALLS[call](claim))
    assert row(job) == before


def test_a_repeated_rejection_stores_its_evidence_once():
    job, claim = running()
    first = reject(claim)
    assert same_but_a_duplicate(first, reject(claim))
    assert first.issues == (Issue("/facts", "required", "A member is missing."),)
    assert AiRuntimeResult.objects.filter(job=job).count() == 1


def test_a_settlement_comes_back_from_the_database_as_it_was():
    _, claim = running()
    first = reject(claim, code=ErrorCode.INVALID_MODEL_OUTPUT)
    stored: Any = AiJobAttempt.objects.get(job_id=claim.job_id).answer
    assert Settlement.from_json(stored) == first
    assert None not in (first.next_attempt_at, first.result_id)


# --- conflicts --------------------------------------------------------------------------------------------------------------------


def test_another_result_of_an_attempt_that_has_delivered_is_a_conflict():
    job, claim = running()
    deliver(claim)
    before = row(job)
    for other in ({"text": "[]"}, {"idempotency_key": "mine"}):
        with pytest.raises(ResultConflict):
            deliver(claim, **other)
    assert row(job) == before
    assert AiRuntimeResult.objects.count() == 1


def test_another_result_after_a_rejected_one_is_a_conflict_although_the_job_waits_for_its_retry():
    job, claim = running()
    reject(claim, code=ErrorCode.INVALID_MODEL_OUTPUT)
    assert row(job)["status"] == "retrying"
    with pytest.raises(ResultConflict):
        deliver(claim)
    assert not ExtractedText.objects.exists()


def test_a_result_after_the_attempts_own_failure_comes_too_late():
    job, claim = running()
    fail(claim)
    with pytest.raises(LockLost):
        deliver(claim)
    assert row(job)["status"] == "retrying"


def test_an_idempotency_key_of_another_job_is_a_conflict():
    (_, one), (job, two) = running(), running()
    deliver(one, idempotency_key="mine")
    for call in (deliver, reject):
        with pytest.raises(ResultConflict):
            call(two, idempotency_key="mine")
    assert row(job)["status"] == "running"
    assert deliver(two, idempotency_key="another").job_status == "succeeded"


def test_an_idempotency_key_of_another_attempt_is_a_conflict():
    job, first = running()
    reject(first, code=ErrorCode.INVALID_MODEL_OUTPUT, idempotency_key="mine")
    second = retake(job)
    with pytest.raises(ResultConflict):
        deliver(second, idempotency_key="mine")
    assert row(job)["status"] == "running"
    assert deliver(second, "not json").job_status == "succeeded"  # the same text, of another attempt


# --- budgets ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "retries"), [(ErrorCode.INVALID_MODEL_OUTPUT, 1), (ErrorCode.INTERNAL_ERROR, 2)])
def test_some_errors_get_fewer_retries_than_the_job_has(code, retries):
    job = make_job(max_retry_count=10)
    for _ in range(retries):
        assert fail(retake(job), AttemptError(code)).job_status == "retrying"
    assert fail(retake(job), AttemptError(code)).job_status == "failed"
    job.refresh_from_db()
    assert (job.retry_count, job.error_code, RULES[code].retry_limit) == (retries, code, retries)


def test_one_more_try_never_exceeds_the_jobs_own_budget():
    job = make_job(max_retry_count=1)
    assert fail(retake(job)).job_status == "retrying"
    assert fail(retake(job), AttemptError(ErrorCode.INVALID_MODEL_OUTPUT)).job_status == "failed"


def test_other_errors_in_between_do_not_use_up_the_one_more_try():
    job = make_job(max_retry_count=10)
    for error in (RETRYABLE, AttemptError(ErrorCode.INVALID_MODEL_OUTPUT), RETRYABLE):
        assert fail(retake(job), error).job_status == "retrying"
    assert fail(retake(job), AttemptError(ErrorCode.INVALID_MODEL_OUTPUT)).job_status == "failed"


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.retryable])
def test_what_is_retryable_by_its_code_can_be_made_permanent_where_it_arises(code):
    _, claim = running()
    assert fail(claim, AttemptError(code, retryable=False)).job_status == "failed"


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if not rule.retryable])
def test_what_is_permanent_by_its_code_fails_at_once(code):
    job, claim = running()
    assert fail(claim, AttemptError(code)).job_status == "failed"
    assert row(job)["error_message"] == RULES[code].public_error


def test_a_retry_never_comes_before_retry_after(settings):
    settings.RETRY_BASE_SECONDS = 0.01
    job, claim = running()
    fail(claim, AttemptError(ErrorCode.PROVIDER_RATE_LIMITED, retry_after_seconds=300))
    job.refresh_from_db()
    assert timedelta(seconds=300) <= job.available_at - job.updated_at < timedelta(seconds=301)


def test_retries_wait_longer_and_longer_up_to_a_cap(settings):
    settings.RETRY_BASE_SECONDS, settings.RETRY_CAP_SECONDS = 10, 25
    job = make_job(max_retry_count=4)
    for least in (10, 20, 25, 25):
        fail(retake(job))
        job.refresh_from_db()
        assert timedelta(seconds=least) <= job.available_at - job.updated_at <= timedelta(seconds=2 * least + 1)


# --- the projector ----------------------------------------------------------------------------------------------------------------


def everything_stored():
    """The text of every row of ours but the snapshots, whose whole point is to keep the input."""
    stored = []
    with connection.cursor() as cursor:
        for label in ("runtime_jobs", "synthetic"):
            for model in apps.get_app_config(label).get_models():
                if model._meta.db_table != "ai_job_snapshot":
                    cursor.execute(f"SELECT t::text FROM {model._meta.db_table} t")
                    stored += [text for (text,) in cursor.fetchall()]
    assert len(stored) > 3
    return "\n".join(stored)


def raises(output, job):
    raise ValueError(CANARY)


def breaks_a_constraint(output, job):
    # The database quotes the whole row.
    for _ in range(2):
        ExtractedText.objects.create(job_id=job.job_id, target_type="t", target_id="1", summary=CANARY)


def leaves_a_broken_transaction(output, job):
    with contextlib.suppress(Exception):
        breaks_a_constraint(output, job)


@pytest.mark.parametrize("project", [raises, breaks_a_constraint, leaves_a_broken_transaction])
@pytest.mark.parametrize("start", [running, late], ids=["running", "late"])
def test_a_projector_that_fails_is_rolled_back_as_a_whole_and_counts_as_internal_error(start, project, caplog):
    class Broken(ExtractFacts):
        def project(self, output, job):
            super().project(output, dataclasses.replace(job, job_id=new_id()))  # what it wrote before goes too
            project(output, job)

    job, claim = start()
    with caplog.at_level(logging.DEBUG):
        settlement = deliver(claim, definition=Broken())
    job.refresh_from_db()
    assert (job.status, job.retry_count) == ("retrying", 0 if start is late else 1)
    assert (settlement.job_status, settlement.result_id) == ("retrying", None)
    assert not AiRuntimeResult.objects.exists()
    assert not ExtractedText.objects.exists()
    assert "job.succeeded" not in events(job)
    attempt = AiJobAttempt.objects.get(job=job)
    assert (attempt.outcome, attempt.error_code) == ("failed", "internal_error")
    # Where it broke is known to staff; what it said is known to nobody.
    assert "projector: " in attempt.internal_error
    assert "Error" in attempt.internal_error
    assert "the projector failed" in caplog.text
    assert CANARY not in caplog.text
    assert CANARY not in everything_stored()
    assert same_but_a_duplicate(settlement, deliver(claim, definition=Broken()))


@pytest.mark.django_db(transaction=True)
def test_a_projector_whose_row_points_at_nothing_fails_its_attempt_not_the_commit():
    class Dangling(ExtractFacts):
        runs = 0

        def project(self, output, job):
            Dangling.runs += 1
            # Django's foreign keys are looked at when the transaction commits, unless they are asked for before.
            ExtractedFact.objects.create(text_id=10**9, position=1, fact="f", paragraph="p1")

    job, claim = running()
    settlement = deliver(claim, definition=Dangling())
    job.refresh_from_db()
    assert (settlement.job_status, job.status, job.retry_count, job.error_code) == ("retrying", "retrying", 1, "internal_error")
    assert Dangling.runs == 1
    assert not ExtractedFact.objects.exists()


def test_a_projector_that_keeps_failing_fails_the_job_after_two_retries():
    class Broken(ExtractFacts):
        def project(self, output, job):
            raise ValueError

    job = make_job(max_retry_count=10)
    statuses = [deliver(retake(job), definition=Broken()).job_status for _ in range(3)]
    assert statuses == ["retrying", "retrying", "failed"]
    assert row(job)["error_message"] == public_error(ErrorCode.INTERNAL_ERROR)


def test_the_projector_runs_after_the_fence_and_not_at_all_for_who_has_lost_the_job():
    class Watched(ExtractFacts):
        seen = []

        def project(self, output, job):
            self.seen.append(row_status(job.job_id))

    def row_status(job_id):
        with connection.cursor() as cursor:
            cursor.execute("SELECT status FROM ai_runtime_job WHERE id = %s", [job_id])
            return cursor.fetchone()[0]

    job, first = late()
    second = retake(job, "w2")
    with pytest.raises(LockLost), transaction.atomic():
        deliver(first, definition=Watched())
    assert Watched.seen == []
    deliver(second, definition=Watched())
    assert Watched.seen == ["succeeded"]


# --- evidence ---------------------------------------------------------------------------------------------------------------------


def test_a_rejected_result_is_kept_as_evidence_beside_the_success():
    job, first = running()
    refused = reject(first, "{", code=ErrorCode.INVALID_MODEL_OUTPUT)
    assert (refused.refused, refused.job_status) == ("invalid_model_output", "retrying")
    accepted = deliver(retake(job, "w2"))
    job.refresh_from_db()
    evidence, success = AiRuntimeResult.objects.filter(job=job).order_by("attempt_no")
    assert (evidence.pk, evidence.status, evidence.raw_output, evidence.validated_output) == (refused.result_id, "rejected", "{", None)
    assert evidence.validation_errors == [{"path": "/facts", "rule": "required", "message": "A member is missing."}]
    assert (success.pk, success.status, success.attempt_no) == (accepted.result_id, "succeeded", 2)
    assert job.result == success
    assert attempts(job) == [(1, "rejected"), (2, "succeeded")]


@pytest.mark.parametrize("start", [running, late], ids=["running", "late"])
def test_a_permanently_rejected_result_fails_the_job_and_stays(start):
    job, claim = start()
    settlement = reject(claim)
    assert ended(job, "failed")
    assert (settlement.refused, job.error_code) == ("schema_validation_failed", "schema_validation_failed")
    assert AiRuntimeResult.objects.get(job=job).status == "rejected"
    assert job.result is None
    assert attempts(job) == [(1, "rejected")]


def test_every_step_of_a_life_stands_in_the_timeline_in_order():
    job, claim = running()
    fail(claim)
    release(fence(retake(job)))
    retake(job)
    expire(job)
    deliver(retake(job, "w2"))
    assert events(job) == [
        "job.created",
        "job.claimed",
        "job.retry_scheduled",
        "job.claimed",
        "job.released",
        "job.claimed",
        "job.lapsed",
        "job.claimed",
        "job.succeeded",
    ]
    assert list(AiJobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True)) == list(range(1, 10))
    assert attempts(job) == [(1, "failed"), (2, "released"), (3, "lapsed"), (4, "succeeded")]
