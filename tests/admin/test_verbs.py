"""What staff may do: with a permission, a reason and a confirmation, by POST alone, recorded for good; and twice does no harm."""

import uuid
from threading import Barrier, Thread
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from runtime_jobs.admin import verbs
from runtime_jobs.models import (
    AiEventDelivery,
    AiJobAttempt,
    AiJobEvent,
    AiModelCredential,
    AiRuntimeJob,
    AiStaffEvent,
    ClaimGate,
    RuntimeInstance,
    RuntimeServiceToken,
)
from runtime_jobs.models.base import new_id
from runtime_jobs.services import gates, service_tokens, workers
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.services.jobs import rerun_job
from tests.admin import jobs
from tests.admin.people import LIST, root, staff
from tests.factories import CredentialFactory, JobFactory, UserFactory

pytestmark = pytest.mark.django_db

WHY = "customer called"


@pytest.fixture
def operator(client):
    user = staff("view_airuntimejob", "rerun_job", "cancel_job", "release_lease")
    client.force_login(user)
    return user


def url(job, verb):
    return f"{LIST}{job.pk}/{verb}/"


def select(client, verb, chosen, query="lane__exact=interactive", **more):
    """Tick rows in the filtered list and choose the action."""
    data = {"action": verb, "_selected_action": [str(job.pk) for job in chosen], **more}
    return client.post(f"{LIST}?{query}", data)


def confirm(client, page, verb, reason=WHY):
    form = page.context["form"]
    data = {"ids": form["ids"].value(), "query": form["query"].value(), "reason": reason}
    return client.post(f"{LIST}{verb}-selected/", data, follow=False)


def said(client, answer):
    page = client.get(answer.url)
    return [str(message) for message in page.context["messages"]]


def status(job):
    return AiRuntimeJob.objects.values_list("status", flat=True).get(pk=job.pk)


def everything():
    """What no GET may change."""
    tables = (AiRuntimeJob, AiJobEvent, AiJobAttempt, AiStaffEvent, AiEventDelivery, AiModelCredential, ClaimGate, RuntimeInstance)
    return [list(table.objects.order_by("pk").values()) for table in tables]


# --- every verb of every admin ----------------------------------------------------------------------------------------------------


def rows_for(model, verb):
    """A row that the verb may be done to."""
    if model is AiRuntimeJob:
        return {"rerun": jobs.cancelled, "cancel": JobFactory, "release": lambda: jobs.running()[0]}[verb.name]()
    if model is ClaimGate:
        return gates.pause(ClaimGate.Kind.LANE, "background", actor=SYSTEM)
    if model is RuntimeInstance:
        workers.seen("worker 9", kind=workers.Kind.ENGINE, lane="interactive", version="", job_types=[])
        return RuntimeInstance.objects.get(name="worker 9")
    if model is AiModelCredential:
        return CredentialFactory()
    if model is RuntimeServiceToken:
        return service_tokens.issue(name="group", days=1)[0]
    if model is AiEventDelivery:
        event = AiJobEvent.objects.filter(job=JobFactory()).latest("seq")
        return AiEventDelivery.objects.create(
            id=new_id(), event=event, handler="tests.handler", job_id=event.job_id, seq=event.seq, tries=15, parked_at=Now()
        )
    raise AssertionError(f"this test does not know how to make a row for {verb.name} of {model.__name__}")


REGISTERED: dict[Any, Any] = admin.site._registry
VERBS: list[Any] = [
    pytest.param(model, verb, id=f"{model.__name__}.{verb.name}")
    for model, made in REGISTERED.items()
    for verb in getattr(made, "verbs", ())
]


def test_every_action_of_every_list_is_a_verb_or_one_of_djangos_with_a_permission(rf):
    request = rf.get("/")
    request.user = root()
    found = 0
    for model, made in REGISTERED.items():
        named = {verb.name for verb in getattr(made, "verbs", ())}
        for name, (function, _, _) in made.get_actions(request).items():
            found += 1
            assert name in named or getattr(function, "allowed_permissions", None), (model, name)
    assert found >= len(VERBS) >= 6
    permissions = [verb.values[1].permission for verb in VERBS]
    assert len(set(permissions)) == len(permissions), "one permission each"


