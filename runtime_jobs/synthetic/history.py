"""A long history of jobs that nobody ran, made by the database itself: for measuring lists, pages and figures at their real size.

The mix is that of a busy system: most jobs succeed at once, some after retries; one lane and one provider are rare, a few users have most
jobs; the newest jobs wait or run. Every row keeps the constraints. Results, events and deliveries are made for the newest jobs alone.
"""

import json
from collections.abc import Callable
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction

from runtime_jobs import registry
from runtime_jobs.errors import ErrorCode
from runtime_jobs.models import AiJobAttempt, AiModelCredential, AiRuntimeJob, AiUsageLog
from runtime_jobs.services.credentials import create_credential
from runtime_jobs.states import Lane

_USERS = 200
_SNAPSHOTS = 1_000
_WITH_DETAILS = 20_000
# Of 1,000: what a lane, a provider gets.
_LANES = {Lane.INTERACTIVE: 540, Lane.BACKGROUND: 450, Lane.RUNTIME: 10}
_PROVIDERS = {"simulator": 890, "second": 109, "rare": 1}
# From so many rows on it is quicker to build the indexes anew than to keep them up.
_REBUILD_FROM = 50_000

# Draws of 0 to 1,023 that are the same in every run.
_DRAW = "(hashint8extended(n, {}) & 1023)"
# UUIDs of version 7: the time of creation, then the number.
_ID = "(lpad(to_hex((extract(epoch FROM {created}) * 1000)::bigint), 12, '0') || '7000a000' || lpad(to_hex({n}), 12, '0'))::uuid"
_CREATED = "(%(end)s::timestamptz - make_interval(secs => (%(jobs)s - {n}) * %(step)s))"

