"""From the bytes of a body to a JSON document: one rule for what it may hold, whatever the endpoint."""

import re
from collections.abc import Iterator
from typing import Any

from runtime_jobs.validation import strict

LARGEST_INTEGER = 2**63 - 1
# Cheap to look for; only then is it worth to walk over all numbers.
_LONG_DIGITS = re.compile(r"\d{19}", re.ASCII)


class Malformed(ValueError):
    """The body is no JSON as we take it. `reason` is one of strict.Reason, or not_utf8."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.position = reason, position


def read(body: bytes) -> Any:
    """One JSON document. Refused: bad UTF-8, duplicate keys, NaN and Infinity, more than 64 levels, integers beyond 64 bits.

    NUL and lone surrogates pass: what becomes of them is for each field to say. Raises Malformed.
    """
    try:
        text = body.decode()
        value = strict.loads(text, storable=False)
    except UnicodeDecodeError as error:
        raise Malformed("not_utf8", error.start) from None
    except strict.Unreadable as error:
        raise Malformed(str(error.reason), error.position) from None
    if _LONG_DIGITS.search(text) and any(not -(2**63) <= number <= LARGEST_INTEGER for number in _integers(value)):
        raise Malformed(str(strict.Reason.NUMBER_OUT_OF_RANGE))
    return value


def _integers(value: Any) -> Iterator[int]:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is int:
            yield item
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