def places(model, verb, row):
    base = f"admin:runtime_jobs_{model._meta.model_name}"
    return reverse(f"{base}_{verb.name}", args=[row.pk]), reverse(f"{base}_{verb.name}_selected"), reverse(f"{base}_changelist")


@pytest.mark.parametrize(("model", "verb"), VERBS)
def test_who_may_only_look_sees_no_verb_and_each_address_refuses_and_changes_nothing(client, model, verb):
    """admin 17"""
    row = rows_for(model, verb)
    one, many, listed = places(model, verb, row)
    client.force_login(staff(f"view_{model._meta.model_name}"))
    before = everything()
    for answer in (
        client.get(one), client.post(one, {"reason": WHY}), client.get(many), client.post(many, {"ids": str(row.pk), "reason": WHY}),
    ):  # fmt: skip
        assert answer.status_code in (403, 405)
    client.post(listed, {"action": verb.name, "_selected_action": [str(row.pk)]})
    assert everything() == before
    assert one not in client.get(reverse(f"admin:runtime_jobs_{model._meta.model_name}_change", args=[row.pk])).content.decode()
    assert 'name="action"' not in client.get(listed).content.decode()


@pytest.mark.parametrize(("model", "verb"), VERBS)
def test_the_permission_without_the_right_to_look_is_not_enough(client, model, verb):
    row = rows_for(model, verb)
    client.force_login(staff(verb.permission.split(".")[1]))
    one, many, _ = places(model, verb, row)
    assert client.post(one, {"reason": WHY}).status_code == 403
    assert client.post(many, {"ids": str(row.pk), "reason": WHY}).status_code == 403


@pytest.mark.parametrize(("model", "verb"), VERBS)
def test_get_and_head_show_what_will_happen_and_change_nothing(client, model, verb):
    """admin 15 and 16"""
    row = rows_for(model, verb)
    one, many, listed = places(model, verb, row)
    client.force_login(root())
    before = everything()
    page = client.get(one)
    assert page.status_code == 200
    assert str(verb.explanation) in page.content.decode().replace("&#x27;", "'")
    assert client.head(one).status_code == 200
    for method in (client.put, client.delete, client.patch):
        assert method(one).status_code == 405
    assert client.get(many).status_code == client.head(many).status_code == 405
    assert client.get(f"{listed}?action={verb.name}&_selected_action={row.pk}").status_code in (302, 400)
    assert everything() == before


@pytest.mark.parametrize(("model", "verb"), VERBS)
def test_a_post_from_another_site_is_refused(model, verb):
    """admin 16"""
    row = rows_for(model, verb)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(root())
    before = everything()
    one, many, listed = places(model, verb, row)
    assert strict.post(one, {"reason": WHY}).status_code == 403
    assert strict.post(many, {"ids": str(row.pk), "reason": WHY}).status_code == 403
    assert strict.post(listed, {"action": verb.name, "_selected_action": [str(row.pk)]}).status_code == 403
    assert everything() == before


@pytest.mark.parametrize("how", ["one", "many"])
@pytest.mark.parametrize(("model", "verb"), VERBS)
def test_a_verb_writes_an_event_with_who_why_and_the_request_which_outlives_the_person(client, model, verb, how):
    """admin 20"""
    row = rows_for(model, verb)
    user = root(username="carol")
    client.force_login(user)
    one, many, _ = places(model, verb, row)
    before = {event.pk for table in (AiJobEvent, AiStaffEvent) for event in table.objects.all()}
    where, data = (one, {}) if how == "one" else (many, {"ids": str(row.pk)})
    answer = client.post(where, {**data, "reason": WHY}, headers={"X-Request-Id": "req-0123456789"})
    assert answer.status_code == 302
    assert answer["X-Request-Id"] == "req-0123456789"
    user.delete()
    written: list[Any] = [event for table in (AiJobEvent, AiStaffEvent) for event in table.objects.exclude(pk__in=before)]
    by_carol = [event for event in written if event.actor_name == "carol"]
    assert by_carol
    for event in by_carol:
        assert event.data.get("reason", getattr(event, "reason", None)) == WHY
        assert event.data["request_id"] == "req-0123456789"
    after = everything()
    client.force_login(root())
    again = client.post(where, {**data, "reason": WHY})
    assert again.status_code in (302, 404)
    assert everything() == after, "the second click is harmless"


