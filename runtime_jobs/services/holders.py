"""What the holder of a lease may see of its job: the input, and the key for the model call. Nothing else of it, and nobody else."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.views.decorators.debug import sensitive_variables

from runtime_jobs import prepared
from runtime_jobs.errors import AttemptError, CredentialUnavailable, JobCancelled, LockLost
from runtime_jobs.model_call import ProviderTarget
from runtime_jobs.models import AiJobAttempt, AiJobSnapshot, AiModelCredential, AiRuntimeJob
from runtime_jobs.services import credentials
from runtime_jobs.services.events import Actor, NewEvent, record
from runtime_jobs.services.pulls import ended_error, must_exist
from runtime_jobs.services.settlements import Fence
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.states import TERMINAL, JobStatus


class LeaseLapsed(LockLost):
    """The token is the job's, but its lease has run out: a heartbeat brings it back, if nobody was faster."""


def _columns(model: Any, *names: str) -> tuple[str, ...]:
    """In the model's own order, which `from_db` goes by."""
    return tuple(field.attname for field in model._meta.concrete_fields if field.attname in names)


# What the terminal calls, the snapshot and the key need of the job. One statement, prepared, in place of the query that the ORM would
# put together anew for each request: that took longer than all else in it.
_ATTEMPT = _columns(AiJobAttempt, "id", "job_id", "attempt_no", "lock_token", "worker", "answer", "answer_digest")
_JOB = _columns(
    AiRuntimeJob, "id", "user_id", "job_type", "lane", "target_type", "target_id", "snapshot_id", "credential_id", "api_key_mode",
    "model_name", "input_schema_version", "output_schema_version", "timeout_seconds", "status", "attempt_no", "lock_token", "locked_by",
    "locked_at",
)  # fmt: skip
_RELATED = {
    "snapshot": (
        AiJobSnapshot,
        _columns(AiJobSnapshot, "id", "input_schema_version", "payload", "content_hash", "created_at"),
    ),
    "credential": (
        AiModelCredential,
        _columns(AiModelCredential, "id", "user_id", "provider", "base_url", "ciphertext", "revoked_at"),
    ),
}
_JSON = {"answer", "payload"}


def _statement(also: tuple[str, ...]) -> str:
    def columns(alias: str, names: Collection[str]) -> list[str]:
        return [f"{alias}.{name}{'::text' if name in _JSON else ''}" for name in names]

    selected = ["statement_timestamp()", "j.lock_until > statement_timestamp()", *columns("a", _ATTEMPT), *columns("j", _JOB)]
    joins = []
    for name in also:
        model, fields = _RELATED[name]
        selected += columns(name, fields)
        joins.append(f"JOIN {model._meta.db_table} {name} ON {name}.id = j.{name}_id")
    return f"""
        SELECT {", ".join(selected)} FROM ai_job_attempt a JOIN ai_runtime_job j ON j.id = a.job_id {" ".join(joins)}
        WHERE a.job_id = %(job_id)s AND a.attempt_no = %(attempt_no)s::text::int AND a.lock_token = %(lock_token)s
          AND a.worker = %(worker)s AND j.lane = 'runtime' AND j.job_type = ANY(%(job_types)s::text[])
    """  # noqa: S608 - put together from our own constants


_STATEMENTS: dict[tuple[str, ...], str] = {
    also: _statement(also) for also in ((), ("snapshot",), ("credential",), ("snapshot", "credential"))
}


