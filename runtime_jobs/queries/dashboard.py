"""What the dashboard shows. Every query is bounded: by an index, a cap or the rolled-up hours, whatever the history's length."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import connection

from runtime_jobs.models import AiRuntimeJob, ClaimGate
from runtime_jobs.states import JobStatus, Lane

COUNT_CAP = 5_000  # per lane and state
_SHOWN_GATES = 20
_LATEST = 5

# --- now -------------------------------------------------------------------------------------------------------------------------


@dataclass
class LaneNow:
    """Counts end at COUNT_CAP + 1, which means "more"."""

    lane: Lane
    running: int = 0
    cancelling: int = 0
    queued: int = 0
    retrying: int = 0
    oldest_created_at: datetime | None = None  # of what is queued
    next_retry_at: datetime | None = None
    workers: int = 0
    draining: int = 0


@dataclass
class Now:
    at: datetime
    lanes: list[LaneNow]
    gates: list[ClaimGate]
    parked: int
    undelivered: int
    failures: list[AiRuntimeJob]
    held_since: datetime | None  # of the oldest transaction that keeps dead rows from being cleaned up, where it is old


# Leased rows alone: as many as workers have slots. The ORDER BYs keep the planner to the partial indexes: with a LIMIT alone it hopes to
# come by so many rows early in the table.
_RUNNING = """
    SELECT lane, status, count(*) FROM (
        SELECT lane, status FROM ai_runtime_job WHERE status IN ('cancel_requested', 'running') ORDER BY lock_until LIMIT %(most)s
    ) leased GROUP BY 1, 2
"""
# In the order of the claim's indexes, which answer alone: a row of the table is looked at only where it is too new to be vacuumed. The
# least id is the oldest, since its first bits are the time (RFC 9562 §5.7); of a longer queue the oldest of what is counted.
_QUEUED = """
    SELECT lane, count, oldest, statement_timestamp() FROM unnest(%(lanes)s::text[]) AS l(lane) CROSS JOIN LATERAL (
        SELECT count(*) AS count, min(id::text)::uuid AS oldest FROM (
            SELECT id FROM ai_runtime_job j WHERE j.status = 'queued' AND j.lane = l.lane
            ORDER BY job_type, model_provider, model_name, sort_at, id LIMIT %(most)s
        ) q) queued
"""
_RETRYING = """
    SELECT lane, count, next FROM unnest(%(lanes)s::text[]) AS l(lane) CROSS JOIN LATERAL (
        SELECT count(*) AS count, min(available_at) AS next FROM (
            SELECT available_at FROM ai_runtime_job j WHERE j.status = 'retrying' AND j.lane = l.lane
            ORDER BY job_type, model_provider, model_name, available_at, id LIMIT %(most)s
        ) r) retrying
"""
_DELIVERIES = """
    SELECT (SELECT count(*) FROM (SELECT FROM ai_event_delivery WHERE parked_at IS NOT NULL ORDER BY parked_at LIMIT %(most)s) p),
           (SELECT count(*) FROM (SELECT FROM ai_event_delivery WHERE delivered_at IS NULL AND parked_at IS NULL
                                         ORDER BY next_try_at LIMIT %(most)s) w)
"""
_ALIVE = """
    SELECT lane, count(*) FILTER (WHERE NOT draining), count(*) FILTER (WHERE draining) FROM runtime_instance
    WHERE kind <> 'web' AND last_seen_at > statement_timestamp() - make_interval(secs => %s) GROUP BY lane
"""
# Claims walk over the dead rows of jobs that were taken, until a vacuum may remove them: some 20 ms for every 20,000. Sessions of other
# database users are seen only by members of pg_read_all_stats.
_HELD = """
    SELECT min(xact_start) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xmin IS NOT NULL AND xact_start < statement_timestamp() - make_interval(secs => %s)
"""
_HELD_SECONDS = 300


def now(*, alive_seconds: float) -> Now:
    """What runs and waits at this moment, who works, what is held up, and what failed last. Eight queries."""
    lanes = {str(lane): LaneNow(lane) for lane in Lane}
    at = datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute(_RUNNING, {"most": COUNT_CAP + 1})
        for lane, status, count in cursor.fetchall():
            if status == JobStatus.RUNNING:
                lanes[lane].running = count
            else:
                lanes[lane].cancelling = count
        cursor.execute(_QUEUED, {"most": COUNT_CAP + 1, "lanes": list(lanes)})
        for lane, queued, oldest, at in cursor.fetchall():
            lanes[lane].queued, lanes[lane].oldest_created_at = queued, oldest and min(_made_at(oldest), at)
        cursor.execute(_RETRYING, {"most": COUNT_CAP + 1, "lanes": list(lanes)})
        for lane, retrying, next_retry in cursor.fetchall():
            lanes[lane].retrying, lanes[lane].next_retry_at = retrying, next_retry
        cursor.execute(_ALIVE, [alive_seconds])
        for lane, working, draining in cursor.fetchall():
            lanes[lane].workers, lanes[lane].draining = working, draining
        cursor.execute(_DELIVERIES, {"most": COUNT_CAP + 1})
        parked, undelivered = cursor.fetchone()
        cursor.execute(_HELD, [_HELD_SECONDS])
        (held_since,) = cursor.fetchone()
    failures = AiRuntimeJob.objects.filter(status=JobStatus.FAILED).order_by("-id").only("id", "job_type", "error_code", "finished_at")
    return Now(
        at=at,
        lanes=list(lanes.values()),
        gates=list(ClaimGate.objects.order_by("-created_at")[:_SHOWN_GATES]),
        parked=parked,
        undelivered=undelivered,
        failures=list(failures[:_LATEST]),
        held_since=held_since,
    )


def _made_at(key: UUID) -> datetime:
    return datetime.fromtimestamp((key.int >> 80) / 1000, UTC)


# --- over time -------------------------------------------------------------------------------------------------------------------

Window = Literal["24h", "7d", "30d"]


@dataclass
class Sums:
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    calls: int = 0
    calls_failed: int = 0
    calls_unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled

    @property
    def success_rate(self) -> float | None:
        """Of those that ran to an end of their own: nobody's cancel is a failure."""
        judged = self.succeeded + self.failed
        return self.succeeded / judged if judged else None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass
