"""Provider calls as runtimes report them. Usage is money spent: it is taken from any attempt under its own token, however that ended."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection, transaction

from runtime_jobs.errors import ErrorCode, JobAlreadyFinished, JobNotFound, LockLost
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret, redact
from runtime_jobs.services.masking import secrets_of
from runtime_jobs.services.settlements import Fence
from runtime_jobs.services.tokens import token_hash

TAKEN_FOR_HOURS = 24


@dataclass(frozen=True)
class ReportedCall:
    """One call as reported. Texts are storable; what was not reported is None."""

    invocation_id: str
    provider: str
    model: str
    credential_mode: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    latency_ms: int | None = None
    cost_usd: Decimal | None = None
    finish_reason: str | None = None
    error_code: str | None = None
    provider_request_id: str | None = None
    started_at: datetime | None = None


@dataclass(frozen=True)
class Rejection:
    index: int
    invocation_id: str
    code: str


@dataclass
class Taken:
    accepted: int = 0
    duplicates: int = 0
    rejected: list[Rejection] = field(default_factory=list)


_ATTEMPTS = f"""
    SELECT g.n, j.id IS NOT NULL, a.id IS NOT NULL, j.user_id, a.ended_at IS NOT NULL
           AND a.ended_at < statement_timestamp() - interval '{TAKEN_FOR_HOURS} hours'
    FROM unnest(%(jobs)s::uuid[], %(attempts)s::int[], %(hashes)s::text[], %(workers)s::text[]) WITH ORDINALITY
         AS g(job_id, attempt_no, lock_token, worker, n)
    LEFT JOIN ai_runtime_job j ON j.id = g.job_id AND j.lane = 'runtime' AND j.job_type = ANY(%(job_types)s::text[])
    LEFT JOIN ai_job_attempt a ON a.job_id = j.id AND a.attempt_no = g.attempt_no AND a.lock_token = g.lock_token AND a.worker = g.worker
    ORDER BY g.n
"""  # noqa: S608 - put together from our own constants
_INSERT = """
    INSERT INTO ai_usage_log (
        id, job_id, user_id, attempt_no, call_no, invocation_id, credential_mode, provider, base_url_host, model_requested, model_used,
        outcome, dispatch, error_code, provider_error_code, provider_request_id, finish_reason, input_tokens, output_tokens,
        cached_input_tokens, reasoning_tokens, cost_usd, usage_raw, warnings, latency_ms, reported_started_at, closed_at)
    SELECT g.id, g.job_id, g.user_id, g.attempt_no,
           least(32767, row_number() OVER (PARTITION BY g.job_id, g.attempt_no ORDER BY g.n) + (
               SELECT coalesce(max(u.call_no), 0) FROM ai_usage_log u WHERE u.job_id = g.job_id AND u.attempt_no = g.attempt_no)),
           g.invocation_id, g.mode, g.provider, '', g.model, g.model, g.outcome, 'sent', g.error_code, '', g.request_id, g.finish_reason,
           g.input, g.output, g.cached, g.reasoning, g.cost, '{}', '[]', g.latency, g.started_at, statement_timestamp()
    FROM unnest(%s::int[], %s::uuid[], %s::uuid[], %s::int[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::numeric[], %s::int[],
                %s::timestamptz[])
        AS g(n, id, job_id, user_id, attempt_no, invocation_id, mode, provider, model, outcome, error_code, request_id, finish_reason,
             input, output, cached, reasoning, cost, latency, started_at)
    ON CONFLICT (job_id, invocation_id) DO NOTHING
    RETURNING id
"""


def take(calls: Sequence[tuple[Fence, ReportedCall]], job_types: Collection[str]) -> Taken:
    """Store each call once, in a transaction of its own. A call of a job or attempt that is not the caller's is rejected by its index."""
    taken = Taken()
    rows: list[list[Any]] = []
    for (n, job_there, attempt_there, user_id, too_old), (fence, call) in zip(_attempts(calls, job_types), calls, strict=True):
        if not (job_there and attempt_there) or too_old:
            code = JobNotFound.code if not job_there else LockLost.code if not attempt_there else JobAlreadyFinished.code
            taken.rejected.append(Rejection(n - 1, call.invocation_id, code))
            continue
        rows.append([n, fence, user_id, call])
    if not rows:
        return taken
    secrets = secrets_of({fence.job_id for _, fence, _, _ in rows})
    columns = list(zip(*(_columns(n, fence, user, call, secrets[fence.job_id]) for n, fence, user, call in rows), strict=True))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_INSERT, [list(column) for column in columns])
        taken.accepted = len(cursor.fetchall())
    taken.duplicates = len(rows) - taken.accepted
    return taken


def _attempts(calls: Sequence[tuple[Fence, ReportedCall]], job_types: Collection[str]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            _ATTEMPTS,
            {
                "jobs": [fence.job_id for fence, _ in calls],
                "attempts": [fence.attempt_no for fence, _ in calls],
                "hashes": [token_hash(fence.token) for fence, _ in calls],
                "workers": [fence.worker for fence, _ in calls],
                "job_types": list(job_types),
            },
        )
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _columns(n: int, fence: Fence, user_id: int, call: ReportedCall, secrets: tuple[Secret, ...]) -> list[Any]:
    def clean(text: str | None, most: int) -> str:
        return redact(text or "", secrets, limit=most)

    error_code = known_code(call.error_code) if call.error_code else ""
    return [
        n, new_id(), fence.job_id, user_id, fence.attempt_no, clean(call.invocation_id, 100), call.credential_mode,
        clean(call.provider, 50), clean(call.model, 200), "failed" if error_code else "succeeded", error_code,
        clean(call.provider_request_id, 200), clean(call.finish_reason, 40), call.input_tokens, call.output_tokens,
        call.cached_input_tokens, call.reasoning_tokens, call.cost_usd, call.latency_ms, call.started_at,
    ]  # fmt: skip


def known_code(code: str) -> str:
    """The code as it can be stored: one that nobody here knows counts as internal_error."""
    return code if code in ErrorCode.__members__.values() else str(ErrorCode.INTERNAL_ERROR)
