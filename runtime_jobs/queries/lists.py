"""What staff's lists of jobs are found and counted by: every condition is served by an index, every count ends at a cap."""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import Q, QuerySet

from runtime_jobs.models import AiModelCredential, AiRuntimeJob
from runtime_jobs.queries import CLOCKS_APART, first_id
from runtime_jobs.states import JobStatus

Jobs = QuerySet[AiRuntimeJob]

COUNT_CAP = 10_000
# "Has been rerun" stands in other rows: so many of the newest are looked up one by one.
RERUN_CAP = 1_000
_MOST_TARGET_TYPES = 50

_STATUS_COUNTS = """
    SELECT s.status, (SELECT count(*) FROM (SELECT FROM ai_runtime_job j WHERE j.status = s.status LIMIT %(most)s) counted)
    FROM unnest(%(statuses)s::text[]) AS s(status)
"""


def status_counts() -> dict[str, int]:
    """How many jobs are in each state; COUNT_CAP + 1 means more than COUNT_CAP."""
    with connection.cursor() as cursor:
        cursor.execute(_STATUS_COUNTS, {"most": COUNT_CAP + 1, "statuses": [str(status) for status in JobStatus]})
        return dict(cursor.fetchall())


def have_been_rerun(jobs: Jobs) -> Jobs:
    """Those of which a rerun was made: the newest RERUN_CAP of them."""
    reruns = AiRuntimeJob.objects.filter(retried_from_job__isnull=False).order_by("-retried_from_job_id")
    return jobs.filter(pk__in=reruns.values("retried_from_job_id").distinct()[:RERUN_CAP])


def ended_between(jobs: Jobs, start: datetime | None, end: datetime | None) -> Jobs:
    """Those that ended from `start` on and before `end`; None is no bound."""
    if start is not None:
        jobs = jobs.filter(finished_at__gte=start)
    if end is not None:
        # Whoever ended before was created before: a bound for the list, which is read along the ids.
        jobs = jobs.filter(finished_at__lt=end, id__lt=first_id(end, CLOCKS_APART))
    return jobs


def providers() -> list[str]:
    """Those that jobs may have: a job's provider is its credential's."""
    return list(AiModelCredential.objects.order_by("provider").values_list("provider", flat=True).distinct())


def find(jobs: Jobs, term: str) -> Jobs:
    """The jobs that a person means by a whole id, idempotency key, target (its type and id, or the id) or user name; the first kind that
    there is. One condition at a time: of several in an OR the planner makes a scan of the history.
    """
    everywhere = AiRuntimeJob.objects.all()
    for meant in _meanings(term.strip()):
        if everywhere.filter(meant).exists():
            return jobs.filter(meant)
    return jobs.none()


def _meanings(term: str) -> Iterator[Q]:
    if not term or "\x00" in term:
        return
    with suppress(ValueError):
        yield Q(pk=UUID(term))
    yield Q(idempotency_key=term)
    if both := re.fullmatch(r"([^\s:/]+)[\s:/]+(.+)", term):
        yield Q(target_type=both[1], target_id=both[2])
    yield Q(target_type__in=_target_types(), target_id=term)
    users = get_user_model()
    user = users.objects.filter(**{users.USERNAME_FIELD: term}).values_list("pk", flat=True).first()
    if user is not None:
        yield Q(user_id=user)


# A step along the index of targets for each type; DISTINCT would read all of it.
_TARGET_TYPES = """
    WITH RECURSIVE known AS (
        (SELECT target_type, 1 AS number FROM ai_runtime_job ORDER BY target_type LIMIT 1)
        UNION ALL
        SELECT next.target_type, k.number + 1 FROM known k CROSS JOIN LATERAL (
            SELECT target_type FROM ai_runtime_job WHERE target_type > k.target_type ORDER BY target_type LIMIT 1) next
        WHERE k.number < %s
    ) SELECT target_type FROM known
"""


def _target_types() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(_TARGET_TYPES, [_MOST_TARGET_TYPES])
        return [row[0] for row in cursor.fetchall()]
