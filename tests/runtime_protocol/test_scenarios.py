"""What users of comparable systems ran into: each test names its scenario. Those that need real processes are in test_processes.py."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, connections
from django.db.models import F
from django.test import Client

from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiRuntimeResult, AiUsageLog
from runtime_jobs.services import lapses
from runtime_jobs.services.credentials import revoke_credential
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.synthetic.models import ExtractedText
from runtime_protocol.waiting import WaitingRoom
from tests.factories import UserFactory
from tests.runtime_protocol.conftest import JOB_TYPE, RAW, Runtime, due, issue, lapse, sha, status_of, through, usage, written
from tests.services.worker import run_out
from tests.support.processes import wait_for

pytestmark = pytest.mark.django_db


def overtaken(runtime, job):
    """A's lease of attempt 1 and B's of attempt 2."""
    first = runtime.lock(job).body
    lapse(job)
    other = runtime.named("runtime-2")
    return first, other, other.lock(job).body


def test_s01_a_stale_result_is_refused_and_the_successors_taken(runtime, job):
    first, other, second = overtaken(runtime, job)
    before = written(job)
    stale = runtime.result(first)
    assert (stale.status, stale.code, stale["retryable"]) == (409, "job_lock_lost", False)
    assert "runtime-2" not in str(stale.body)
    assert written(job) == before
    assert other.result(second).status == 200


def test_s02_a_stale_call_does_not_hurt_the_successor(runtime, job):
    first, _, _ = overtaken(runtime, job)
    before = written(job)
    for call in (runtime.beat, runtime.fail, runtime.release, runtime.resolve, runtime.snapshot):
        answer = call(first)
        assert (answer.status, answer.code) == (409, "job_lock_lost"), call
    assert written(job) == before


def test_s04_late_but_not_overtaken_is_taken_and_says_so(runtime, job):
    lease = runtime.lock(job).body
    lapse(job)
    done = runtime.result(lease)
    assert (done.status, done["late"], done["jobStatus"]) == (200, True, "succeeded")
    assert ExtractedText.objects.filter(job_id=job.pk).count() == 1
    job.refresh_from_db()
    assert job.attempt_no == 1


def test_s04_a_late_heartbeat_goes_on_with_the_same_attempt(runtime, job):
    lease = runtime.lock(job).body
    lapse(job)
    asked = runtime.snapshot(lease)
    assert (asked.status, asked.code, asked["retryable"], asked["details"]) == (409, "job_lock_lost", True, {"leaseExpired": True})
    assert runtime.resolve(lease)["details"] == {"leaseExpired": True}
    beat = runtime.beat(lease)
    assert (beat.status, beat["late"], beat["directive"]) == (200, True, "continue")
    assert runtime.snapshot(lease).status == 200
    assert status_of(job) == "running"


def test_s05_a_heartbeat_after_takeover_is_not_retryable(runtime, job):
    first, _, _ = overtaken(runtime, job)
    answer = runtime.beat(first)
    assert (answer.status, answer["retryable"]) == (409, False)


def test_s08_a_repeated_heartbeat_never_moves_the_lease_backwards(runtime, job):
    lease = runtime.lock(job, leaseSeconds=100).body
    first, second = runtime.beat(lease, leaseSeconds=100), runtime.beat(lease, leaseSeconds=10)
    assert first.status == second.status == 200
    assert second["lockUntil"] >= first["lockUntil"]


def test_s10_heartbeats_progress_and_logs_never_make_a_job_visible(runtime, job):
    lease = runtime.lock(job).body
    other = runtime.named("runtime-2")
    for call in (lambda: runtime.beat(lease), lambda: runtime.beat(lease, progress=10), lambda: runtime.log(lease, usage())):
        assert call().status == 200
        assert other.poll()["jobs"] == []


def test_s12_an_offer_whose_answer_was_lost_is_free_again_and_cost_no_attempt(runtime, job):
    assert len(runtime.poll()["jobs"]) == 1
    other = runtime.named("runtime-2")
    assert other.poll()["jobs"] == []
    assert (other.lock(job).status, other.lock(job).code) == (409, "job_lock_conflict")
    AiRuntimeJob.objects.update(offer_until=F("offer_until") - timedelta(seconds=10))
    [offer] = other.poll()["jobs"]
    assert offer["attemptsMade"] == 0


def test_s14_a_repeated_lock_gives_the_same_lease(runtime, job):
    request = str(uuid.uuid4())
    first, second = runtime.lock(job, request), runtime.lock(job, request)
    assert (first.status, second.status) == (200, 200)
    assert {**first.body, "serverTime": ""} == {**second.body, "serverTime": ""}
    assert AiJobAttempt.objects.count() == 1
    # Another request, instance or token is somebody else.
    assert runtime.lock(job).code == "job_lock_conflict"
    assert runtime.named("runtime-2").lock(job, request).code == "job_lock_conflict"
    assert runtime.with_token(issue()).lock(job, request).code == "job_lock_conflict"


def test_s14_a_repeated_poll_gives_the_same_leases_and_takes_no_more(runtime, make_job):
    for _ in range(4):
        make_job()
    request = str(uuid.uuid4())
    first, second = runtime.pull(request, maxJobs=2), runtime.pull(request, maxJobs=2)
    assert [offer["lease"]["lockToken"] for offer in first["jobs"]] == [offer["lease"]["lockToken"] for offer in second["jobs"]]
    assert [offer["attemptsMade"] for offer in second["jobs"]] == [0, 0]
    assert AiJobAttempt.objects.count() == 2
    runtime.result(first["jobs"][0]["lease"])
    assert len(runtime.pull(request, maxJobs=2)["jobs"]) == 1  # the one that is still held


def test_s14_a_repeat_survives_a_new_secret_key(runtime, job, settings):
    request = str(uuid.uuid4())
    first = runtime.lock(job, request)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another key of fifty characters and a few more of them", [settings.SECRET_KEY]
    assert runtime.lock(job, request)["lockToken"] == first["lockToken"]
    settings.SECRET_KEY_FALLBACKS = []
    assert runtime.lock(job, request).code == "job_lock_conflict"


def test_s19_a_poll_that_names_two_types_is_woken_by_a_job_of_either():
    room = WaitingRoom(size=2)
    with ThreadPoolExecutor(2) as pool:
        for job_type in ("a", "b"):
            hints = room.hints
            woken = pool.submit(room.wait, frozenset({"a", "b"}), 20, hints)
            other = pool.submit(room.wait, frozenset({"c"}), 0.2, hints)
            wait_for(lambda: room.occupied == 2, 5)
            room.wake({job_type: 1}, hints)
            assert woken.result(5) is True
            assert other.result(5) is False


def test_s20_a_long_wait_is_clamped_not_refused(runtime):
    empty = runtime.poll(waitSeconds=600, maxJobs=1_000)
    assert (empty.status, empty["jobs"]) == (200, [])


def test_s25_one_tenant_cannot_keep_another_waiting(runtime, make_job):
    for _ in range(1_000):
        make_job()
    other = make_job(user=UserFactory())
    first_three = [runtime.take()["jobId"] for _ in range(3)]  # one more than there are tenants
    assert str(other.pk) in first_three


def test_s26_a_repeated_result_gets_the_first_answer_also_after_the_end(runtime, job):
    lease = runtime.lock(job).body
    first = runtime.result(lease)
    second = runtime.result(lease)
    assert second.status == 200
    assert second.body == {**first.body, "duplicate": True}
    job.refresh_from_db()
    assert job.status == "succeeded"
    assert AiRuntimeResult.objects.count() == 1


def test_s26_a_repeated_failure_gets_the_first_answer_also_when_overtaken(runtime, job):
    lease = runtime.lock(job).body
    first = runtime.fail(lease)
    due(job.pk)
    runtime.named("runtime-2").lock(job)
    second = runtime.fail(lease)
    assert (second.status, second.body) == (200, {**first.body, "duplicate": True})


def test_s27_another_result_of_the_same_attempt_is_a_conflict(runtime, job):
    lease = runtime.lock(job).body
    runtime.result(lease)
    before = written(job)
    other = runtime.result(lease, RAW.replace("A river", "A stream"))
    assert (other.status, other.code) == (409, "result_conflict")
    assert written(job) == before


def test_s27_an_idempotency_key_of_another_job_is_a_conflict(runtime, make_job):
    one, two = make_job(), make_job()
    runtime.result(runtime.lock(one).body, resultIdempotencyKey="mine")
    before = written(two)
    lease = runtime.lock(two).body
    before = written(two)
    assert runtime.result(lease, resultIdempotencyKey="mine").code == "result_conflict"
    assert written(two) == before


def test_s27_the_key_that_another_job_would_get_by_default_is_a_conflict_there(runtime, make_job):
    """A job's own key is not looked for before its result is stored: then the unique index says that it is taken."""
    one, two = make_job(), make_job()
    lease = runtime.lock(two).body
    taken = f"{two.pk}:1:{sha(RAW)}"
    assert runtime.result(runtime.lock(one).body, resultIdempotencyKey=taken).status == 200
    before = written(two)
    assert runtime.result(lease).code == "result_conflict"
    assert written(two) == before
    assert runtime.result(lease, resultIdempotencyKey="another").status == 200


