"""Provider keys at rest and on their way into a call. The clear key leaves here only as a Secret, just before the call."""

import base64
import hashlib
import hmac
import secrets
from functools import lru_cache
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.views.decorators.debug import sensitive_variables

from runtime_jobs import prepared
from runtime_jobs.errors import AttemptError, CredentialUnavailable, ErrorCode, InvalidRequest
from runtime_jobs.model_call import ProviderTarget
from runtime_jobs.models import AiModelCredential
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.states import ApiKeyMode

_NONCE_BYTES = 12  # NIST SP 800-38D §8.2


@lru_cache(maxsize=4)
def _ring(entries: tuple[str, ...]) -> dict[str, bytes]:
    ring = {}
    for entry in entries:
        key_id, _, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            key = b""
        if not key_id or len(key) != 32:
            raise ImproperlyConfigured("CREDENTIAL_KEYS must be id:base64 of 32 bytes, comma-separated.")
        ring[key_id] = key
    return ring


def key_ring() -> dict[str, bytes]:
    """All keys by id, the encrypting one first. Raises ImproperlyConfigured when one is malformed or there is none."""
    ring = _ring(tuple(settings.CREDENTIAL_KEYS))
    if not ring:
        raise ImproperlyConfigured("CREDENTIAL_KEYS is empty.")
    return ring


def _bound_to(key_id: str, pk: UUID, user_id: int | None, provider: str, base_url: str) -> bytes:
    """The associated data: a ciphertext that is moved to another row, owner, provider or address does not decrypt."""
    return "|".join(("aicred", "v1", key_id, str(pk), str(user_id or "platform"), provider, base_url)).encode()


@sensitive_variables()
def _encrypt(api_key: str, key_id: str, bound: bytes) -> str:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed = AESGCM(key_ring()[key_id]).encrypt(nonce, api_key.encode(), bound)
    return f"v1:{key_id}:{base64.b64encode(nonce + sealed).decode()}"


def _fingerprint(api_key: str, key: bytes) -> str:
    return hmac.new(key, b"fingerprint|" + api_key.encode(), hashlib.sha256).hexdigest()[:24]


@sensitive_variables()
def _check_key(api_key: str) -> None:
    if not api_key or not all(33 <= ord(character) <= 126 for character in api_key):
        raise InvalidRequest("The key must be printable ASCII without white space.", field="api_key")


@sensitive_variables()
def create_credential(*, name: str, provider: str, base_url: str, api_key: str, user_id: int | None = None) -> AiModelCredential:
    """Store a key, encrypted. `user_id` None makes it the platform's.

    Raises InvalidRequest when the key is not printable ASCII without white space: sent as a header it would end up in an error's text.
    """
    _check_key(api_key)
    key_id, key = next(iter(key_ring().items()))
    pk = new_id()
    return AiModelCredential.objects.create(
        id=pk,
        name=name,
        user_id=user_id,
        provider=provider,
        base_url=base_url,
        ciphertext=_encrypt(api_key, key_id, _bound_to(key_id, pk, user_id, provider, base_url)),
        key_id=key_id,
        fingerprint=_fingerprint(api_key, key),
    )


def revoke_credential(credential_id: UUID, *, actor: Actor = SYSTEM, reason: str = "") -> bool:
    """True when this call revoked it, False when it was already. Jobs that wait for it fail when their turn comes."""
    with transaction.atomic():
        if not AiModelCredential.objects.filter(pk=credential_id, revoked_at=None).update(revoked_at=Now()):
            return False
        record_staff("credential.revoked", actor=actor, subject_type="credential", subject_id=str(credential_id), reason=reason)
    return True


@sensitive_variables()
def replace_key(credential_id: UUID, api_key: str, *, actor: Actor) -> bool:
    """Put a new key in the old one's place, for the same owner, provider and address; waiting jobs use it. False when it is revoked.

    Raises InvalidRequest as `create_credential`.
    """
    _check_key(api_key)
    key_id, key = next(iter(key_ring().items()))
    with transaction.atomic():
        credential = AiModelCredential.objects.filter(pk=credential_id, revoked_at=None).select_for_update().first()
        if credential is None:
            return False
        bound = _bound_to(key_id, credential.pk, credential.user_id, credential.provider, credential.base_url)
        AiModelCredential.objects.filter(pk=credential_id, revoked_at=None).update(
            ciphertext=_encrypt(api_key, key_id, bound), key_id=key_id, fingerprint=_fingerprint(api_key, key)
        )
        record_staff("credential.key_replaced", actor=actor, subject_type="credential", subject_id=str(credential_id))
    return True


