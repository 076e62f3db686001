"""The page of one job: what it tells, to whom, and at which cost."""

import json
import re
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from runtime_jobs.errors import ErrorCode
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeJob, AiRuntimeResult, AiUsageLog, ClaimGate
from runtime_jobs.models.base import new_id
from runtime_jobs.queries import job_pages
from runtime_jobs.services import gates, workers
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.services.jobs import cancel_job, rerun_job
from tests.admin import jobs
from tests.admin.people import LIST, root, staff
from tests.conftest import triggers_off
from tests.factories import KEY, CredentialFactory, JobFactory, UserFactory

pytestmark = pytest.mark.django_db

VIEW = ("view_airuntimejob", "view_airuntimeresult")


def url(job):
    return f"{LIST}{job.pk}/change/"


def text_of(page):
    """What people read: tags out, white space to one blank."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page.content.decode())))


@pytest.fixture
def viewer(client):
    user = staff(*VIEW)
    client.force_login(user)
    return user


# --- what it tells ----------------------------------------------------------------------------------------------------------------


def test_an_error_is_told_in_public_and_internal_words(client, viewer):
    job = jobs.failed()
    page = text_of(client.get(url(job)))
    for part in ("provider_auth_failed", "The AI provider refused the key.", "HTTP 401 from the provider", "the job has ended"):
        assert part in page


def test_the_timeline_tells_wait_back_off_and_run_apart(client, viewer):
    job, claim = jobs.running()
    jobs.fail(claim, ErrorCode.PROVIDER_UNAVAILABLE)
    jobs.fail(jobs.again(job), ErrorCode.PROVIDER_AUTH_FAILED)
    job.refresh_from_db()
    start = timezone.now() - timedelta(hours=1)
    with triggers_off():
        AiRuntimeJob.objects.filter(pk=job.pk).update(created_at=start)
        AiJobEvent.objects.filter(job=job, name="job.retry_scheduled").update(data={"delay_seconds": 60})
    at = {1: (30, 40), 2: (120, 125)}  # seconds after the creation: started, ended
    for number, (started, ended) in at.items():
        AiJobAttempt.objects.filter(job=job, attempt_no=number).update(
            started_at=start + timedelta(seconds=started), ended_at=start + timedelta(seconds=ended)
        )
    newest, first = client.get(url(job)).context["executions"]["rows"]
    said = [[re.sub(r"<[^>]*>", "", row[name]) for name in ("backoff", "wait", "run")] for row in (first, newest)]
    # The second was due 60 s after the first had ended, and waited 20 s more for a worker.
    assert said == [["–", "30 s", "10 s"], ["1 min 0 s", "20 s", "5.0 s"]]


def test_every_call_is_listed_with_tokens_and_cost_and_added_up(client, viewer):
    job, _claim = jobs.running()
    for number, tokens in enumerate((100, None), start=1):
        call(job, number, input_tokens=tokens, output_tokens=7, cost_usd="0.0025", outcome="succeeded", closed_at=timezone.now())
    page = text_of(client.get(url(job)))
    assert "Reported in all: 100 input tokens, 14 output tokens, 0.005000 USD" in page
    assert page.count("0.002500") == 2


def call(job, number, **columns):
    return AiUsageLog.objects.create(
        id=new_id(), job=job, user_id=job.user_id, attempt_no=1, call_no=number, invocation_id=f"call {number}", credential_mode="platform",
        provider="simulator", model_requested="m", **columns,
    )  # fmt: skip


def test_a_rejected_result_is_shown_with_its_issues_at_their_paths(client, viewer):
    job, claim = jobs.running()
    jobs.reject(claim, raw="PRIVATE TEXT")
    page = client.get(url(job))
    assert "/facts/0/paragraph reference There is no such paragraph." in text_of(page)
    result = client.get(reverse("admin:runtime_jobs_airuntimeresult_change", args=[AiRuntimeResult.objects.get().pk]))
    assert "/facts/0/paragraph reference There is no such paragraph." in text_of(result)
    assert "PRIVATE TEXT" not in text_of(page) + text_of(result)


def test_what_happens_next_is_said_for_every_state(client, viewer):
    def says(job):
        return " ".join(re.sub(r"<[^>]*>", "", str(sentence)) for sentence in client.get(url(job)).context["next_steps"])

    waiting = JobFactory()
    assert "Attempt 1 begins as soon as a worker of its lane is free. No live worker of the lane knows this type" in says(waiting)
    workers.seen("w", kind=workers.Kind.ENGINE, lane="interactive", version="", job_types=[waiting.job_type])
    assert "1 live worker of the lane knows this type." in says(waiting)
    gates.pause(ClaimGate.Kind.LANE, "interactive", actor=Actor("1", "ann"), reason="deploy")
    assert "Not before interactive is resumed: ann paused it (deploy)." in says(waiting)
    gates.resume(ClaimGate.Kind.LANE, "interactive")
    job, claim = jobs.running()
    assert "It runs on worker 7. If the worker stops responding, the lease ends: " in says(job)
    jobs.fail(claim, ErrorCode.PROVIDER_UNAVAILABLE)
    assert "Attempt 2 is due: " in says(job)
    AiRuntimeJob.objects.filter(pk=job.pk).update(available_at=timezone.now())
    assert "Attempt 2 is due, and begins" in says(job)
    running, _ = jobs.running()
    cancel_job(running.pk, actor=SYSTEM)
    assert "Its worker worker 7 stops within a second" in says(running)
    assert "Nothing: the job has ended." in says(jobs.succeeded())


def test_a_family_of_reruns_is_shown_from_each_of_its_members(client, viewer):
    old = jobs.cancelled()
    first = rerun_job(old.pk, actor=SYSTEM).job
    cancel_job(first.pk, actor=SYSTEM)
    second = rerun_job(first.pk, actor=SYSTEM).job
    other = rerun_job(old.pk, actor=SYSTEM).job
    for member in (old, first, second, other):
        shown = client.get(url(member)).context["family"]
        assert [one["relative"].id for one in shown] == sorted([old.pk, first.pk, second.pk, other.pk])
        assert [one["is_this"] for one in shown].count(True) == 1
    assert client.get(url(JobFactory())).context["family"] == []


def test_what_people_did_stands_apart_with_reason_and_request(client):
    client.force_login(root(username="gus"))
    job = JobFactory()
    client.post(f"{LIST}{job.pk}/cancel/", {"reason": "wrong input"}, headers={"X-Request-Id": "req-cancel-1"})
    newest = client.get(url(job)).context["staff_actions"][0]
    assert (newest["event"].name, newest["event"].actor_name, newest["reason"], newest["request_id"]) == (
        "job.cancelled", "gus", "wrong input", "req-cancel-1",
    )  # fmt: skip


# --- sensitive text ---------------------------------------------------------------------------------------------------------------


def test_texts_are_shown_in_clear_on_wish_to_who_may_see_them_and_that_is_recorded(client):
    job = jobs.succeeded()
    result = reverse("admin:runtime_jobs_airuntimeresult_change", args=[AiRuntimeResult.objects.get().pk])
    user = staff(*VIEW, "view_sensitive", username="hal")
    client.force_login(user)
    for page in (url(job), result):
        assert "The Danube is long." not in text_of(client.get(page))
    assert not AiJobEvent.objects.filter(name="job.sensitive_viewed").exists()
    for page in (url(job), result):
        assert "The Danube is long." in text_of(client.get(page, {"clear": "1"}))
    seen = AiJobEvent.objects.filter(job=job, name="job.sensitive_viewed").order_by("seq")
    assert [(event.actor_name, event.data["what"]) for event in seen] == [("hal", "page"), ("hal", "result of attempt 1")]
    assert all(event.data["request_id"] for event in seen)


def test_a_page_of_clear_text_does_not_refresh_by_itself_since_each_look_is_recorded(client):
    client.force_login(root())
    job, _ = jobs.running()
    assert b'id="live" data-live-seconds="5"' in client.get(url(job)).content
    assert b"data-live-seconds" not in client.get(f"{url(job)}?clear=1").content


def test_without_the_permission_nothing_is_in_clear_and_nothing_recorded(client, viewer):
    job = jobs.succeeded()
    result = reverse("admin:runtime_jobs_airuntimeresult_change", args=[AiRuntimeResult.objects.get().pk])
    for page in (url(job), result):
        assert "The Danube is long." not in text_of(client.get(page))
        assert client.get(page, {"clear": "1"}).status_code == 403
    for name in ("input.json", "output.json"):
        assert client.get(f"{LIST}{job.pk}/{name}").status_code == 403
        assert name not in client.get(url(job)).content.decode()
    assert not AiJobEvent.objects.filter(name="job.sensitive_viewed").exists()


def test_downloads_are_whole_and_recorded_and_not_kept_on_the_way(client):
    client.force_login(staff(*VIEW, "view_sensitive"))
    job = jobs.succeeded()
    for name, expected in (("input.json", job.snapshot.payload), ("output.json", jobs.OUTPUT)):
        answer = client.get(f"{LIST}{job.pk}/{name}")
        assert json.loads(answer.content) == expected
        assert answer["Content-Disposition"].startswith("attachment")
        assert "no-store" in answer["Cache-Control"]
        assert client.post(f"{LIST}{job.pk}/{name}").status_code == 405
    assert AiJobEvent.objects.filter(job=job, name="job.sensitive_viewed").count() == 2
    assert client.get(f"{LIST}{JobFactory().pk}/output.json").status_code == 404


@pytest.mark.parametrize("who", ["viewer", "sensitive"])
def test_a_secret_in_an_input_is_in_no_answer(client, who):
    """admin 18"""
    client.force_login(root() if who == "sensitive" else staff(*VIEW, "rerun_job", "export_jobs"))
    job = JobFactory(job_type="test.odd", payload={"apiKey": "s3cr3t", "nested": [{"Authorization": "s3cr3t", "text": "fine"}]})
    cancel_job(job.pk, actor=SYSTEM)
    pages = [
        LIST, f"{LIST}?q={job.pk}", url(job), f"{url(job)}?clear=1", f"{LIST}{job.pk}/rerun/", f"{LIST}{job.pk}/history/",
        f"{LIST}{job.pk}/input.json", f"{LIST}export/", f"/admin/runtime_jobs/aijobevent/?q={job.pk}", f"{LIST}nothing/",
        f"/admin/runtime_jobs/airuntimeresult/?q={job.pk}",
    ]  # fmt: skip
    for page in pages:
        answer = client.get(page, follow=True)
        content = b"".join(answer) if answer.streaming else answer.content
        assert b"s3cr3t" not in content, page
    if who == "sensitive":
        assert "fine" in text_of(client.get(f"{url(job)}?clear=1"))


def test_no_page_shows_a_key_a_lock_token_or_its_hash(client):
    client.force_login(root())
    job, claim = jobs.running()
    page = client.get(f"{url(job)}?clear=1").content.decode()
    for secret in (job.lock_token, claim.token.reveal(), KEY, job.credential.ciphertext):
        assert secret not in page


def test_numbers_are_shown_as_they_are_stored(client):
    """admin 26"""
    client.force_login(root())
    job = JobFactory(job_type="test.odd", payload={"big": 9007199254740993, "exact": 1.10})
    page = text_of(client.get(f"{url(job)}?clear=1"))
    assert "big 9007199254740993" in page
    assert b'"big": 9007199254740993' in client.get(f"{LIST}{job.pk}/input.json").content


def test_a_large_input_is_cut_on_the_page_and_whole_in_the_download(client):
    client.force_login(root())
    many = [f"item {number}" for number in range(5_000)]
    job = JobFactory(job_type="test.odd", payload={"many": [*many, "x" * 10_000]})
    answer = client.get(f"{url(job)}?clear=1")
    page = text_of(answer)
    assert "item 1999" not in page
    assert "… cut here" in page
    assert "Too large to be shown whole." in page
    assert len(answer.content) < 400_000
    assert json.loads(client.get(f"{LIST}{job.pk}/input.json").content)["many"][:-1] == many


def test_markup_in_texts_is_text(client):
    client.force_login(root())
    job = JobFactory(job_type="test.odd", payload={"<b>name</b>": "<script>alert(1)</script>"}, target_id="<i>x</i>")
    for page in (client.get(f"{url(job)}?clear=1"), client.get(LIST)):
        assert b"<script>alert" not in page.content
        assert b"<b>name" not in page.content
        assert b"<i>x</i>" not in page.content


# --- at which cost ----------------------------------------------------------------------------------------------------------------


MANY = (
    """
    INSERT INTO ai_job_attempt (id, job_id, attempt_no, lock_token, worker, token_nonce, started_at, ended_at, outcome, error_code,
                                internal_error, answer_digest)
    SELECT gen_random_uuid(), %(job)s, n, md5(n::text), 'w', '', now(), now(), 'failed', '', '', '' FROM generate_series(1, %(count)s) n
    """,
    """
    INSERT INTO ai_usage_log (id, job_id, user_id, attempt_no, call_no, invocation_id, credential_mode, provider, base_url_host, dispatch,
                              model_requested, outcome, model_used, error_code, provider_error_code, provider_request_id, finish_reason,
                              usage_raw, warnings, closed_at, input_tokens)
    SELECT gen_random_uuid(), %(job)s, %(user)s, n, 1, n::text, 'platform', 'p', '', 'sent', 'm', 'succeeded', '', '', '', '', '', '{}',
           '[]', now(), 1
    FROM generate_series(1, %(count)s) n
    """,
    """
    INSERT INTO ai_job_event (id, job_id, seq, name, attempt_no, actor_id, actor_name, data)
    SELECT gen_random_uuid(), %(job)s, n + 1, 'job.retry_scheduled', n, '', 'system', '{}' FROM generate_series(1, %(count)s) n
    """,
    "UPDATE ai_runtime_job SET attempt_no = %(count)s WHERE id = %(job)s",
)


def test_a_job_with_thousands_of_attempts_shows_the_last_fifty_and_pages_to_the_others(client, django_assert_max_num_queries):
    """admin 8 and 29"""
    client.force_login(staff(*VIEW))
    job = JobFactory(user=UserFactory(), credential=CredentialFactory())
    count = 5_000
    with triggers_off(), connection.cursor() as cursor:
        for statement in MANY:
            cursor.execute(statement, {"job": job.pk, "user": job.user_id, "count": count})
    for query, expected in (({}, range(5_000, 4_950, -1)), ({"attempts": "100"}, range(50, 0, -1)), ({"attempts": "101"}, range(0))):
        with django_assert_max_num_queries(15):
            page = client.get(url(job), query)
        assert [row["attempt"].attempt_no for row in page.context["executions"]["rows"]] == list(expected)
    with django_assert_max_num_queries(15):
        page = client.get(url(job), {"calls": "2", "events": "3"})
    assert len(page.context["calls"]["rows"]) == len(page.context["events"]["rows"]) == job_pages.PAGE
    assert page.context["totals"].input_tokens == count


def test_a_job_has_one_address_and_an_unknown_one_leads_home(client, viewer):
    """admin 30"""
    job = JobFactory()
    assert reverse("admin:runtime_jobs_airuntimejob_change", args=[job.pk]) == url(job)
    assert client.get(url(job)).status_code == 200
    for unknown in ("01a228e2-2dfc-717b-a62c-af8f8eb734fe", "nonsense"):
        assert client.get(f"{LIST}{unknown}/change/").status_code == 302


@pytest.mark.parametrize("make", [jobs.failed, jobs.succeeded, lambda: jobs.running()[0], JobFactory])
def test_every_element_of_the_page_is_closed_where_it_was_opened(client, make):
    client.force_login(root())
    job = make()
    for page in (url(job), f"{url(job)}?clear=1", LIST, f"{LIST}{job.pk}/cancel/", "/admin/runtime_jobs/claimgate/add/"):
        Balanced().read(client.get(page).content.decode())


class Balanced(HTMLParser):
    VOID = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr", "path", "circle", "use"})

    def read(self, text):
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}, but <{tag}> is not what is open"
