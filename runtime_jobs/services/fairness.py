"""A waiting job's place in its lane: fair among users, with a bounded head start per priority, and nothing starves.

A user's jobs are a step apart, and everyone's first stands one step behind the lane's head: the thousandth job of one user waits behind
the first of another, and still moves at its share. A higher priority starts so many steps ahead, but never before a head that has waited
for PATIENCE: without that, a stream of urgent jobs behind which the head never moves would keep it waiting for ever.
"""

from datetime import datetime

from django.db import connection

from runtime_jobs import registry
from runtime_jobs.services.selection import QUEUED_MODELS, QUEUED_OF_MODEL
from runtime_jobs.states import Lane

STEP_SECONDS = 1
HEAD_START_STEPS = 10  # per point of priority above 5; as many behind below it
PATIENCE_SECONDS = 60

_PLACE = f"""
    WITH RECURSIVE types AS MATERIALIZED (
        SELECT job_type, %(lane)s::text AS lane FROM unnest(%(job_types)s::text[]) AS t(job_type)
    ), {QUEUED_MODELS}, head AS (
        SELECT c.sort_at, c.sort_at + %(start)s * (c.priority - 5) AS base, c.created_at
        FROM queued_models w CROSS JOIN LATERAL (
            SELECT j.sort_at, j.priority, j.created_at FROM {QUEUED_OF_MODEL} ORDER BY j.sort_at, j.id LIMIT 1
        ) c
        ORDER BY c.sort_at LIMIT 1
    ), own AS (
        SELECT sort_at + %(start)s * (priority - 5) AS base FROM ai_runtime_job
        WHERE status = 'queued' AND lane = %(lane)s AND user_id = %(user)s
        ORDER BY id DESC LIMIT 1
    )
    SELECT greatest(
        greatest(coalesce((SELECT base FROM head), statement_timestamp()), (SELECT base FROM own)) + %(step)s
            - %(start)s * (%(priority)s - 5),
        (SELECT sort_at FROM head WHERE created_at < statement_timestamp() - %(patience)s)
    )
"""  # noqa: S608 - put together from our own constants


def place(*, lane: Lane, user_id: int, priority: int) -> datetime:
    """Where a job that is created now stands in the lane."""
    with connection.cursor() as cursor:
        cursor.execute(
            _PLACE.replace("%(start)s", f"interval '{HEAD_START_STEPS * STEP_SECONDS} seconds'")
            .replace("%(step)s", f"interval '{STEP_SECONDS} seconds'")
            .replace("%(patience)s", f"interval '{PATIENCE_SECONDS} seconds'"),
            {"lane": lane, "job_types": [*registry.job_types(lane)], "user": user_id, "priority": priority},
        )
        row = cursor.fetchone()
    return row[0]  # type: ignore[no-any-return]
