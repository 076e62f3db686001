"""Text that a provider wrote, made fit to be kept: short, on one line, without the live key and without what we sent."""

import re
from collections.abc import Iterable

from runtime_jobs.redaction import Secret, redact, storable

# A run of the request as long as this in a provider's message counts as the request being repeated.
_REPEATED_CHARACTERS = 20
_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def clean(value: object, key: Secret, *, limit: int) -> str:
    """A provider's string or number as text of at most `limit` characters; "" for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    # Cut once before the work as well: a message may be as long as the body's cap. The margin keeps a key at the cut whole.
    text = str(value) if isinstance(value, str) or abs(value) < 10**18 else ""
    return redact(storable(_UNPRINTABLE.sub(" ", text[: limit + 4_096])).strip(), [key], limit=limit)


def without_request(message: str, sent: Iterable[str]) -> str:
    """The message, or a note in its place when it repeats a piece of what was sent.

    Providers quote the offending field in a 400 or 422; what stands there is the job's input, which no error may hold.
    """
    pieces = [message[at : at + _REPEATED_CHARACTERS] for at in range(max(0, len(message) - _REPEATED_CHARACTERS + 1))]
    for text in sent:
        flat = _UNPRINTABLE.sub(" ", text)
        if any(piece in flat for piece in pieces):
            return "[message withheld: it repeats the request]"
    return message
