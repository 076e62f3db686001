"""What an error answer complains of, whatever shape the provider gave it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_LABEL_CHARACTERS = 100
# Where providers hide a second, more telling code.
_INNER_HOLDERS = ("innererror", "metadata", "details")


@dataclass(frozen=True)
class Complaint:
    """The facts that the rules look at. Labels are lower-case; none of this has been redacted yet."""

    # 0 when an error stands in a 200 and names no status.
    status: int
    # The provider's own code, as written: the first of code, type and status that there is.
    code: str = ""
    # Every code, type, status, reason and quota id.
    labels: frozenset[str] = frozenset()
    message: str = ""


def complaint_of(status: int, headers: Mapping[str, str], document: Any) -> Complaint:
    """Read an error answer. Shapes seen: {"error": {…}}, {"error": "text"}, a list of one such, a flat object, {"detail": …}."""
    holder, error = _holder(document)
    # Amazon: "ThrottlingException:http://…" in a header, "com.amazon…#ThrottlingException" in the body.
    kinds = (headers.get("x-amzn-errortype", "").split(":")[0], _text(holder.get("__type")).split("#")[-1])
    named = [_text(error.get(name)) or _text(holder.get(name)) for name in ("code", "type", "status")] + list(kinds)
    inner = list(_inner_labels(error))
    labels = frozenset(text.lower() for text in [*named, *inner] if text)
    message = next((text for text in (_text(error.get("message"), 4_096), _text(holder.get("message"), 4_096)) if text), "")
    return Complaint(status, next((text for text in named if text), ""), labels, message)


def status_in_body(document: Any) -> int:
    """The status that an error inside a 200 stands for: OpenRouter and others send 200 before their upstream has answered."""
    _, error = _holder(document)
    for name in ("code", "status", "status_code"):
        text = _text(error.get(name))
        if text.isascii() and text.isdigit() and 400 <= int(text) <= 599:
            return int(text)
    return 0


def _holder(document: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outer object and the error in it; the same object twice where the error is flat."""
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, dict):
        return {}, {}
    error = document.get("error")
    if isinstance(error, str):
        error = {"message": error}
    return document, error if isinstance(error, dict) else document


def _text(value: Any, limit: int = _MAX_LABEL_CHARACTERS) -> str:
    if isinstance(value, str):
        return value[:limit]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9 else ""


def _inner_labels(error: dict[str, Any]) -> Iterator[str]:
    for name in _INNER_HOLDERS:
        inner = error.get(name)
        for part in inner[:20] if isinstance(inner, list) else [inner]:
            if isinstance(part, dict):
                yield from (_text(part.get(key)) for key in ("code", "type", "reason", "error_type"))
                violations = part.get("violations")
                for violation in violations[:20] if isinstance(violations, list) else ():
                    if isinstance(violation, dict):
                        yield _text(violation.get("quotaId"))
