"""A provider that fails in a row is left alone for a while, so that an outage does not burn every job's retries.

An open breaker is a row of ClaimGate that staff see: jobs of that provider and model are not claimed, but for one after each rest
(services/claims.py). Any call that succeeds closes it.
"""

import logging

from django.conf import settings
from django.db import connection

from runtime_jobs import prepared
from runtime_jobs.errors import ErrorCode
from runtime_jobs.models import ClaimGate
from runtime_jobs.models.base import new_id

logger = logging.getLogger(__name__)

# What says that the provider is down, rather than that one request was wrong.
OUTAGE = frozenset({ErrorCode.PROVIDER_UNAVAILABLE, ErrorCode.PROVIDER_TIMEOUT})

# The last calls, newest first; those that we ended ourselves say nothing.
_FAILS_IN_A_ROW = """
    SELECT count(*) = %(failures)s AND bool_and(error_code = ANY(%(outage)s::text[])) FROM (
        SELECT error_code FROM ai_usage_log
        WHERE provider = %(provider)s AND model_requested = %(model)s AND closed_at IS NOT NULL
          AND error_code <> ALL('{cancelled,lease_expired}')
        ORDER BY id DESC LIMIT %(failures)s) latest
"""
_OPEN = """
    INSERT INTO claim_gate AS g (id, kind, key, reason, closed_by, until)
    VALUES (%s, 'breaker', %s, %s, 'breaker', statement_timestamp() + make_interval(secs => %s))
    ON CONFLICT (kind, key) DO UPDATE SET until = greatest(g.until, excluded.until)
    RETURNING xmax = 0
"""


def note_failure(provider: str, model: str, code: ErrorCode | str) -> None:
    """After a failed call was closed: open the model's breaker when the last BREAKER_FAILURES calls all failed so."""
    if code not in OUTAGE:
        return
    parameters = {"provider": provider, "model": model, "failures": settings.BREAKER_FAILURES, "outage": [str(one) for one in OUTAGE]}
    ((fails,),) = prepared.run(_FAILS_IN_A_ROW, parameters)
    if not fails:
        return
    reason = f"the last {settings.BREAKER_FAILURES} calls failed, the latest with {code}"
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, [new_id(), f"{provider}/{model}", reason, settings.BREAKER_REST_SECONDS])
        row = cursor.fetchone()
    if row and row[0]:
        logger.error("the breaker of %s/%s is open: %s", provider, model, reason)


def note_success(provider: str, model: str) -> None:
    """Close the model's breaker, if it is open."""
    closed, _ = ClaimGate.objects.filter(kind=ClaimGate.Kind.BREAKER, key=f"{provider}/{model}").delete()
    if closed:
        logger.warning("the breaker of %s/%s is closed: a call has succeeded", provider, model)