class Bucket:
    start: datetime
    end: datetime
    sums: Sums = field(default_factory=Sums)


@dataclass
class Figures:
    """The sums of a window: in all, by time, and by each kind, the largest first."""

    window: Window
    start: datetime
    end: datetime
    counted_at: datetime | None  # of the latest hour; None: nothing was ever rolled up
    total: Sums
    buckets: list[Bucket]
    job_types: list[tuple[str, Sums]]
    models: list[tuple[tuple[str, str], Sums]]
    errors: list[tuple[str, int]]


_SPANS: dict[Window, tuple[str, int]] = {"24h": ("hour", 24), "7d": ("day", 7), "30d": ("day", 30)}
WINDOWS: tuple[Window, ...] = tuple(_SPANS)

# Days are those of the site's time zone. An hour belongs to the day in which it begins.
_BUCKETS = """
    SELECT b AT TIME ZONE %(zone)s, (b + %(step)s) AT TIME ZONE %(zone)s
    FROM generate_series(date_trunc(%(unit)s, statement_timestamp() AT TIME ZONE %(zone)s) - %(step)s * (%(count)s - 1),
                         date_trunc(%(unit)s, statement_timestamp() AT TIME ZONE %(zone)s), %(step)s) AS b
"""
_COLUMNS = (
    "succeeded", "failed", "cancelled", "calls", "calls_failed", "calls_unpriced", "input_tokens", "output_tokens",
)  # fmt: skip
_SUMS = """
    SELECT grouping(bucket), grouping(job_type), grouping(provider), grouping(error_code), bucket AT TIME ZONE %(zone)s, job_type, provider,
           model, error_code, sum(succeeded), sum(failed), sum(cancelled), sum(calls), sum(calls_failed), sum(calls_unpriced),
           sum(input_tokens), sum(output_tokens), sum(cost_usd)
    FROM (SELECT *, date_trunc(%(unit)s, hour AT TIME ZONE %(zone)s) AS bucket FROM hourly_figures WHERE hour >= %(start)s) rows
    GROUP BY GROUPING SETS ((bucket), (job_type), (provider, model), (error_code))
"""


def figures(window: Window) -> Figures:
    """The figures of the last 24 hours (by hour), 7 or 30 days (by day), as they were last rolled up. Three queries."""
    unit, count = _SPANS[window]
    parameters: dict[str, Any] = {"zone": settings.TIME_ZONE, "unit": unit, "step": timedelta(**{f"{unit}s": 1}), "count": count}
    with connection.cursor() as cursor:
        cursor.execute(_BUCKETS, parameters)
        buckets = {start: Bucket(start, end) for start, end in cursor.fetchall()}
        first = min(buckets)
        cursor.execute(_SUMS, {**parameters, "start": first})
        rows = cursor.fetchall()
        cursor.execute("SELECT max(counted_at) FROM rolled_up_hour WHERE hour > statement_timestamp() - interval '31 days'")
        (counted_at,) = cursor.fetchone()
    total = Sums()
    job_types: dict[str, Sums] = {}
    models: dict[tuple[str, str], Sums] = {}
    errors: dict[str, int] = {}
    for no_bucket, no_type, no_provider, no_error, bucket, job_type, provider, model, error_code, *counts, cost_usd in rows:
        found = Sums(**dict(zip(_COLUMNS, map(int, counts), strict=True)), cost_usd=cost_usd)
        if not no_bucket:
            if bucket in buckets:
                buckets[bucket].sums = found
                _add(total, found)
        elif not no_type:
            job_types[job_type] = found
        elif not no_provider:
            models[provider, model] = found
        elif not no_error and error_code and found.failed:
            errors[error_code] = found.failed
    return Figures(
        window=window,
        start=first,
        end=max(bucket.end for bucket in buckets.values()),
        counted_at=counted_at,
        total=total,
        buckets=[buckets[start] for start in sorted(buckets)],
        job_types=sorted(job_types.items(), key=lambda one: (-one[1].ended, -one[1].calls, one[0])),
        models=sorted(models.items(), key=lambda one: (-one[1].calls, -one[1].ended, one[0])),
        errors=sorted(errors.items(), key=lambda one: (-one[1], one[0])),
    )


def _add(total: Sums, more: Sums) -> None:
    for name, value in vars(more).items():
        setattr(total, name, getattr(total, name) + value)
