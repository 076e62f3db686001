"""What may be shown or logged: secrets that do not print themselves, and text that is cleaned before it is kept."""

import base64
import json
import re
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn
from urllib.parse import quote

MASK = "[redacted]"

# Keys as providers issue them, our own service tokens, and bearer headers. The exact-value pass below does not depend on these.
_KEY_SHAPES = re.compile(
    r"(?:Bearer\s+|(?<![A-Za-z0-9]))(?:sk|pk|rk|rt|key|gsk|xai|AIza)[-_][A-Za-z0-9_\-]{8,}|AIza[A-Za-z0-9_\-]{20,}|Bearer\s+[A-Za-z0-9._\-]{8,}"
)
_SECRET_NAMES = re.compile(r"(?i)(api[-_]?key|authorization|password|passwd|secret|token|credential|private[-_]?key|cookie)")


class Secret:
    """A value that is only ever seen by whoever calls `reveal()`: repr, str, format, pickle and copies of it say nothing."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled")


def variants(secret: str) -> set[str]:
    """The forms in which a secret turns up in foreign text: whole, quoted, in base64, and its two ends (bodies of a 401 echo them)."""
    if len(secret) < 8:
        return {secret} if secret else set()
    encoded = base64.b64encode(secret.encode()).decode()
    forms = {secret, quote(secret, safe=""), quote(secret), encoded, encoded.rstrip("="), json.dumps(secret)[1:-1]}
    if len(secret) >= 24:
        forms |= {secret[:8], secret[-8:]}
    return forms


def redact(text: str, secrets: Iterable[Secret] = (), *, limit: int = 2_000) -> str:
    """Mask known secrets by value and unknown ones by shape, then cut to `limit` characters."""
    for form in sorted((form for secret in secrets for form in variants(secret.reveal())), key=len, reverse=True):
        text = text.replace(form, MASK)
    text = _KEY_SHAPES.sub(MASK, text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def redact_json(value: Any) -> Any:
    """A copy in which members with a secret's name are masked, for showing a payload whose definition has no rule of its own."""
    if isinstance(value, dict):
        return {name: MASK if _SECRET_NAMES.search(name) else redact_json(member) for name, member in value.items()}
    if isinstance(value, list):
        return [redact_json(item) for item in value]
    return value


def storable(text: str) -> str:
    """The text as PostgreSQL can keep it: NUL and lone surrogates become U+FFFD."""
    return text.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def safe_trace(error: BaseException) -> str:
    """The trace of an unexpected error without any message: types, files, lines. Messages quote data (a failing row, a KeyError's key)."""
    parts = []
    chain: BaseException | None = error
    while chain is not None:
        frames = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(chain.__traceback__)]
        parts.append("\n  ".join([f"{type(chain).__module__}.{type(chain).__qualname__}", *frames]))
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return "\ncaused by ".join(parts)