def test_s27_a_failure_after_success_and_a_success_after_failure_are_too_late(runtime, make_job):
    one, two = make_job(), make_job()
    lease = runtime.lock(one).body
    runtime.result(lease)
    assert runtime.fail(lease).code == "job_already_finished"
    lease = runtime.lock(two).body
    runtime.fail(lease, retryable=False)
    assert runtime.result(lease).code == "job_already_finished"


def test_s28_the_database_itself_refuses_a_second_success(runtime, job):
    first, other, second = overtaken(runtime, job)
    assert (other.result(second).status, runtime.result(first).code) == (200, "job_lock_lost")
    row = AiRuntimeResult.objects.get()
    with pytest.raises(IntegrityError, match="result_one_success_per_job"):
        AiRuntimeResult.objects.create(
            id=uuid.uuid4(), job=job, user=row.user, runtime_instance_id="x", status="succeeded", attempt_no=1, output_hash="x",
            result_idempotency_key="x", raw_output="x", validated_output={}, schema_version="1",
        )  # fmt: skip


def test_s32_an_output_that_is_too_large_is_413_and_leaves_the_lease(runtime, job):
    lease = runtime.lock(job).body
    before = written(job)
    answer = runtime.result(lease, "x" * 1_048_577)
    assert (answer.status, answer.code, answer["retryable"]) == (413, "payload_too_large", False)
    assert answer["details"]["maxBytes"] == 1_048_576
    assert written(job) == before
    assert runtime.fail(lease, "output_too_large", retryable=False)["jobStatus"] == "failed"


