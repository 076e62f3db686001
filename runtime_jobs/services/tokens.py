"""Lock tokens: 256 random bits that fence every write of one attempt. Only their SHA-256 is stored."""

import hashlib
import secrets

from runtime_jobs.redaction import Secret


def new_token() -> Secret:
    return Secret(secrets.token_urlsafe(32))


def token_hash(token: Secret) -> str:
    return hashlib.sha256(token.reveal().encode()).hexdigest()
