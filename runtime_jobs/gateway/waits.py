"""How long a provider asks us to wait, read from wherever it says so. Returns seconds, never more than MAX_WAIT_SECONDS.

The order: `retry-after-ms`, `retry-after` (seconds or an HTTP date), the body, the reset headers of a rate limit. None means that
nobody said anything, so that the caller's own back-off decides.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

# The longest wait that is honoured. A Retry-After with a date in 2037 asked for eleven years.
MAX_WAIT_SECONDS = 900.0

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
# "6m0s", "120ms", "1h2m3.5s": how OpenAI and Google write a duration.
_DURATION = re.compile(r"(?:(?P<h>[\d.]+)h)?(?:(?P<m>[\d.]+)m(?!s))?(?:(?P<s>[\d.]+)s)?(?:(?P<ms>[\d.]+)ms)?")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_RESET_HEADER = re.compile(r"(?:x-ratelimit-reset|anthropic-ratelimit)(?:-[a-z\-]+)?")


def wait_seconds(status: int, headers: Mapping[str, str], document: Any) -> float | None:
    """The wait that this answer asks for. `headers` are by lower-case name."""
    readings: tuple[Callable[[], float | None], ...] = (
        lambda: _scaled(_number(headers.get("retry-after-ms")), 0.001),
        lambda: _retry_after(headers.get("retry-after")),
        lambda: _in_body(document),
        # Reset headers stand on every answer of some providers; they mean something only where a rate limit was hit.
        lambda: _reset(headers) if status == 429 else None,
    )
    found = next((seconds for read in readings if (seconds := read()) is not None), None)
    return None if found is None else min(max(found, 0.0), MAX_WAIT_SECONDS)


def _number(text: str | None) -> float | None:
    # float() would also take "nan", "1e999" and "1_0".
    return float(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


def _retry_after(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = _number(text)
    if seconds is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return _until(moment)


def _until(moment: datetime) -> float:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def duration(text: str) -> float | None:
    """Seconds of "6m0s", "120ms" or "14s"; None for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not match[0]:
        return None
    try:
        return sum(float(value) * _UNITS[unit] for unit, value in match.groupdict().items() if value)
    except ValueError:  # "1.2.3s"
        return None


def _in_body(document: Any) -> float | None:
    """Google's RetryInfo among the details of the error; the error may stand in a list."""
    for error in _errors(document):
        details = error.get("details")
        for detail in details if isinstance(details, list) else ():
            delay = detail.get("retryDelay") if isinstance(detail, dict) else None
            if isinstance(delay, str) and (seconds := duration(delay)) is not None:
                return seconds
    return None


def _errors(document: Any) -> Iterator[dict[str, Any]]:
    for holder in document[:1] if isinstance(document, list) else [document]:
        error = holder.get("error") if isinstance(holder, dict) else None
        if isinstance(error, dict):
            yield error


def _reset(headers: Mapping[str, str]) -> float | None:
    """The reset of the limit that is used up; where the answer does not say which, the latest reset."""
    waits: dict[str, float] = {}
    for name, value in headers.items():
        if _RESET_HEADER.fullmatch(name) and "reset" in name and (seconds := _reset_value(value)) is not None:
            waits[name] = seconds
    used_up = [seconds for name, seconds in waits.items() if headers.get(name.replace("reset", "remaining"), "").strip() == "0"]
    return max(used_up or waits.values(), default=None)


def _reset_value(text: str) -> float | None:
    """A duration, seconds, a moment in RFC 3339 (Anthropic), or an epoch in seconds or milliseconds (OpenRouter)."""
    if (number := _number(text)) is not None:
        if number > 1e11:
            return max(0.0, number / 1000 - time.time())
        return max(0.0, number - time.time()) if number > 1e9 else number
    if (seconds := duration(text)) is not None:
        return seconds
    try:
        return _until(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        return None
