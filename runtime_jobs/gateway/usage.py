"""Reading token counts: only sensible numbers, and None for whatever the provider did not report."""

import math
from typing import Any

_MAX_TOKENS = 1_000_000_000
_MAX_NUMBERS = 64
_MAX_DEPTH = 3


def tokens(holder: Any, *path: str) -> int | None:
    """The count at this path. Strings, booleans, fractions and negative numbers are no counts: they give None, never 0."""
    for name in path:
        holder = holder.get(name) if isinstance(holder, dict) else None
    if not _is_number(holder) or not 0 <= holder <= _MAX_TOKENS or holder != int(holder):
        return None
    return int(holder)


def numbers_only(usage: Any) -> dict[str, Any]:
    """A copy of a usage object with its numbers and nothing else: text in it is foreign and not to be kept."""
    return _numbers(usage, _MAX_DEPTH) if isinstance(usage, dict) else {}


def _is_number(value: Any) -> bool:
    """Finite, and small enough for a double: `math.isfinite` itself raises on an integer of 400 digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**53 if isinstance(value, int) else math.isfinite(value)


def _numbers(holder: dict[str, Any], depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in list(holder.items())[:_MAX_NUMBERS]:
        if len(name) > 64 or not (name.isascii() and name.isidentifier()):
            continue
        if isinstance(value, dict) and depth > 1:
            if inner := _numbers(value, depth - 1):
                kept[name] = inner
        elif _is_number(value):
            kept[name] = value
    return kept
