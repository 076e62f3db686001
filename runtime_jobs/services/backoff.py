"""How long a retry waits."""

import random

from django.conf import settings


def delay_seconds(failures: int, *, at_least: float | None = None) -> float:
    """Exponential in the number of failures so far (from 1), capped, with full jitter added on top, and never before `at_least`.

    Jitter is added, not taken off: a provider that fails three hundred jobs at once gets them back spread, and none before Retry-After.
    """
    exponential = min(settings.RETRY_CAP_SECONDS, settings.RETRY_BASE_SECONDS * 2 ** max(0, failures - 1))
    return float(max(exponential, at_least or 0) + random.uniform(0, exponential))  # noqa: S311 - spreads load, guards nothing
