"""What the simulator can be told to do, and how that is written in a directive."""

import dataclasses
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# `times=always`: for a scripted behaviour that never gives way to the next.
ALWAYS = sys.maxsize


class Answer(StrEnum):
    """What stands in the body. The names are the keywords of a directive."""

    NORMAL = "normal"
    # The envelope is not what it should be.
    HTML = "html"  # 200 with a page of HTML
    EMPTY = "empty"  # 200 without a body
    NULL = "null"  # 200 with the JSON document null
    ERROR_IN_200 = "error_in_200"  # 200 with {"error": {"code": 429}}; error_in_200=500 for another code
    SSE = "sse"  # a stream of events although nobody asked for one
    NO_CHOICES = "no_choices"  # choices (or content) is an empty list, usage is there
    REDIRECT = "redirect"  # 307 to another path of this simulator, so that following it shows in `requests`
    GZIP_BOMB = "gzip_bomb"  # `size` bytes in a small gzip body, whatever accept-encoding said
    BIG_BODY = "big_body"  # `size` bytes as they are, in chunks without a content-length
    # The model's answer is not what it should be.
    TRUNCATED = "truncated"  # finish_reason length, the text cut in the middle
    LENGTH_CLOSED = "length_closed"  # finish_reason length, yet the JSON happens to close (facts are missing)
    EMPTY_LENGTH = "empty_length"  # content "" with finish_reason length: reasoning used up all tokens
    BLANK = "blank"  # finish_reason stop and only white space
    MALFORMED = "malformed"  # JSON that cannot be repaired
    REPAIRABLE = "repairable"  # the normal JSON with trailing commas, in a fence, behind a sentence
    WRONG_SCHEMA = "wrong_schema"  # JSON of another form
    BAD_REFERENCE = "bad_reference"  # a fact names paragraph p999
    REFUSAL = "refusal"  # message.refusal is set and content is null; Anthropic: stop_reason refusal
    CONTENT_FILTER = "content_filter"  # finish_reason content_filter; Anthropic: stop_reason refusal


class Wire(StrEnum):
    """How the bytes travel. The names are the keywords of a directive, `reset=mid_body` for the one with a value."""

    NORMAL = "plain"
    HANG = "hang"  # never answers; the connection stays open until the peer closes it
    SLOW_HEADERS = "slow_headers"  # the header byte by byte, `interval` seconds apart
    DRIP = "drip"  # the body byte by byte, `interval` seconds apart
    RESET_BEFORE = "reset"  # RST instead of an answer
    RESET_MID_BODY = "reset=mid_body"  # RST after the header and half of the body
    SHORT = "short"  # content-length promises more than comes before the close
    SHORT_CHUNK = "short_chunk"  # a chunk promises more than comes before the close


