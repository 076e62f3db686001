"""The one claim, for both kinds of worker: which jobs may run now, best first, each to one caller."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from runtime_jobs import queries, subscribers
from runtime_jobs.errors import JobNotFound, LockConflict, NotLockable
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.models.base import new_id
from runtime_jobs.queries import WorkItem
from runtime_jobs.redaction import Secret
from runtime_jobs.services.events import deliver_to_handlers, with_origin
from runtime_jobs.services.selection import (
    DUE,
    FROM_LANE,
    ONE_JOB,
    UNOFFERED,
    UNOFFERED_FROM_LANE,
    hold_limits,
    parameters_of,
    selecting,
    take,
)
from runtime_jobs.services.tokens import derived_token, new_nonce, new_token, token_hash
from runtime_jobs.states import TERMINAL, WAITING, Lane


@dataclass(frozen=True)
class Claim:
    """A lease: whoever holds its token may write for this attempt."""

    job_id: UUID
    attempt_no: int
    token: Secret
    worker: str
    job_type: str
    locked_at: datetime
    lock_until: datetime
    timeout_seconds: int


_EVENT = "job.claimed"

# A runtime's lease ends with its attempt's deadline at the latest; the engine's may outlive it, so that it can still tell of the timeout.
_LEASE = "least(%(lease)s::float8, CASE j.lane WHEN 'runtime' THEN j.timeout_seconds END)"

# The event's number is read from a snapshot that may be older than the row's lock: whoever wrote an event meanwhile makes the insert fail
# on event_seq_once_per_job, and the caller looks again.
_CLAIM = f"""
    WITH RECURSIVE {{selection}}, claimed AS (
        UPDATE ai_runtime_job j SET
            status = 'running', attempt_no = j.attempt_no + 1, lock_token = (%(hashes)s::text[])[n.n], locked_by = %(worker)s,
            locked_at = statement_timestamp(), lock_until = statement_timestamp() + make_interval(secs => {_LEASE}),
            started_at = coalesce(j.started_at, statement_timestamp()), offered_to = NULL, offer_until = NULL,
            progress = NULL, progress_message = '', updated_at = statement_timestamp()
        FROM numbered n WHERE j.id = n.id AND {DUE}
        RETURNING n.n, j.*
    ), attempts AS (
        INSERT INTO ai_job_attempt (id, job_id, attempt_no, lock_token, worker, service_token_id, request_id, started_at,
                                    outcome, error_code, internal_error, answer_digest, token_nonce)
        SELECT (%(attempt_ids)s::uuid[])[c.n], c.id, c.attempt_no, c.lock_token, %(worker)s, %(service_token)s::uuid, %(request_id)s::uuid,
               c.locked_at,
               '', '', '', '', (%(nonces)s::text[])[c.n]
        FROM claimed c
    ), event AS (
        INSERT INTO ai_job_event (id, job_id, seq, name, attempt_no, actor_id, actor_name, data)
        SELECT (%(event_ids)s::uuid[])[c.n], c.id, (SELECT coalesce(max(seq), 0) + 1 FROM ai_job_event e WHERE e.job_id = c.id),
               '{_EVENT}', c.attempt_no, '', %(worker)s, %(event_data)s
        FROM claimed c
        RETURNING id AS event_id, job_id, seq
    )
    SELECT (SELECT count(*) FROM allowed), j.n, event.event_id, event.seq, j.id AS job_id, j.attempt_no, j.job_type, j.locked_at,
           j.lock_until, j.timeout_seconds {{more}}
    FROM {{always}} LEFT JOIN (claimed j JOIN event ON event.job_id = j.id {{joins}}) ON true ORDER BY j.n
