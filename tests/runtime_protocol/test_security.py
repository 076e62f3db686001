"""Who gets in, how far they reach, and what is never written down. The lists are issue 5's: Shown by 4 and 5."""

import base64
import io
import logging
import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.core.cache import cache
from django.db import connection
from django.db.models.functions import Now

from runtime_jobs.models import AiUsageLog, RuntimeServiceToken
from runtime_jobs.services import service_tokens
from runtime_jobs.services.credentials import revoke_credential
from tests.factories import KEY, UserFactory
from tests.runtime_protocol.conftest import JOB_TYPE, OUTPUT, RAW, issue, lapse, sha, usage, written

pytestmark = pytest.mark.django_db

ANY_ID = "01932f5e-8d3c-7b1a-9f00-3c5d2a7e4b10"
ENDPOINTS = [
    ("POST", "jobs/poll"), ("POST", f"jobs/{ANY_ID}/lock"), ("POST", f"jobs/{ANY_ID}/heartbeat"), ("POST", "jobs/heartbeat"),
    ("GET", f"jobs/{ANY_ID}/snapshot"), ("POST", "model-credentials/resolve"), ("POST", f"jobs/{ANY_ID}/result"),
    ("POST", f"jobs/{ANY_ID}/fail"), ("POST", f"jobs/{ANY_ID}/release"), ("POST", "invocation-logs"), ("GET", "health"), ("GET", "schema"),
    ("GET", "nothing/here"), ("OPTIONS", "jobs/poll"), ("POST", "jobs/poll/"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "token_missing"),
        ("Basic cm9vdDpyb290", "token_missing"),
        ("Bearer ", "token_missing"),
        ("Bearer nonsense", "token_invalid"),
        ("Bearer rt_0123456789ab_" + "A" * 43, "token_invalid"),
        ("Bearer rt_0123456789ab_ÿ", "token_invalid"),
    ],
)
def test_acceptance_3_every_endpoint_needs_a_service_token(runtime, client, method, path, authorization, code):
    client.force_login(UserFactory(is_superuser=True, is_staff=True))  # a session opens nothing here
    answer = runtime.call(method, path, headers={"Authorization": authorization})
    assert (answer.status, answer.code) == (401, code)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_wrong_secret_says_the_same_whatever_the_token_is(runtime):
    key_id = runtime.token.split("_")[1]
    service_tokens.revoke(key_id)
    forged = runtime.with_token(f"rt_{key_id}_" + "B" * 43).get("health")
    unknown = runtime.with_token("rt_0123456789ab_" + "B" * 43).get("health")
    assert forged.code == unknown.code == "token_invalid"
    assert forged["message"] == unknown["message"]
    assert runtime.get("health").code == "token_revoked"


def test_an_expired_token_is_told_so_only_with_the_right_secret(runtime):
    RuntimeServiceToken.objects.update(expires_at=Now() - timedelta(seconds=1))
    assert runtime.get("health").code == "token_expired"
    assert runtime.with_token(runtime.token[:-1] + ("A" if runtime.token[-1] != "A" else "B")).get("health").code == "token_invalid"


def test_only_the_hash_of_a_secret_is_stored_and_its_last_use_at_most_once_a_minute(runtime, django_assert_num_queries):
    assert runtime.token.split("_", 2)[2] not in str(list(RuntimeServiceToken.objects.values()))
    runtime.get("health")
    noted = RuntimeServiceToken.objects.get().last_used_at
    runtime.get("health")
    assert noted is not None
    assert RuntimeServiceToken.objects.get().last_used_at == noted


def test_acceptance_security_a_service_token_opens_nothing_else(runtime, client):
    headers = {"Authorization": f"Bearer {runtime.token}"}
    assert client.get("/api/jobs/", headers=headers).status_code == 401
    admin = client.get("/admin/", headers=headers)
    assert (admin.status_code, admin["Location"]) == (302, "/admin/login/?next=/admin/")


@pytest.mark.parametrize(
    ("scopes", "refused"),
    [
        (["jobs"], {"resolve", "log"}),
        (["credentials"], {"poll", "lock", "beat", "beat_all", "snapshot", "result", "fail", "release", "log"}),
        (["logs"], {"poll", "lock", "beat", "beat_all", "snapshot", "result", "fail", "release", "resolve"}),
    ],
)
def test_a_missing_scope_is_403(runtime, job, scopes, refused):
    lease = runtime.lock(job).body
    narrow = runtime.with_token(issue(scopes=scopes))
    before = written(job)
    calls = {
        "poll": narrow.poll, "lock": lambda: narrow.lock(job), "beat": lambda: narrow.beat(lease),
        "beat_all": lambda: narrow.beat_all(lease),
        "snapshot": lambda: narrow.snapshot(lease), "result": lambda: narrow.result(lease), "fail": lambda: narrow.fail(lease),
        "release": lambda: narrow.release(lease), "resolve": lambda: narrow.resolve(lease), "log": lambda: narrow.log(lease, usage()),
    }  # fmt: skip
    for name in refused:
        answer = calls[name]()
        assert (answer.status, answer.code) == (403, "scope_denied"), name
    assert written(job) == before


