"""Rolling up: each hour's jobs and calls are counted into a few rows (HourlyFigures), from which the dashboard is drawn.

An hour is counted from the rows themselves and written over, so a pass may be repeated, break off or run anywhere at the same time. It is
counted again every minute until it is final: a quarter of an hour after its end, when whoever ended a job in it has long committed, and
when no call that began in it is still open (for a day at the most). A final hour is never read again.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from runtime_jobs.queries import CLOCKS_APART, first_id

EVERY_SECONDS = 60.0
# The dashboard looks back so far; what is older is not counted any more.
BACK_DAYS = 31
KEPT_DAYS = 400
_HOUR = timedelta(hours=1)
_LOCK = 0x61695F666967  # "ai_fig": one pass at a time in the whole system

_UNFINISHED = """
    WITH first AS (
        SELECT date_trunc('hour', greatest(statement_timestamp() - make_interval(days => %(back)s), moment)) AS hour
        FROM (SELECT least((SELECT min(finished_at) FROM ai_runtime_job WHERE finished_at IS NOT NULL),
                           (SELECT created_at FROM ai_usage_log ORDER BY id LIMIT 1)) AS moment) earliest
        WHERE moment IS NOT NULL
    )
    SELECT h.hour FROM first, generate_series(first.hour, date_trunc('hour', statement_timestamp()), '1 hour') AS h(hour)
    LEFT JOIN rolled_up_hour r ON r.hour = h.hour
    WHERE r.hour IS NULL OR NOT r.final AND r.counted_at <= statement_timestamp() - make_interval(secs => %(every)s)
    ORDER BY h.hour DESC LIMIT %(most)s
"""
_COUNTED = """
    SELECT 1 FROM rolled_up_hour WHERE hour = %s AND (final OR counted_at > statement_timestamp() - make_interval(secs => %s))
"""
# Calls by a range of ids, which are in the order of time: created_at has no index, and one would cost each call more than this does.
# In one statement, so that the figures and the word that they are final see the same rows.
_COUNT = """
    WITH ended AS (
        SELECT lane, job_type, model_provider AS provider, model_name AS model, error_code,
               count(*) FILTER (WHERE status = 'succeeded') AS succeeded, count(*) FILTER (WHERE status = 'failed') AS failed,
               count(*) FILTER (WHERE status = 'cancelled') AS cancelled
        FROM ai_runtime_job WHERE finished_at >= %(hour)s AND finished_at < %(end)s GROUP BY 1, 2, 3, 4, 5
    ), called AS (
        SELECT j.lane, j.job_type, u.provider, u.model_requested AS model, u.error_code, count(*) AS calls,
               count(*) FILTER (WHERE u.outcome IN ('failed', 'aborted')) AS calls_failed,
               count(*) FILTER (WHERE u.outcome <> 'started' AND u.cost_usd IS NULL) AS calls_unpriced,
               count(*) FILTER (WHERE u.outcome = 'started') AS open,
               coalesce(sum(u.input_tokens), 0) AS input_tokens, coalesce(sum(u.output_tokens), 0) AS output_tokens,
               coalesce(sum(u.cost_usd), 0) AS cost_usd
        FROM ai_usage_log u JOIN ai_runtime_job j ON j.id = u.job_id
        WHERE u.id >= %(first_id)s AND u.id < %(end_id)s AND u.created_at >= %(hour)s AND u.created_at < %(end)s GROUP BY 1, 2, 3, 4, 5
    ), written AS (
        INSERT INTO hourly_figures (hour, lane, job_type, provider, model, error_code, succeeded, failed, cancelled, calls, calls_failed,
                                    calls_unpriced, input_tokens, output_tokens, cost_usd)
        SELECT %(hour)s, lane, job_type, provider, model, error_code,
               coalesce(succeeded, 0), coalesce(failed, 0), coalesce(cancelled, 0), coalesce(calls, 0), coalesce(calls_failed, 0),
               coalesce(calls_unpriced, 0), coalesce(input_tokens, 0), coalesce(output_tokens, 0), coalesce(cost_usd, 0)
        FROM ended FULL JOIN called USING (lane, job_type, provider, model, error_code)
        RETURNING 1
    )
    INSERT INTO rolled_up_hour (hour, counted_at, final)
    SELECT %(hour)s, statement_timestamp(),
           statement_timestamp() >= %(end)s + interval '15 minutes'
           AND (statement_timestamp() >= %(end)s + interval '1 day' OR NOT EXISTS (SELECT FROM called WHERE open > 0))
    FROM (SELECT count(*) FROM written) AS done
    ON CONFLICT (hour) DO UPDATE SET counted_at = excluded.counted_at, final = excluded.final
"""


def roll_up(*, hours: int = 48, every_seconds: float = EVERY_SECONDS) -> int:
    """Count up to `hours` hours that are not final, newest first. Returns how many were counted; 0 when somebody else is at it.

    Hours that were counted less than `every_seconds` ago are left alone, so any number of workers may call it. A transaction per hour.
    """
    parameters: dict[str, Any] = {"back": BACK_DAYS, "every": every_seconds, "most": hours}
    with connection.cursor() as cursor:
        cursor.execute(_UNFINISHED, parameters)
        due = [hour for (hour,) in cursor.fetchall()]
    counted = 0
    for hour in due:
        if not _count(hour, every_seconds):
            break
        counted += 1
    return counted


def forget_old() -> int:
    """Delete the figures of hours that are older than KEPT_DAYS. Returns how many rows went."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM hourly_figures WHERE hour < statement_timestamp() - make_interval(days => %s)", [KEPT_DAYS])
        deleted: int = cursor.rowcount
        cursor.execute("DELETE FROM rolled_up_hour WHERE hour < statement_timestamp() - make_interval(days => %s)", [KEPT_DAYS])
    return deleted


def _count(hour: datetime, every_seconds: float) -> bool:
    """False when somebody else counts just now."""
    end = hour + _HOUR
    with transaction.atomic(), connection.cursor() as cursor:
        # In a statement before: inside the one that counts it would not hold for its snapshot.
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(_COUNTED, [hour, every_seconds])
        if cursor.fetchone():
            return True  # somebody was faster
        # A kind may have gone: a call that was open has an error code now.
        cursor.execute("DELETE FROM hourly_figures WHERE hour = %s", [hour])
        cursor.execute(
            _COUNT,
            {
                "hour": hour,
                "end": end,
                "first_id": first_id(hour, -CLOCKS_APART),
                "end_id": first_id(end, CLOCKS_APART),
            },
        )
    return True
