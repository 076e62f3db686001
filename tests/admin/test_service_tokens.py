"""Service tokens in the admin and on the command line: shown once, revoked by POST, for those who may."""

import io
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.urls import reverse

from runtime_jobs.models import AiStaffEvent, RuntimeServiceToken
from runtime_jobs.services import service_tokens
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db

LIST = "/admin/runtime_jobs/runtimeservicetoken/"
FORM = {"name": "blue group", "days": 30, "scopes": ["jobs", "logs"], "job_types": [], "instance_pattern": r"blue-\d+"}


@pytest.fixture
def staff(client):
    def login(*permissions):
        user: Any = UserFactory(is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
        return user

    return login


def test_a_new_token_is_shown_once_and_not_to_be_kept_by_anything_on_the_way(client, staff):
    user = staff("view_runtimeservicetoken", "add_runtimeservicetoken")
    assert client.get(f"{LIST}add/").status_code == 200
    shown = client.post(f"{LIST}add/", FORM)
    token = RuntimeServiceToken.objects.get()
    text = shown.content.decode()
    secret = text.split('<code id="token">')[1].split("</code>")[0]
    assert "no-store" in shown["Cache-Control"]
    assert service_tokens.authenticate(secret)[0].scopes == {"jobs", "logs"}
    assert secret not in client.get(LIST).content.decode() + client.get(f"{LIST}{token.pk}/change/").content.decode()
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (user, str(token.pk))
    assert secret not in entry.change_message


def test_what_is_wrong_with_a_new_token_stands_at_its_field(client, staff):
    staff("view_runtimeservicetoken", "add_runtimeservicetoken")
    answer = client.post(f"{LIST}add/", {**FORM, "instance_pattern": "("})
    assert "The pattern is no regular expression" in answer.content.decode()
    assert not RuntimeServiceToken.objects.exists()


def test_revoking_asks_first_and_is_done_by_post_alone(client, staff):
    staff("view_runtimeservicetoken", "revoke_service_token")
    token, secret = service_tokens.issue(name="old", days=1)
    page = reverse("admin:runtime_jobs_runtimeservicetoken_revoke", args=[token.pk])
    assert page in client.get(f"{LIST}{token.pk}/change/").content.decode()
    assert client.get(page).status_code == 200
    assert service_tokens.authenticate(secret.reveal())
    assert client.post(page, {"reason": "lost"}).status_code == 302
    with pytest.raises(service_tokens.TokenRevoked):
        service_tokens.authenticate(secret.reveal())
    event = AiStaffEvent.objects.get()
    assert (event.name, event.subject_id, event.reason) == ("service_token.revoked", token.key_id, "lost")
    assert client.post(page, {"reason": "lost"}).status_code == 302  # twice does no harm
    assert AiStaffEvent.objects.count() == 1


def test_who_may_only_look_can_neither_make_nor_revoke(client, staff):
    staff("view_runtimeservicetoken")
    token, _ = service_tokens.issue(name="old", days=1)
    page = reverse("admin:runtime_jobs_runtimeservicetoken_revoke", args=[token.pk])
    assert client.get(LIST).status_code == 200
    assert page not in client.get(f"{LIST}{token.pk}/change/").content.decode()
    for answer in (client.get(page), client.post(page), client.get(f"{LIST}add/"), client.post(f"{LIST}add/", FORM)):
        assert answer.status_code == 403
    token.refresh_from_db()
    assert token.revoked_at is None


def test_the_commands_issue_and_revoke():
    out, said = io.StringIO(), io.StringIO()
    call_command("issue_service_token", "blue", "--days", "7", "--scopes", "jobs,logs", "--instances", r"blue-\d+", stdout=out, stderr=said)
    token, _ = service_tokens.authenticate(out.getvalue().strip())
    assert (token.name, sorted(token.scopes), token.instance_pattern) == ("blue", ["jobs", "logs"], r"blue-\d+")
    assert out.getvalue().strip() not in said.getvalue()
    for line in ("revoked\n", "it was revoked already\n"):
        out = io.StringIO()
        call_command("revoke_service_token", token.key_id, stdout=out)
        assert out.getvalue() == line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["issue_service_token", "x", "--scopes", "all"], "Scopes are: jobs, credentials, logs."),
        (["issue_service_token", "x", "--job-types", "nonsense"], "Not a job type of lane runtime: nonsense."),
        (["issue_service_token", "x", "--days", "0"], "A token lives 1 to 730 days."),
        (["issue_service_token", "x", "--instances", "("], "The pattern is no regular expression"),
        (["revoke_service_token", "nobody"], "There is no token nobody."),
    ],
)
def test_what_cannot_be_done_is_a_sentence(arguments, sentence):
    with pytest.raises(CommandError, match=sentence.split("(")[0]) as refused:
        call_command(*arguments)
    assert refused.value.returncode == 2
