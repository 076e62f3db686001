"""Keys at rest: who may open which, and what a row that was tampered with is worth."""

import base64
import secrets

import pytest

from runtime_jobs.errors import AttemptError, CredentialUnavailable, ErrorCode, InvalidRequest
from runtime_jobs.models import AiModelCredential
from runtime_jobs.models.base import new_id
from runtime_jobs.services import credentials
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.states import ApiKeyMode
from tests.factories import KEY, CredentialFactory, UserFactory

pytestmark = pytest.mark.django_db


def opened(credential, mode=ApiKeyMode.PLATFORM, user_id=1):
    return credentials.resolve(credential.pk, mode=mode, user_id=user_id, model="m")


def assert_unavailable(credential, **who):
    with pytest.raises(AttemptError) as refused:
        opened(credential, **who)
    assert refused.value.code == ErrorCode.CREDENTIAL_UNAVAILABLE
    assert not refused.value.retryable
    assert KEY not in f"{refused.value} {refused.value.internal}"


def test_a_key_is_opened_for_its_own_row_and_address():
    target = opened(CredentialFactory(base_url="https://api.example.com/v1"))
    assert target.api_key.reveal() == KEY
    assert target.base_url == "https://api.example.com/v1"


@pytest.mark.parametrize("column", ["provider", "base_url", "user_id"])
def test_a_row_that_was_changed_does_not_open(column):
    """provider_calls 29: else whoever can write to the table sends the platform's key where they like."""
    credential, user = CredentialFactory(), UserFactory()
    changed = {"provider": "other", "base_url": "https://elsewhere.example.com/v1", "user_id": user.pk}[column]
    AiModelCredential.objects.filter(pk=credential.pk).update(**{column: changed})
    mode = ApiKeyMode.USER if column == "user_id" else ApiKeyMode.PLATFORM
    assert_unavailable(credential, mode=mode, user_id=user.pk)


def test_a_key_that_was_moved_to_another_row_does_not_open():
    """provider_calls 29"""
    one, other = CredentialFactory(), CredentialFactory(base_url="https://elsewhere.example.com/v1")
    AiModelCredential.objects.filter(pk=other.pk).update(ciphertext=one.ciphertext, key_id=one.key_id)
    assert_unavailable(other)
    assert opened(one).api_key.reveal() == KEY


@pytest.mark.parametrize("ciphertext", ["", "v1", "v1:nobody:AAAA", "v2:{rest}", "v1:development:!!!!", "v1:development:"])
def test_what_is_no_ciphertext_does_not_open(ciphertext):
    credential = CredentialFactory()
    rest = credential.ciphertext.partition(":")[2]
    AiModelCredential.objects.filter(pk=credential.pk).update(ciphertext=ciphertext.format(rest=rest))
    assert_unavailable(credential)


def test_a_users_key_and_the_platforms_are_never_mixed():
    user, other = UserFactory(), UserFactory()
    own, platforms = CredentialFactory(user_id=user.pk), CredentialFactory()
    assert opened(own, mode=ApiKeyMode.USER, user_id=user.pk).credential_mode == ApiKeyMode.USER
    assert_unavailable(own, mode=ApiKeyMode.USER, user_id=other.pk)
    assert_unavailable(own, mode=ApiKeyMode.PLATFORM, user_id=user.pk)
    assert_unavailable(platforms, mode=ApiKeyMode.USER, user_id=user.pk)


def test_a_revoked_key_does_not_open_from_the_next_call_on():
    credential = CredentialFactory()
    assert credentials.revoke_credential(credential.pk)
    assert not credentials.revoke_credential(credential.pk)
    assert_unavailable(credential)
    assert not credentials.replace_key(credential.pk, "sk-new", actor=SYSTEM)


def test_a_credential_that_does_not_exist_is_unavailable():
    assert_unavailable(AiModelCredential(pk=new_id()))


def test_a_new_key_in_the_ring_encrypts_and_the_old_one_still_decrypts(settings):
    old = CredentialFactory()
    added = f"next:{base64.b64encode(secrets.token_bytes(32)).decode()}"
    settings.CREDENTIAL_KEYS = [added, *settings.CREDENTIAL_KEYS]
    new = CredentialFactory()
    assert (new.key_id, opened(new).api_key.reveal(), opened(old).api_key.reveal()) == ("next", KEY, KEY)
    settings.CREDENTIAL_KEYS = [added]
    assert_unavailable(old)
    assert opened(new).api_key.reveal() == KEY


def test_a_replaced_key_is_what_the_next_call_gets():
    credential = CredentialFactory()
    assert credentials.replace_key(credential.pk, "sk-another-0123456789", actor=SYSTEM)
    assert opened(credential).api_key.reveal() == "sk-another-0123456789"
    credential.refresh_from_db()
    assert "another" not in f"{vars(credential)}"


@pytest.mark.parametrize("key", ["", "sk-1\n", "sk 1", "sk-ü", "sk-\x00"])
def test_a_key_that_no_header_could_carry_is_refused_without_being_repeated(key):
    """provider_calls 25"""
    with pytest.raises(InvalidRequest) as refused:
        CredentialFactory(api_key=key)
    assert not key or key not in str(refused.value)
    assert not AiModelCredential.objects.exists()


def test_a_job_gets_the_newest_live_credential_of_its_owner_and_no_other():
    user = UserFactory()
    for base_url in ("https://1.example.com/v1", "https://2.example.com/v1"):
        newest = CredentialFactory(base_url=base_url)
    chosen = credentials.choose(mode=ApiKeyMode.PLATFORM, user_id=user.pk, provider="simulator", credential=None)
    assert chosen == newest
    with pytest.raises(CredentialUnavailable, match="this user"):
        credentials.choose(mode=ApiKeyMode.USER, user_id=user.pk, provider="simulator", credential=None)
    with pytest.raises(CredentialUnavailable, match="other"):
        credentials.choose(mode=ApiKeyMode.PLATFORM, user_id=user.pk, provider="other", credential=newest)
