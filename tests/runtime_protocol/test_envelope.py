"""Every failure is JSON of one form, whoever made it; and one rule for what JSON may hold."""

import json
import uuid

import pytest
from django.db import OperationalError

from runtime_protocol import dto
from runtime_protocol.errors import CODES
from tests.runtime_protocol.conftest import OUTPUT, RAW, sha, usage, written
from tests.runtime_protocol.test_security import ANY_ID

pytestmark = pytest.mark.django_db

POSTS = {
    "jobs/poll": dto.RuntimePollJobsRequestDto, f"jobs/{ANY_ID}/lock": dto.RuntimeLockJobRequestDto,
    f"jobs/{ANY_ID}/heartbeat": dto.RuntimeHeartbeatRequestDto, "jobs/heartbeat": dto.RuntimeBatchHeartbeatRequestDto,
    "model-credentials/resolve": dto.RuntimeResolveCredentialRequestDto, f"jobs/{ANY_ID}/result": dto.RuntimeSubmitResultRequestDto,
    f"jobs/{ANY_ID}/fail": dto.RuntimeSubmitFailureRequestDto, f"jobs/{ANY_ID}/release": dto.RuntimeReleaseJobRequestDto,
    "invocation-logs": dto.RuntimeInvocationLogsRequestDto,
}  # fmt: skip


def is_envelope(answer, status, code):
    assert (answer.status, answer.code) == (status, code), answer.body
    assert set(answer.body) <= {"errorCode", "message", "retryable", "requestId", "details"}
    assert isinstance(answer["message"], str)
    assert isinstance(answer["retryable"], bool)
    assert answer["requestId"] == answer.headers["X-Request-Id"]
    assert answer.headers["X-Protocol-Version"] == "1.0"
    assert CODES[code].status == status
    return True


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "syntax"), (b"{", "syntax"), (b"{} {}", "syntax"), (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "too_deep"),
        (b'{"runtimeInstanceId": "a", "runtimeInstanceId": "b"}', "duplicate_key"), (b'{"x": NaN}', "not_a_number"),
        (b'{"x": -Infinity}', "not_a_number"), (b'{"x": 1e999}', "number_out_of_range"),
        (b'{"x": 9223372036854775808}', "number_out_of_range"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "number_out_of_range"), (b'{"x": "\xff"}', "not_utf8"),
    ],
)  # fmt: skip
def test_s34_json_that_is_not_taken_is_400_on_every_endpoint(runtime, path, body, reason):
    answer = runtime.post(path, raw=body)
    assert is_envelope(answer, 400, "malformed_json")
    assert answer["details"]["reason"] == reason


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"x"', b'{"b\\u0000\\ud800": 1}', b'{"runtimeInstanceId": "a\\u0000"}', b"{}"])
def test_s34_values_of_another_form_are_400_on_every_endpoint(runtime, path, body):
    assert is_envelope(runtime.post(path, raw=body), 400, "validation_failed")


@pytest.mark.parametrize(("path", "form"), POSTS.items())
def test_a_field_that_this_version_does_not_know_is_named(runtime, path, form):
    answer = runtime.post(path, {**form.example, "newField": 1})
    assert is_envelope(answer, 400, "validation_failed")
    assert answer["details"]["issues"][0] == {
        "path": "/newField", "rule": "unknown", "message": "There is no such field in this version of the protocol."
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("runtimeInstanceId", [1, "", "a b", "x" * 129, "a\n", None, ["a"]]),
        ("jobTypes", ["a", {"a": 1}, [1], [None], [""]]),
        ("maxJobs", ["1", True, 0, 1.5, -1]),
        ("waitSeconds", ["1", True, -1]),
        ("autoLock", ["true", 1, 0]),
        ("requestId", [1, "x", "01932f5e8d3c7b1a9f003c5d2a7e4b10", "{01932f5e-8d3c-7b1a-9f00-3c5d2a7e4b10}"]),
        ("labels", [[], {"a": 1}, {"a": None}, {"": "x"}, {"a\x00": "x"}, {"a": "\x00"}, {str(n): "" for n in range(33)}]),
        ("runtimeVersion", [1, "x" * 101, "\x00"]),
    ],
)
def test_types_are_strict_and_the_place_is_named(runtime, field, values):
    for value in values:
        answer = runtime.poll(**{field: value})
        assert is_envelope(answer, 400, "validation_failed"), value
        assert answer["details"]["issues"][0]["path"].startswith(f"/{field}")


def test_an_optional_field_may_be_null(runtime):
    assert runtime.poll(jobTypes=None, maxJobs=None, waitSeconds=None, autoLock=None, requestId=None, labels=None).status == 200


def test_auto_lock_needs_a_request_id(runtime):
    answer = runtime.poll(autoLock=True)
    assert answer["details"]["issues"][0]["path"] == "/requestId"


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint": "\x00"}, {"checkpoint": {"\ud800": 1}}, {"checkpoint": ["x" * 16_400]}, {"progress": 101}, {"progress": 1.5},
        {"progressMessage": "x" * 201}, {"leaseSeconds": "60"}, {"attemptNo": 0}, {"attemptNo": 2**31},
    ],
)  # fmt: skip
def test_what_a_heartbeat_may_not_hold(runtime, job, wrong):
    lease = runtime.lock(job).body
    before = written(job)
    assert is_envelope(runtime.beat(lease, **wrong), 400, "validation_failed")
    assert is_envelope(runtime.beat_all({**lease}, **wrong), 400, "validation_failed")
    assert written(job) == before


