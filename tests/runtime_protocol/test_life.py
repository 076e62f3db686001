"""The life of a job over the protocol, from poll to result, and what each answer holds."""

import uuid

import pytest

from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiUsageLog, RuntimeInstance
from runtime_jobs.synthetic.models import ExtractedText
from tests.factories import KEY
from tests.runtime_protocol.conftest import JOB_TYPE, OUTPUT, RAW, due, lapse, sha, status_of, usage

pytestmark = pytest.mark.django_db


def test_a_job_goes_from_offer_over_lock_to_a_projected_result(runtime, job):
    polled = runtime.poll()
    assert polled.status == 200
    [offer] = polled["jobs"]
    assert (offer["jobId"], offer["jobType"], offer["attemptsMade"], offer["offerSeconds"]) == (str(job.pk), JOB_TYPE, 0, 10.0)
    assert "lease" not in offer
    lease = runtime.lock(job).body
    assert (lease["attemptNo"], lease["lockedBy"], lease["leaseSeconds"], lease["heartbeatIntervalSeconds"]) == (1, "runtime-1", 60.0, 10.0)
    snapshot = runtime.snapshot(lease)
    assert snapshot.status == 200
    assert snapshot["payload"] == job.snapshot.payload
    key = runtime.resolve(lease)
    assert (key.status, key["apiKey"], key.headers["Cache-Control"]) == (200, KEY, "no-store")
    assert runtime.beat(lease, progress=40, progressMessage="half", checkpoint={"page": 3})["directive"] == "continue"
    assert runtime.log(lease, usage()).body == {"accepted": 1, "duplicates": 0, "rejected": [], "sanitized": False}
    done = runtime.result(lease, validatedOutput=OUTPUT)
    assert done.status == 200, done.body
    assert (done["status"], done["jobStatus"], done["duplicate"], done["late"]) == ("succeeded", "succeeded", False, False)
    assert status_of(job) == "succeeded"
    assert ExtractedText.objects.get(job_id=job.pk).summary == "A river."
    assert [e.name for e in job.events.order_by("seq")] == ["job.created", "job.claimed", "credential.resolved", "job.succeeded"]


def test_a_raw_output_is_repaired_and_validated_as_the_engines(runtime, job):
    lease = runtime.take()
    done = runtime.result(lease, f"Here you are:\n```json\n{RAW}\n```")
    assert done.status == 200, done.body
    assert job.results.get().repairs


def test_a_result_that_fails_the_chain_is_stored_as_rejected_and_ends_the_attempt(runtime, job):
    lease = runtime.take()
    wrong = runtime.result(lease, '{"summary": "x", "facts": [{"text": "y", "paragraph": "p9"}]}')
    assert (wrong.status, wrong.code, wrong["retryable"]) == (422, "reference_validation_failed", False)
    assert wrong["details"]["jobStatus"] == "failed"
    assert wrong["details"]["validationErrors"][0]["path"] == "/facts/0/paragraph"
    assert job.results.get().status == "rejected"
    again = runtime.result(lease, '{"summary": "x", "facts": [{"text": "y", "paragraph": "p9"}]}')
    assert (again.status, again["details"]["duplicate"]) == (422, True)


def test_a_failure_is_retried_within_the_budget_and_no_earlier_than_asked(runtime, job):
    lease = runtime.take()
    failed = runtime.fail(lease, "provider_rate_limited", retryAfterSeconds=30, usage=[usage(errorCode="provider_rate_limited")])
    assert failed.status == 200, failed.body
    assert (failed["jobStatus"], failed["retryCount"], failed["maxRetryCount"], failed["truncated"]) == ("retrying", 1, 3, False)
    assert failed["nextAttemptAt"] > lease["serverTime"]
    assert AiUsageLog.objects.get(job=job).outcome == "failed"
    due(job.pk)
    assert runtime.take()["attemptNo"] == 2


def test_an_unknown_error_code_is_stored_as_internal_error_with_the_original(runtime, job):
    runtime.fail(runtime.take(), "gpu_on_fire\ud800", retryable=False)
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "internal_error")
    assert "gpu_on_fire" in job.internal_error


def test_a_long_message_is_cut_and_flagged(runtime, job):
    answer = runtime.fail(runtime.take(), message="é" * 20_000)
    assert answer["truncated"] is True
    job.refresh_from_db()
    assert len(job.internal_error.encode()) <= 16_384
    assert job.internal_error.endswith("[cut]")


def test_a_released_job_goes_on_elsewhere_at_once_and_costs_nothing(runtime, job):
    lease = runtime.take()
    assert runtime.release(lease, reason="shutdown").body == {
        "jobId": str(job.pk), "jobStatus": "retrying", "attemptNo": 1, "duplicate": False
    }  # fmt: skip
    assert runtime.release(lease)["duplicate"] is True
    assert runtime.named("runtime-2").take()["attemptNo"] == 2
    job.refresh_from_db()
    assert (job.retry_count, job.lapse_count, job.release_count) == (0, 0, 1)


