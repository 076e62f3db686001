"""Provider keys in the admin: written, tested, replaced, revoked, and never seen again by anybody."""

import io
import logging
import socket

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.test import Client

from runtime_jobs.models import AiModelCredential, AiStaffEvent
from runtime_jobs.services.credentials import known_secrets
from tests.admin import people
from tests.factories import KEY, CredentialFactory, UserFactory
from tests.support.provider_simulator import Behaviour, ProviderSimulator

pytestmark = pytest.mark.django_db

LIST = "/admin/runtime_jobs/aimodelcredential/"
NEW_KEY = "sk-new-9876543210fedcba9876543210fedcba"
FORM = {"name": "main key", "provider": "simulator", "base_url": "http://127.0.0.1:9/v1", "owner": "", "api_key": NEW_KEY}


@pytest.fixture
def administrator(client):
    user = people.staff("view_aimodelcredential", "add_aimodelcredential", "change_aimodelcredential", "revoke_credential")
    client.force_login(user)
    return user


@pytest.fixture
def provider():
    with ProviderSimulator() as simulator:
        yield simulator


def page(credential, what="change"):
    return f"{LIST}{credential.pk}/{what}/"


def stored(credential):
    (secret,) = known_secrets(AiModelCredential.objects.get(pk=credential.pk))
    return secret.reveal()


def all_pages(client, credential):
    return "".join(
        client.get(url).content.decode() for url in (LIST, page(credential), page(credential, "test"), page(credential, "history"))
    )


def everything_stored():
    out = io.StringIO()
    call_command("dumpdata", "runtime_jobs", "admin", stdout=out)
    return out.getvalue()


def test_a_new_credential_is_stored_encrypted_and_its_key_shown_nowhere(client, administrator, caplog):
    caplog.set_level(logging.DEBUG)
    answer = client.post(f"{LIST}add/", FORM, follow=True)
    credential = AiModelCredential.objects.get()
    assert stored(credential) == NEW_KEY
    assert "The credential is stored" in answer.content.decode()
    assert NEW_KEY not in answer.content.decode() + all_pages(client, credential) + everything_stored() + caplog.text
    assert AiStaffEvent.objects.get().name == "aimodelcredential.added"
    assert LogEntry.objects.get().user == administrator


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"base_url": "ftp://example.com"}, "must be https:// and a host"),
        ({"base_url": "https://example.com/v1?key=1"}, "must not hold a query or a fragment"),
        ({"base_url": "https://169.254.169.254/latest"}, "is not allowed"),
        ({"base_url": "https://user:pw@example.com/v1"}, "must not hold a user name or password"),
        ({"owner": "nobody"}, "There is no user of this name."),
        ({"api_key": "two words"}, "The key must be printable ASCII without white space."),
        ({"api_key": ""}, "This field is required."),
        ({"name": "taken"}, "The owner has a credential of this name already."),
    ],
)
def test_what_is_wrong_stands_at_its_field_and_the_key_is_not_sent_back(client, administrator, wrong, sentence):
    CredentialFactory(name="taken")
    answer = client.post(f"{LIST}add/", {**FORM, **wrong})
    assert answer.status_code == 200
    text = answer.content.decode()
    assert sentence in text
    assert (wrong.get("api_key") or NEW_KEY) not in text
    assert AiModelCredential.objects.count() == 1


def test_a_users_own_key_belongs_to_that_user(client, administrator):
    ann = UserFactory(username="ann")
    client.post(f"{LIST}add/", {**FORM, "owner": "ann"})
    credential = AiModelCredential.objects.get()
    assert credential.user == ann
    assert "ann" in client.get(LIST).content.decode()


def test_a_test_call_says_that_the_key_works_and_who_made_it(client, administrator, provider):
    credential = CredentialFactory(base_url=provider.url)
    form = client.get(page(credential, "test"))
    assert 'value="simulator-1"' in form.content.decode()
    assert not provider.requests
    answer = client.post(page(credential, "test"), {"model": "simulator-1"}, follow=True)
    text = answer.content.decode()
    assert "The key works: simulator-1 answered in" in text
    assert len(provider.requests) == 1
    event = AiStaffEvent.objects.get()
    assert (event.name, event.actor_name, event.subject_id) == ("credential.tested", administrator.username, str(credential.pk))
    assert event.data["tokens"] > 0
    assert KEY not in text + everything_stored()