_JOBS = f"""
    INSERT INTO ai_runtime_job (
        id, user_id, job_type, lane, target_type, target_id, snapshot_id, priority, idempotency_key, request_fingerprint, api_key_mode,
        credential_id, model_provider, model_name, prompt_version, input_schema_version, output_schema_version, max_retry_count,
        timeout_seconds, retried_from_job_id, traceparent, created_at, status, attempt_no, retry_count, lapse_count, release_count,
        available_at, sort_at, started_at, finished_at, updated_at, error_code, error_message, internal_error, progress_message,
        lock_token, locked_by, locked_at, lock_until, cancel_requested_by, cancel_reason)
    SELECT {_ID.format(created="t.created", n="n")}, (%(users)s::int[])[1 + (d.user_draw * d.user_draw / 1024 * {_USERS} / 1024)],
        (%(types)s::jsonb ->> d.lane), d.lane, (ARRAY['document', 'document', 'invoice', 'contract'])[1 + n %% 4], (n / 4)::text,
        (%(snapshots)s::uuid[])[1 + n %% {_SNAPSHOTS}], d.any %% 10,
        CASE WHEN n %% 2 = 0 THEN 'many:' || %(run)s || ':' || n END, md5(n::text) || md5(n::text), 'platform',
        (%(credentials)s::jsonb ->> d.provider)::uuid, d.provider, d.provider || '-' || (1 + n %% 3), '1', '1', '1', 3, 120,
        CASE WHEN n %% 97 = 0 AND d.ended AND n > 50 THEN {_ID.format(created=_CREATED.format(n="(n - 50)"), n="n - 50")} END,
        '', t.created, d.status, d.attempts, greatest(d.attempts - 1, 0), 0, 0,
        CASE d.status WHEN 'retrying' THEN now() + make_interval(secs => d.any - 200) ELSE t.created END, t.created,
        CASE WHEN d.attempts > 0 THEN t.started END, CASE WHEN d.ended THEN t.finished END, t.finished,
        d.error, CASE WHEN d.error <> '' THEN 'It failed.' ELSE '' END, '', '',
        CASE WHEN d.held THEN md5(n::text) || md5(n::text) END, CASE WHEN d.held THEN 'many-worker-' || n %% 8 END,
        CASE WHEN d.held THEN t.started END, CASE d.status WHEN 'running' THEN now() + interval '1 hour' END, '', ''
    FROM generate_series(1, %(jobs)s::bigint) n
    CROSS JOIN LATERAL (
        SELECT {_DRAW.format(1)} AS user_draw, {_DRAW.format(2)} AS any, {_DRAW.format(3)} AS outcome, %(jobs)s - n AS age
    ) r
    CROSS JOIN LATERAL (
        SELECT CASE WHEN r.age < %(unfinished)s THEN
                    CASE WHEN r.outcome < 20 THEN 'running' WHEN r.outcome < 120 THEN 'retrying' ELSE 'queued' END
               WHEN r.outcome < 50 THEN 'failed' WHEN r.outcome < 80 THEN 'cancelled' ELSE 'succeeded' END AS status,
            {{lane}} AS lane, {{provider}} AS provider
    ) s
    CROSS JOIN LATERAL (
        SELECT r.user_draw, r.any, s.status, s.lane, s.provider, s.status IN ('succeeded', 'failed', 'cancelled') AS ended,
            CASE WHEN s.status = 'queued' THEN 0 WHEN r.any < 50 THEN 2 WHEN r.any < 60 THEN 3 ELSE 1 END AS attempts,
            s.status IN ('running', 'succeeded', 'failed') AS held,
            CASE s.status WHEN 'failed' THEN (%(errors)s::text[])[1 + r.any * r.any / 1024 * array_length(%(errors)s::text[], 1) / 1024]
                          WHEN 'retrying' THEN 'provider_unavailable' WHEN 'cancelled' THEN 'cancelled' ELSE '' END AS error
    ) d
    CROSS JOIN LATERAL (SELECT {_CREATED.format(n="n")} AS created) c
    CROSS JOIN LATERAL (
        SELECT c.created, c.created + make_interval(secs => 0.1 + r.any * 0.01) AS started,
               c.created + make_interval(secs => 1 + r.any * 0.04) AS finished
    ) t
"""  # noqa: S608 - put together from our own constants
# Each attempt but the last failed and was retried.
_ATTEMPTS = """
    INSERT INTO ai_job_attempt (id, job_id, attempt_no, lock_token, worker, token_nonce, started_at, ended_at, outcome, error_code,
                                internal_error, answer_digest)
    SELECT gen_random_uuid(), j.id, a.n, md5(j.id::text || a.n) || md5(a.n::text), 'many-worker-' || a.n %% 8, '',
           j.started_at + (a.n - 1) * interval '10 ms',
           CASE WHEN a.n < j.attempt_no OR j.status <> 'running' THEN j.started_at + a.n * interval '10 ms' END,
           CASE WHEN a.n < j.attempt_no OR j.status = 'retrying' THEN 'failed' WHEN j.status = 'running' THEN '' ELSE j.status END,
           CASE WHEN a.n < j.attempt_no THEN 'provider_unavailable' ELSE j.error_code END, '', ''
    FROM ai_runtime_job j CROSS JOIN LATERAL generate_series(1, j.attempt_no) AS a(n)
    WHERE j.id >= %(first)s AND NOT EXISTS (SELECT FROM ai_job_attempt real WHERE real.job_id = j.id)
"""
_CALLS = """
    INSERT INTO ai_usage_log (id, job_id, user_id, attempt_no, call_no, invocation_id, credential_mode, provider, base_url_host,
        model_requested, model_used, outcome, dispatch, error_code, provider_error_code, provider_request_id, finish_reason, input_tokens,
        output_tokens, cost_usd, usage_raw, warnings, latency_ms, created_at, closed_at)
    SELECT overlay(j.id::text PLACING to_hex(a.n %% 16) FROM 16 FOR 1)::uuid, j.id, j.user_id, a.n, 1, a.n::text, j.api_key_mode,
           j.model_provider, '127.0.0.1', j.model_name, j.model_name,
           CASE WHEN a.n < j.attempt_no OR j.status IN ('failed', 'retrying') THEN 'failed'
                WHEN j.status = 'cancelled' THEN 'aborted' ELSE 'succeeded' END, 'sent',
           CASE WHEN a.n < j.attempt_no THEN 'provider_unavailable' ELSE j.error_code END, '', '', '',
           CASE WHEN a.n = j.attempt_no THEN 500 END, CASE WHEN a.n = j.attempt_no THEN 200 END,
           CASE WHEN a.n = j.attempt_no THEN 0.0031 END, '{}', '[]', 900, j.started_at, j.started_at + interval '9 ms'
    FROM ai_runtime_job j CROSS JOIN LATERAL generate_series(1, j.attempt_no) AS a(n)
    WHERE j.id >= %(first)s AND NOT EXISTS (SELECT FROM ai_usage_log real WHERE real.job_id = j.id)
"""
_NEWEST = f"(SELECT * FROM ai_runtime_job WHERE id >= %(first)s ORDER BY id DESC LIMIT {_WITH_DETAILS})"  # noqa: S608 - our own constants
_RESULTS = f"""
    INSERT INTO ai_runtime_result (id, job_id, user_id, runtime_instance_id, status, attempt_no, result_idempotency_key, output_hash,
                                   raw_output, validated_output, schema_version, validation_errors, repairs)
    SELECT gen_random_uuid(), j.id, j.user_id, 'many', 'succeeded', j.attempt_no, j.id::text, md5(j.id::text) || md5(j.id::text), '{{}}',
           '{{"summary": "A river.", "facts": [{{"text": "The Danube is long.", "paragraph": "p1"}}]}}', '1', '[]', '[]'
    FROM {_NEWEST} j
    WHERE j.status = 'succeeded' AND NOT EXISTS (SELECT FROM ai_runtime_result real WHERE real.job_id = j.id)
"""  # noqa: S608 - put together from our own constants
_EVENTS = f"""
    INSERT INTO ai_job_event (id, job_id, seq, name, attempt_no, actor_id, actor_name, data, created_at)
    SELECT gen_random_uuid(), j.id, e.seq, e.name, e.attempt, '', 'system', '{{}}', j.created_at + e.seq * interval '1 ms'
    FROM {_NEWEST} j CROSS JOIN LATERAL (
        VALUES (1, 'job.created', NULL), (2, 'job.claimed', 1), (3, 'job.' || j.status, j.attempt_no)) AS e(seq, name, attempt)
    WHERE (e.seq = 1 OR j.attempt_no > 0 AND (e.seq = 2 OR j.finished_at IS NOT NULL))
          AND NOT EXISTS (SELECT FROM ai_job_event real WHERE real.job_id = j.id)
"""  # noqa: S608 - put together from our own constants
_DELIVERIES = """
    INSERT INTO ai_event_delivery (id, event_id, handler, job_id, seq, tries, next_try_at, delivered_at, parked_at, last_error)
    SELECT gen_random_uuid(), e.id, 'many.handler', e.job_id, e.seq, 1, e.created_at,
           CASE WHEN e.seq < 3 THEN e.created_at END, CASE WHEN e.seq = 3 THEN e.created_at END, ''
    FROM (SELECT * FROM ai_job_event WHERE name IN ('job.claimed', 'job.failed') AND job_id >= %(first)s) e
    WHERE NOT EXISTS (SELECT FROM ai_event_delivery real WHERE real.event_id = e.id)
"""
_SNAPSHOT = f"""
    INSERT INTO ai_job_snapshot (id, input_schema_version, payload, content_hash, size_bytes)
    SELECT gen_random_uuid(), '1', p.payload, md5(%(run)s || n::text) || md5(n::text), length(p.payload::text)
    FROM generate_series(1, {_SNAPSHOTS}) n CROSS JOIN LATERAL (SELECT jsonb_build_object('paragraphs', jsonb_build_array(
        jsonb_build_object('id', 'p1', 'text', 'Text ' || n || ' of a long history. The Danube is long.'))) AS payload) p
    RETURNING id
"""  # noqa: S608 - put together from our own constants
_TABLES = ("ai_runtime_job", "ai_job_attempt", "ai_usage_log", "ai_runtime_result", "ai_job_event", "ai_event_delivery")


