"""Staff in the job list: what they find, how, and at which cost."""

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.core.cache import cache
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from runtime_jobs.admin import export
from runtime_jobs.models import AiJobEvent, AiRuntimeJob, AiRuntimeResult, AiStaffEvent, RuntimeServiceToken
from runtime_jobs.queries import lists
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job, rerun_job
from runtime_jobs.states import JobStatus
from tests.admin import jobs
from tests.admin.people import LIST, root, staff
from tests.factories import CredentialFactory, JobFactory, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_old_counts():
    cache.clear()


@pytest.fixture
def viewer(client):
    user = staff("view_airuntimejob")
    client.force_login(user)
    return user


def found(client, **query):
    page = client.get(LIST, query)
    assert page.status_code == 200
    return {job.pk for job in page.context["cl"].result_list}


# --- what is found ----------------------------------------------------------------------------------------------------------------


def test_a_job_is_found_by_its_id_key_target_or_user_and_an_unknown_one_is_an_empty_list(client, viewer):
    """admin 30"""
    job = JobFactory(idempotency_key="order 7", target_type="invoice", target_id="A-17", user=UserFactory(username="mallory"))
    JobFactory()
    for term in (str(job.pk), job.pk.hex, " order 7 ", "invoice A-17", "invoice:A-17", "A-17", "mallory"):
        assert found(client, q=term) == {job.pk}, term
    for term in ("01a228e2-2dfc-717b-a62c-af8f8eb734fe", "nothing", "order", "%"):
        assert found(client, q=term) == set(), term


def test_each_filter_shows_its_jobs_and_no_others(client, viewer):
    user = UserFactory(username="judy")
    own = jobs.failed(
        user=user, job_type="synthetic.extract_facts_background", credential=CredentialFactory(provider="other"), model_provider="other"
    )
    plain = jobs.succeeded()
    for query in (
        {"status__exact": "failed"}, {"lane__exact": "background"}, {"job_type": "synthetic.extract_facts_background"},
        {"error_code": "provider_auth_failed"}, {"provider": "other"}, {"user": "judy"},
    ):  # fmt: skip
        assert found(client, **query) == {own.pk}, query
    assert found(client, user="nobody") == set()
    assert found(client, status__exact="failed", lane__exact="interactive") == set()
    assert found(client) == {own.pk, plain.pk}


def test_jobs_are_found_by_when_they_were_created(client, viewer):
    job = JobFactory()
    day = timedelta(days=1)
    now = timezone.localtime()
    assert found(client, created="1h") == {job.pk}
    assert found(client, since=f"{now - day:%Y-%m-%dT%H:%M}", until=f"{now + day:%Y-%m-%dT%H:%M}") == {job.pk}
    assert found(client, since=f"{now + day:%Y-%m-%dT%H:%M}") == set()
    assert found(client, until=f"{now - day:%Y-%m-%dT%H:%M}") == set()
    assert found(client, created="1h", since="no time", until="2026-02-31T00:00") == {job.pk}


def test_what_has_been_rerun_is_found_once_and_so_is_what_has_not_not(client, viewer):
    old, other = jobs.cancelled(), jobs.cancelled()
    for _ in range(2):
        made = rerun_job(old.pk, actor=Actor("", "test")).job
        cancel_job(made.pk, actor=Actor("", "test"))
    assert found(client, rerun="yes") == {old.pk}
    assert other.pk in found(client)


def test_what_the_form_leaves_empty_is_not_in_the_address(client, viewer):
    answer = client.get(LIST, {"lane__exact": "", "user": "", "status__exact": "failed", "q": ""})
    assert (answer.status_code, answer.url) == (302, f"{LIST}?status__exact=failed")


def test_a_url_can_search_by_the_filters_and_by_no_other_column(client, viewer):
    jobs.running()
    for lookup in ("lock_token__startswith", "internal_error__contains", "user__password__startswith", "status__in"):
        assert client.get(LIST, {lookup: "a"}).status_code == 400, lookup