def choose(*, mode: ApiKeyMode, user_id: int, provider: str, credential: AiModelCredential | None) -> AiModelCredential:
    """The credential for a new job: the given one if the job may use it, else the newest live one of the provider.

    Mode user takes only the user's own, mode platform only the platform's: neither ever falls back on the other.
    Raises CredentialUnavailable.
    """
    owner = user_id if mode == ApiKeyMode.USER else None
    whose = "of this user" if mode == ApiKeyMode.USER else "of the platform"
    if credential is not None:
        if credential.user_id != owner:
            raise CredentialUnavailable(f"The credential is not one {whose}.")
        if credential.provider != provider:
            raise CredentialUnavailable(f"The credential is for {credential.provider}, the job needs {provider}.")
        if credential.revoked_at is not None:
            raise CredentialUnavailable("The credential is revoked.")
        return credential
    owned = Q(user=None) if owner is None else Q(user_id=owner)
    found = AiModelCredential.objects.filter(owned, provider=provider, revoked_at=None).order_by("-id").first()
    if found is None:
        raise CredentialUnavailable(f"There is no live credential {whose} for provider {provider!r}. Add one in the admin.")
    return found


_ONE = """
    SELECT id, user_id, provider, base_url, ciphertext, revoked_at FROM ai_model_credential WHERE id = %(id)s
"""


@sensitive_variables()
def resolve(credential_id: UUID, *, mode: str, user_id: int, model: str) -> ProviderTarget:
    """The key and address for a call, read anew so that a revocation counts at once. Raises as `open_sealed`."""
    rows = prepared.run(_ONE, {"id": credential_id})
    if not rows:
        raise AttemptError(ErrorCode.CREDENTIAL_UNAVAILABLE, "the credential is gone")
    pk, owner, provider, base_url, ciphertext, revoked_at = rows[0]
    credential = AiModelCredential(id=pk, user_id=owner, provider=provider, base_url=base_url, ciphertext=ciphertext, revoked_at=revoked_at)
    note_use(credential)
    return open_sealed(credential, mode=mode, user_id=user_id, model=model)


_NOTE_USE = """
    UPDATE ai_model_credential SET last_used_at = statement_timestamp()
    WHERE id = %(id)s AND (last_used_at IS NULL OR last_used_at < statement_timestamp() - make_interval(secs => 60))
"""


def note_use(credential: AiModelCredential) -> None:
    """Keep when it was last used, once a minute."""
    prepared.run(_NOTE_USE, {"id": credential.pk})


@sensitive_variables()
def open_sealed(credential: AiModelCredential, *, mode: str, user_id: int, model: str) -> ProviderTarget:
    """The key and address for a call of a job, from a row that was just read.

    Raises AttemptError (credential_unavailable, permanent) when the credential is revoked, somebody else's or does not decrypt.
    """
    if credential.revoked_at is not None:
        raise AttemptError(ErrorCode.CREDENTIAL_UNAVAILABLE, "the credential is revoked")
    if credential.user_id != (user_id if mode == ApiKeyMode.USER else None):
        raise AttemptError(ErrorCode.CREDENTIAL_UNAVAILABLE, f"the credential does not belong to mode {mode}")
    return ProviderTarget(credential.provider, credential.base_url, model, _decrypt(credential), ApiKeyMode(mode))


@sensitive_variables()
def known_secrets(credential: AiModelCredential) -> tuple[Secret, ...]:
    """The key, revoked or not, to be masked in what is about to be stored; nothing when it does not decrypt."""
    try:
        return (_decrypt(credential),)
    except AttemptError:
        return ()


@sensitive_variables()
def _decrypt(credential: AiModelCredential) -> Secret:
    try:
        version, key_id, encoded = credential.ciphertext.split(":")
        sealed = base64.b64decode(encoded)
        bound = _bound_to(key_id, credential.pk, credential.user_id, credential.provider, credential.base_url)
        clear = AESGCM(key_ring()[key_id]).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
    except (ValueError, KeyError, InvalidTag):
        raise AttemptError(ErrorCode.CREDENTIAL_UNAVAILABLE, "the stored key cannot be decrypted; enter it again") from None
    if version != "v1":
        raise AttemptError(ErrorCode.CREDENTIAL_UNAVAILABLE, f"unknown ciphertext version {version}")
    return Secret(clear.decode())
