"""The user API as an owner, a stranger, staff and nobody meet it."""

import itertools
import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from runtime_jobs import queries, registry
from runtime_jobs.api import base
from runtime_jobs.api.errors import ERROR_CODES
from runtime_jobs.errors import AttemptError, ErrorCode, public_error
from runtime_jobs.models import AiRuntimeJob, AiRuntimeResult
from runtime_jobs.services import claims, jobs, terminal
from runtime_jobs.services.events import Actor
from runtime_jobs.services.settlements import Delivery, Fence
from runtime_jobs.states import JobStatus
from tests.conftest import triggers_off
from tests.factories import CredentialFactory, JobFactory, UserFactory, payload

pytestmark = pytest.mark.django_db

JOBS = "/api/jobs/"
# Text that must not leave the house, each at its place in the tables.
SNAPSHOT_TEXT = "canary-snapshot-7d1f"
RAW_OUTPUT = "canary-raw-output-2b90"
INTERNAL = "canary-internal-error-51ce"
WORKER = "canary-worker-88aa"
CANARIES = (SNAPSHOT_TEXT, RAW_OUTPUT, INTERNAL, WORKER)

OUTPUT = {"summary": "A river.", "facts": [{"text": "It is long.", "paragraph": "p1"}]}


def login(user, **options):
    client = Client(**options)
    client.force_login(user)
    return client


def staff(*codenames):
    user: Any = UserFactory(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="runtime_jobs", codename__in=codenames))
    return user


@pytest.fixture
def user():
    return UserFactory()


@pytest.fixture
def credential():
    return CredentialFactory()


@pytest.fixture
def owner(user):
    return login(user)


@pytest.fixture
def stranger():
    return login(UserFactory())


@pytest.fixture
def job(user, credential):
    return JobFactory(user=user, credential=credential, payload=payload(SNAPSHOT_TEXT))


def start(job):
    (held,) = claims.claim(lane=job.lane, worker=WORKER, job_types=[job.job_type], count=1, lease_seconds=30, job_id=job.pk)
    return Fence(held.job_id, held.attempt_no, held.token, held.worker)


def succeed(job):
    fence = start(job)
    delivery = Delivery(RAW_OUTPUT, "0" * 63 + "1", job.output_schema_version, OUTPUT)
    terminal.submit_result(fence, delivery, registry.get(job.job_type), queries.work_item(job.pk).job)
    return fence


def fail(job, code=ErrorCode.PROVIDER_AUTH_FAILED, **options):
    fence = start(job)
    terminal.submit_failure(fence, AttemptError(code, INTERNAL, **options))
    return fence


def ids(response):
    assert response.status_code == 200, response.content
    return [UUID(job["id"]) for job in response.json()["results"]]


def refused(response, status, code):
    """The error, after a look at its shape."""
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"] == "application/json"
    error = response.json()
    assert set(error) <= {"errorCode", "message", "details"}
    assert error["errorCode"] == code
    assert error["message"]
    assert code in ERROR_CODES
    return error


def url(job, action=""):
    return f"{JOBS}{job.pk}/{action}"


def cancel(client, job, body=None):
    return client.post(url(job, "cancel/"), {} if body is None else body, content_type="application/json")


# --- who sees what


def test_an_owner_sees_their_jobs_newest_first(owner, user, credential):
    made = [JobFactory(user=user, credential=credential).pk for _ in range(3)]
    JobFactory(credential=credential)

    assert ids(owner.get(JOBS)) == made[::-1]


def test_a_job_has_exactly_the_fields_that_are_promised(owner, job):
    shown = owner.get(JOBS).json()["results"][0]

    assert list(shown) == [
        "id", "jobType", "lane", "status", "targetType", "targetId", "priority", "attemptNo", "retryCount", "maxRetryCount", "errorCode",
        "publicError", "progress", "progressMessage", "nextAttemptAt", "cancelRequestedAt", "retriedFromJob", "createdAt", "startedAt",
        "finishedAt", "updatedAt",
    ]  # fmt: skip
    assert shown["id"] == str(job.pk)
    assert (shown["jobType"], shown["lane"], shown["status"]) == ("synthetic.extract_facts", "interactive", "queued")
    nothing = {"errorCode", "publicError", "progress", "progressMessage", "nextAttemptAt", "cancelRequestedAt", "retriedFromJob"}
    assert {name for name, value in shown.items() if value is None} == nothing | {"startedAt", "finishedAt"}