@dataclass(frozen=True)
class Behaviour:
    """One way to answer. What it leaves out is normal.

    As a keyword of a directive a field's name may have hyphens: `error-code=slow_down`. Values with spaces stand in quotes.
    """

    answer: Answer = Answer.NORMAL
    wire: Wire = Wire.NORMAL
    # The HTTP status. From 400 on the body is an error in the provider's style, unless `body` says otherwise.
    status: int | None = None
    error_code: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    # The error body is a list with the error in it (Gemini).
    list_body: bool = False
    # Sent as they are: seconds, floats or an HTTP date; milliseconds.
    retry_after: str | int | float | None = None
    retry_after_ms: str | int | None = None
    # Any body at all, with its content type; a directive's may not hold "]]".
    body: str | bytes | None = None
    content_type: str | None = None
    # Further headers; in a directive `header.x-foo=bar`.
    headers: Mapping[str, str] = field(default_factory=dict)
    # Seconds between the request and the first byte; replaces the simulator's latency.
    delay: float | None = None
    # Seconds between the bytes of `drip` and `slow_headers`; replaces the simulator's drip_interval.
    interval: float | None = None
    # Bytes of `gzip_bomb` (unpacked) and `big_body`.
    size: int = 64 * 1024 * 1024
    # What usage says. prompt_tokens replaces the estimate; cached ones are a part of them, reasoning adds to the answer's.
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    no_usage: bool = False
    # For how many requests; None is one for a scripted behaviour and always for a directive.
    times: int | None = None

    def __post_init__(self) -> None:
        if self.status is not None and not 200 <= self.status <= 599:
            raise ValueError(f"status {self.status} is not between 200 and 599")
        if self.times is not None and self.times < 1:
            raise ValueError("times must be at least 1")
        for name in ("delay", "interval", "size", "prompt_tokens", "cached_tokens", "reasoning_tokens"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be 0 or more")

    @classmethod
    def raw(
        cls, status: int, body: Any, *, headers: Mapping[str, str] | None = None, content_type: str = "application/json"
    ) -> "Behaviour":
        """Exactly this answer. A str or bytes goes out as it is, anything else as JSON."""
        return cls(
            status=status,
            body=body if isinstance(body, str | bytes) else json.dumps(body),
            headers=headers or {},
            content_type=content_type,
        )

    @classmethod
    def parse(cls, text: str) -> "Behaviour":
        """Read keywords as a directive has them, `status=429 retry-after=2 times=1`. Raises ValueError with a sentence."""
        fields: dict[str, Any] = {}
        headers: dict[str, str] = {}
        position = 0
        for token in _TOKEN.finditer(text):
            if text[position : token.start()].strip(" \t\r\n;"):
                break
            position = token.end()
            name, value = token["name"], token["value"]
            if value is not None and value[0] in "\"'":
                value = value[1:-1]
            if name.startswith("header."):
                headers[name.removeprefix("header.")] = value or ""
            else:
                fields.update(_field(name.replace("-", "_"), value))
        if text[position:].strip(" \t\r\n;"):
            raise ValueError(f"cannot read {text[position:].strip()[:40]!r}")
        return cls(**fields, headers=headers)

    @classmethod
    def from_json(cls, value: Any) -> "Behaviour":
        """A behaviour as the control surface takes it: keywords in a string, or an object of fields. Raises ValueError."""
        if isinstance(value, str):
            return cls.parse(value)
        if not isinstance(value, dict):
            raise ValueError("a behaviour is a string of keywords or an object of fields")
        known = {item.name for item in dataclasses.fields(cls)}
        if unknown := sorted(set(value) - known):
            raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
        made = dict(value)
        for name, kind in (("answer", Answer), ("wire", Wire)):
            if name in made:
                made[name] = kind(made[name])
        if not isinstance(made.get("body", ""), str):
            made["body"] = json.dumps(made["body"])
        return cls(**made)


_TOKEN = re.compile(r"""(?P<name>[A-Za-z][\w.\-]*)(?:=(?P<value>"[^"]*"|'[^']*'|[^\s;]+))?""")
_DIRECTIVE = re.compile(r"\[\[simulate:(.*?)\]\]", re.DOTALL)

_VALUES: Mapping[str, Any] = {
    "status": int,
    "error_code": str,
    "error_type": str,
    "error_message": str,
    "retry_after": str,
    "retry_after_ms": str,
    "body": str,
    "content_type": str,
    "delay": float,
    "interval": float,
    "size": int,
    "prompt_tokens": int,
    "cached_tokens": int,
    "reasoning_tokens": int,
    "times": lambda value: ALWAYS if value == "always" else int(value),
}
_FLAGS = ("list_body", "no_usage")
_RESETS = {None: Wire.RESET_BEFORE, "before": Wire.RESET_BEFORE, "mid_body": Wire.RESET_MID_BODY}


def _field(name: str, value: str | None) -> dict[str, Any]:
    """The fields that one keyword sets."""
    if name in _VALUES:
        if value is None:
            raise ValueError(f"{name} needs a value: {name}=…")
        try:
            return {name: _VALUES[name](value)}
        except ValueError:
            raise ValueError(f"{name} cannot be {value!r}") from None
    if name == "reset":
        if (where := value and value.replace("-", "_")) not in _RESETS:
            raise ValueError(f"reset cannot be {value!r}; it is before or mid_body")
        return {"wire": _RESETS[where]}
    if name == Answer.ERROR_IN_200:
        return {"answer": Answer.ERROR_IN_200} | ({"error_code": value} if value else {})
    words: dict[str, dict[str, Any]] = {answer: {"answer": answer} for answer in Answer}
    words |= {wire: {"wire": wire} for wire in Wire} | {flag: {flag: True} for flag in _FLAGS}
    if name not in words:
        raise ValueError(f"unknown keyword {name!r}; known are {', '.join(sorted([*words, *_VALUES, 'header.NAME']))}")
    if value is not None:
        raise ValueError(f"{name} takes no value")
    return words[name]


def directives(prompt: str) -> list[str]:
    """The texts of a prompt's directives, in order."""
    return [text.strip() for text in _DIRECTIVE.findall(prompt)]


def between_directives(text: str) -> list[str]:
    """The text without its directives, in the pieces that they leave."""
    return _DIRECTIVE.split(text)[::2]