def test_s32_a_body_that_is_too_large_is_413_before_it_is_read(runtime, job, settings):
    settings.RUNTIME_MAX_BODY_BYTES = 100_000
    answer = runtime.post("jobs/poll", raw=b"[" * 100_001)
    assert (answer.status, answer.code, answer["details"]) == (413, "payload_too_large", {"maxBytes": 100_000})


def test_s34_text_that_cannot_be_stored_is_replaced_where_people_and_models_write(runtime, make_job):
    one, two = make_job(), make_job()
    raw = f"A\x00 note\ud800.\n```json\n{RAW}\n```"
    done = runtime.result(runtime.lock(one).body, raw, usage=[usage(finishReason="st\x00op\udfff")])
    assert (done.status, done["sanitized"]) == (200, True), done.body
    assert AiRuntimeResult.objects.get().raw_output.startswith("A\ufffd note\ufffd.")
    assert AiUsageLog.objects.get().finish_reason == "st\ufffdop\ufffd"
    failed = runtime.fail(runtime.lock(two).body, message="bro\x00ken")
    assert (failed.status, failed["sanitized"]) == (200, True)


def test_s37_a_poison_job_ends_when_its_lapses_are_used_up(runtime, job):
    for attempt in range(1, 5):
        assert runtime.take()["attemptNo"] == attempt
        lapse(job)
    job.refresh_from_db()
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "lease_expired", 4)
    assert runtime.pull()["jobs"] == []


