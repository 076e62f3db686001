"""The customer's acceptance list for the engine, each item over real processes, sockets and the real database."""

import json
import time
import uuid

import pytest

from runtime_jobs import registry
from runtime_jobs.errors import RULES, ErrorCode
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.synthetic.models import ExtractedText
from tests.e2e.test_first_job import RIVERS
from tests.factories import payload
from tests.support.app.ai_jobs import Scripted
from tests.support.processes import wait_for
from tests.support.provider_simulator import Behaviour


def marker():
    return f"marker {uuid.uuid4().hex}"


def answer(content: str, finish_reason: str = "stop") -> Behaviour:
    """The provider gives this text."""
    return Behaviour.raw(
        200,
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "simulator-1",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        },
    )


OK = answer('{"ok": true}')


def run(system, *behaviours, **more):
    """A job of its own whose provider calls are answered so, one after the other; its end and its calls."""
    mark = marker()
    system.provider.script(mark, *behaviours)
    job = system.ended(system.create(mark, **more))
    return job, list(job.usage.order_by("id"))


def test_1_a_normal_run_goes_through_the_whole_chain_to_projected_artifacts(system):
    mark = marker()
    job = system.ended(create_extract(system, f"{RIVERS} {mark}"))
    assert job.status == "succeeded"
    assert job.result.validated_output["facts"]
    assert ExtractedText.objects.filter(job_id=job.pk).count() == 1
    assert len(system.requests(mark)) == 1


def create_extract(system, text):
    from runtime_jobs.services.jobs import create_job

    return create_job(user=system.user, job_type="synthetic.extract_facts", payload=payload(text), target_type="t", target_id="1")


def test_2_a_429_is_retryable_and_goes_back_to_the_queue_until_retry_after_has_passed(system):
    mark = marker()
    system.provider.script(mark, Behaviour.parse("status=429 retry-after=1"), OK)
    job = system.ended(system.create(mark))
    assert (job.status, job.attempt_no, job.retry_count) == ("succeeded", 2, 1)
    first, second = system.requests(mark)
    assert second.at - first.at >= 1
    assert job.events.filter(name="job.retry_scheduled", data__error_code="provider_rate_limited").count() == 1


def test_3_a_500_is_handled_as_unavailable_and_retried(system):
    job, calls = run(system, Behaviour.parse("status=500"), OK)
    assert (job.status, job.attempt_no) == ("succeeded", 2)
    assert [(call.error_code, call.http_status, call.outcome) for call in calls] == [
        ("provider_unavailable", 500, "failed"),
        ("", 200, "succeeded"),
    ]


def test_4_a_provider_timeout_pulls_the_abort_signal_and_is_classified(system):
    mark = marker()
    system.provider.script(mark, Behaviour.parse("delay=30"))
    job = system.ended(system.create(mark, timeout_seconds=1, max_retry_count=0))
    assert (job.status, job.error_code) == ("failed", "provider_timeout")
    (request,) = system.requests(mark)
    wait_for(lambda: system.requests(mark)[0].closed_by_peer_at, 5, "the socket was closed")
    assert 0.8 < system.requests(mark)[0].closed_by_peer_at - request.at < 10  # of 30
    call = job.usage.get()
    assert (call.error_code, call.dispatch) == ("provider_timeout", "sent")


def test_5_illegal_json_that_cannot_be_repaired_is_schema_validation_failed(system):
    job, calls = run(system, answer('{"ok": tru'))
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "schema_validation_failed", 1)
    rejected = job.results.get()
    assert (rejected.status, rejected.raw_output) == ("rejected", '{"ok": tru')
    assert (calls[0].outcome, calls[0].input_tokens, calls[0].output_tokens) == ("succeeded", 11, 7)


def test_5b_json_that_can_be_repaired_is_and_the_repairs_are_recorded(system):
    job, _ = run(system, answer('Here it is:\n```json\n{"ok": true,}\n```'))
    assert job.status == "succeeded"
    assert job.result.repairs


def test_6_output_that_breaks_the_schema_is_permanent(system):
    job, _ = run(system, answer('{"ok": "yes"}'))
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "schema_validation_failed", 1)
    assert [(issue["path"], issue["rule"]) for issue in job.results.get().validation_errors] == [("/ok", "type")]


def test_7_a_business_validation_failure_is_classified(system):
    job, _ = run(system, answer('{"ok": false}'))
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "business_validation_failed", 1)


def test_7b_a_reference_to_something_that_is_not_in_the_input_is_classified_and_writes_nothing(system):
    """provider_calls 32"""
    mark = marker()
    system.provider.script(mark, answer(json.dumps({"summary": "s", "facts": [{"text": "t", "paragraph": "p3"}]})))
    job = system.ended(create_extract(system, f"{RIVERS} {mark}"))
    assert (job.status, job.error_code) == ("failed", "reference_validation_failed")
    assert not ExtractedText.objects.filter(job_id=job.pk).exists()


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("status=401", "provider_auth_failed"),
        ("status=402", "provider_quota_exhausted"),
        ("status=404", "provider_rejected_request"),
        ("status=400 error-code=context_length_exceeded", "context_too_long"),
        ("truncated", "output_truncated"),
        ("length_closed", "output_truncated"),
        ("content_filter", "content_filtered"),
        ("refusal", "content_filtered"),
    ],
)
def test_8_a_permanent_failure_is_not_retried(system, behaviour, code):
    job, calls = run(system, Behaviour.parse(behaviour), OK)
    assert (job.status, job.error_code, job.attempt_no, len(calls)) == ("failed", code, 1, 1)
    assert job.error_message == RULES[ErrorCode(code)].public_error


