"""The one claim, for both kinds of worker: which jobs may run now, best first, each to one caller."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from runtime_jobs import prepared, registry
from runtime_jobs.errors import JobNotFound, LockConflict, NotLockable
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.services.events import Actor, NewEvent, record
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


# Candidates per job type and kind of waiting: a few more than wanted, since others may be locking the first ones now. When all of them
# were taken, again with WIDER times as many, so often: a worker that gets nothing must be able to believe that there is nothing.
_PEEK_MORE = 8
_WIDER = 4
_ROUNDS = 4

# Rows that nobody else has been offered.
_FREE = "(j.offer_until IS NULL OR j.offer_until <= statement_timestamp() OR j.offered_to = %(worker)s)"
_UNOFFERED = "(j.offer_until IS NULL OR j.offer_until <= statement_timestamp())"
# A CASE proves no partial index's condition, so the planner can look these rows up by their primary key only. With an OR it took any
# partial index that its statistics held for empty, such as after an idle night, and walked the whole backlog.
_DUE = "CASE j.status WHEN 'queued' THEN true WHEN 'retrying' THEN j.available_at <= statement_timestamp() ELSE false END"
# A free job with a live offer is offered to the caller: it counts as running already, so taking it needs no more room.
_COUNTED = "(j.offer_until > statement_timestamp()) IS TRUE"
_ROOM = f"""NOT EXISTS (SELECT FROM closed c WHERE c.key = j.model_provider || '/' || j.model_name)
       AND ({_COUNTED} OR NOT EXISTS (
            SELECT FROM busy b WHERE b.job_type = j.job_type AND b.model_provider = j.model_provider
            AND b.model_name = j.model_name AND b.running >= t.model_limit))"""  # noqa: S608 - put together from our own constants

# Each half is an ordered scan of its partial index that stops after %(peek)s rows, whatever else is waiting or has finished. The lane
# comes as a column: of a constant that it has never seen the planner would expect no row, and take any index.
_FROM_LANE = f"""
    SELECT t.job_type, t.running_limit, t.model_limit, c.* FROM types t CROSS JOIN LATERAL (
        (SELECT j.id, j.sort_at, j.model_provider, j.model_name, {_COUNTED} AS counted FROM ai_runtime_job j
         WHERE j.status = 'queued' AND j.lane = t.lane AND j.job_type = t.job_type AND {_FREE} AND {_ROOM}
         ORDER BY j.sort_at, j.id LIMIT %(peek)s)
        UNION ALL
        (SELECT j.id, j.sort_at, j.model_provider, j.model_name, {_COUNTED} AS counted FROM ai_runtime_job j
         WHERE j.status = 'retrying' AND j.lane = t.lane AND j.job_type = t.job_type AND j.available_at <= statement_timestamp()
           AND {_FREE} AND {_ROOM}
         ORDER BY j.available_at, j.id LIMIT %(peek)s)
    ) c
"""  # noqa: S608 - put together from our own constants
_UNOFFERED_FROM_LANE = _FROM_LANE.replace(_FREE, _UNOFFERED)
_ONE_JOB = f"""
    SELECT t.job_type, t.running_limit, t.model_limit, j.id, j.sort_at, j.model_provider, j.model_name, {_COUNTED} AS counted
    FROM ai_runtime_job j JOIN types t USING (job_type)
    WHERE j.id = %(job_id)s AND j.lane = t.lane AND {_DUE} AND {_FREE} AND {_ROOM}
"""  # noqa: S608 - put together from our own constants

# One claimer at a time may send one job to a provider whose breaker is open and has rested: taking the chance starts the next rest. It is
# taken only where a job waits for it here.
_PROBE = f"""
        UPDATE claim_gate g SET until = statement_timestamp() + make_interval(secs => %(rest)s)
        WHERE g.kind = 'breaker' AND g.until <= statement_timestamp() AND EXISTS (
            SELECT FROM types t CROSS JOIN LATERAL (
                SELECT 1 FROM ai_runtime_job j WHERE j.status = 'queued' AND j.lane = t.lane AND j.job_type = t.job_type
                    AND j.model_provider || '/' || j.model_name = g.key AND {_FREE}
                UNION ALL
                SELECT 1 FROM ai_runtime_job j WHERE j.status = 'retrying' AND j.lane = t.lane AND j.job_type = t.job_type
                    AND j.available_at <= statement_timestamp() AND j.model_provider || '/' || j.model_name = g.key AND {_FREE}
                LIMIT 1
            ) waiting)
        RETURNING g.key