def test_s38_lapses_are_not_failures_of_the_job(runtime, job):
    runtime.take()
    lapse(job)
    job.refresh_from_db()
    assert (job.retry_count, job.lapse_count) == (0, 1)
    assert runtime.fail(runtime.take())["retryCount"] == 1


def test_s39_a_hand_back_is_offered_at_once_and_charged_to_nobody(runtime, job):
    runtime.release(runtime.lock(job).body)
    [offer] = runtime.named("runtime-2").poll()["jobs"]
    assert offer["jobId"] == str(job.pk)
    job.refresh_from_db()
    assert (job.retry_count, job.lapse_count) == (0, 0)


def test_s42_a_key_that_cannot_be_had_is_424_and_the_attempt_fails_with_it(runtime, job, credential):
    lease = runtime.lock(job).body
    revoke_credential(credential.pk)
    answer = runtime.resolve(lease)
    assert (answer.status, answer.code, answer["retryable"]) == (424, "credential_unavailable", False)
    assert not job.events.filter(name="credential.resolved").exists()
    assert runtime.fail(lease, "credential_unavailable", retryable=False)["jobStatus"] == "failed"


def test_s43_a_cancel_is_seen_by_the_next_heartbeat_and_refuses_the_result(runtime, job):
    lease = runtime.lock(job).body
    cancel_job(job.pk, actor=SYSTEM)
    beat = runtime.beat(lease)
    assert (beat.status, beat["directive"], beat["cancelRequested"]) == (200, "cancel", True)
    assert (runtime.resolve(lease).status, runtime.resolve(lease).code) == (409, "job_cancelled")
    refused = runtime.result(lease, usage=[usage()])
    assert (refused.status, refused.code) == (409, "job_cancelled")
    assert status_of(job) == "cancelled"
    assert not ExtractedText.objects.exists()
    assert AiUsageLog.objects.filter(job=job).count() == 1
    assert runtime.result(lease)["details"]["duplicate"] is True
    assert runtime.beat(lease).code == "job_cancelled"


@pytest.mark.parametrize("end", ["fail", "release"])
def test_s43_a_failure_or_release_after_a_cancel_request_ends_it_as_cancelled(runtime, job, end):
    lease = runtime.lock(job).body
    cancel_job(job.pk, actor=SYSTEM)
    answer = getattr(runtime, end)(lease)
    assert (answer.status, answer["jobStatus"]) == (200, "cancelled")


def test_s49_credentials_follow_the_lease(runtime, make_job):
    one, two = make_job(), make_job()
    first, _, _ = overtaken(runtime, one)
    assert runtime.resolve(first).code == "job_lock_lost"
    lease = runtime.lock(two).body
    assert runtime.resolve({**lease, "jobId": str(one.pk)}).code == "job_lock_lost"
    runtime.result(lease)
    assert (runtime.resolve(lease).status, runtime.resolve(lease).code) == (409, "job_already_finished")


def test_s50_a_token_is_rotated_without_a_failed_call(runtime, job):
    from runtime_jobs.services.service_tokens import revoke

    lease = runtime.lock(job).body
    renewed = runtime.with_token(issue())
    assert renewed.beat(lease).status == runtime.beat(lease).status == 200
    revoke(runtime.token.split("_")[1])
    assert renewed.result(lease).status == 200
    refused = runtime.poll()
    assert (refused.status, refused.code) == (401, "token_revoked")


