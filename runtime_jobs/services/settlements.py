"""What a terminal call is made of: who speaks, what is delivered, and what it came to."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_datetime

from runtime_jobs.errors import Issue
from runtime_jobs.redaction import Secret
from runtime_jobs.services.payloads import digest
from runtime_jobs.states import JobStatus


@dataclass(frozen=True)
class Fence:
    """Who speaks: the attempt and the token that its lease gave out."""

    job_id: UUID
    attempt_no: int
    token: Secret
    worker: str


@dataclass(frozen=True)
class Settlement:
    """What a terminal call came to. `refused` is set when a result was not taken: a rejected output's code, or job_cancelled."""

    job_status: JobStatus
    attempt_no: int
    retry_count: int
    max_retry_count: int
    result_id: UUID | None = None
    refused: str = ""
    issues: tuple[Issue, ...] = ()
    next_attempt_at: datetime | None = None
    late: bool = False
    duplicate: bool = False

    def as_json(self) -> dict[str, Any]:
        made = asdict(self)
        made["result_id"] = self.result_id and str(self.result_id)
        made["next_attempt_at"] = self.next_attempt_at and self.next_attempt_at.isoformat()
        return made

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Settlement":
        return cls(
            **{
                **stored,
                "job_status": JobStatus(stored["job_status"]),
                "result_id": stored["result_id"] and UUID(stored["result_id"]),
                "next_attempt_at": stored["next_attempt_at"] and parse_datetime(stored["next_attempt_at"]),
                "issues": tuple(Issue(**issue) for issue in stored["issues"]),
            }
        )


@dataclass(frozen=True)
class Delivery:
    """A result as it came: the model's text, its hash, and what the output chain made of it."""

    raw_output: str
    output_hash: str
    schema_version: str
    validated_output: Any = None
    repairs: Sequence[str] = ()
    idempotency_key: str | None = None

    def key(self, fence: Fence) -> str:
        return self.idempotency_key or f"{fence.job_id}:{fence.attempt_no}:{self.output_hash}"

    def content(self, fence: Fence) -> str:
        """By what a repeat is recognised."""
        return digest("result", self.output_hash, self.schema_version, self.key(fence))