"""  # noqa: S608 - put together from our own constants
_NO_PROBE = "SELECT key FROM claim_gate WHERE false"

_SELECTION = """
    types AS MATERIALIZED (
        SELECT t.*, %(lane)s::text AS lane FROM unnest(%(job_types)s::text[], %(running_limits)s::int[], %(model_limits)s::int[])
             AS t(job_type, running_limit, model_limit)
        WHERE NOT EXISTS (
            SELECT FROM claim_gate c WHERE (c.until IS NULL OR c.until > statement_timestamp())
            AND ((c.kind = 'lane' AND c.key = %(lane)s) OR (c.kind = 'job_type' AND c.key = t.job_type)))
    ), probing AS ({probing}
    ), closed AS MATERIALIZED (
        SELECT kind, key FROM claim_gate c
        WHERE c.kind = 'model' AND (c.until IS NULL OR c.until > statement_timestamp())
           OR c.kind = 'breaker' AND NOT EXISTS (SELECT FROM probing p WHERE p.key = c.key)
    ), active AS MATERIALIZED (
        SELECT job_type, model_provider, model_name FROM ai_runtime_job
        WHERE status IN ('cancel_requested', 'running') AND cardinality(%(limited)s::text[]) > 0
        UNION ALL
        SELECT job_type, model_provider, model_name FROM ai_runtime_job
        WHERE offer_until > statement_timestamp() AND cardinality(%(limited)s::text[]) > 0
    ), busy AS MATERIALIZED (
        -- Apart from `active`, which else might be read along the index of the type with all its finished rows.
        SELECT job_type, model_provider, model_name, count(*) AS running FROM active
        WHERE job_type = ANY(%(limited)s::text[]) GROUP BY 1, 2, 3
    ), candidates AS (
        {candidates}
    ), ranked AS (
        SELECT c.*,
               CASE WHEN counted THEN 0 ELSE count(*) FILTER (WHERE NOT counted) OVER (
                   PARTITION BY job_type ORDER BY sort_at, id) END AS of_type,
               CASE WHEN counted THEN 0 ELSE count(*) FILTER (WHERE NOT counted) OVER (
                   PARTITION BY job_type, model_provider, model_name ORDER BY sort_at, id) END AS of_model,
               row_number() OVER (PARTITION BY model_provider, model_name ORDER BY sort_at, id) AS of_provider
        FROM candidates c
    ), allowed AS (
        SELECT r.id, r.sort_at FROM ranked r
        WHERE (r.of_provider = 1 OR NOT EXISTS (SELECT FROM probing p WHERE p.key = r.model_provider || '/' || r.model_name))
          AND (r.running_limit IS NULL
               OR r.of_type + coalesce((SELECT sum(b.running) FROM busy b WHERE b.job_type = r.job_type), 0) <= r.running_limit)
          AND (r.model_limit IS NULL
               OR r.of_model + coalesce((SELECT b.running FROM busy b WHERE b.job_type = r.job_type
                                         AND b.model_provider = r.model_provider AND b.model_name = r.model_name), 0) <= r.model_limit)
        ORDER BY r.sort_at, r.id LIMIT %(peek)s
    ), locked AS MATERIALIZED (
        SELECT j.id, a.sort_at FROM ai_runtime_job j JOIN allowed a ON a.id = j.id
        WHERE {due} AND {free}
        ORDER BY a.sort_at, a.id LIMIT %(count)s FOR NO KEY UPDATE OF j SKIP LOCKED
    ), numbered AS (
        SELECT id, row_number() OVER (ORDER BY sort_at, id) AS n FROM locked
    )
"""

# A runtime's lease ends with its attempt's deadline at the latest; the engine's may outlive it, so that it can still tell of the timeout.
_LEASE = "least(%(lease)s::float8, CASE j.lane WHEN 'runtime' THEN j.timeout_seconds END)"

_CLAIM = """
    WITH {selection}, claimed AS (
        UPDATE ai_runtime_job j SET
            status = 'running', attempt_no = j.attempt_no + 1, lock_token = (%(hashes)s::text[])[n.n], locked_by = %(worker)s,
            locked_at = statement_timestamp(), lock_until = statement_timestamp() + make_interval(secs => {lease}),
            started_at = coalesce(j.started_at, statement_timestamp()), offered_to = NULL, offer_until = NULL,
            progress = NULL, progress_message = '', updated_at = statement_timestamp()
        FROM numbered n WHERE j.id = n.id AND {due}
        RETURNING j.id, n.n, j.attempt_no, j.job_type, j.locked_at, j.lock_until, j.timeout_seconds, j.lock_token
    ), attempts AS (
        INSERT INTO ai_job_attempt (id, job_id, attempt_no, lock_token, worker, service_token_id, request_id, started_at,
                                    outcome, error_code, internal_error, answer_digest, token_nonce)
        SELECT (%(attempt_ids)s::uuid[])[c.n], c.id, c.attempt_no, c.lock_token, %(worker)s, %(service_token)s::uuid, %(request_id)s::uuid,
               c.locked_at,
               '', '', '', '', (%(nonces)s::text[])[c.n]
        FROM claimed c
    )
    SELECT (SELECT count(*) FROM allowed), n, id, attempt_no, job_type, locked_at, lock_until, timeout_seconds
    FROM (VALUES (1)) AS always LEFT JOIN claimed ON true ORDER BY n