def test_9_a_retry_that_succeeds_ends_as_succeeded_and_its_error_is_gone(system):
    job, calls = run(system, Behaviour.parse("reset"), Behaviour.parse("html"), OK)
    assert (job.status, job.attempt_no, job.retry_count, job.error_code, job.internal_error) == ("succeeded", 3, 2, "", "")
    assert [call.attempt_no for call in calls] == [1, 2, 3]
    assert list(job.attempts.order_by("attempt_no").values_list("outcome", flat=True)) == ["failed", "failed", "succeeded"]


def test_9b_the_last_failed_retry_makes_the_job_failed_and_attempts_equal_real_executions(system):
    mark = marker()
    system.provider.script(mark, *[Behaviour.parse("status=503")] * 5)
    job = system.ended(system.create(mark))
    assert (job.status, job.error_code, job.attempt_no, job.retry_count) == ("failed", "provider_unavailable", 3, 2)
    assert len(system.requests(mark)) == job.attempts.count() == job.usage.count() == 3
    assert AiRuntimeJob.objects.filter(snapshot=job.snapshot).count() == 1


def test_9c_an_empty_answer_gets_one_more_try(system):
    job, calls = run(system, answer(""), answer(""), OK)
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "invalid_model_output", 2)
    assert len(calls) == 2


def test_10_a_cancel_before_execution_means_no_call_at_all(system):
    mark = marker()
    # Retrying far in the future: it waits.
    system.provider.script(mark, Behaviour.parse("status=429 retry-after=60"))
    waiting = system.has_status(system.create(mark), "retrying")
    cancel_job(waiting.pk, actor=Actor.of(system.user))
    assert AiRuntimeJob.objects.get(pk=waiting.pk).status == "cancelled"
    assert len(system.requests(mark)) == 1


def test_10b_a_cancel_before_the_provider_call_stops_the_executor_by_its_signal(system):
    mark = marker()
    running = system.has_status(system.create(mark, script={"before_call": 30}), "running")
    cancel_job(running.pk, actor=Actor.of(system.user))
    asked = time.monotonic()
    job = system.ended(running)
    assert time.monotonic() - asked < 15  # of 30
    assert (job.status, job.usage.count()) == ("cancelled", 0)
    assert not system.requests(mark)


def test_10c_a_cancel_between_answer_and_projector_means_no_artifact_and_the_tokens_are_kept(system):
    """provider_calls 19"""
    mark = marker()
    system.provider.script(mark, OK)
    created = system.create(mark, script={"in_validation": 1.5})
    wait_for(lambda: system.requests(mark), what="the provider has answered")
    time_to_answer = wait_for(lambda: system.requests(mark)[0].ended_at, what="the answer is out")
    assert time_to_answer
    cancel_job(created.pk, actor=Actor.of(system.user))
    job = system.ended(created)
    assert (job.status, job.results.count()) == ("cancelled", 0)
    call = job.usage.get()
    assert (call.outcome, call.input_tokens, call.output_tokens) == ("succeeded", 11, 7)


def test_11_a_job_type_that_no_worker_knows_fails_as_unknown(system, monkeypatch):
    class Unknown(Scripted):
        job_type = "test.unknown_to_the_engine"

    monkeypatch.setitem(registry._definitions, Unknown.job_type, Unknown())
    job = system.ended(system.create(marker(), job_type=Unknown.job_type), seconds=60)
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "unknown_job_type", 0)


def test_13_every_provider_call_has_a_row_with_job_attempt_mode_error_provider_model_and_tokens(system):
    job, calls = run(system, Behaviour.parse("status=429 retry-after=0"), OK, OK, script={"calls": 2})
    assert [
        (call.attempt_no, call.call_no, call.credential_mode, call.provider, call.model_requested, call.error_code, call.input_tokens)
        for call in calls
    ] == [
        (1, 1, "platform", "simulator", "simulator-1", "provider_rate_limited", None),
        (2, 1, "platform", "simulator", "simulator-1", "", 11),
        (2, 2, "platform", "simulator", "simulator-1", "", 11),
    ]
    assert {call.user_id for call in calls} == {job.user_id}
    assert all(call.closed_at for call in calls)
    seen = {request.client_request_id for request in system.provider.requests}
    assert {str(call.pk) for call in calls} <= seen


@pytest.mark.parametrize("where", ["execute", "validate", "project"])
def test_an_unexpected_fault_is_retried_at_most_twice_logged_with_its_trace_and_quotes_nothing(system, where):
    mark = marker()
    system.provider.script(mark, OK, OK, OK, OK)
    job = system.ended(system.create(mark, script={"raise": where}, max_retry_count=5))
    assert (job.status, job.error_code, job.attempt_no) == ("failed", "internal_error", 3)
    assert job.error_message == "Something went wrong on our side."
    assert "RuntimeError" in job.internal_error
    assert "ai_jobs.py" in job.internal_error
    log = system.engine.log()
    assert "RuntimeError" in log
    # The fault's message quotes the input: it is in no log and in no table but the snapshot.
    assert mark not in log
    assert mark not in job.internal_error
    assert not job.attempts.filter(internal_error__contains=mark).exists()
