"""Which jobs may run now, best first: the SQL that claims and offers are built on."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.db import connection

from runtime_jobs import prepared, registry

# Candidates per job type and kind of waiting: a few more than wanted, since others may be locking the first ones now. When all of them
# were taken, again with _WIDER times as many, so often: a worker that gets nothing must be able to believe that there is nothing.
_PEEK_MORE = 8
_WIDER = 4
_ROUNDS = 4

# Rows that nobody else has been offered.
FREE = "(j.offer_until IS NULL OR j.offer_until <= statement_timestamp() OR j.offered_to = %(worker)s)"
UNOFFERED = "(j.offer_until IS NULL OR j.offer_until <= statement_timestamp())"
# A CASE proves no partial index's condition, so the planner can look these rows up by their primary key only. With an OR it took any
# partial index that its statistics held for empty, such as after an idle night, and walked the whole backlog.
DUE = "CASE j.status WHEN 'queued' THEN true WHEN 'retrying' THEN j.available_at <= statement_timestamp() ELSE false END"
_KEY = "{0}.model_provider || '/' || {0}.model_name"  # of a gate

# The models that a kind of waiting has jobs of, for the lanes and types of a relation `types`: a step along the index for each, however
# many jobs stand there. A CTE by the name of {status}_models.
_MODELS = """{status}_models(lane, job_type, model_provider, model_name) AS (
        SELECT t.lane, t.job_type, m.* FROM types t CROSS JOIN LATERAL (
            SELECT j.model_provider, j.model_name FROM ai_runtime_job j
            WHERE j.status = '{status}' AND j.lane = t.lane AND j.job_type = t.job_type
            ORDER BY j.model_provider, j.model_name LIMIT 1
        ) m
        UNION ALL
        SELECT w.lane, w.job_type, m.* FROM {status}_models w CROSS JOIN LATERAL (
            SELECT j.model_provider, j.model_name FROM ai_runtime_job j
            WHERE j.status = '{status}' AND j.lane = w.lane AND j.job_type = w.job_type
              AND (j.model_provider, j.model_name) > (w.model_provider, w.model_name)
            ORDER BY j.model_provider, j.model_name LIMIT 1
        ) m
    )"""
QUEUED_MODELS, RETRYING_MODELS = _MODELS.format(status="queued"), _MODELS.format(status="retrying")
# A model's jobs, to be read in the order of the same index up to a LIMIT. The lane comes as a column: of a constant that it has never seen
# the planner would expect no row, and take any index.
_OF_MODEL = """ai_runtime_job j WHERE j.status = '{status}' AND j.lane = w.lane AND j.job_type = w.job_type
            AND j.model_provider = w.model_provider AND j.model_name = w.model_name"""
QUEUED_OF_MODEL, RETRYING_OF_MODEL = _OF_MODEL.format(status="queued"), _OF_MODEL.format(status="retrying")
_RETRYING_DUE = f"{RETRYING_OF_MODEL} AND j.available_at <= statement_timestamp()"

_CLOSED = "EXISTS (SELECT FROM closed c WHERE c.key = {})"
_FULL = """EXISTS (SELECT FROM busy b WHERE b.job_type = {0}.job_type AND b.model_provider = {0}.model_provider
            AND b.model_name = {0}.model_name AND b.running >= {1}.model_limit)"""
_WITH_ROOM = f"NOT {_CLOSED.format(_KEY.format('w'))} AND NOT {_FULL.format('w', 't')}"
UNOFFERED_FROM_LANE = f"""
    SELECT t.job_type, t.running_limit, t.model_limit, c.id, c.sort_at, w.model_provider, w.model_name, false AS counted
    FROM types t JOIN queued_models w USING (lane, job_type) CROSS JOIN LATERAL (
        SELECT j.id, j.sort_at FROM {QUEUED_OF_MODEL} AND {UNOFFERED} ORDER BY j.sort_at, j.id LIMIT %(peek)s) c
    WHERE {_WITH_ROOM}
    UNION ALL
    SELECT t.job_type, t.running_limit, t.model_limit, c.id, c.sort_at, w.model_provider, w.model_name, false
    FROM types t JOIN retrying_models w USING (lane, job_type) CROSS JOIN LATERAL (
        SELECT j.id, j.sort_at FROM {_RETRYING_DUE} AND {UNOFFERED} ORDER BY j.available_at, j.id LIMIT %(peek)s) c
    WHERE {_WITH_ROOM}
