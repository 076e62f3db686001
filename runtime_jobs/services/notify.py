"""Hints to sleeping workers. A hint may be lost or doubled: what runs is decided by the claim, and a slow poll stands behind it."""

import logging
from functools import partial
from uuid import UUID

from django.db import DatabaseError, connection, transaction

from runtime_jobs.states import Lane

logger = logging.getLogger(__name__)

CANCEL_CHANNEL = "runtime_jobs_cancel"


def lane_channel(lane: Lane | str) -> str:
    return f"runtime_jobs_{lane}"


def wake(lane: Lane | str) -> None:
    """Say, once the transaction has committed, that the lane has work."""
    transaction.on_commit(partial(_send, lane_channel(lane), ""))


def cancel_requested(job_id: UUID) -> None:
    """Say, once the transaction has committed, that the holder of this job should stop."""
    transaction.on_commit(partial(_send, CANCEL_CHANNEL, str(job_id)))


def _send(channel: str, payload: str) -> None:
    # After the commit, not in it: commits that notify queue behind one lock of the whole server.
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, payload])
    except DatabaseError:
        logger.warning("the hint on %s was not sent; workers will poll", channel)