# --- what is shown ----------------------------------------------------------------------------------------------------------------


def test_the_chips_count_the_states_and_end_at_a_cap(client, viewer, monkeypatch):
    """admin 5"""
    monkeypatch.setattr(lists, "COUNT_CAP", 2)
    for _ in range(3):
        JobFactory()
    jobs.failed()
    chips = {chip["status"]: chip for chip in client.get(LIST).context["chips"]}
    assert (chips["queued"]["count"], chips["failed"]["count"], chips["cancelled"]["count"]) == ("2+", "1", "0")
    assert set(chips) == {"all", *(str(status) for status in JobStatus)}
    narrowed = client.get(LIST, {"lane__exact": "interactive"}).context["chips"]
    assert [chip.get("count", "") for chip in narrowed] == [""] * 8
    assert all("lane__exact=interactive" in chip["url"] for chip in narrowed)


def test_twenty_open_tabs_count_once(client, viewer, django_assert_num_queries):
    """admin 5"""
    JobFactory()
    statements = []

    def catch(run, sql, parameters, many, context):
        statements.append(sql)
        return run(sql, parameters, many, context)

    with connection.execute_wrapper(catch):
        for _ in range(20):
            client.get(LIST)
    assert len([sql for sql in statements if sql == lists._STATUS_COUNTS]) == 1


def test_times_are_said_in_words_and_exactly_on_hover(client, viewer):
    job = jobs.succeeded()
    AiRuntimeJob.objects.filter(pk=JobFactory().pk).update(created_at=timezone.now() - timedelta(hours=2, minutes=5))
    page = client.get(LIST).content.decode()
    assert "2 h 5 min</time>" in page
    assert f'title="{timezone.localtime(job.started_at).isoformat(sep=" ", timespec="milliseconds")} … ' in page


def test_every_sortable_column_is_given_in_order_by_an_index(client, viewer):
    """admin 3 and 6: ordering by the id, a UUID of version 7, is ordering by age."""
    registered: dict[Any, Any] = admin.site._registry
    for model, made in registered.items():
        if model._meta.app_label == "runtime_jobs":
            columns = made.get_list_display(None) if made.sortable_by is None else made.get_sortable_by(None)
            orders = {getattr(getattr(made, column, None), "admin_order_field", column) for column in columns}
            assert orders <= {"id"}, (model, orders)
            assert made.get_ordering(None) == ("-id",)