"""  # noqa: S608 - put together from our own constants
# With what the caller has been offered: that counts as running already, so taking it needs no more room.
FROM_LANE = f"""
    WITH offered AS MATERIALIZED (
        SELECT j.id, j.lane, j.job_type, j.sort_at, j.model_provider, j.model_name FROM ai_runtime_job j
        WHERE j.offer_until > statement_timestamp() AND j.offered_to = %(worker)s AND {DUE}
    ) {UNOFFERED_FROM_LANE}
    UNION ALL
    SELECT t.job_type, t.running_limit, t.model_limit, j.id, j.sort_at, j.model_provider, j.model_name, true
    FROM offered j JOIN types t USING (job_type, lane) WHERE NOT {_CLOSED.format(_KEY.format("j"))}
"""  # noqa: S608 - put together from our own constants
_COUNTED = "(j.offer_until > statement_timestamp()) IS TRUE"
ONE_JOB = f"""
    SELECT t.job_type, t.running_limit, t.model_limit, j.id, j.sort_at, j.model_provider, j.model_name, {_COUNTED} AS counted
    FROM ai_runtime_job j JOIN types t USING (job_type)
    WHERE j.id = %(job_id)s AND j.lane = t.lane AND {DUE} AND {FREE}
      AND NOT {_CLOSED.format(_KEY.format("j"))} AND ({_COUNTED} OR NOT {_FULL.format("j", "t")})
"""  # noqa: S608 - put together from our own constants

# One claimer at a time may send one job to a provider whose breaker is open and has rested: taking the chance starts the next rest. It is
# taken only where a job waits for it here.
_PROBE = f"""
        UPDATE claim_gate g SET until = statement_timestamp() + make_interval(secs => %(rest)s)
        WHERE g.kind = 'breaker' AND g.until <= statement_timestamp() AND EXISTS (
            SELECT FROM queued_models w CROSS JOIN LATERAL (SELECT FROM {QUEUED_OF_MODEL} AND {FREE} LIMIT 1) waiting
            WHERE {_KEY.format("w")} = g.key
            UNION ALL
            SELECT FROM retrying_models w CROSS JOIN LATERAL (SELECT FROM {_RETRYING_DUE} AND {FREE} LIMIT 1) waiting
            WHERE {_KEY.format("w")} = g.key)
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
    ), {queued_models}, {retrying_models}, probing AS ({probing}
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


def selecting(candidates: str = FROM_LANE, *, free: str = FREE, probe: bool = True) -> str:
    """Recursive CTEs that end in `allowed` (id, sort_at), `locked` and `numbered` (id, n from 1, best first); reading these locks rows."""
    return _SELECTION.format(
        candidates=candidates,
        due=DUE,
        free=free,
        probing=_PROBE if probe else _NO_PROBE,
        queued_models=QUEUED_MODELS,
        retrying_models=RETRYING_MODELS,
    )


def parameters_of(lane: str, job_types: Sequence[str], count: int) -> dict[str, Any]:
    """What `selecting` needs, beside `peek` and `worker`. `limited` names the types of which one claimer at a time may count."""
    limits = [definition.limits if (definition := registry.find(job_type)) else registry.Limits() for job_type in job_types]
    return {
        "lane": lane,
        "count": count,
        "rest": settings.BREAKER_REST_SECONDS,
        "job_types": list(job_types),
        "running_limits": [limit.running for limit in limits],
        "model_limits": [limit.running_per_model for limit in limits],
        "limited": sorted(
            job_type
            for job_type, limit in zip(job_types, limits, strict=True)
            if limit.running is not None or limit.running_per_model is not None
        ),
    }


def take(statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement on `selecting` that returns (how many were allowed, n or NULL, …); its rows from n on, none where nothing is left."""
    taken: list[tuple[Any, ...]] = []
    for round_no in range(_ROUNDS):
        peek = (parameters["count"] + _PEEK_MORE) * _WIDER**round_no
        rows = prepared.run(statement, {**parameters, "peek": peek})
        taken = [row[1:] for row in rows if row[1] is not None]
        if taken or rows[0][0] < peek:  # all that there are were looked at
            break
    return taken


def hold_limits(limited: Sequence[str]) -> None:
    """One claimer at a time counts a limited type. A statement of its own: inside the claim the snapshot would be older than the lock."""
    for job_type in limited:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended('claim:' || %s, 0))", [job_type])