"""  # noqa: S608 - put together from our own constants
_OF_LANE = _CLAIM.format(selection=selecting(FROM_LANE), more="", always="(VALUES (1)) AS always", joins="")
_OF_ONE_JOB = _CLAIM.format(selection=selecting(ONE_JOB), more="", always="(VALUES (1)) AS always", joins="")
# Nothing waits for the disk: the usage row, which is written before anything is paid for, waits for all that came before it. Should the
# server lose the claim, that row's fence is lost with it, and the job was never taken.
_WITH_WORK = _CLAIM.format(
    selection=selecting(UNOFFERED_FROM_LANE, free=UNOFFERED),
    more=f", {queries.WORK_COLUMNS}",
    always="(SELECT set_config('synchronous_commit', 'off', true)) AS always",
    joins=queries.WORK_JOINS,
)
_TRIES = 4  # before the one whose error is told


def claim(
    *,
    lane: Lane | str,
    worker: str,
    job_types: Sequence[str],
    count: int,
    lease_seconds: float,
    service_token_id: UUID | None = None,
    request_id: UUID | None = None,
    job_id: UUID | None = None,
) -> list[Claim]:
    """Lease up to `count` due jobs of the lane, best first: attempt_no + 1, status running, a new token each.

    Only types in `job_types` are taken, none that is paused, broken or at its limit, none that is offered to another. N callers at once
    get distinct jobs. With `job_id` that one job or nothing. With a `request_id` the tokens can be made again (services/pulls.py).
    """
    wanted = {"lease": lease_seconds, "service_token": service_token_id, "request_id": request_id, "job_id": job_id}
    statement = _OF_LANE if job_id is None else _OF_ONE_JOB
    return [claim for claim, _ in _claim(statement, parameters_of(str(lane), job_types, count), worker, wanted)]


def claim_work(
    *, lane: Lane | str, worker: str, job_types: Sequence[str], count: int, lease_seconds: float
) -> list[tuple[Claim, WorkItem]]:
    """As `claim`, of jobs that nobody was offered, with all that the attempts need, in one round trip.

    It is not durable before the attempt's usage row is.
    """
    wanted = {"lease": lease_seconds, "service_token": None, "request_id": None}
    claimed = _claim(_WITH_WORK, parameters_of(str(lane), job_types, count), worker, wanted)
    return [(claim, queries.as_work_item(work)) for claim, work in claimed]


def _claim(statement: str, selected: Mapping[str, Any], worker: str, wanted: Mapping[str, Any]) -> list[tuple[Claim, tuple[Any, ...]]]:
    """The claims, each with the columns that its statement adds."""
    for _ in range(_TRIES):
        with suppress(IntegrityError):
            return _claim_once(statement, selected, worker, wanted)
    return _claim_once(statement, selected, worker, wanted)


def _claim_once(statement: str, selected: Mapping[str, Any], worker: str, wanted: Mapping[str, Any]) -> list[tuple[Claim, tuple[Any, ...]]]:
    numbers = range(selected["count"])
    nonces = ["" if wanted["request_id"] is None else new_nonce() for _ in numbers]
    tokens = [derived_token(nonce) if nonce else new_token() for nonce in nonces]
    parameters = {
        **selected,
        **wanted,
        "worker": worker,
        "hashes": [token_hash(token) for token in tokens],
        "nonces": nonces,
        "attempt_ids": [new_id() for _ in numbers],
        "event_ids": [new_id() for _ in numbers],
        "event_data": Jsonb(with_origin({"status": "running"})),
    }
    with _transaction(selected["limited"]):
        hold_limits(selected["limited"])
        rows = take(statement, parameters)
        deliver_to_handlers([(event_id, job, seq, _EVENT) for _, event_id, seq, job, *_ in rows])
    return [(Claim(row[3], row[4], tokens[row[0] - 1], worker, *row[5:9]), row[9:]) for row in rows]


def _transaction(limited: Sequence[str]) -> AbstractContextManager[Any]:
    """A claim is one statement, hence one transaction by itself, unless something has to be locked before or written after it."""
    alone = not (limited or subscribers.handlers_of(_EVENT) or connection.in_atomic_block)
    return nullcontext() if alone else transaction.atomic()


def lock_job(job_id: UUID, *, lane: Lane | str, worker: str, lease_seconds: float, **who: Any) -> Claim:
    """Lease this one job.

    Raises JobNotFound, LockConflict (leased, reserved or just taken), NotLockable (ended, not due, paused, at its limit).
    """
    job = AiRuntimeJob.objects.filter(pk=job_id, lane=lane).first()
    if job is None:
        raise JobNotFound(f"There is no job {job_id} in this lane.")
    claims = claim(lane=lane, worker=worker, job_types=[job.job_type], count=1, lease_seconds=lease_seconds, job_id=job_id, **who)
    if claims:
        return claims[0]
    job.refresh_from_db()
    if job.status in TERMINAL:
        raise NotLockable(f"The job has ended: it is {job.status}.", status=job.status)
    reserved = AiRuntimeJob.objects.filter(pk=job_id, offer_until__gt=Now()).exclude(offered_to=worker).exists()
    if job.status not in WAITING or reserved:
        raise LockConflict("The job is leased by, or reserved for, another worker.")
    raise NotLockable("The job may not run now: it is not due, paused or at its limit.", status=job.status)