def test_an_instance_outside_the_pattern_is_403(runtime, job):
    lease = runtime.lock(job).body
    other = runtime.with_token(issue(instance_pattern=r"blue-\d+")).named("runtime-1")
    calls = (other.poll(), other.lock(job), other.beat(lease), other.beat_all(lease), other.snapshot(lease), other.resolve(lease),
             other.result(lease), other.fail(lease), other.release(lease), other.log(lease, usage()))  # fmt: skip
    assert {(answer.status, answer.code) for answer in calls} == {(403, "instance_not_allowed")}
    assert other.named("blue-7").poll().status == 200
    assert other.named("blue-7x").poll().status == 403


def test_another_jobs_lease_and_another_instances_open_nothing(runtime, make_job):
    one, two = make_job(), make_job()
    lease, target = runtime.lock(one).body, runtime.named("runtime-2").lock(two).body
    before = written(two)
    crossed = {**lease, "jobId": target["jobId"]}
    stolen = target  # the right token, but spoken by an instance that does not hold it
    for held in (crossed, stolen):
        for call in (runtime.beat, runtime.snapshot, runtime.resolve, runtime.result, runtime.fail, runtime.release):
            assert (call(held).status, call(held).code) == (409, "job_lock_lost"), call
        assert runtime.beat_all(held)["jobs"][0]["directive"] == "stop"
        assert runtime.log(held, usage())["rejected"][0]["errorCode"] == "job_lock_lost"
    assert written(two) == before


def test_a_job_of_another_lane_does_not_exist(runtime, make_job):
    engine_job = make_job(job_type="synthetic.extract_facts")
    assert (runtime.lock(engine_job).status, runtime.lock(engine_job).code) == (404, "job_not_found")
    assert runtime.lock(uuid.uuid4()).code == runtime.lock("no-uuid").code == "job_not_found"


@pytest.mark.parametrize("missing", ["runtimeInstanceId", "attemptNo", "lockToken"])
def test_who_speaks_is_never_filled_in_by_the_server(runtime, job, missing):
    lease = runtime.lock(job).body
    body = {"jobId": lease["jobId"], **runtime.holder(lease), "schemaVersion": "1", "rawOutput": RAW, "outputHash": sha(RAW)}
    del body[missing]
    answer = runtime.post(f"jobs/{job.pk}/result", body)
    assert (answer.status, answer.code) == (400, "validation_failed")
    assert answer["details"]["issues"][0]["path"] == f"/{missing}"
    header = {"runtimeInstanceId": "X-Runtime-Instance-Id", "attemptNo": "X-Attempt-No", "lockToken": "X-Lock-Token"}[missing]
    assert runtime.snapshot(lease, **{header: ""}).code == "validation_failed"


def test_requests_beyond_the_rate_of_a_token_are_429_with_retry_after(runtime, settings):
    settings.RUNTIME_RATE_PER_SECOND = 1
    statuses = [runtime.get("health").status for _ in range(4)]
    assert statuses[:2] == [200, 200]
    limited = runtime.get("health")
    assert (limited.status, limited.code, limited["retryable"]) == (429, "rate_limited", True)
    assert int(limited.headers["Retry-After"]) == limited["details"]["retryAfterSeconds"] >= 1
    assert runtime.with_token(issue()).get("health").status == 200


def forms(key):
    return {key, quote(key, safe=""), base64.b64encode(key.encode()).decode().rstrip("=")}