"""


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
    nonces = ["" if request_id is None else new_nonce() for _ in range(count)]
    tokens = [derived_token(nonce) if nonce else new_token() for nonce in nonces]
    candidates = _FROM_LANE if job_id is None else _ONE_JOB
    selection = _SELECTION.format(candidates=candidates, due=_DUE, free=_FREE, probing=_PROBE)
    parameters: dict[str, Any] = {
        **_limits(job_types),
        "rest": settings.BREAKER_REST_SECONDS,
        "lane": str(lane),
        "worker": worker,
        "count": count,
        "lease": lease_seconds,
        "hashes": [token_hash(token) for token in tokens],
        "nonces": nonces,
        "attempt_ids": [new_id() for _ in tokens],
        "service_token": service_token_id,
        "request_id": request_id,
        "job_id": job_id,
    }
    statement = _CLAIM.format(selection=selection, due=_DUE, lease=_LEASE)
    with transaction.atomic():
        _hold_limits(parameters["limited"])
        for round_no in range(_ROUNDS):
            peek = (count + _PEEK_MORE) * _WIDER**round_no
            rows = prepared.run(statement, {**parameters, "peek": peek})
            claims = [Claim(job, attempt_no, tokens[n - 1], worker, *rest) for _, n, job, attempt_no, *rest in rows if n is not None]
            if claims or rows[0][0] < peek:  # all that there are were looked at
                break
        record([NewEvent(c.job_id, "job.claimed", c.attempt_no, Actor("", worker), {"status": "running"}) for c in claims])
    return claims


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


_OFFER = """
    WITH {selection}, offered AS (
        UPDATE ai_runtime_job j SET
            offered_to = %(worker)s, offer_until = statement_timestamp() + make_interval(secs => %(offer)s),
            updated_at = statement_timestamp()
        FROM numbered n WHERE j.id = n.id AND {due}
        RETURNING n.n, j.id
    )
    SELECT (SELECT count(*) FROM allowed), n, id FROM (VALUES (1)) AS always LEFT JOIN offered ON true ORDER BY n
"""


def offer(*, lane: Lane | str, worker: str, job_types: Sequence[str], count: int, offer_seconds: float) -> list[UUID]:
    """Reserve up to `count` due jobs for the worker: hidden from all others until `offer_seconds` have passed. Costs no attempt.

    Live offers count towards limits. One that was made before is not made again until it has run out, to its own holder neither.
    """
    selection = _SELECTION.format(candidates=_UNOFFERED_FROM_LANE, due=_DUE, free=_UNOFFERED, probing=_PROBE)
    parameters: dict[str, Any] = {
        **_limits(job_types),
        "lane": str(lane),
        "worker": worker,
        "count": count,
        "offer": offer_seconds,
        "rest": settings.BREAKER_REST_SECONDS,
    }
    statement = _OFFER.format(selection=selection, due=_DUE)
    with transaction.atomic():
        _hold_limits(parameters["limited"])
        for round_no in range(_ROUNDS):
            peek = (count + _PEEK_MORE) * _WIDER**round_no
            rows = prepared.run(statement, {**parameters, "peek": peek})
            offered = [job for _, n, job in rows if n is not None]
            if offered or rows[0][0] < peek:
                break
    return offered


_AVAILABLE = """
    WITH {selection}
    SELECT r.job_type, count(*) FROM ranked r JOIN allowed a USING (id) GROUP BY 1
"""


def available(*, lane: Lane | str, job_types: Sequence[str], count: int) -> dict[str, int]:
    """How many jobs of each type somebody without an offer could claim now, up to `count` in all. A hint: nothing is locked."""
    selection = _SELECTION.format(candidates=_UNOFFERED_FROM_LANE, due=_DUE, free=_UNOFFERED, probing=_NO_PROBE)
    parameters: dict[str, Any] = {**_limits(job_types), "lane": str(lane), "count": count, "peek": count}
    return dict(prepared.run(_AVAILABLE.format(selection=selection), parameters))


def _limits(job_types: Sequence[str]) -> dict[str, Any]:
    limits = [definition.limits if (definition := registry.find(job_type)) else registry.Limits() for job_type in job_types]
    return {
        "job_types": list(job_types),
        "running_limits": [limit.running for limit in limits],
        "model_limits": [limit.running_per_model for limit in limits],
        "limited": sorted(
            job_type
            for job_type, limit in zip(job_types, limits, strict=True)
            if limit.running is not None or limit.running_per_model is not None
        ),
    }


def _hold_limits(limited: Sequence[str]) -> None:
    """One claimer at a time counts a limited type. A statement of its own: inside the claim the snapshot would be older than the lock."""
    for job_type in limited:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('claim:' || %s, 0))", [job_type])