def test_s51_another_groups_queue_is_refused_and_its_jobs_do_not_exist(runtime, job, monkeypatch):
    from runtime_jobs import registry

    kind = type("Other", (type(registry.get(JOB_TYPE)),), {"job_type": "other.runtime"})
    monkeypatch.setitem(registry._definitions, "other.runtime", kind())
    stranger = runtime.with_token(issue(job_types=["other.runtime"]))
    lease = runtime.lock(job).body
    before = written(job)
    asked = stranger.poll(jobTypes=[JOB_TYPE])
    assert (asked.status, asked.code) == (403, "scope_denied")
    assert stranger.poll()["jobs"] == []
    calls = (stranger.lock(job), stranger.beat(lease), stranger.snapshot(lease), stranger.resolve(lease), stranger.result(lease),
             stranger.fail(lease), stranger.release(lease))  # fmt: skip
    assert {(answer.status, answer.code) for answer in calls} == {(404, "job_not_found")}
    assert stranger.log(lease, usage())["rejected"][0]["errorCode"] == "job_not_found"
    assert written(job) == before


def test_usage_is_taken_from_an_overtaken_attempt_for_a_day(runtime, job):
    first, _, _ = overtaken(runtime, job)
    assert runtime.log(first, usage("a")).body["accepted"] == 1
    assert runtime.log(first, usage("a")).body["duplicates"] == 1
    assert runtime.result(first, usage=[usage("b")]).status == 409
    assert set(AiUsageLog.objects.values_list("invocation_id", flat=True)) == {"a", "b"}
    AiJobAttempt.objects.filter(attempt_no=1).update(ended_at=F("ended_at") - timedelta(hours=25))
    assert runtime.log(first, usage("c"))["rejected"] == [{"index": 0, "invocationId": "c", "errorCode": "job_already_finished"}]


def test_usage_of_a_rejected_output_is_stored_all_the_same(runtime, job):
    lease = runtime.lock(job).body
    assert runtime.result(lease, "{}", usage=[usage()]).status == 422
    mismatch = runtime.lock(job)
    assert mismatch.code == "job_already_finished"
    assert AiUsageLog.objects.count() == 1


def test_a_wrong_hash_is_422_and_leaves_the_lease(runtime, job):
    lease = runtime.lock(job).body
    before = written(job)
    wrong = runtime.result(lease, outputHash=sha("something else"))
    assert (wrong.status, wrong.code) == (422, "output_hash_mismatch")
    assert written(job) == before
    assert runtime.result(lease).status == 200


def test_a_job_that_is_not_due_or_paused_is_not_lockable(runtime, make_job):
    from runtime_jobs.services import gates

    one = make_job()
    runtime.fail(runtime.lock(one).body, retryAfterSeconds=60)
    early = runtime.lock(one)
    assert (early.status, early.code, early["retryable"]) == (409, "job_not_lockable", True)
    two = make_job()
    gates.pause(gates.Kind.JOB_TYPE, JOB_TYPE, actor=SYSTEM)
    assert runtime.lock(two).code == "job_not_lockable"
    gates.resume(gates.Kind.JOB_TYPE, JOB_TYPE)
    cancel_job(two.pk, actor=SYSTEM)
    assert runtime.lock(two).code == "job_cancelled"


def test_a_projector_that_raises_is_an_error_of_ours_and_the_attempt_is_over(runtime, job, monkeypatch):
    from runtime_jobs import registry

    monkeypatch.setattr(type(registry.get(JOB_TYPE)), "project", lambda *_: 1 / 0)
    lease = runtime.lock(job).body
    answer = runtime.result(lease)
    assert (answer.status, answer.code, answer["retryable"]) == (500, "internal_error", False)
    assert answer["details"]["jobStatus"] == "retrying"
    assert "ZeroDivision" not in str(answer.body)
    assert runtime.result(lease)["details"]["duplicate"] is True
    assert not ExtractedText.objects.exists()


def test_a_check_that_raises_is_an_error_of_ours_and_the_attempt_is_over(runtime, job, monkeypatch):
    from runtime_jobs import registry

    monkeypatch.setattr(type(registry.get(JOB_TYPE)), "validate_business", lambda *_: 1 / 0)
    answer = runtime.result(runtime.lock(job).body)
    assert (answer.status, answer.code, answer["details"]["jobStatus"]) == (500, "internal_error", "retrying")