@pytest.fixture
def everything_logged():
    """All that any logger says, at its most talkative."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def whole_database():
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = [row[0] for row in cursor.fetchall()]
        for table in tables:
            cursor.execute(f'SELECT row_to_json(t)::text FROM "{table}" t')
            for (row,) in cursor.fetchall():
                yield f"{table}: {row}"


def test_acceptance_7_s48_the_key_is_written_nowhere_after_resolve_and_every_failure_path(runtime, make_job, everything_logged, credential):
    hidden = forms(KEY)
    said = " ".join(hidden)
    answers = []
    lease = runtime.lock(make_job()).body
    assert runtime.resolve(lease)["apiKey"] == KEY
    answers.append(runtime.log(lease, usage(finishReason=KEY, providerRequestId=said, model=KEY, provider="p")))
    answers.append(runtime.fail(lease, f"odd {KEY}", message=f"the provider said: {said}", usage=[usage("call-2", errorCode=KEY)]))
    lease = runtime.lock(make_job()).body
    answers.append(runtime.result(lease, RAW.replace("A river", f"A river {said}")))
    lease = runtime.lock(make_job()).body
    echo = {**OUTPUT, "summary": f"it was {KEY}"}
    answers.append(runtime.result(lease, "see the payload", validatedOutput=echo))
    lease = runtime.lock(make_job()).body
    answers.append(runtime.result(lease, f"no json {said}"))
    lease = runtime.lock(make_job()).body
    answers.append(runtime.result(lease, RAW, outputHash=KEY))
    answers.append(runtime.post("model-credentials/resolve", {**runtime.holder(lease), "jobId": lease["jobId"], "apiKey": KEY}))
    answers.append(runtime.get(f"jobs/{KEY}/snapshot"))
    answers.append(runtime.post(f"nothing/{KEY}"))
    answers.append(runtime.post("jobs/poll", raw=f'{{"x": "{KEY}'.encode()))
    answers.append(runtime.beat(lease, progressMessage=KEY, checkpoint={"kept": [said]}))
    answers.append(runtime.beat_all(lease, progressMessage=KEY, checkpoint={"kept": [said]}))
    other = make_job()
    revoke_credential(credential.pk)
    answers.append(runtime.resolve(lease))
    answers.append(runtime.release(lease, reason=said))
    answers.append(runtime.resolve(runtime.lock(other).body))
    for answer in answers:
        assert not any(form in str(answer.body) for form in hidden), answer
    for row in whole_database():
        assert not any(form in row for form in hidden), row[:200]
    log = everything_logged.getvalue()
    assert "resolve" in log
    assert not any(form in log for form in hidden)
    assert not any(form in str(getattr(cache, "_cache", "")) for form in hidden)


def test_the_key_is_in_no_error_report_when_the_answer_cannot_be_made(runtime, job, monkeypatch, everything_logged):
    from runtime_protocol import dto

    monkeypatch.setattr(dto.RuntimeResolveCredentialResponseDto, "answer", lambda **values: {}[values["api_key"]])
    answer = runtime.resolve(runtime.lock(job).body)
    assert (answer.status, answer.code) == (500, "internal_error")
    assert KEY not in str(answer.body) + everything_logged.getvalue()


def test_lock_tokens_and_service_tokens_are_in_no_log(runtime, job, everything_logged):
    lease = runtime.lock(job).body
    runtime.beat(lease)
    runtime.snapshot(lease)
    runtime.result({**lease, "lockToken": "wrong"})
    log = everything_logged.getvalue()
    assert lease["lockToken"] not in log
    assert runtime.token.split("_", 2)[2] not in log
    line = next(line for line in log.splitlines() if "heartbeat" in line and "request=" in line)
    assert f"token={runtime.token.split('_')[1]} instance=runtime-1 POST" in line
    assert f"status=200 code=- job={job.pk} attempt=1 seconds=" in line


def test_who_got_which_key_for_which_job_is_recorded(runtime, job, credential):
    runtime.resolve(runtime.lock(job).body)
    event = job.events.get(name="credential.resolved")
    assert (event.actor_name, event.attempt_no, event.data["credential"]) == ("runtime-1", 1, str(credential.pk))
    assert event.data["service_token"] == runtime.token.split("_")[1]


def test_polls_and_snapshots_hold_no_secret(runtime, job):
    polled = runtime.pull()
    lease = polled["jobs"][0]["lease"]
    assert KEY not in str(polled.body) + str(runtime.snapshot(lease).body)


def test_usage_of_an_attempt_that_lapsed_is_masked_too(runtime, job):
    lease = runtime.lock(job).body
    lapse(job)
    runtime.log(lease, usage(model=KEY))
    assert KEY not in AiUsageLog.objects.get().model_used


def test_a_broken_pattern_scope_or_type_issues_no_token(db):
    from runtime_jobs.errors import InvalidRequest

    wrong: dict[str, Any]
    for wrong in ({"instance_pattern": "("}, {"scopes": ["all"]}, {"scopes": []}, {"job_types": ["nonsense"]}, {"days": 0}, {"name": ""}):
        with pytest.raises(InvalidRequest):
            issue(**wrong)
    issue(job_types=[JOB_TYPE])
    assert RuntimeServiceToken.objects.get().job_types == [JOB_TYPE]
