"""Counts that many open pages share: made at most once in an interval, however many ask."""

from django.core.cache import cache

from runtime_jobs.queries import lists

_SECONDS = 5
_KEEP_SECONDS = 600  # what nobody has asked for that long is not shown as if it were new


def status_counts() -> dict[str, int]:
    """Jobs by status, at most 5 s old while somebody looks; COUNT_CAP + 1 means more. Empty while another process makes the first."""
    if cache.add("runtime_jobs.status_counts.fresh", 1, _SECONDS):
        cache.set("runtime_jobs.status_counts", lists.status_counts(), _KEEP_SECONDS)
    counts: dict[str, int] = cache.get("runtime_jobs.status_counts") or {}
    return counts


def shown(count: int) -> str:
    """10,000+ where the count ended at its cap."""
    return f"{lists.COUNT_CAP:,}+" if count > lists.COUNT_CAP else f"{count:,}"
