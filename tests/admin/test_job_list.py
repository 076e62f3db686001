"""Staff in the job list: what they see, what they may do, and that nothing happens by a click alone."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.urls import reverse

from runtime_jobs import queries, registry
from runtime_jobs.models import AiJobEvent, AiRuntimeJob, AiRuntimeResult, RuntimeServiceToken
from runtime_jobs.services import claims
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.services.settlements import Delivery, Fence
from runtime_jobs.services.terminal import submit_result
from tests.factories import KEY, JobFactory, UserFactory

pytestmark = pytest.mark.django_db

LIST = "/admin/runtime_jobs/airuntimejob/"


def staff(*permissions):
    user: Any = UserFactory(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


@pytest.fixture
def operator(client):
    user = staff("view_airuntimejob", "view_airuntimeresult", "rerun_job", "cancel_job")
    client.force_login(user)
    return user


def finished(**more):
    job = JobFactory(**more)
    cancel_job(job.pk, actor=Actor("", "test"))
    return job


def succeeded(**more):
    job = JobFactory(**more)
    (claim,) = claims.claim(lane="interactive", worker="w", job_types=[job.job_type], count=1, lease_seconds=30)
    output: Any = {"summary": "s", "facts": [{"text": "The Danube is long.", "paragraph": "p1"}]}
    delivery = Delivery("{}", "0" * 64, "1", output)
    submit_result(Fence(job.pk, 1, claim.token, "w"), delivery, registry.get(job.job_type), queries.work_item(job.pk).job)
    return job


def post(client, action, jobs, **more):
    data = {"action": action, "_selected_action": [str(job.pk) for job in jobs], **more}
    return client.post(f"{LIST}?lane__exact=interactive", data)


def test_choosing_an_action_shows_a_page_that_changes_nothing(client, operator):
    job = finished()
    page = post(client, "rerun_selected", [job])
    assert page.status_code == 200
    assert b"The old job and its result stay as they are" in page.content
    assert AiRuntimeJob.objects.count() == 1


def test_a_confirmed_rerun_makes_a_new_job_says_who_and_why_and_keeps_the_filter(client, operator):
    job = finished()
    answer = post(client, "rerun_selected", [job], confirmed="yes", reason="customer called")
    assert (answer.status_code, answer.url) == (302, f"{LIST}?lane__exact=interactive")
    rerun = AiRuntimeJob.objects.get(retried_from_job=job)
    assert rerun.status == "queued"
    event = AiJobEvent.objects.get(job=job, name="job.rerun")
    assert (event.actor_name, event.data["reason"]) == (operator.username, "customer called")


def test_jobs_that_cannot_be_rerun_are_counted_with_the_reason(client, operator):
    jobs = [finished(), JobFactory()]
    answer = client.post(LIST, {"action": "rerun_selected", "_selected_action": [j.pk for j in jobs], "confirmed": "yes"}, follow=True)
    said = [str(message) for message in answer.context["messages"]]
    assert said == ["1 rerun.", "1 skipped: The job is queued; only a job that has ended can be rerun."]


def test_the_second_click_on_rerun_or_cancel_is_harmless(client, operator):
    ended, waiting = finished(), JobFactory()
    for _ in range(2):
        post(client, "rerun_selected", [ended], confirmed="yes")
        post(client, "cancel_selected", [waiting], confirmed="yes")
    assert AiRuntimeJob.objects.filter(retried_from_job=ended).count() == 1
    waiting.refresh_from_db()
    assert waiting.status == "cancelled"
    assert AiJobEvent.objects.filter(job=waiting, name="job.cancelled").count() == 1


@pytest.mark.parametrize("action", ["rerun_selected", "cancel_selected"])
def test_who_may_only_look_has_no_verb_and_a_forged_post_has_no_effect(client, action):
    """admin 17"""
    client.force_login(staff("view_airuntimejob"))
    ended, waiting = finished(), JobFactory()
    assert b'name="action"' not in client.get(LIST).content
    post(client, action, [ended, waiting], confirmed="yes")
    assert AiRuntimeJob.objects.count() == 2
    waiting.refresh_from_db()
    assert waiting.status == "queued"


def test_an_action_without_the_csrf_token_is_refused(operator):
    """admin 16"""
    from django.test import Client

    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)
    assert post(strict, "cancel_selected", [JobFactory()], confirmed="yes").status_code == 403
    assert AiRuntimeJob.objects.get().status == "queued"


def test_too_many_jobs_at_once_are_refused_as_a_whole(client, operator, monkeypatch):
    monkeypatch.setattr("runtime_jobs.admin.actions.MOST", 1)
    jobs = [finished(), finished()]
    post(client, "rerun_selected", jobs, confirmed="yes")
    assert AiRuntimeJob.objects.count() == 2


def test_every_page_opens_in_few_queries_and_never_counts_the_whole_table(client, django_assert_max_num_queries):
    user = UserFactory(is_staff=True, is_superuser=True)
    client.force_login(user)
    job = succeeded()
    result = AiRuntimeResult.objects.get()
    event = AiJobEvent.objects.filter(job=job).first()
    urls = [reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") for model in admin.site._registry]
    urls += [reverse(f"admin:runtime_jobs_{row._meta.model_name}_change", args=[row.pk]) for row in (job, result, event) if row]
    for url in urls:
        with django_assert_max_num_queries(15) as captured:
            page = client.get(url)
        assert page.status_code == 200, url
        if "runtime_jobs" in url:
            assert not [q["sql"] for q in captured.captured_queries if "COUNT(*)" in q["sql"]], url


def test_a_job_is_found_by_its_id_and_by_its_idempotency_key_and_an_unknown_one_is_an_empty_list(client, operator):
    """admin 30"""
    job = JobFactory(idempotency_key="order 7")
    JobFactory()
    for term, expected in ((str(job.pk), 1), ("order 7", 1), ("01a228e2-2dfc-717b-a62c-af8f8eb734fe", 0), ("nothing", 0)):
        page = client.get(LIST, {"q": term})
        assert page.status_code == 200
        assert len(page.context["cl"].result_list) == expected, term


def test_nothing_can_be_added_changed_or_deleted_by_hand(client):
    client.force_login(UserFactory(is_staff=True, is_superuser=True))
    job = JobFactory()
    # Service tokens are made there, by their service (test_service_tokens.py).
    ours = [model for model in admin.site._registry if model._meta.app_label == "runtime_jobs" and model is not RuntimeServiceToken]
    assert len(ours) >= 4
    for model in ours:
        name = f"admin:runtime_jobs_{model._meta.model_name}"
        assert client.get(reverse(f"{name}_add")).status_code == 403
    assert client.post(reverse("admin:runtime_jobs_airuntimejob_change", args=[job.pk]), {"status": "failed"}).status_code == 403
    assert client.post(reverse("admin:runtime_jobs_airuntimejob_delete", args=[job.pk]), {"post": "yes"}).status_code == 403


def test_outputs_are_shown_in_clear_only_with_the_permission_for_it(client, operator):
    succeeded()
    url = reverse("admin:runtime_jobs_airuntimeresult_change", args=[AiRuntimeResult.objects.get().pk])
    assert b"The Danube is long." not in client.get(url).content
    operator.user_permissions.add(Permission.objects.get(codename="view_sensitive"))
    client.force_login(type(operator).objects.get(pk=operator.pk))
    assert b"The Danube is long." in client.get(url).content


def test_no_page_shows_a_key_a_lock_token_or_its_hash(client):
    client.force_login(UserFactory(is_staff=True, is_superuser=True))
    job = JobFactory()
    claims.claim(lane="interactive", worker="w", job_types=[job.job_type], count=1, lease_seconds=30)
    job.refresh_from_db()
    page = client.get(reverse("admin:runtime_jobs_airuntimejob_change", args=[job.pk])).content.decode()
    assert job.lock_token not in page
    assert KEY not in page


def test_the_queue_librarys_own_pages_are_not_there(client):
    client.force_login(UserFactory(is_staff=True, is_superuser=True))
    assert not [model for model in admin.site._registry if model._meta.app_label == "django_q"]
