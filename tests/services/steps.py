"""Steps that the tests of the services share: a job made, claimed, let go, brought to an end."""

import hashlib
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models.functions import Now

from runtime_jobs import queries, registry
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiRuntimeJob
from runtime_jobs.services import claims, lapses
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.settlements import Delivery, Fence, Settlement
from runtime_jobs.services.terminal import submit_result
from runtime_jobs.states import Lane
from tests.factories import JobFactory

TYPE, RUNTIME_TYPE = "synthetic.extract_facts", "synthetic.extract_facts_runtime"
OUTPUT = {"summary": "A river.", "facts": [{"text": "The Danube is long.", "paragraph": "p1"}]}


def make_user() -> Any:
    return get_user_model().objects.create(username=f"user-{uuid.uuid4()}")


def make_job(**more: Any) -> Any:
    """A queued job that stands in front of all that were made before `sort_at` was given, if it is."""
    columns = {name: more.pop(name) for name in ("sort_at", "available_at") if name in more}
    job = JobFactory(user=more.pop("user", None) or make_user(), **more)
    return change(job, **columns) if columns else job


def change(job: Any, **columns: Any) -> Any:
    """Columns that no trigger guards, such as times that a test does not wait for."""
    AiRuntimeJob.objects.filter(pk=job.pk).update(**columns)
    job.refresh_from_db()
    return job


def ago(seconds: float) -> Any:
    return Now() - timedelta(seconds=seconds)


def hence(seconds: float) -> Any:
    return Now() + timedelta(seconds=seconds)


def take(count: int = 1, *, worker: str = "w1", lane: str = Lane.INTERACTIVE, types: Sequence[str] = (TYPE,), **more: Any) -> list[Claim]:
    more.setdefault("lease_seconds", 30)
    return claims.claim(lane=lane, worker=worker, job_types=types, count=count, **more)


def running(**more: Any) -> tuple[Any, Claim]:
    job = make_job(**more)
    claim = retake(job)
    job.refresh_from_db()
    return job, claim


def retake(job: AiRuntimeJob, worker: str = "w1") -> Claim:
    """Claim this one job, due or not."""
    job.refresh_from_db()
    if job.status == "retrying":
        change(job, available_at=ago(1))
    claim = claims.lock_job(job.pk, lane=job.lane, worker=worker, lease_seconds=30)
    job.refresh_from_db()
    return claim


def expire(job: AiRuntimeJob) -> None:
    """Its lease ends, and it lapses. `ENGINE_LEASE_SECONDS = 0` lets the young test database do it."""
    change(job, lock_until=ago(1))
    assert lapses.reap() == 1
    job.refresh_from_db()


def fence(claim: Claim) -> Fence:
    return Fence(claim.job_id, claim.attempt_no, claim.token, claim.worker)


def delivery(text: str = "{}", **more: Any) -> Delivery:
    more.setdefault("validated_output", OUTPUT)
    return Delivery(text, hashlib.sha256(text.encode()).hexdigest(), "1", **more)


def deliver(claim: Claim, text: str = "{}", definition: Any = None, **more: Any) -> Settlement:
    definition = definition or registry.get(claim.job_type)
    return submit_result(fence(claim), delivery(text, **more), definition, queries.work_item(claim.job_id).job)


def row(job: AiRuntimeJob) -> dict[str, Any]:
    return dict(AiRuntimeJob.objects.filter(pk=job.pk).values().get())


def events(job: AiRuntimeJob) -> list[str]:
    return list(AiJobEvent.objects.filter(job=job).order_by("seq").values_list("name", flat=True))


def attempts(job: AiRuntimeJob) -> list[tuple[int, str]]:
    return list(AiJobAttempt.objects.filter(job=job).order_by("attempt_no").values_list("attempt_no", "outcome"))
