"""One lease: who holds it, until when by our own clock, and whether its work must end."""

import time
from dataclasses import dataclass, field
from typing import Any

UNRENEWED = "the lease ended unrenewed"


class Stopped(Exception):
    """The attempt is not ours any more, or is not wanted."""


@dataclass
class Attempt:
    """The lease's end is counted here too: that the work must end is known also when the server cannot be reached."""

    lease: dict[str, Any]
    offer: dict[str, Any]
    instance: str
    why: str = ""
    _lease_ends: float = field(init=False)

    def __post_init__(self) -> None:
        self.renewed(self.lease["leaseSeconds"])

    def renewed(self, seconds: float) -> None:
        self._lease_ends = time.monotonic() + seconds

    def end(self, why: str) -> None:
        self.why = self.why or why

    @property
    def must_end(self) -> bool:
        if not self.why and time.monotonic() > self._lease_ends:
            self.end(UNRENEWED)
        return bool(self.why)

    def check(self) -> None:
        """Raises Stopped."""
        if self.must_end:
            raise Stopped(self.why)

    @property
    def job_id(self) -> str:
        return str(self.lease["jobId"])

    @property
    def name(self) -> str:
        return f"job {self.job_id} attempt {self.lease['attemptNo']}"

    @property
    def holder(self) -> dict[str, Any]:
        return {"runtimeInstanceId": self.instance, "attemptNo": self.lease["attemptNo"], "lockToken": self.lease["lockToken"]}

    @property
    def headers(self) -> dict[str, str]:
        return {
            "X-Runtime-Instance-Id": self.instance,
            "X-Attempt-No": str(self.lease["attemptNo"]),
            "X-Lock-Token": self.lease["lockToken"],
        }