def test_the_detail_of_an_unfinished_job_has_no_result(owner, job):
    shown = owner.get(url(job)).json()

    assert shown.pop("result") is None
    assert shown == owner.get(JOBS).json()["results"][0]


def test_the_detail_of_a_success_has_its_validated_output(owner, job):
    succeed(job)

    result = owner.get(url(job)).json()["result"]

    stored = AiRuntimeResult.objects.get(job=job)
    assert list(result) == ["id", "attemptNo", "schemaVersion", "validatedOutput", "createdAt"]
    assert result["id"] == str(stored.pk)
    assert result["attemptNo"] == 1
    assert result["validatedOutput"] == OUTPUT


def test_a_rejected_result_is_not_shown(owner, job):
    fence = start(job)
    delivery = Delivery(RAW_OUTPUT, "0" * 63 + "1", job.output_schema_version)
    terminal.reject_result(fence, delivery, AttemptError(ErrorCode.SCHEMA_VALIDATION_FAILED, INTERNAL))

    shown = owner.get(url(job)).json()

    assert (shown["status"], shown["errorCode"], shown["result"]) == ("failed", "schema_validation_failed", None)


def test_a_failure_shows_the_public_sentence_of_its_code(owner, job):
    fail(job)

    shown = owner.get(url(job)).json()

    assert (shown["status"], shown["errorCode"]) == ("failed", "provider_auth_failed")
    assert shown["publicError"] == public_error(ErrorCode.PROVIDER_AUTH_FAILED)
    assert shown["nextAttemptAt"] is None


def test_a_job_that_waits_for_a_retry_says_when(owner, job):
    fail(job, ErrorCode.PROVIDER_TIMEOUT)

    shown = owner.get(url(job)).json()

    job.refresh_from_db()
    assert (shown["status"], shown["retryCount"]) == ("retrying", 1)
    assert shown["nextAttemptAt"] == job.available_at.isoformat().replace("+00:00", "Z")


def test_a_rerun_names_the_job_that_it_repeats(owner, user, job):
    fail(job)
    rerun = jobs.rerun_job(job.pk, actor=Actor.of(user)).job

    assert owner.get(url(rerun)).json()["retriedFromJob"] == str(job.pk)


def test_a_stranger_learns_nothing_of_a_job(stranger, job):
    absent = uuid4()

    assert ids(stranger.get(JOBS)) == []
    of_another = refused(stranger.get(url(job)), 404, "job_not_found")
    of_nobody = refused(stranger.get(f"{JOBS}{absent}/"), 404, "job_not_found")
    refused(cancel(stranger, job), 404, "job_not_found")
    assert of_another["message"].replace(str(job.pk), str(absent)) == of_nobody["message"]
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED


def test_staff_with_the_permission_see_all_jobs(job):
    client = login(staff("view_airuntimejob"))

    assert ids(client.get(JOBS)) == [job.pk]
    assert client.get(url(job)).status_code == 200


def test_staff_without_the_permission_see_their_own_jobs_only(job):
    client = login(staff())

    assert ids(client.get(JOBS)) == []
    refused(client.get(url(job)), 404, "job_not_found")


def test_the_permission_without_being_staff_opens_nothing(job):
    user = staff("view_airuntimejob", "cancel_job")
    user.is_staff = False
    user.save(update_fields=["is_staff"])

    assert ids(login(user).get(JOBS)) == []
    refused(cancel(login(user), job), 404, "job_not_found")


def test_staff_see_the_output_of_others_redacted_unless_they_may_see_it(job):
    succeed(job)

    redacted = login(staff("view_airuntimejob")).get(url(job)).json()["result"]["validatedOutput"]
    clear = login(staff("view_airuntimejob", "view_sensitive")).get(url(job)).json()["result"]["validatedOutput"]

    assert clear == OUTPUT
    assert str(OUTPUT["summary"]) not in json.dumps(redacted)
    assert redacted["facts"][0]["paragraph"] == "p1"


@pytest.mark.parametrize("path", ["", "01a228f2-510b-7303-b86f-6e374743c331/", "no-such-thing/"])
def test_whoever_has_not_logged_in_is_asked_to(client, path):
    response = client.get(JOBS + path)

    refused(response, 401, "not_authenticated")
    assert response.headers["WWW-Authenticate"].startswith("Session")


def test_other_ways_to_log_in_are_not_known(client, user, job):
    response = client.get(JOBS, headers={"Authorization": "Basic dXNlcjA6cGFzcyB3b3JkIDE="})

    refused(response, 401, "not_authenticated")


