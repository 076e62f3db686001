"""How names, times and ids are written."""

import re
from datetime import UTC, datetime
from uuid import UUID

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


def camel(name: str) -> str:
    """job_id → jobId"""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def moment(value: datetime) -> str:
    """RFC 3339, UTC, milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_uuid(text: str) -> UUID | None:
    return UUID(text) if _UUID.fullmatch(text) else None
