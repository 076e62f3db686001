"""The read side: what engine, commands, API and admin look up. Nothing here writes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from runtime_jobs import prepared
from runtime_jobs.models import AiJobEvent, AiModelCredential, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.registry import JobInput


@dataclass(frozen=True)
class WorkItem:
    """What an attempt needs to know of its job, read once: its input, and the sealed key that it names."""

    job: JobInput
    content_hash: str  # of the snapshot
    credential: AiModelCredential
    api_key_mode: str
    model_name: str


# Without models: every job passes here. The claim reads the same with its own statement (services/claims.py).
WORK_COLUMNS = """
    j.id, j.user_id, j.job_type, j.target_type, j.target_id, j.input_schema_version, j.output_schema_version, s.payload::text,
    s.content_hash, j.api_key_mode, j.model_name,
    c.id, c.name, c.user_id, c.provider, c.base_url, c.ciphertext, c.key_id, c.fingerprint, c.created_at, c.revoked_at, c.last_used_at
"""
WORK_JOINS = "JOIN ai_job_snapshot s ON s.id = j.snapshot_id JOIN ai_model_credential c ON c.id = j.credential_id"
_WORK_ITEM = f"SELECT {WORK_COLUMNS} FROM ai_runtime_job j {WORK_JOINS} WHERE j.id = %(job_id)s"  # noqa: S608 - our own constants
_CREDENTIAL_FIELDS = [
    "id", "name", "user_id", "provider", "base_url", "ciphertext", "key_id", "fingerprint", "created_at", "revoked_at", "last_used_at",
]  # fmt: skip


def as_work_item(row: Sequence[Any]) -> WorkItem:
    """Of a row with WORK_COLUMNS."""
    job_id, user_id, job_type, target_type, target_id, input_version, output_version, payload, content_hash, mode, model = row[:11]
    return WorkItem(
        job=JobInput(job_id, user_id, job_type, target_type, target_id, input_version, output_version, json.loads(payload)),
        content_hash=content_hash,
        credential=AiModelCredential.from_db(None, _CREDENTIAL_FIELDS, row[11:]),
        api_key_mode=mode,
        model_name=model,
    )


def work_item(job_id: UUID) -> WorkItem:
    """What an attempt at the job needs. Raises KeyError when there is no such job."""
    rows = prepared.run(_WORK_ITEM, {"job_id": job_id})
    if not rows:
        raise KeyError(job_id)
    return as_work_item(rows[0])


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
CLOCKS_APART = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def created_since(jobs: QuerySet[AiRuntimeJob], moment: datetime) -> QuerySet[AiRuntimeJob]:
    """Those created at `moment` (with its offset) or later. created_at decides, the ids bound the scan: it has no index."""
    return jobs.filter(id__gte=first_id(moment, -CLOCKS_APART), created_at__gte=moment)


def created_before(jobs: QuerySet[AiRuntimeJob], moment: datetime) -> QuerySet[AiRuntimeJob]:
    """Those created before `moment`, as `created_since`."""
    return jobs.filter(id__lt=first_id(moment, CLOCKS_APART), created_at__lt=moment)


def first_id(moment: datetime, plus: timedelta) -> UUID:
    """Below every UUID of version 7 of that millisecond, above all before it: its first 48 bits are Unix milliseconds (RFC 9562 §5.7)."""
    # In whole milliseconds: the sum of the times may be out of datetime's range.
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1) + plus // timedelta(milliseconds=1)
    return UUID(int=max(milliseconds, 0) << 80)