def test_answers_are_not_kept_by_caches(owner, job):
    assert "no-store" in owner.get(JOBS).headers["Cache-Control"]


# --- cancel


def test_an_owner_cancels_a_waiting_job_at_once(owner, user, job):
    shown = cancel(owner, job, {"reason": "a mistake"}).json()

    assert (shown["status"], shown["errorCode"], shown["result"]) == ("cancelled", "cancelled", None)
    assert shown["cancelRequestedAt"]
    job.refresh_from_db()
    assert (job.status, job.cancel_reason, job.cancel_requested_by) == (JobStatus.CANCELLED, "a mistake", user.username)


def test_a_running_job_is_asked_to_stop_and_asking_again_changes_nothing(owner, job):
    start(job)

    first = cancel(owner, job)
    second = cancel(owner, job)

    assert first.status_code == second.status_code == 200
    assert first.json()["status"] == "cancel_requested"
    assert first.json() == second.json()


def test_a_cancel_needs_no_body(owner, job):
    assert owner.generic("POST", url(job, "cancel/")).status_code == 200


@pytest.mark.parametrize(("end", "status"), [(succeed, "succeeded"), (fail, "failed")])
def test_a_job_that_has_ended_is_not_cancellable_and_the_error_names_its_state(owner, job, end, status):
    end(job)

    error = refused(cancel(owner, job), 409, "job_not_cancellable")

    assert status in error["message"]
    assert error["details"] == {"status": status}


def test_staff_need_a_permission_to_cancel_the_job_of_somebody_else(job):
    looking = login(staff("view_airuntimejob"))
    cancelling = login(staff("view_airuntimejob", "cancel_job"))

    error = refused(cancel(looking, job), 403, "permission_denied")
    assert "runtime_jobs.cancel_job" in error["message"]
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED
    assert cancel(cancelling, job).json()["status"] == "cancelled"


def test_staff_without_permissions_cancel_their_own_jobs(credential):
    user = staff()
    job = JobFactory(user=user, credential=credential)

    assert cancel(login(user), job).json()["status"] == "cancelled"


def test_a_cancel_from_another_site_is_refused(user, job):
    client = login(user, enforce_csrf_checks=True)

    refused(cancel(client, job), 403, "csrf_failed")

    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED


def test_a_cancel_with_the_csrf_token_is_taken(user, job):
    client = login(user, enforce_csrf_checks=True)
    client.cookies["csrftoken"] = token = "a" * 32

    response = client.post(url(job, "cancel/"), {}, content_type="application/json", headers={"X-CSRFToken": token})

    assert response.status_code == 200


def test_whoever_has_not_logged_in_cancels_nothing(client, job):
    refused(cancel(client, job), 401, "not_authenticated")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"reason": "x" * 501}, "reason"),
        ({"reason": None}, "reason"),
        ({"reason": ["x"]}, "reason"),
        ({"reason": "nul \x00"}, "reason"),
        ('{"reason": "\\ud800"}', "reason"),
        ({"reson": "misspelt"}, "reson"),
        ([], "body"),
        ("null", "body"),
    ],
)
def test_a_wrong_body_is_refused_and_the_member_named(owner, job, body, name):
    error = refused(cancel(owner, job, body), 400, "invalid_request")

    assert name in error["details"]
    assert name in error["message"]


@pytest.mark.parametrize("body", ["{", '{"reason": NaN}', "[" * 5_000, b"\xff"])
def test_a_body_that_is_no_json_is_refused(owner, job, body):
    refused(cancel(owner, job, body), 400, "parse_error")


def test_a_body_that_is_too_large_is_refused(owner, job):
    refused(cancel(owner, job, {"reason": "x" * base.MAX_BODY_BYTES}), 413, "payload_too_large")


def test_a_form_is_refused(owner, job):
    refused(owner.post(url(job, "cancel/"), {"reason": "x"}), 415, "unsupported_media_type")


# --- filters


def find(client, **parameters):
    return client.get(f"{JOBS}?{urlencode(parameters, doseq=True)}")


def test_jobs_are_found_by_one_status_or_by_several(owner, user, credential):
    queued, running, failed = (JobFactory(user=user, credential=credential) for _ in range(3))
    start(running)
    fail(failed)

    assert ids(find(owner, status="running")) == [running.pk]
    assert ids(find(owner, status=["queued", "failed"])) == [failed.pk, queued.pk]