def test_the_last_checkpoint_is_handed_to_the_next_attempt(runtime, job):
    lease = runtime.take()
    runtime.beat(lease, checkpoint={"page": 3, "notes_so_far": ["snake_case stays"]})
    lapse(job)
    assert runtime.named("runtime-2").take()["checkpoint"] == {"page": 3, "notes_so_far": ["snake_case stays"]}


def test_a_lease_is_clamped_and_never_passes_the_deadline(runtime, make_job):
    make_job(timeout_seconds=30)
    lease = runtime.take(leaseSeconds=1)
    assert lease["leaseSeconds"] == 10.0
    assert runtime.beat(lease, leaseSeconds=900)["lockUntil"] == lease["deadlineAt"]
    make_job(timeout_seconds=20)
    second = runtime.take(leaseSeconds=900)
    assert second["lockUntil"] == second["deadlineAt"]


def test_a_batch_of_heartbeats_answers_a_lost_job_as_a_row(runtime, make_job, django_assert_num_queries):
    for _ in range(3):
        make_job()
    kept, lost, cancelled = (offer["lease"] for offer in runtime.pull(maxJobs=3)["jobs"])
    lapse(lost["jobId"])
    runtime.named("runtime-2").take()
    from runtime_jobs.services.events import SYSTEM
    from runtime_jobs.services.jobs import cancel_job

    cancel_job(uuid.UUID(cancelled["jobId"]), actor=SYSTEM)
    answer = runtime.beat_all(kept, lost, cancelled)
    assert answer.status == 200, answer.body
    assert [row["directive"] for row in answer["jobs"]] == ["continue", "stop", "cancel"]
    assert answer["jobs"][1]["reason"] == "job_lock_lost"


def test_a_batch_of_many_costs_as_many_queries_as_one(runtime, make_job, django_assert_num_queries):
    for _ in range(20):
        make_job()
    leases = [offer["lease"] for offer in runtime.pull(maxJobs=20)["jobs"]]
    runtime.beat_all(leases[0])
    with django_assert_num_queries(3) as one:
        runtime.beat_all(leases[0])
    with django_assert_num_queries(len(one)):
        runtime.beat_all(*leases)


def test_s45_a_runtime_that_is_to_drain_goes_on_beating_and_gets_nothing_new(runtime, job):
    runtime.poll(jobTypes=[], runtimeVersion="1.2", labels={"zone": "a"})
    row = RuntimeInstance.objects.get(name="runtime-1")
    assert (row.kind, row.lane, row.version, row.labels, row.job_types) == ("runtime", "runtime", "1.2", {"zone": "a"}, [JOB_TYPE])
    lease = runtime.lock(job).body
    RuntimeInstance.objects.update(draining=True)
    beat = runtime.beat(lease, leaseSeconds=100)
    assert (beat.status, beat["directive"]) == (200, "drain")
    assert beat["lockUntil"] > lease["lockUntil"]
    empty = runtime.poll()
    assert (empty["directive"], empty["jobs"], empty["pollAfterSeconds"]) == ("drain", [], 10.0)


def test_a_runtime_cannot_take_the_name_of_an_engine(runtime):
    RuntimeInstance.objects.create(name="host:1:a", kind="engine", lane="interactive")
    assert runtime.named("host:1:a").poll().status == 200
    assert RuntimeInstance.objects.get(name="host:1:a").kind == "engine"


def test_the_snapshot_has_an_etag(runtime, job):
    lease = runtime.take()
    first = runtime.snapshot(lease)
    assert first.headers["ETag"] == f'"{job.snapshot.content_hash}"'
    unchanged = runtime.snapshot(lease, **{"If-None-Match": first.headers["ETag"]})
    assert (unchanged.status, unchanged.body) == (304, "")


def test_only_the_hash_and_a_nonce_of_a_lock_token_are_stored(runtime, job):
    token = runtime.take()["lockToken"]
    attempt = AiJobAttempt.objects.get()
    assert token not in str(list(AiJobAttempt.objects.values())) + str(list(AiRuntimeJob.objects.values()))
    assert attempt.token_nonce
    assert attempt.service_token is not None


def _result_body(runtime, lease):
    return {"jobId": lease["jobId"], **runtime.holder(lease), "schemaVersion": "1", "rawOutput": RAW, "outputHash": sha(RAW)}


def test_ids_of_the_request_are_kept_with_the_job_and_given_back(runtime, job):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = runtime.post(
        f"jobs/{job.pk}/lock", {"runtimeInstanceId": "runtime-1", "requestId": str(uuid.uuid4())},
        headers={"X-Request-Id": "req-1", "traceparent": parent},
    )  # fmt: skip
    assert (answer.headers["X-Request-Id"], answer.headers["traceparent"]) == ("req-1", parent)
    runtime.call("POST", f"jobs/{job.pk}/result", _result_body(runtime, answer.body), headers={"X-Request-Id": "req-2"})
    assert job.events.get(name="job.succeeded").data["request_id"] == "req-2"
    data = job.events.get(name="job.claimed").data
    assert (data["request_id"], data["traceparent"]) == ("req-1", parent)
    assert data["service_token"] in runtime.token