def test_every_page_opens_in_few_queries_and_never_counts_the_whole_table(client, django_assert_max_num_queries):
    """admin 7"""
    client.force_login(root())
    job = jobs.succeeded()
    result = AiRuntimeResult.objects.get()
    event = AiJobEvent.objects.filter(job=job).first()
    urls = [reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") for model in admin.site._registry]
    urls += [reverse(f"admin:runtime_jobs_{row._meta.model_name}_change", args=[row.pk]) for row in (job, result, event) if row]
    for url in urls:
        with django_assert_max_num_queries(15) as captured:
            page = client.get(url)
        assert page.status_code == 200, url
        if "runtime_jobs" in url:
            counts = [query["sql"] for query in captured.captured_queries if "COUNT(*)" in query["sql"]]
            assert all("LIMIT" in sql for sql in counts), url


@pytest.mark.parametrize("page", [1, 3])
def test_a_list_costs_the_same_whatever_its_jobs_have_behind_them(client, viewer, django_assert_max_num_queries, page):
    """admin 8"""
    first = JobFactory()
    for _ in range(120):
        JobFactory(user=first.user, credential=first.credential)
    with django_assert_max_num_queries(10):
        shown = client.get(LIST, {"p": page}).context["cl"].result_list
        assert len(shown) == (50 if page == 1 else 21)
    ids = [job.pk for job in shown]
    assert ids == sorted(ids, reverse=True)


def test_more_than_the_cap_is_shown_as_more(client, viewer, monkeypatch):
    monkeypatch.setattr("runtime_jobs.admin.paginator.COUNT_CAP", 2)
    for _ in range(3):
        JobFactory()
    page = client.get(LIST)
    assert page.context["cl"].result_count == 2
    assert "\n2+ jobs" in page.content.decode()


# --- the export -------------------------------------------------------------------------------------------------------------------


def exported(client, **query):
    answer = client.get(f"{LIST}export/", query)
    assert answer.status_code == 200
    assert answer.streaming
    text = b"".join(answer).decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def test_an_export_has_all_that_the_filter_shows_and_nothing_else(client, monkeypatch):
    """admin 27"""
    monkeypatch.setattr(export, "_AT_ONCE", 10)
    client.force_login(staff("view_airuntimejob", "export_jobs"))
    first = JobFactory()
    for _ in range(60):
        JobFactory(user=first.user, credential=first.credential)
    jobs.cancelled()
    rows = exported(client, status__exact="queued")
    assert len({row["id"] for row in rows}) == 61
    assert {row["status"] for row in rows} == {"queued"}
    assert "status__exact=queued" in client.get(LIST, {"status__exact": "queued"}).context["export_url"]
    event = AiStaffEvent.objects.get()
    assert (event.name, event.data["filter"]) == ("jobs.exported", "status__exact=queued")


def test_an_export_ends_at_its_cap_and_says_so(client, monkeypatch):
    monkeypatch.setattr(export, "MOST", 2)
    client.force_login(staff("view_airuntimejob", "export_jobs"))
    for _ in range(3):
        JobFactory()
    rows = exported(client)
    assert len(rows) == 3
    assert rows[2]["id"].startswith("Cut here: an export has at most 2 rows.")


def test_nothing_in_an_export_is_run_by_a_spreadsheet_or_is_a_secret(client):
    client.force_login(staff("view_airuntimejob", "export_jobs"))
    JobFactory(target_type="=cmd|' /C calc'!A0", target_id="@SUM(1)", idempotency_key="-1+1")
    JobFactory(idempotency_key="sk-live-0123456789abcdef")
    leaked, dangerous = exported(client)
    assert (dangerous["target_type"], dangerous["target_id"], dangerous["idempotency_key"]) == (
        "'=cmd|' /C calc'!A0", "'@SUM(1)", "'-1+1",
    )  # fmt: skip
    assert leaked["idempotency_key"] == "[redacted]"
    columns = set(leaked)
    assert columns == set(export.COLUMNS)
    assert not columns & {"lock_token", "internal_error", "checkpoint", "snapshot", "request_fingerprint"}


def test_an_export_needs_its_permission_and_changes_nothing_else(client, viewer):
    assert client.get(f"{LIST}export/").status_code == 403
    assert b"export/" not in client.get(LIST).content
    client.force_login(staff("view_airuntimejob", "export_jobs"))
    assert client.post(f"{LIST}export/").status_code == 405
    assert not AiStaffEvent.objects.exists()


# --- whole tables -----------------------------------------------------------------------------------------------------------------


def test_nothing_can_be_added_changed_or_deleted_by_hand(client):
    client.force_login(root())
    job = JobFactory()
    # Service tokens, credentials and pauses are made there, by their services.
    made_there = {RuntimeServiceToken._meta.model_name, "claimgate", "aimodelcredential"}
    ours = [model for model in admin.site._registry if model._meta.app_label == "runtime_jobs"]
    assert len(ours) >= 8
    for model in ours:
        if model._meta.model_name not in made_there:
            assert client.get(reverse(f"admin:runtime_jobs_{model._meta.model_name}_add")).status_code == 403, model
    assert client.post(reverse("admin:runtime_jobs_airuntimejob_change", args=[job.pk]), {"status": "failed"}).status_code == 403
    assert client.post(reverse("admin:runtime_jobs_airuntimejob_delete", args=[job.pk]), {"post": "yes"}).status_code == 403


def test_the_queue_librarys_own_pages_are_not_there(client):
    assert not [model for model in admin.site._registry if model._meta.app_label == "django_q"]
