"""The filtered list as CSV: streamed, capped, nothing in it that a definition would redact or that a spreadsheet would run."""

import csv
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.redaction import redact

MOST = 100_000
_AT_ONCE = 2_000
# Columns of the row alone: no input, no output, no internal error, nothing of a lease.
COLUMNS = (
    "id", "status", "job_type", "lane", "user", "target_type", "target_id", "idempotency_key", "model_provider", "model_name", "priority",
    "attempt_no", "retry_count", "error_code", "error_message", "created_at", "started_at", "finished_at", "retried_from_job_id",
)  # fmt: skip


class _Line:
    """What csv.writer writes to: it hands each line back."""

    def write(self, line: str) -> str:
        return line


def csv_lines(jobs: QuerySet[AiRuntimeJob]) -> Iterator[str]:
    """Newest first, along the key: no cursor and no snapshot of the database stays open while somebody's line is slow."""
    write = csv.writer(_Line()).writerow
    yield "\ufeff" + write(COLUMNS)  # by the mark spreadsheets know that it is UTF-8
    written, after = 0, None
    rows = jobs.select_related("user").only("user__username", *(name for name in COLUMNS if name != "user")).order_by("-pk")
    while written < MOST:
        some = list((rows if after is None else rows.filter(pk__lt=after))[: min(_AT_ONCE, MOST - written)])
        if not some:
            return
        for job in some:
            yield write([_cell(job.user.get_username() if name == "user" else getattr(job, name)) for name in COLUMNS])
        written, after = written + len(some), some[-1].pk
    if rows.filter(pk__lt=after).exists():
        yield write([_("Cut here: an export has at most %(most)s rows. Narrow the filter for the rest.") % {"most": f"{MOST:,}"}])


def _cell(value: Any) -> str:
    """As text that no spreadsheet takes for a formula (OWASP, CSV injection)."""
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, datetime) else redact(str(value), limit=500)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text