def test_a_validated_output_that_cannot_be_stored_is_400_and_leaves_the_lease(runtime, job):
    lease = runtime.lock(job).body
    before = written(job)
    for wrong in ({**OUTPUT, "summary": "\x00"}, {"\udfff": 1}, "text", 1):
        assert is_envelope(runtime.result(lease, validatedOutput=wrong), 400, "validation_failed")
    assert written(job) == before


@pytest.mark.parametrize("cost", ["-1", "1e3", "1.123456789", 1, "NaN", ""])
def test_a_cost_is_decimal_text(runtime, job, cost):
    lease = runtime.lock(job).body
    assert is_envelope(runtime.log(lease, usage(costUsd=cost)), 400, "validation_failed")


def test_the_job_of_the_body_is_the_paths(runtime, make_job):
    one, two = make_job(), make_job()
    lease = runtime.lock(one).body
    body = {"jobId": str(one.pk), **runtime.holder(lease), "schemaVersion": "1", "rawOutput": RAW, "outputHash": sha(RAW)}
    assert is_envelope(runtime.post(f"jobs/{two.pk}/result", body), 400, "job_id_mismatch")
    body = {"jobId": str(one.pk), **runtime.holder(lease), "errorCode": "x", "message": "", "retryable": True}
    assert is_envelope(runtime.post(f"jobs/{two.pk}/fail", body), 400, "job_id_mismatch")


@pytest.mark.parametrize("path", ["jobs/poll/", "", "jobs", "nothing", f"jobs/{ANY_ID}/lock/", "health/"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT", "DELETE"])
def test_s36_unknown_paths_and_trailing_slashes_are_404_in_json(runtime, method, path):
    assert is_envelope(runtime.call(method, path), 404, "not_found")


@pytest.mark.parametrize("path", ["/internal", "/internal/", "/internal/other"])
def test_s36_also_outside_of_the_protocol(client, path):
    response = client.get(path)
    assert (response.status_code, response.json()["errorCode"]) == (404, "not_found")
    assert response["X-Request-Id"] == response.json()["requestId"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_s36_another_method_is_405_and_says_which(runtime, method):
    answer = runtime.call(method, "jobs/poll")
    assert is_envelope(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "text/plain"}, {"Content-Type": ""}, {"Content-Encoding": "gzip"}, {"Content-Type": "multipart/form-data"}]
)
def test_s36_another_media_type_is_415(runtime, headers):
    assert is_envelope(runtime.call("POST", "jobs/poll", raw=b"{}", headers=headers), 415, "unsupported_media_type")


def test_another_form_of_answer_is_406(runtime):
    assert is_envelope(runtime.get("health", headers={"Accept": "text/html"}), 406, "not_acceptable")


@pytest.mark.parametrize(
    ("version", "status"), [("1.0", 200), ("1.7", 200), ("0.9", 426), ("2.0", 426), ("one", 400), ("1", 400), ("1.0.0", 400)]
)
def test_the_protocol_version(runtime, version, status):
    answer = runtime.get("health", headers={"X-Protocol-Version": version})
    assert answer.status == status
    if status == 426:
        assert is_envelope(answer, 426, "upgrade_required")
        assert answer["details"] == {"protocolVersion": "1.0", "minProtocolVersion": "1.0"}


def test_s36_an_unforeseen_error_is_500_in_json_without_its_text(runtime, monkeypatch, caplog):
    from runtime_protocol import polling

    def broken(_):
        raise KeyError("a secret")

    monkeypatch.setattr(polling, "poll", broken)
    answer = runtime.poll()
    assert is_envelope(answer, 500, "internal_error")
    assert "a secret" not in str(answer.body) + caplog.text
    assert "builtins.KeyError" in caplog.text


def test_a_database_that_does_not_answer_is_503_with_retry_after(runtime, monkeypatch):
    from runtime_protocol import polling

    def away(_):
        raise OperationalError("server closed the connection to 10.0.0.7")

    monkeypatch.setattr(polling, "poll", away)
    answer = runtime.poll()
    assert is_envelope(answer, 503, "unavailable")
    assert (answer.headers["Retry-After"], answer["retryable"]) == ("2", True)
    assert "10.0.0.7" not in str(answer.body)


def test_s36_djangos_own_400_is_json_too(client, runtime, settings):
    settings.ALLOWED_HOSTS = ["only.example"]
    response = client.get("/internal/runtime/health", headers={"Authorization": f"Bearer {runtime.token}"})
    assert (response.status_code, response.json()["errorCode"]) == (400, "validation_failed")


def test_s36_an_exception_of_a_middleware_is_json_too(client, monkeypatch):
    from django.middleware.common import CommonMiddleware

    client.raise_request_exception = False
    monkeypatch.setattr(CommonMiddleware, "process_request", lambda *_: 1 / 0)
    response = client.get("/internal/runtime/health")
    assert (response.status_code, response.json()["errorCode"], response.json()["retryable"]) == (500, "internal_error", True)


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("é", False)])
def test_a_request_id_is_kept_when_it_can_be_logged(runtime, given, kept):
    answer = runtime.get("health", headers={"X-Request-Id": given})
    assert (answer.headers["X-Request-Id"] == given) is kept
    if not kept:
        uuid.UUID(answer.headers["X-Request-Id"])


def test_health_tells_the_limits(runtime):
    assert runtime.get("health")["limits"] == dto.RuntimeLimitsDto.example
    assert runtime.get("health")["databaseOk"] is True


def test_answers_are_not_cached(runtime):
    for answer in (runtime.poll(), runtime.get("health"), runtime.get("nothing"), runtime.post("jobs/poll", raw=b"{")):
        assert answer.headers["Cache-Control"] == "no-store"
    assert json.dumps(answer.body)