def test_jobs_are_found_by_type(owner, user, credential):
    JobFactory(user=user, credential=credential)
    other = JobFactory(user=user, credential=credential, job_type="synthetic.extract_facts_background")

    assert ids(find(owner, jobType="synthetic.extract_facts_background")) == [other.pk]
    assert ids(find(owner, jobType="no.such.type")) == []


def test_jobs_are_found_by_target(owner, user, credential):
    first, second = (JobFactory(user=user, credential=credential, target_id=name) for name in ("a", "b"))
    JobFactory(user=user, credential=credential, target_type="other", target_id="a")

    assert ids(find(owner, targetType="document")) == [second.pk, first.pk]
    assert ids(find(owner, targetType="document", targetId="a")) == [first.pk]
    assert ids(find(owner, targetType="document ", targetId="a")) == []


def test_filters_do_not_open_the_jobs_of_others(stranger, job):
    assert ids(find(stranger, targetType=job.target_type, targetId=job.target_id, status="queued")) == []


def test_jobs_are_found_by_when_they_were_created(owner, user, credential):
    first, second, third = (JobFactory(user=user, credential=credential) for _ in range(3))

    def moment(job):
        return job.created_at.isoformat()

    assert ids(find(owner, createdAfter=moment(second))) == [third.pk, second.pk]
    assert ids(find(owner, createdBefore=moment(second))) == [first.pk]
    assert ids(find(owner, createdAfter=moment(second), createdBefore=moment(third))) == [second.pk]
    assert ids(find(owner, createdAfter=(timezone.now() + timedelta(hours=1)).isoformat())) == []


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"])
def test_the_ends_of_time_are_times(owner, job, moment):
    assert sorted([*ids(find(owner, createdAfter=moment)), *ids(find(owner, createdBefore=moment))]) == [job.pk]


def test_a_created_range_finds_jobs_although_the_clocks_of_application_and_database_differ(owner, user, credential):
    # The id was made three minutes before the row by its own clock.
    late = JobFactory(user=user, credential=credential)
    moment = late.created_at + timedelta(minutes=3)
    AiRuntimeJob.objects.filter(pk=late.pk).update(created_at=moment)

    assert ids(find(owner, createdAfter=moment.isoformat())) == [late.pk]
    assert ids(find(owner, createdBefore=moment.isoformat())) == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("state=queued", "state"),
        ("status=done", "status"),
        ("status=queued&status=done", "status"),
        ("status=queued,failed", "status"),
        ("status=", "status"),
        ("jobType=", "jobType"),
        ("jobType=a&jobType=b", "jobType"),
        ("jobType=" + "x" * 101, "jobType"),
        ("targetType=%00", "targetType"),
        ("targetId=7", "targetId"),
        ("createdAfter=yesterday", "createdAfter"),
        ("createdAfter=2026-13-01T00:00:00Z", "createdAfter"),
        ("createdAfter=2026-01-31", "createdAfter"),
        ("createdAfter=2026-01-31T08:00:00", "createdAfter"),
        ("createdAfter=2026-01-31T08:00:00+01:00", "createdAfter"),
        ("createdAfter=2026-02-01T00:00:00Z&createdBefore=2026-01-01T00:00:00Z", "createdBefore"),
        ("pageSize=0", "pageSize"),
        ("pageSize=201", "pageSize"),
        ("pageSize=-1", "pageSize"),
        ("pageSize=many", "pageSize"),
        ("pageSize=%C2%B2", "pageSize"),
        ("cursor=garbage", "cursor"),
        ("cursor=cD1ub3QtYS11dWlk", "cursor"),
        ("cursor=cD0lMDA%3D", "cursor"),
        ("cursor=%C3%BC", "cursor"),
        ("format=json", "format"),
        ("page=2", "page"),
    ],
)
def test_a_parameter_that_is_unknown_or_wrong_is_refused_and_named(owner, query, name):
    error = refused(owner.get(f"{JOBS}?{query}"), 400, "invalid_request")

    assert list(error["details"]) == [name]
    assert error["message"].startswith(f"{name}: ")


def test_a_target_id_alone_is_refused_with_the_reason(owner):
    assert "Give targetType too" in refused(find(owner, targetId="7"), 400, "invalid_request")["message"]


def test_a_single_job_takes_no_parameters(owner, job):
    refused(owner.get(url(job) + "?status=queued"), 400, "invalid_request")


