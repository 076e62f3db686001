"""The bounds of the protocol, in one place: what is clamped, what is refused, how often a heartbeat is wanted."""

from django.conf import settings

from runtime_jobs.services.submissions import MAX_MESSAGE_BYTES, MAX_OUTPUT_BYTES

MAX_JOBS_PER_POLL = 32
MAX_WAIT_SECONDS = 20
MAX_BATCH = 256
MAX_LOGS = 100
MAX_CHECKPOINT_BYTES = 16_384
MAX_HEARTBEAT_SECONDS = 10.0
# What a runtime is asked to wait before its next poll: after an empty answer without a wait, when too many wait already, when draining.
POLL_AFTER_SECONDS = 1.0
POLL_AFTER_FULL_SECONDS = 5.0
POLL_AFTER_DRAIN_SECONDS = 10.0

__all__ = ["MAX_MESSAGE_BYTES", "MAX_OUTPUT_BYTES"]


def lease_seconds(wanted: float | None) -> float:
    """The lease that is given for one that is asked for."""
    if wanted is None:
        return float(settings.RUNTIME_LEASE_SECONDS)
    return float(min(max(wanted, settings.RUNTIME_MIN_LEASE_SECONDS), settings.RUNTIME_MAX_LEASE_SECONDS))


def heartbeat_seconds(lease: float) -> float:
    """A quarter of the lease: three may be lost before it ends."""
    return min(lease / 4, MAX_HEARTBEAT_SECONDS)