@pytest.mark.django_db(transaction=True)
def test_s06_a_result_and_the_reaper_have_one_outcome(make_job, credential):
    token = issue()
    first, lates = threading.Barrier(2, timeout=30), set()

    def submit(lease):
        first.wait()
        return Runtime(through(Client()), token).result(lease)

    for _ in range(500):
        make_job()
    runtime = Runtime(through(Client()), token)
    leases = [offer["lease"] for _ in range(16) for offer in runtime.pull(maxJobs=32)["jobs"]]
    run_out(*(lease["jobId"] for lease in leases))
    tokens = {pk: str(token) for pk, token in AiRuntimeJob.objects.values_list("pk", "lock_token")}
    with ThreadPoolExecutor(1) as holder:
        for round_no, lease in enumerate(leases):
            job_id = uuid.UUID(lease["jobId"])
            answering = holder.submit(submit, lease)
            first.wait()
            # A result is a longer way than a lapse: now and then it gets a start, so that both orders are met.
            if round_no % 2:
                wait([answering], timeout=round_no % 40 / 1_000)
            lapsed = lapses._lapse_one(job_id, tokens[job_id])
            answer = answering.result(30)
            # A late holder that nobody has overtaken is taken too (S04): both orders end in the one success of the one attempt.
            assert (answer.status, answer["late"]) == (200, lapsed), answer.body
            lates.add(lapsed)
        holder.submit(connections.close_all).result()
    assert lates == {True, False}
    assert AiRuntimeJob.objects.filter(status="succeeded", attempt_no=1).count() == len(leases) == 500
    assert AiRuntimeResult.objects.count() == ExtractedText.objects.count() == AiJobAttempt.objects.count() == 500


@pytest.mark.django_db(transaction=True)
def test_s28_of_two_attempts_that_finish_together_one_succeeds(make_job, credential):
    token = issue()
    runtime = Runtime(through(Client()), token)
    together = threading.Barrier(2, timeout=30)

    def submit(speaker, lease):
        together.wait()
        return speaker.result(lease, RAW if speaker is runtime else RAW.replace("A river", "A stream"))

    def close(_):
        together.wait()  # each of the two threads once
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            stale, other, current = overtaken(runtime, make_job())
            answers = [future.result() for future in [pool.submit(submit, runtime, stale), pool.submit(submit, other, current)]]
            assert [(answer.status, answer.code) for answer in answers] == [(409, "job_lock_lost"), (200, None)]
        list(pool.map(close, range(2)))
    assert AiRuntimeResult.objects.filter(status="succeeded", attempt_no=2).count() == AiRuntimeResult.objects.count() == 30


@pytest.mark.django_db(transaction=True)
def test_s15_a_claim_storm_gives_each_job_to_one_and_nobody_a_conflict(make_job, credential):
    token = issue()

    def storm(pollers):
        answers = []

        def one(number):
            answers.append(Runtime(through(Client()), token, f"runtime-{number}").poll())
            connection.close()

        threads = [threading.Thread(target=one, args=(number,)) for number in range(pollers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {answer.status for answer in answers} == {200}
        return [offer["jobId"] for answer in answers for offer in answer["jobs"]]

    make_job()
    assert len(storm(20)) == 1
    for _ in range(20):
        make_job()
    offered = storm(20)
    assert len(offered) == len(set(offered)) == 20


@pytest.mark.django_db(transaction=True)
def test_s14_a_request_and_its_repeat_at_once_take_one_job(make_job, credential):
    token = issue()
    for _ in range(4):
        make_job()
    request, answers = str(uuid.uuid4()), []

    def one():
        answers.append(Runtime(through(Client()), token).pull(request))
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({offer["lease"]["lockToken"] for answer in answers for offer in answer["jobs"]}) == 1
    assert AiJobAttempt.objects.count() == 1