# --- pages


def pages(client, address):
    while address:
        page = client.get(address).json()
        yield page
        address = page["next"]


def test_pages_lead_through_all_jobs_once_while_new_ones_arrive(owner, user, credential):
    old = [JobFactory(user=user, credential=credential).pk for _ in range(7)]

    seen = []
    for page in pages(owner, f"{JOBS}?pageSize=3&status=queued"):
        seen += [UUID(shown["id"]) for shown in page["results"]]
        JobFactory(user=user, credential=credential)

    assert seen == old[::-1]


def test_the_previous_page_leads_back(owner, user, credential):
    made = [JobFactory(user=user, credential=credential).pk for _ in range(5)]
    first = owner.get(f"{JOBS}?pageSize=2").json()
    second = owner.get(first["next"]).json()

    assert first["previous"] is None
    assert ids(owner.get(second["previous"])) == made[:2:-1]


def test_a_page_has_fifty_jobs_unless_asked_otherwise_and_at_most_two_hundred(owner, user, credential):
    rows(220, users=[user], credential=credential)

    assert len(ids(owner.get(JOBS))) == 50
    assert len(ids(owner.get(f"{JOBS}?pageSize=200"))) == 200


# --- errors


def test_whatever_else_is_asked_for_is_answered_in_json(owner, job):
    refused(owner.get("/api/"), 404, "not_found")
    refused(owner.get("/api/jobs"), 404, "not_found")
    refused(owner.get(f"{JOBS}7/"), 404, "not_found")
    refused(owner.post("/api/nothing/", {}), 404, "not_found")
    refused(owner.delete(url(job)), 405, "method_not_allowed")
    refused(owner.post(JOBS, {}, content_type="application/json"), 405, "method_not_allowed")
    refused(owner.options(JOBS), 405, "method_not_allowed")
    refused(owner.get(url(job, "cancel/")), 405, "method_not_allowed")
    refused(owner.get(JOBS, headers={"Accept": "text/html"}), 406, "not_acceptable")
    refused(owner.get(f"{JOBS}?{'a&' * 2_000}"), 400, "parse_error")


def test_what_nobody_foresaw_says_nothing_outside_and_leaves_a_trace_without_data(owner, job, monkeypatch, caplog):
    def break_down(*_, **__):
        raise RuntimeError(INTERNAL)

    monkeypatch.setattr(queries, "public_jobs", break_down)

    error = refused(owner.get(f"{url(job)}"), 500, "internal_error")

    assert error == {"errorCode": "internal_error", "message": "Something went wrong on our side."}
    assert "builtins.RuntimeError" in caplog.text
    assert "in break_down" in caplog.text
    assert INTERNAL not in caplog.text


# --- what must never be seen


def test_no_response_holds_anything_internal(user, credential):
    made = [
        JobFactory(user=user, credential=credential, payload=payload(SNAPSHOT_TEXT), idempotency_key=f"canary-key-{number}")
        for number in range(5)
    ]
    running, succeeded, failed, retrying, _queued = made
    fences = [start(running), succeed(succeeded), fail(failed), fail(retrying, ErrorCode.PROVIDER_TIMEOUT)]
    tokens = [fence.token.reveal() for fence in fences]
    rows = list(AiRuntimeJob.objects.filter(user=user))
    secrets = {*CANARIES, *tokens, *(row.idempotency_key for row in rows), str(credential.pk), credential.fingerprint}
    for row in rows:
        secrets |= {row.lock_token, row.request_fingerprint, str(row.snapshot_id), row.traceparent, row.snapshot.content_hash}
    secrets -= {None, ""}

    answers = []
    for client in (login(user), login(UserFactory()), login(staff("view_airuntimejob", "cancel_job", "view_sensitive")), Client()):
        answers.append(client.get(JOBS))
        answers += [client.get(url(job)) for job in made]
        answers += [find(client, status="failed"), find(client, targetId="x"), find(client, nothing="x")]
    answers += [cancel(login(user), job) for job in made]

    assert {answer.status_code for answer in answers} == {200, 400, 401, 404, 409}
    for answer in answers:
        text = answer.content.decode() + str(answer.headers)
        assert not {secret for secret in secrets if secret in text}
    assert len(secrets) > 15


# --- what it costs


@pytest.fixture
def many(user, credential):
    made = [JobFactory(user=user, credential=credential) for _ in range(12)]
    succeed(made[0])
    fail(made[1])
    return made


