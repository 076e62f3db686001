"""Strict JSON with guard rails: what `json.loads` lets through and a database, a schema or the next program does not.

Refused beside broken syntax: nesting beyond 64, a key that stands twice, NaN and Infinity, numbers that no double holds, integers of
more than 1,000 digits, NUL and lone surrogates (PostgreSQL stores neither). Integers stay exact: whoever puts one into a 64-bit column
checks its range. Fit for model output and for request bodies; the caller caps the size. Linear time.
"""

import json
import math
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NoReturn

MAX_DEPTH = 64
# jsonschema-rs 0.61 takes an integer of 4,300 digits or more for valid whatever `maximum` says, so the cap must lie well below.
MAX_INTEGER_DIGITS = 1_000

WHITESPACE = " \t\n\r"


class Reason(StrEnum):
    """Why a text was refused. A closed list, fit for logs and metrics."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    TOO_LARGE_TO_REPAIR = "too_large_to_repair"
    TOO_DEEP = "too_deep"
    SYNTAX = "syntax"
    TRUNCATED = "truncated"
    MISMATCHED_BRACKET = "mismatched_bracket"
    DUPLICATE_KEY = "duplicate_key"
    NOT_A_NUMBER = "not_a_number"
    NUMBER_OUT_OF_RANGE = "number_out_of_range"
    UNSTORABLE_TEXT = "unstorable_text"
    MANGLED_BACKSLASH = "mangled_backslash"
    NOT_A_CONTAINER = "not_a_container"
    NO_JSON = "no_json"
    AMBIGUOUS = "ambiguous"
    ELIDED = "elided"
    FOREIGN_FORMAT = "foreign_format"


class Unreadable(ValueError):
    """The text was refused. `position` counts characters from its start; None where the parser does not tell. Holds no text of it."""

    def __init__(self, reason: Reason, position: int | None = None) -> None:
        super().__init__(str(reason) if position is None else f"{reason} at character {position}")
        self.reason = reason
        self.position = position


def loads(text: str, *, storable: bool = True) -> Any:
    """The value of a text that is one JSON document and nothing else. Raises Unreadable.

    Without `storable` NUL and lone surrogates pass: the caller looks at each text itself.
    """
    start = _skip_whitespace(text, 0)
    value, end = decode_at(text, start, storable=storable)
    end = _skip_whitespace(text, end)
    if end != len(text):
        raise Unreadable(Reason.SYNTAX, end)
    return value


def decode_at(text: str, start: int, *, storable: bool = True) -> tuple[Any, int]:
    """The JSON value that begins exactly at `start`, and the position behind it. Raises Unreadable."""
    if text[start : start + 1] in ("{", "["):
        _check_depth(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise Unreadable(Reason.SYNTAX, error.pos) from None
    except RecursionError:
        raise Unreadable(Reason.TOO_DEEP) from None
    if storable and _MAYBE_UNSTORABLE.search(text, start, end):
        check_storable(value)
    return value, end


def integer(digits: str) -> int:
    # int() itself raises a plain ValueError beyond 4,300 digits.
    if len(digits) > MAX_INTEGER_DIGITS:
        raise Unreadable(Reason.NUMBER_OUT_OF_RANGE)
    return int(digits)


def finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise Unreadable(Reason.NUMBER_OUT_OF_RANGE)
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Unreadable(Reason.DUPLICATE_KEY)
    return members


def is_storable(text: str) -> bool:
    """Whether PostgreSQL can keep the text."""
    return _UNSTORABLE.search(text) is None


def _refuse_constant(_name: str) -> NoReturn:
    raise Unreadable(Reason.NOT_A_NUMBER)


_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys, parse_int=integer, parse_float=finite, parse_constant=_refuse_constant)
_SPACES = re.compile(f"[{WHITESPACE}]*+")
# Possessive, and an unclosed string matches to the end of the text: without both, hostile quotes and backslashes cost quadratic time.
_STRINGS_AND_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[\[{]+|[\]}]+', re.DOTALL)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAYBE_UNSTORABLE = re.compile("[\x00\ud800-\udfff]|\\\\u(?:0000|[dD][89a-fA-F])")


def _skip_whitespace(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return match.end() if match else position


def _check_depth(text: str, start: int) -> None:
    # Before json.loads, whose C code would recurse first and ask later.
    depth = 0
    for match in _STRINGS_AND_BRACKETS.finditer(text, start):
        first = text[match.start()]
        if first == '"':
            continue
        depth += match.end() - match.start() if first in "[{" else match.start() - match.end()
        if depth > MAX_DEPTH:
            raise Unreadable(Reason.TOO_DEEP, match.start())
        if depth <= 0:
            return


def check_storable(value: Any) -> None:
    """Raises Unreadable when a text in a value that was read as JSON holds what PostgreSQL cannot keep."""
    if any(not is_storable(text) for text in _texts(value)):
        raise Unreadable(Reason.UNSTORABLE_TEXT)


def _texts(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            yield from item
            pending.extend(item.values())
