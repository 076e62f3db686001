"""Service tokens: what lets a runtime speak the internal protocol. `rt_<keyId>_<secret>`; of the secret only the SHA-256 is stored."""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.views.decorators.debug import sensitive_variables

from runtime_jobs import prepared, registry
from runtime_jobs.errors import InvalidRequest, ServiceError
from runtime_jobs.models import RuntimeServiceToken
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.services.audit import record_staff
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.states import Lane

SCOPES = ("jobs", "credentials", "logs")
MAX_DAYS = 730

_FORM = re.compile(r"rt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_ONE_MINUTE = timedelta(minutes=1)
# What an unknown key id is compared with, so that it takes as long as a wrong secret.
_NOBODY = hashlib.sha256(b"").hexdigest()


class TokenInvalid(ServiceError):
    """There is no such token, or its secret is wrong: nothing more is said."""

    code = "token_invalid"


class TokenExpired(ServiceError):
    """The secret is right; its time is over."""

    code = "token_expired"


class TokenRevoked(ServiceError):
    """The secret is right; staff took the token back."""

    code = "token_revoked"


@dataclass(frozen=True)
class ServiceToken:
    """A caller whose secret was right."""

    id: UUID
    key_id: str
    name: str
    scopes: frozenset[str]
    job_types: frozenset[str]  # empty: all
    instance_pattern: str

    def speaks_for(self, instance: str) -> bool:
        return _compiled(self.instance_pattern).fullmatch(instance) is not None

    def may_touch(self, job_type: str) -> bool:
        return not self.job_types or job_type in self.job_types

    def touchable(self) -> list[str]:
        """The job types of lane runtime that it may touch and the server knows."""
        return [job_type for job_type in registry.job_types(Lane.RUNTIME) if self.may_touch(job_type)]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


@sensitive_variables()
def issue(
    *,
    name: str,
    days: int,
    scopes: Sequence[str] = SCOPES,
    job_types: Sequence[str] = (),
    instance_pattern: str = ".*",
) -> tuple[RuntimeServiceToken, Secret]:
    """A new token and its clear form, which is never seen again. `days` until it expires.

    Raises InvalidRequest, naming the field.
    """
    if not 1 <= len(name) <= 100:
        raise InvalidRequest("The name must have 1 to 100 characters.", field="name")
    if not 1 <= days <= MAX_DAYS:
        raise InvalidRequest(f"A token lives 1 to {MAX_DAYS} days.", field="days")
    if not scopes or set(scopes) - set(SCOPES):
        raise InvalidRequest(f"Scopes are: {', '.join(SCOPES)}. At least one is needed.", field="scopes")
    unknown = sorted(set(job_types) - set(registry.job_types(Lane.RUNTIME)))
    if unknown:
        known = ", ".join(registry.job_types(Lane.RUNTIME))
        raise InvalidRequest(f"Not a job type of lane runtime: {', '.join(unknown)}. Known: {known}.", field="job_types")
    try:
        if not 1 <= len(instance_pattern) <= 200:
            raise ValueError("1 to 200 characters")
        _compiled(instance_pattern)
    except (ValueError, re.error) as error:
        raise InvalidRequest(f"The pattern is no regular expression: {error}.", field="instance_pattern") from None
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = RuntimeServiceToken.objects.create(
        id=new_id(),
        name=name,
        key_id=key_id,
        secret_hash=_hash(secret),
        scopes=sorted(set(scopes)),
        job_types=sorted(set(job_types)),
        instance_pattern=instance_pattern,
        expires_at=Now() + timedelta(days=days),
    )
    row.refresh_from_db()
    return row, Secret(f"rt_{key_id}_{secret}")


def revoke(key_id: str, *, actor: Actor = SYSTEM, reason: str = "") -> bool:
    """Take the token back, from the next request on. False when it was revoked already. Raises InvalidRequest when there is none."""
    tokens = RuntimeServiceToken.objects.filter(key_id=key_id)
    with transaction.atomic():
        if tokens.filter(revoked_at=None).update(revoked_at=Now()):
            record_staff("service_token.revoked", actor=actor, subject_type="service token", subject_id=key_id, reason=reason)
            return True
    if not tokens.exists():
        raise InvalidRequest(f"There is no token {key_id}.", field="key_id")
    return False


@sensitive_variables()
def authenticate(presented: str) -> tuple[ServiceToken, datetime]:
    """Who presents this token, and the database's time.

    Raises TokenInvalid; TokenRevoked and TokenExpired only when the secret is right. Its use is noted at most once a minute.
    """
    match = _FORM.fullmatch(presented)
    row = _find(match[1]) if match else None
    known = row.secret_hash if row else _NOBODY
    if not hmac.compare_digest(_hash(match[2] if match else ""), known) or row is None or match is None:
        raise TokenInvalid("The service token is not valid.")
    _refuse_ended(row)
    if row.unseen:
        RuntimeServiceToken.objects.filter(Q(last_used_at=None) | Q(last_used_at__lt=Now() - _ONE_MINUTE), pk=row.id).update(
            last_used_at=Now()
        )
    return (
        ServiceToken(
            id=row.id,
            key_id=match[1],
            name=row.name,
            scopes=frozenset(row.scopes),
            job_types=frozenset(row.job_types),
            instance_pattern=row.instance_pattern,
        ),
        row.clock,
    )


def still_valid(token: ServiceToken) -> None:
    """A caller that has waited is looked at once more before it gets anything. Raises TokenExpired, TokenRevoked, TokenInvalid."""
    row = _find(token.key_id)
    if row is None:
        raise TokenInvalid("The service token is not valid.")
    _refuse_ended(row)


# Every request of a runtime begins with it. What the database's clock says about the token comes with it.
_BY_KEY_ID = """
    SELECT id, name, secret_hash, scopes::text, job_types::text, instance_pattern, revoked_at IS NOT NULL,
           expires_at <= statement_timestamp(),
           last_used_at IS NULL OR last_used_at < statement_timestamp() - make_interval(secs => 60), statement_timestamp()
    FROM runtime_service_token WHERE key_id = %(key_id)s
"""


class _Row(NamedTuple):
    id: UUID
    name: str
    secret_hash: str
    scopes: list[str]
    job_types: list[str]
    instance_pattern: str
    revoked: bool
    expired: bool
    unseen: bool
    clock: datetime


def _find(key_id: str) -> _Row | None:
    rows = prepared.run(_BY_KEY_ID, {"key_id": key_id})
    if not rows:
        return None
    token_id, name, secret_hash, scopes, job_types, *rest = rows[0]
    return _Row(token_id, name, secret_hash, json.loads(scopes), json.loads(job_types), *rest)


def _refuse_ended(row: _Row) -> None:
    if row.revoked:
        raise TokenRevoked("The service token has been revoked.")
    if row.expired:
        raise TokenExpired("The service token has expired.")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