@pytest.mark.parametrize(("model", "verb"), VERBS)
def test_without_a_reason_nothing_happens_and_the_page_asks_again(client, model, verb):
    row = rows_for(model, verb)
    one, many, _ = places(model, verb, row)
    client.force_login(root())
    before = everything()
    for answer in (client.post(one, {"reason": " "}), client.post(many, {"ids": str(row.pk), "reason": ""})):
        assert answer.status_code == 200
        assert answer.context["form"].errors["reason"]
    assert everything() == before


# --- jobs, one by one -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "offered"),
    [
        (JobFactory, {"cancel"}),
        (lambda: jobs.running()[0], {"cancel", "release"}),
        (jobs.failed, {"rerun"}),
        (jobs.succeeded, {"rerun"}),
        (jobs.cancelled, {"rerun"}),
    ],
)
def test_the_page_offers_what_the_state_allows(client, operator, make, offered):
    job = make()
    page = client.get(f"{LIST}{job.pk}/change/").content.decode()
    assert {verb for verb in ("rerun", "cancel", "release") if url(job, verb) in page} == offered


def test_a_running_job_is_asked_to_stop_and_the_page_says_so(client, operator):
    """admin 14"""
    job, _ = jobs.running()
    answer = client.post(url(job, "cancel"), {"reason": WHY})
    page = client.get(answer.url)
    assert answer.url == f"{LIST}{job.pk}/change/"
    assert "cancel requested" in page.content.decode()
    assert url(job, "cancel") not in page.content.decode()
    assert f"Cancel requested by {operator.username}: {WHY}" in page.content.decode()
    again = client.post(url(job, "cancel"), {"reason": "and again"})
    assert said(client, again) == ["1 skipped, because its cancel was requested already"]


def test_a_rerun_goes_on_from_the_same_input_and_both_know_each_other(client, operator):
    job = jobs.failed()
    assert said(client, client.post(url(job, "rerun"), {"reason": WHY})) == ["Rerun: 1 done."]
    made = AiRuntimeJob.objects.get(retried_from_job=job)
    assert (made.status, made.snapshot_id, made.user_id) == ("queued", job.snapshot_id, job.user_id)
    assert str(made.pk) in client.get(f"{LIST}{job.pk}/change/").content.decode()
    assert str(job.pk) in client.get(f"{LIST}{made.pk}/change/").content.decode()


def test_a_released_job_goes_on_elsewhere_and_its_old_worker_is_refused(client, operator):
    job, claim = jobs.running()
    client.post(url(job, "release"), {"reason": "it hangs"})
    job.refresh_from_db()
    assert (job.status, job.lock_token, job.retry_count, job.release_count) == ("retrying", None, 0, 0)
    assert AiJobAttempt.objects.get(job=job).outcome == "released"
    event = AiJobEvent.objects.get(job=job, name="job.released")
    assert event.data["worker"] == "worker 7"
    with pytest.raises(Exception, match="taken over"):
        jobs.succeed(claim)
    jobs.succeed(jobs.again(job))
    assert status(job) == "succeeded"


def test_releasing_a_job_whose_cancel_was_requested_ends_it(client, operator):
    job, _ = jobs.running()
    client.post(url(job, "cancel"), {"reason": WHY})
    client.post(url(job, "release"), {"reason": WHY})
    assert status(job) == "cancelled"


def test_a_verb_for_a_job_that_is_not_there_is_not_found(client, operator):
    assert client.post(f"{LIST}{uuid.uuid4()}/cancel/", {"reason": WHY}).status_code == 404


# --- jobs, many -------------------------------------------------------------------------------------------------------------------


def test_choosing_an_action_shows_how_many_and_changes_nothing(client, operator):
    chosen = [jobs.cancelled() for _ in range(12)]
    before = everything()
    page = select(client, "rerun", chosen)
    assert page.status_code == 200
    assert page.context["count"] == 12
    assert page.context["more"] == 2
    assert everything() == before