def make_history(*, jobs: int, days: float = 30, say: Callable[[str], None] = lambda _line: None) -> None:
    """Insert `jobs` jobs that were created evenly over the last `days`, with their attempts and calls.

    What is there already stays as it is. One transaction, then VACUUM ANALYZE. Triggers and foreign keys are not asked, so it needs the
    database's superuser.
    """
    parameters = _parameters(jobs, days)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("SET LOCAL maintenance_work_mem = '256MB'")
        cursor.execute(_SNAPSHOT, parameters)
        parameters["snapshots"] = [row[0] for row in cursor.fetchall()]
        indexes = _drop_indexes(cursor) if jobs >= _REBUILD_FROM else []
        steps = {"jobs": _jobs(), "attempts": _ATTEMPTS, "calls": _CALLS}
        for name, statement in steps.items():
            cursor.execute(statement, parameters)
            say(f"{name}: {cursor.rowcount:,}")
        for definition in indexes:
            cursor.execute(definition)
        for name, statement in {"results": _RESULTS, "events": _EVENTS, "deliveries": _DELIVERIES}.items():
            cursor.execute(statement, parameters)
            say(f"{name}: {cursor.rowcount:,}")
    with connection.cursor() as cursor:
        # What was committed without waiting for the disk is not all-visible to a VACUUM that follows at once.
        cursor.execute("SET synchronous_commit = on")
        for table in _TABLES:
            cursor.execute(f"VACUUM (ANALYZE) {table}")
        cursor.execute("RESET synchronous_commit")


