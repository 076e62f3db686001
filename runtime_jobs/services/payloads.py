"""JSON that callers hand in: made canonical, so that equal content is found again, and refused where the database could not keep it."""

import hashlib
import json
import math
from typing import Any

from runtime_jobs.errors import InvalidPayload

MAX_DEPTH = 64
MAX_INTEGER_BITS = 4_096  # Python itself writes none of more than 4,300 digits, and says so with a ValueError of its own
# From here on a float's repr has an exponent, which jsonb turns into an integer: we do so first, else the content hash would differ.
_EXACT_FLOATS = 1e16


def canonical(value: Any) -> tuple[Any, str]:
    """The value as jsonb gives it back, and its canonical text (sorted keys, no white space).

    Raises InvalidPayload for what JSON or PostgreSQL cannot hold: NaN, NUL, lone surrogates, other types, nesting beyond 64, huge integers.
    """
    clean = _clean(value, "", 0)
    return clean, text_of(clean)


def text_of(clean: Any) -> str:
    """The canonical text of a value that is clean already, as what the database gives back is."""
    return json.dumps(clean, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def digest(*parts: str) -> str:
    """SHA-256 (hex) over the parts; their borders count."""
    made = hashlib.sha256()
    for part in parts:
        data = part.encode()
        made.update(len(data).to_bytes(8, "big") + data)
    return made.hexdigest()


def _clean(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidPayload(f"The payload is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise InvalidPayload(f"{path or '/'}: the whole number has too many digits.", path=path)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _clean_text(value, path)
    if isinstance(value, float):
        return _clean_float(value, path)
    if isinstance(value, dict):
        return {_clean_key(key, path): _clean(member, f"{path}/{key}", depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, f"{path}/{index}", depth + 1) for index, item in enumerate(value)]
    raise InvalidPayload(f"{path or '/'}: {type(value).__name__} is not a JSON type.", path=path)


def _clean_key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidPayload(f"{path or '/'}: member names must be text, not {type(key).__name__}.", path=path)
    return _clean_text(key, path)


def _clean_text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidPayload(f"{path or '/'}: the text holds a lone surrogate, which cannot be stored.", path=path) from None
    if "\x00" in text:
        raise InvalidPayload(f"{path or '/'}: the text holds a NUL character, which cannot be stored.", path=path)
    return text


def _clean_float(number: float, path: str) -> float | int:
    if not math.isfinite(number):
        raise InvalidPayload(f"{path or '/'}: NaN and Infinity are not JSON.", path=path)
    if number == 0:
        return 0.0  # jsonb has no negative zero
    return int(number) if number.is_integer() and abs(number) >= _EXACT_FLOATS else number