def test_a_list_costs_three_queries_however_long_it_is(owner, many, django_assert_max_num_queries):
    with django_assert_max_num_queries(3) as captured:
        assert len(ids(owner.get(JOBS))) == 12
    assert "ai_runtime_result" not in str(captured.captured_queries)
    assert "count(" not in str(captured.captured_queries).lower()
    with django_assert_max_num_queries(3):
        assert len(ids(find(owner, status=["queued", "failed"], pageSize=5))) == 5


def test_the_list_of_staff_costs_two_more_for_their_permissions(many, django_assert_max_num_queries):
    client = login(staff("view_airuntimejob"))
    with django_assert_max_num_queries(5):
        assert len(ids(client.get(JOBS))) == 12


def test_a_detail_costs_four_queries(owner, many, django_assert_max_num_queries):
    with django_assert_max_num_queries(4) as captured:
        assert owner.get(url(many[0])).json()["result"]
    assert "raw_output" not in str(captured.captured_queries)


def rows(count, *, users, credential):
    """A history of finished jobs, the users' by turns, as years would leave it."""
    snapshot = JobFactory(user=users[0], credential=credential).snapshot
    statuses = itertools.cycle([JobStatus.SUCCEEDED] * 19 + [JobStatus.FAILED])
    now = timezone.now()
    with triggers_off():
        AiRuntimeJob.objects.bulk_create(
            AiRuntimeJob(
                user=users[number % len(users)], credential=credential, snapshot=snapshot, job_type="synthetic.extract_facts",
                lane="interactive", target_type="document", target_id=f"history-{number}", request_fingerprint="",
                api_key_mode="platform", model_provider="simulator", model_name="m", prompt_version="1", input_schema_version="1",
                output_schema_version="1", max_retry_count=3, timeout_seconds=60, status=(status := next(statuses)), finished_at=now,
                error_code="" if status == JobStatus.SUCCEEDED else "internal_error",
            )
            for number in range(count)
        )  # fmt: skip


@pytest.fixture
def history(user, credential):
    # Without passwords, whose hashes take longer than all else here.
    others = get_user_model().objects.bulk_create(get_user_model()(username=f"other{number}") for number in range(39))
    rows(6_000, users=[user, *others], credential=credential)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ai_runtime_job")
        # As for an SSD. By the default, for a disk that seeks, reading a user's newest jobs costs as much as reading everybody's.
        cursor.execute("SET LOCAL random_page_cost = 1.1")


def nodes(plan):
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def plan_of(client, address):
    """How PostgreSQL reads the jobs for this request."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200
    (statement,) = [query["sql"] for query in captured.captured_queries if re.search(r'FROM "ai_runtime_job"', query["sql"])]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + statement)
        (answer,) = cursor.fetchone()
    plan = json.loads(answer) if isinstance(answer, str) else answer
    return list(nodes(plan[0]["Plan"]))


def indexes(plan):
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    return {node["Index Name"] for node in plan if "Index Name" in node}


def test_the_list_of_a_user_is_one_ordered_index_scan_on_every_page(owner, history):
    first = plan_of(owner, JOBS)
    later = plan_of(owner, owner.get(JOBS).json()["next"])

    assert indexes(first) == indexes(later) == {"job_user"}
    assert "Sort" not in {node["Node Type"] for node in [*first, *later]}


def test_a_target_is_looked_up_in_its_index(owner, history):
    address = f"{JOBS}?targetType=document&targetId=history-400"

    assert "job_target" in indexes(plan_of(owner, address))
    assert indexes(plan_of(login(staff("view_airuntimejob")), address)) == {"job_target"}


def test_the_lists_of_staff_are_index_scans(history):
    client = login(staff("view_airuntimejob"))

    assert indexes(plan_of(client, JOBS)) == {"ai_runtime_job_pkey"}
    assert indexes(plan_of(client, f"{JOBS}?status=failed&pageSize=10")) == {"job_status"}
    assert indexes(plan_of(client, f"{JOBS}?jobType=no.such.type")) == {"job_type"}


def test_a_created_range_is_bounded_by_the_primary_key(history):
    moment = urlencode({"createdAfter": (timezone.now() + timedelta(minutes=30)).isoformat()})
    plan = plan_of(login(staff("view_airuntimejob")), f"{JOBS}?{moment}")

    assert indexes(plan) == {"ai_runtime_job_pkey"}
    assert any("id >=" in node.get("Index Cond", "") for node in plan)
