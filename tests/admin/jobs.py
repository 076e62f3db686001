"""Jobs in the states that staff meet."""

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from runtime_jobs import queries, registry
from runtime_jobs.errors import AttemptError, ErrorCode, Issue
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services import claims, terminal
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.services.settlements import Delivery, Fence
from tests.factories import JobFactory

OUTPUT: Any = {"summary": "s", "facts": [{"text": "The Danube is long.", "paragraph": "p1"}]}


def running(**more: Any) -> tuple[Any, Claim]:
    job = JobFactory(**more)
    claim = claims.lock_job(job.pk, lane=job.lane, worker="worker 7", lease_seconds=300)
    job.refresh_from_db()
    return job, claim


def again(job: AiRuntimeJob) -> Claim:
    """The next attempt of a job that waits for it."""
    AiRuntimeJob.objects.filter(pk=job.pk).update(available_at=Now() - timedelta(seconds=1))
    return claims.lock_job(job.pk, lane=job.lane, worker="worker 8", lease_seconds=300)


def fence(claim: Claim) -> Fence:
    return Fence(claim.job_id, claim.attempt_no, claim.token, claim.worker)


def succeed(claim: Claim, output: Any = OUTPUT) -> None:
    delivery = Delivery("{}", "0" * 64, "1", output)
    terminal.submit_result(fence(claim), delivery, registry.get(claim.job_type), queries.work_item(claim.job_id).job)


def fail(claim: Claim, code: ErrorCode = ErrorCode.PROVIDER_AUTH_FAILED, internal: str = "HTTP 401 from the provider") -> None:
    terminal.submit_failure(fence(claim), AttemptError(code, internal))


def reject(claim: Claim, raw: str = "{}") -> None:
    issue = Issue("/facts/0/paragraph", "reference", "There is no such paragraph.")
    error = AttemptError(ErrorCode.REFERENCE_VALIDATION_FAILED, "1 issue", issues=(issue,))
    terminal.reject_result(fence(claim), Delivery(raw, "1" * 64, "1"), error)


def succeeded(**more: Any) -> Any:
    job, claim = running(**more)
    succeed(claim)
    job.refresh_from_db()
    return job


def failed(**more: Any) -> Any:
    job, claim = running(**more)
    fail(claim)
    job.refresh_from_db()
    return job


def cancelled(**more: Any) -> Any:
    job = JobFactory(**more)
    return cancel_job(job.pk, actor=Actor("", "test"))
