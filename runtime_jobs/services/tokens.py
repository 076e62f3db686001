"""Lock tokens: 256 bits that nobody can guess, and that fence every write of one attempt. Only their SHA-256 is stored."""

import hashlib
import secrets

from django.conf import settings
from django.utils.crypto import salted_hmac

from runtime_jobs.redaction import Secret

_SALT = "runtime_jobs.services.tokens.lock_token"


def new_token() -> Secret:
    return Secret(secrets.token_urlsafe(32))


def new_nonce() -> str:
    return secrets.token_urlsafe(32)


def derived_token(nonce: str) -> Secret:
    """The token that belongs to an attempt's nonce: without the server's key, the stored nonce says nothing about it."""
    return _derive(nonce, settings.SECRET_KEY)


def derived_again(nonce: str, token_digest: str) -> Secret | None:
    """The token of this hash, made again from its nonce; SECRET_KEY_FALLBACKS count, so that a rotation loses no lease.

    None when it was made with a key that is gone.
    """
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        token = _derive(nonce, key)
        if secrets.compare_digest(token_hash(token), token_digest):
            return token
    return None


def _derive(nonce: str, key: str) -> Secret:
    return Secret(salted_hmac(_SALT, nonce, secret=key, algorithm="sha256").hexdigest())


def token_hash(token: Secret) -> str:
    return hashlib.sha256(token.reveal().encode(errors="surrogatepass")).hexdigest()
