"""The read side: what engine, commands, API and admin look up. Nothing here writes."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from runtime_jobs.models import AiJobEvent, AiJobSnapshot, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.registry import JobInput


@dataclass(frozen=True)
class WorkItem:
    """What an attempt needs to know of its job, read once."""

    job: JobInput
    snapshot: AiJobSnapshot
    credential_id: UUID
    api_key_mode: str
    model_name: str


def work_item(job_id: UUID) -> WorkItem:
    """Raises AiRuntimeJob.DoesNotExist."""
    job = AiRuntimeJob.objects.select_related("snapshot").get(pk=job_id)
    return WorkItem(
        job=JobInput(
            job_id=job.pk,
            user_id=job.user_id,
            job_type=job.job_type,
            target_type=job.target_type,
            target_id=job.target_id,
            input_schema_version=job.input_schema_version,
            output_schema_version=job.output_schema_version,
            payload=job.snapshot.payload,
        ),
        snapshot=job.snapshot,
        credential_id=job.credential_id,
        api_key_mode=job.api_key_mode,
        model_name=job.model_name,
    )


def events_after(job_id: UUID, seq: int) -> list[AiJobEvent]:
    """The job's timeline after `seq`, in order."""
    return list(AiJobEvent.objects.filter(job_id=job_id, seq__gt=seq).order_by("seq"))


def succeeded_output(job_id: UUID) -> Any:
    """The validated output of the job's success; None when there is none."""
    results = AiRuntimeResult.objects.filter(job_id=job_id, status=AiRuntimeResult.Status.SUCCEEDED)
    return results.values_list("validated_output", flat=True).first()


# What people outside may learn of a job. Nothing else of its row is read for them: keys of leases and staff's errors stay where they are.
_PUBLIC_COLUMNS = (
    "id", "user", "job_type", "lane", "status", "target_type", "target_id", "priority", "attempt_no", "retry_count", "max_retry_count",
    "error_code", "error_message", "progress", "progress_message", "available_at", "cancel_requested_at", "retried_from_job",
    "created_at", "started_at", "finished_at", "updated_at",
)  # fmt: skip


def public_jobs() -> QuerySet[AiRuntimeJob]:
    """Everybody's jobs, with their public columns alone."""
    return AiRuntimeJob.objects.only(*_PUBLIC_COLUMNS)


def succeeded_result(job_id: UUID) -> AiRuntimeResult | None:
    """The job's success without the raw output; None when there is none."""
    results = AiRuntimeResult.objects.filter(job_id=job_id, status=AiRuntimeResult.Status.SUCCEEDED)
    return results.only("id", "attempt_no", "schema_version", "validated_output", "created_at").first()


# An id holds the clock of the process that made it, a little before its row is inserted; created_at is the database's clock.
_CLOCKS_APART = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def created_since(jobs: QuerySet[AiRuntimeJob], moment: datetime) -> QuerySet[AiRuntimeJob]:
    """Those created at `moment` (with its offset) or later. created_at decides, the ids bound the scan: it has no index."""
    return jobs.filter(id__gte=_first_id(moment, -_CLOCKS_APART), created_at__gte=moment)


def created_before(jobs: QuerySet[AiRuntimeJob], moment: datetime) -> QuerySet[AiRuntimeJob]:
    """Those created before `moment`, as `created_since`."""
    return jobs.filter(id__lt=_first_id(moment, _CLOCKS_APART), created_at__lt=moment)


def _first_id(moment: datetime, plus: timedelta) -> UUID:
    """Below every UUID of version 7 of that millisecond, above all before it: its first 48 bits are Unix milliseconds (RFC 9562 §5.7)."""
    # In whole milliseconds: the sum of the times may be out of datetime's range.
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1) + plus // timedelta(milliseconds=1)
    return UUID(int=max(milliseconds, 0) << 80)
