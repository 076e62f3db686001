"""What staff see of one job. The number of statements, and what each reads, do not grow with the job's attempts, calls and events."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Now

from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeJob, AiRuntimeResult, AiUsageLog, ClaimGate, RuntimeInstance
from runtime_jobs.states import Lane

PAGE = 50
_TOTALS_OF = 10_000  # calls that are added up
_FAMILY = 50
_WORKERS = 1_000

T = TypeVar("T")


@dataclass(frozen=True)
class Window(Generic[T]):
    """Some rows of many, newest first; page 1 holds the newest."""

    rows: Sequence[T]
    page: int
    has_older: bool

    @classmethod
    def of(cls, rows: QuerySet[Any], page: int) -> "Window[Any]":
        start = (page - 1) * PAGE
        found = list(rows[start : start + PAGE + 1])
        return cls(found[:PAGE], page, len(found) > PAGE)


@dataclass(frozen=True)
class Span:
    start: datetime
    end: datetime | None  # None: until now


@dataclass(frozen=True)
class Execution:
    """An attempt with what came before it: the back-off that was ordered, then the wait for a worker."""

    attempt: AiJobAttempt
    backoff: Span | None
    wait: Span | None
    run: Span


def executions(job: AiRuntimeJob, page: int) -> Window[Execution]:
    """The job's attempts, newest first."""
    last = job.attempt_no - (page - 1) * PAGE
    first = max(last - PAGE + 1, 1)
    # One before them, after whose end the first of them waited.
    found = list(AiJobAttempt.objects.filter(job=job, attempt_no__range=(first - 1, last)).defer("answer").order_by("attempt_no"))
    ordered = _ordered_delays(job, first - 1, last) if job.attempt_no > 1 else {}
    before: AiJobAttempt | None = None
    rows = []
    for attempt in found:
        if attempt.attempt_no >= first:
            rows.append(_execution(job, before, attempt, ordered))
        before = attempt
    return Window(rows[::-1], page, first > 1)


def _execution(job: AiRuntimeJob, before: AiJobAttempt | None, attempt: AiJobAttempt, ordered: dict[int, timedelta]) -> Execution:
    run = Span(attempt.started_at, attempt.ended_at)
    if before is None:
        return Execution(attempt, None, Span(job.created_at, attempt.started_at), run)
    if before.ended_at is None:
        return Execution(attempt, None, None, run)
    due = min(before.ended_at + ordered.get(before.attempt_no, timedelta()), attempt.started_at)
    backoff = Span(before.ended_at, due) if due > before.ended_at else None
    return Execution(attempt, backoff, Span(due, max(due, attempt.started_at)), run)


def _ordered_delays(job: AiRuntimeJob, first: int, last: int) -> dict[int, timedelta]:
    """After which attempt which back-off was ordered."""
    events = AiJobEvent.objects.filter(job=job, attempt_no__range=(first, last), name__in=("job.retry_scheduled", "job.lapsed"))
    return {number or 0: timedelta(seconds=data.get("delay_seconds", 0)) for number, data in events.values_list("attempt_no", "data")}


def calls(job: AiRuntimeJob, page: int) -> Window[AiUsageLog]:
    return Window.of(AiUsageLog.objects.filter(job=job).order_by("-attempt_no", "-call_no"), page)


@dataclass(frozen=True)
class Totals:
    """Sums of what was reported; None where nothing was."""

    calls: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: Decimal | None


def totals(job: AiRuntimeJob) -> Totals:
    """Of the job's newest 10,000 calls."""
    newest = AiUsageLog.objects.filter(job=job).order_by("-attempt_no", "-call_no")[:_TOTALS_OF]
    return Totals(
        **newest.aggregate(
            calls=Count("pk"), input_tokens=Sum("input_tokens"), output_tokens=Sum("output_tokens"), cost_usd=Sum("cost_usd")
        )
    )


def events(job: AiRuntimeJob, page: int) -> Window[AiJobEvent]:
    return Window.of(AiJobEvent.objects.filter(job=job).order_by("-seq"), page)


def staff_actions(job: AiRuntimeJob) -> list[AiJobEvent]:
    """What people did to the job or saw of it, the newest 50."""
    return list(AiJobEvent.objects.filter(job=job).exclude(actor_id="").order_by("-seq")[:PAGE])


def results(job: AiRuntimeJob, page: int) -> Window[AiRuntimeResult]:
    """Without the outputs."""
    found = AiRuntimeResult.objects.filter(job=job).defer("raw_output", "validated_output")
    return Window.of(found.order_by("-attempt_no", "-output_hash"), page)


@dataclass(frozen=True)
class Relative:
    """A job of the same family of reruns."""

    id: UUID
    parent: UUID | None
    status: str
    error_code: str
    created_at: datetime


_RELATIVES = """
    WITH RECURSIVE up AS (
        SELECT id, retried_from_job_id, 0 AS depth FROM ai_runtime_job WHERE id = %(job_id)s
        UNION ALL
        SELECT p.id, p.retried_from_job_id, up.depth + 1 FROM up JOIN ai_runtime_job p ON p.id = up.retried_from_job_id
        WHERE up.depth < %(most)s
    ), down AS (
        (SELECT id FROM up ORDER BY depth DESC LIMIT 1)
        UNION ALL
        SELECT c.id FROM down JOIN ai_runtime_job c ON c.retried_from_job_id = down.id
    ), members AS (SELECT id FROM down LIMIT %(most)s)
    SELECT j.id, j.retried_from_job_id, j.status, j.error_code, j.created_at FROM members JOIN ai_runtime_job j USING (id) ORDER BY j.id
"""


def family(job_id: UUID) -> list[Relative]:
    """The job, what it is a rerun of, and all reruns of those, oldest first; at most 50."""
    with connection.cursor() as cursor:
        cursor.execute(_RELATIVES, {"job_id": job_id, "most": _FAMILY})
        return [Relative(*row) for row in cursor.fetchall()]


def gates(job: AiRuntimeJob) -> list[ClaimGate]:
    """What keeps a waiting job from being claimed now."""
    model = f"{job.model_provider}/{job.model_name}"
    kinds = ClaimGate.Kind
    here = Q(kind=kinds.LANE, key=job.lane) | Q(kind=kinds.JOB_TYPE, key=job.job_type) | Q(kind__in=(kinds.MODEL, kinds.BREAKER), key=model)
    return list(ClaimGate.objects.filter(here).filter(Q(until=None) | Q(until__gt=Now())).order_by("kind"))


def live_workers(job: AiRuntimeJob, alive: timedelta) -> int:
    """How many workers of its lane were seen within `alive`, know its type and do not drain; at most 1,000."""
    workers = RuntimeInstance.objects.filter(lane=job.lane, last_seen_at__gt=Now() - alive, draining=False).exclude(
        kind=RuntimeInstance.Kind.WEB
    )
    known = workers.filter(job_types__contains=job.job_type)
    if job.lane == Lane.RUNTIME:
        known = workers.filter(Q(job_types__contains=job.job_type) | Q(job_types=[]))
    return known[:_WORKERS].count()


def worker_named(name: str | None) -> RuntimeInstance | None:
    return RuntimeInstance.objects.filter(name=name).first() if name else None