def attempt_of(fence: Fence, job_types: Collection[str], *also: str) -> Any:
    """The attempt that this token belongs to, with its job and what `also` names (snapshot, credential, in this order), `live` (whether
    its lease is) and `clock`, the database's time. Of each what is needed here; the rest is read when it is asked for.

    Raises JobNotFound, and LockLost when the token is none of this attempt or somebody else's.
    """
    parameters = {
        "job_id": fence.job_id,
        "attempt_no": str(fence.attempt_no),  # as text: an int would be sent as int2 or int4, each a statement of its own
        "lock_token": token_hash(fence.token),
        "worker": fence.worker,
        "job_types": list(job_types),
    }
    rows = prepared.run(_STATEMENTS[also], parameters)
    if not rows:
        must_exist(fence.job_id, job_types)
        raise LockLost("This token never was, or no longer is, the one of this attempt.")
    values = iter(rows[0])
    clock, live = next(values), next(values)
    attempt: Any = _built(AiJobAttempt, _ATTEMPT, values)
    attempt.clock, attempt.live = clock, bool(live)
    attempt.job = _built(AiRuntimeJob, _JOB, values)
    for name in also:
        setattr(attempt.job, name, _built(*_RELATED[name], values))
    return attempt


def _built(model: Any, names: Collection[str], values: Iterator[Any]) -> Any:
    """The row as the ORM would have read it; fields that are not named are deferred."""
    taken = [json.loads(value) if name in _JSON and value is not None else value for name, value in zip(names, values, strict=False)]
    return model.from_db(connection.alias, frozenset(names), taken)


def _must_be_live(attempt: Any) -> None:
    """Raises LockLost, JobCancelled, JobAlreadyFinished, LeaseLapsed, in the order of the checks."""
    job = attempt.job
    if job.lock_token != attempt.lock_token:
        raise LockLost("The job has been taken over.")
    if job.status in TERMINAL:
        raise ended_error(job.status)
    if not attempt.live:
        raise LeaseLapsed("The lease has run out. Send a heartbeat first.", leaseExpired=True)


@dataclass(frozen=True)
class Input:
    """The immutable input of a job."""

    snapshot_id: UUID
    schema_version: str
    payload: Any
    content_hash: str
    created_at: datetime


def snapshot(fence: Fence, job_types: Collection[str]) -> Input:
    """Raises JobNotFound, LockLost, LeaseLapsed, JobCancelled, JobAlreadyFinished."""
    attempt = attempt_of(fence, job_types, "snapshot")
    _must_be_live(attempt)
    stored = attempt.job.snapshot
    return Input(stored.pk, stored.input_schema_version, stored.payload, stored.content_hash, stored.created_at)


@dataclass(frozen=True)
class Key:
    """A provider's key on its way to the runtime that calls it."""

    credential_id: UUID
    target: ProviderTarget
    expires_in: timedelta  # until the attempt's deadline


_LOCK = """
    SELECT status, lock_token, attempt_no, (lock_until > statement_timestamp()) IS TRUE FROM ai_runtime_job
    WHERE id = %(job_id)s FOR NO KEY UPDATE
"""


@sensitive_variables()
def resolve_key(fence: Fence, job_types: Collection[str]) -> Key:
    """The key of the one credential that the job names; who got it for which job, and when, is recorded before.

    Raises as `snapshot`, JobCancelled also when a cancel is only requested, and CredentialUnavailable.
    """
    attempt = attempt_of(fence, job_types)
    job = attempt.job
    with transaction.atomic():
        # Locked, so that a cancel comes before this look or after it.
        [(job.status, job.lock_token, job.attempt_no, attempt.live)] = prepared.run(_LOCK, {"job_id": fence.job_id})
        _must_be_live(attempt)
        if job.status == JobStatus.CANCEL_REQUESTED:
            raise JobCancelled("A cancel of the job was requested: no model call is wanted.", status=str(job.status))
        try:
            target = credentials.resolve(job.credential_id, mode=job.api_key_mode, user_id=job.user_id, model=job.model_name)
        except AttemptError:
            raise CredentialUnavailable("The key for the model call is missing, revoked or unreadable.") from None
        record([NewEvent(job.pk, "credential.resolved", job.attempt_no, Actor("", fence.worker), {"credential": str(job.credential_id)})])
    left = job.locked_at + timedelta(seconds=job.timeout_seconds) - attempt.clock
    return Key(job.credential_id, target, max(left, timedelta()))
