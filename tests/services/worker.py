"""What a worker does to jobs, in a line each, for tests that let many workers do it at once: `steps` without its looks at the row."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from runtime_jobs import registry
from runtime_jobs.errors import AttemptError, ErrorCode, Issue
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.services import claims, terminal
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.settlements import Settlement
from runtime_jobs.states import Lane
from tests.services.steps import delivery, fence

INTERACTIVE = "synthetic.extract_facts"
BACKGROUND = "synthetic.extract_facts_background"
RUNTIME = "synthetic.extract_facts_runtime"


def take(
    worker: str = "worker-1", *, count: int = 1, lane: Lane = Lane.INTERACTIVE, job_types: Sequence[str] = (), lease: float = 300
) -> list[Claim]:
    """Claim up to `count` jobs of the lane, of all types that it has unless some are named."""
    types = job_types or registry.job_types(lane)
    return claims.claim(lane=lane, worker=worker, job_types=types, count=count, lease_seconds=lease)


def take_one(worker: str = "worker-1", **how: Any) -> Claim:
    [claimed] = take(worker, **how)
    return claimed


def job_input(held: Claim) -> JobInput:
    """As the definition's functions get it, without the text: no projector of ours reads it."""
    return JobInput(held.job_id, 0, held.job_type, "document", "1", "1", "1", {"paragraphs": []})


def deliver(held: Claim, raw: str = "an answer", *, key: str | None = None, definition: JobDefinition | None = None) -> Settlement:
    return terminal.submit_result(
        fence(held), delivery(raw, idempotency_key=key), definition or registry.get(held.job_type), job_input(held)
    )


def reject(
    held: Claim, raw: str = "an answer", *, code: ErrorCode = ErrorCode.BUSINESS_VALIDATION_FAILED, key: str | None = None
) -> Settlement:
    error = AttemptError(code, "not good enough", issues=(Issue("/facts", "not_empty", "At least one fact is needed."),))
    return terminal.reject_result(fence(held), delivery(raw, idempotency_key=key), error)


def fail(
    held: Claim, code: ErrorCode = ErrorCode.PROVIDER_UNAVAILABLE, *, internal: str = "no answer", retry_after: float | None = None
) -> Settlement:
    return terminal.submit_failure(fence(held), AttemptError(code, internal, retry_after_seconds=retry_after))


def hand_back(held: Claim) -> Settlement:
    return terminal.release(fence(held), "shutdown")


def let_time_pass(seconds: float, *job_ids: UUID) -> None:
    """As if these jobs (without names: all) had stood there for so long already: only the database's clock is compared with them."""
    jobs = AiRuntimeJob.objects.filter(finished_at=None)
    passed = timedelta(seconds=seconds)
    names = ("created_at", "available_at", "sort_at", "locked_at", "lock_until", "offer_until", "started_at")
    (jobs.filter(pk__in=job_ids) if job_ids else jobs).update(**{name: F(name) - passed for name in names})


def run_out(*job_ids: UUID) -> None:
    """Their leases ended a second ago."""
    AiRuntimeJob.objects.filter(pk__in=job_ids).update(lock_until=Now() - timedelta(seconds=1))