def test_a_confirmed_action_keeps_the_filter_and_says_how_many_were_skipped_and_why(client, operator):
    """admin 11 and 12"""
    ended, waiting, twice = jobs.cancelled(), JobFactory(), jobs.cancelled()
    rerun_job(twice.pk, actor=SYSTEM)
    answer = confirm(client, select(client, "rerun", [ended, waiting, twice], "lane__exact=interactive&o=1"), "rerun")
    assert (answer.status_code, answer.url) == (302, f"{LIST}?lane__exact=interactive&o=1")
    assert sorted(said(client, answer)) == [
        "1 skipped, because an unfinished rerun exists already",
        "1 skipped, because the job is queued; only a job that has ended can be rerun",
        "Rerun: 1 done.",
    ]
    assert AiRuntimeJob.objects.filter(retried_from_job=ended).count() == 1


def test_all_that_match_are_exactly_those_that_the_page_named(client, operator):
    """admin 12"""
    first = JobFactory()
    matching = [JobFactory(user=first.user, credential=first.credential) for _ in range(59)]
    other = JobFactory(job_type="synthetic.extract_facts_background")
    page = select(client, "cancel", matching[:1], select_across="1")
    assert page.context["count"] == 60
    late = JobFactory(user=first.user, credential=first.credential)
    assert said(client, confirm(client, page, "cancel")) == ["Cancel the job: 60 done."]
    assert {status(job) for job in (first, *matching)} == {"cancelled"}
    assert {status(other), status(late)} == {"queued"}


def test_more_than_the_cap_is_refused_as_a_whole(client, operator, monkeypatch):
    """admin 12"""
    monkeypatch.setattr(verbs, "MOST", 2)
    chosen = [JobFactory() for _ in range(3)]
    before = everything()
    answer = select(client, "cancel", chosen)
    assert said(client, answer) == ["More than 2 rows match. Nothing was changed; narrow the filter."]
    forged = client.post(f"{LIST}cancel-selected/", {"ids": ",".join(str(job.pk) for job in chosen), "reason": WHY})
    assert said(client, forged) == ["Nothing was changed: choose 1 to 2 rows."]
    for ids in ("", "nonsense", f"{chosen[0].pk},x"):
        answer = client.post(f"{LIST}cancel-selected/", {"ids": ids, "reason": WHY})
        assert said(client, answer) == ["Nothing was changed: choose 1 to 2 rows."]
    assert everything() == before


def test_a_thousand_jobs_fit_into_one_confirmation(client, operator):
    """Django takes no more than 1,000 fields: the keys come in one."""
    ids = ",".join(str(new_id()) for _ in range(verbs.MOST))
    answer = client.post(f"{LIST}cancel-selected/", {"ids": ids, "reason": WHY})
    assert said(client, answer) == ["1,000 skipped, because the job is not there any more"]


def test_where_an_action_leads_back_to_is_a_list_of_ours(client, operator):
    job = JobFactory()
    answer = client.post(f"{LIST}cancel-selected/", {"ids": str(job.pk), "reason": WHY, "query": "//evil.example/"})
    assert answer.url.startswith(f"{LIST}?")


def test_button_bulk_and_service_leave_the_same_records(client, operator):
    """admin 21"""
    owner = UserFactory()
    by_button, by_bulk, by_service = (jobs.cancelled(user=owner) for _ in range(3))
    client.post(url(by_button, "rerun"), {"reason": WHY})
    confirm(client, select(client, "rerun", [by_bulk]), "rerun")
    rerun_job(by_service.pk, actor=Actor.of(operator), reason=WHY)

    def records(job):
        made = AiRuntimeJob.objects.get(retried_from_job=job)
        events = AiJobEvent.objects.filter(job__in=[job, made]).order_by("job_id", "seq")
        return [(event.name, event.actor_id, event.actor_name, event.data.get("reason")) for event in events]

    assert records(by_button) == records(by_bulk) == records(by_service)