def _parameters(jobs: int, days: float) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp(), (extract(epoch FROM statement_timestamp()) * 1000)::bigint")
        end, run = cursor.fetchone()
        step = days * 86_400 / jobs
        cursor.execute(
            f"SELECT {_ID.format(created=_CREATED.format(n='1'), n='0')}",
            {"end": end, "jobs": jobs, "step": step},
        )
        (first,) = cursor.fetchone()
    return {
        "jobs": jobs,
        "end": end,
        "step": step,
        "run": str(run),
        "first": first,
        "unfinished": min(jobs // 20, 6_000),
        "users": _users(),
        "types": json.dumps({str(lane): registry.job_types(lane)[0] for lane in Lane}),
        "credentials": json.dumps({provider: str(_credential(provider).pk) for provider in _PROVIDERS}),
        "errors": [str(code) for code in ErrorCode if code != ErrorCode.CANCELLED],
    }


def _jobs() -> str:
    return _JOBS.format(lane=_by_share(_LANES, 4), provider=_by_share(_PROVIDERS, 5))


def _by_share(shares: dict[Any, int], draw: int) -> str:
    """A CASE that gives each value its share of 1,000."""
    cases, upto = [], 0
    for value, share in shares.items():
        upto += share
        cases.append(f"WHEN {_DRAW.format(draw)} * 1000 / 1024 < {upto} THEN '{value}'")
    return f"CASE {' '.join(cases)} END"


def _users() -> list[int]:
    users = get_user_model()
    names = [f"many-{number:03}" for number in range(1, _USERS + 1)]
    users.objects.bulk_create([users(**{users.USERNAME_FIELD: name}) for name in names], ignore_conflicts=True)
    return list(users.objects.filter(**{f"{users.USERNAME_FIELD}__in": names}).order_by("pk").values_list("pk", flat=True))


def _credential(provider: str) -> AiModelCredential:
    name = f"many jobs, {provider}"
    found = AiModelCredential.objects.filter(user=None, name=name).first()
    return found or create_credential(name=name, provider=provider, base_url="http://127.0.0.1:9/v1", api_key="not-a-key")


def _drop_indexes(cursor: Any) -> list[str]:
    """Those that belong to no constraint, of the large tables; how to make them again."""
    models = (AiRuntimeJob, AiJobAttempt, AiUsageLog)
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND tablename = ANY(%s)"
        " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = format('%%I', indexname)::regclass)"
        " AND indexdef NOT LIKE 'CREATE UNIQUE%%'",
        [[model._meta.db_table for model in models]],
    )
    found = dict(cursor.fetchall())
    for name in found:
        cursor.execute(f'DROP INDEX "{name}"')
    # Where they are known by their words: PostgreSQL gives a condition back in others, and a schema must not differ by that.
    with connection.schema_editor(atomic=False) as editor:
        known = {index.name: str(index.create_sql(model, editor)) for model in models for index in model._meta.indexes}
    return [known.get(name) or definition for name, definition in found.items()]