@pytest.mark.parametrize(
    ("behaviour", "code", "sentence"),
    [
        ("status=401", "provider_auth_failed", "The AI provider refused the key."),
        ("status=402", "provider_quota_exhausted", "has no quota left"),
        ("status=503", "provider_unavailable", "could not be reached"),
        ("status=404", "provider_rejected_request", "rejected the request"),
    ],
)
def test_a_test_call_that_fails_says_why_in_our_words_and_keeps_the_key_to_itself(
    client, administrator, provider, behaviour, code, sentence
):
    provider.script(lambda _: True, Behaviour.parse(behaviour))
    credential = CredentialFactory(base_url=provider.url)
    text = client.post(page(credential, "test"), {"model": "m"}, follow=True).content.decode()
    assert "The test call failed" in text
    assert code in text
    assert sentence in text
    assert KEY not in text + everything_stored()
    assert KEY[:8] not in text


def test_a_test_call_to_where_nobody_listens_and_to_where_none_may_go(client, administrator):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    nobody = CredentialFactory(base_url=f"http://127.0.0.1:{port}/v1")
    assert "provider_unavailable" in client.post(page(nobody, "test"), {"model": "m"}, follow=True).content.decode()
    forbidden = CredentialFactory(base_url="https://169.254.169.254/v1")
    text = client.post(page(forbidden, "test"), {"model": "m"}, follow=True).content.decode()
    assert "provider_rejected_request" in text
    assert "nothing was sent" in text


def test_replacing_a_key_keeps_the_credential_and_uses_the_new_one_from_then_on(client, administrator, provider):
    credential = CredentialFactory(base_url=provider.url)
    assert client.get(page(credential, "replace-key")).status_code == 200
    client.post(page(credential, "replace-key"), {"api_key": NEW_KEY})
    again = AiModelCredential.objects.get(pk=credential.pk)
    assert stored(again) == NEW_KEY
    assert again.fingerprint != credential.fingerprint
    assert (again.base_url, again.created_at) == (credential.base_url, again.created_at)
    assert AiStaffEvent.objects.get().name == "credential.key_replaced"
    assert NEW_KEY not in all_pages(client, credential) + everything_stored()


def test_revoking_asks_for_a_reason_is_recorded_and_final(client, administrator, provider):
    credential = CredentialFactory(base_url=provider.url)
    revoke = page(credential, "revoke")
    assert revoke in client.get(page(credential)).content.decode()
    assert client.get(revoke).status_code == 200
    assert client.post(revoke, {"reason": ""}).status_code == 200
    assert AiModelCredential.objects.get().revoked_at is None
    client.post(revoke, {"reason": "it leaked"})
    assert AiModelCredential.objects.get().revoked_at is not None
    event = AiStaffEvent.objects.get()
    assert (event.name, event.reason, event.actor_name) == ("credential.revoked", "it leaked", administrator.username)
    text = client.post(revoke, {"reason": "again"}, follow=True).content.decode()
    assert "it was revoked already" in text
    # Nothing more is done with it.
    assert "Nothing was sent" in client.post(page(credential, "test"), {"model": "m"}, follow=True).content.decode()
    assert "Nothing was changed" in client.post(page(credential, "replace-key"), {"api_key": NEW_KEY}, follow=True).content.decode()
    assert not provider.requests
    assert stored(credential) == KEY
    assert page(credential, "test") not in client.get(page(credential)).content.decode()


def test_17_who_may_only_look_is_offered_nothing_and_refused_everything(client, provider):
    """scenario 17 of admin.md, for credentials"""
    client.force_login(people.staff("view_aimodelcredential"))
    credential = CredentialFactory(base_url=provider.url)
    text = client.get(page(credential)).content.decode()
    for what, data in (("test", {"model": "m"}), ("replace-key", {"api_key": NEW_KEY}), ("revoke", {"reason": "r"})):
        assert page(credential, what) not in text
        assert client.get(page(credential, what)).status_code == 403
        assert client.post(page(credential, what), data).status_code == 403
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}add/", FORM).status_code == 403
    assert AiModelCredential.objects.get().revoked_at is None
    assert stored(credential) == KEY
    assert not provider.requests
    assert not AiStaffEvent.objects.exists()


def test_15_and_16_nothing_happens_by_get_or_without_the_forms_token(administrator, provider):
    """scenarios 15 and 16 of admin.md, for credentials"""
    credential = CredentialFactory(base_url=provider.url)
    client = Client(enforce_csrf_checks=True)
    client.force_login(administrator)
    for what, data in (("test", {"model": "m"}), ("replace-key", {"api_key": NEW_KEY}), ("revoke", {"reason": "r"})):
        assert client.get(page(credential, what)).status_code == 200
        assert client.head(page(credential, what)).status_code == 200
        assert client.post(page(credential, what), data).status_code == 403
    assert not provider.requests
    assert not AiStaffEvent.objects.exists()
    assert stored(credential) == KEY


def test_a_credential_that_is_not_there_is_not_found(client, administrator):
    missing = f"{LIST}018f0000-0000-7000-8000-000000000000"
    for what in ("test", "replace-key", "revoke"):
        assert client.get(f"{missing}/{what}/").status_code == 404