@pytest.mark.django_db(transaction=True)
def test_two_reruns_at_once_make_one_job():
    """admin 33"""
    job = jobs.cancelled()
    clients = [Client(), Client()]
    for client in clients:
        client.force_login(root())
    barrier, answers = Barrier(2), []

    def click(client):
        try:
            barrier.wait(10)
            answers.append(client.post(url(job, "rerun"), {"reason": WHY}).status_code)
        finally:
            connections.close_all()

    threads = [Thread(target=click, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [302, 302]
    assert AiRuntimeJob.objects.filter(retried_from_job=job).count() == 1


# --- pauses -----------------------------------------------------------------------------------------------------------------------

PAUSE = "/admin/runtime_jobs/claimgate/add/"


def test_a_pause_is_made_by_its_form_with_a_reason_and_recorded(client):
    client.force_login(staff("view_claimgate", "pause_claims", username="dora"))
    assert client.get(PAUSE).status_code == 200
    assert not ClaimGate.objects.exists()
    for _ in range(2):
        assert client.post(PAUSE, {"what": "lane:background", "reason": "deploy"}).status_code == 302
    gate = ClaimGate.objects.get()
    assert (gate.kind, gate.key, gate.reason, gate.closed_by, gate.until) == ("lane", "background", "deploy", "dora", None)
    event = AiStaffEvent.objects.first()
    assert event is not None
    assert (event.name, event.actor_name, event.subject_id, event.reason) == ("claims.paused", "dora", "background", "deploy")
    assert event.data["request_id"]


@pytest.mark.parametrize("wrong", [{"what": "lane:nowhere"}, {"reason": ""}, {"until": "2020-01-01T00:00"}, {"what": "breaker:x/y"}])
def test_a_pause_that_makes_no_sense_is_said_at_its_field(client, wrong):
    client.force_login(staff("view_claimgate", "pause_claims"))
    answer = client.post(PAUSE, {"what": "job_type:synthetic.extract_facts", "reason": "x", **wrong})
    assert set(answer.context["form"].errors) == set(wrong)
    assert not ClaimGate.objects.exists()


def test_who_may_only_look_at_pauses_makes_none(client):
    client.force_login(staff("view_claimgate"))
    assert client.get(PAUSE).status_code == 403
    assert client.post(PAUSE, {"what": "lane:background", "reason": "x"}).status_code == 403
    assert not ClaimGate.objects.exists()


def test_a_web_server_does_not_drain_and_a_worker_is_asked_once():
    for name, kind in (("web", workers.Kind.WEB), ("engine", workers.Kind.ENGINE)):
        workers.seen(name, kind=kind, lane="interactive", version="", job_types=[])
    actor = Actor("1", "ann")
    assert [workers.drain(name, actor=actor) for name in ("web", "engine", "engine", "nobody")] == [False, True, False, False]
    assert workers.seen("engine", kind=workers.Kind.ENGINE, lane="interactive", version="", job_types=[]) is True


# --- the people's own pages ---------------------------------------------------------------------------------------------------------


def test_what_is_done_to_users_and_roles_is_recorded_too(client):
    client.force_login(root(username="eve"))
    user: Any = UserFactory(username="frank")
    delete = {"action": "delete_selected", "_selected_action": [user.pk], "post": "yes"}
    answer = client.post("/admin/auth/user/", delete, headers={"X-Request-Id": "req-delete-1"})
    assert answer.status_code == 302
    assert not get_user_model().objects.filter(username="frank").exists()
    event = AiStaffEvent.objects.get()
    assert (event.name, event.actor_name, event.data["object"]) == ("user.deleted", "eve", "frank")
    assert event.data["request_id"] == "req-delete-1"


def test_the_record_of_staff_actions_is_not_changed_by_anyone():
    workers.seen("engine", kind=workers.Kind.ENGINE, lane="interactive", version="", job_types=[])
    workers.drain("engine", actor=Actor("1", "ann"))
    for statement in ("UPDATE ai_staff_event SET actor_name = 'bob'", "DELETE FROM ai_staff_event", "TRUNCATE ai_staff_event"):
        with pytest.raises(Exception, match="ai_staff_event"), connection.cursor() as cursor, transaction.atomic():
            cursor.execute(statement)
    assert AiStaffEvent.objects.get().actor_name == "ann"
