"""What goes into an answer: the model's text, its misbehaviours, and the provider's errors."""

import json
import math
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.support.provider_simulator.behaviours import Answer, Behaviour, between_directives
from tests.support.provider_simulator.dialects import Completion, Dialect, Usage
from tests.support.provider_simulator.extraction import extract
from tests.support.provider_simulator.records import RecordedRequest

JSON = "application/json"
_HTML = "<html><head><title>Maintenance</title></head><body><h1>We will be back soon</h1></body></html>"
_PROSE = "Here is what I found in the text:"
_CHUNK = 64 * 1024
# The document of a bomb or a big body: a completion whose content is `size` bytes long.
_BIG_HEAD = b'{"id": "chatcmpl-big", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "'
_BIG_TAIL = b'"}, "finish_reason": "stop"}]}'


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. `stream`, where there is one, is sent in chunks instead of `body`."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Iterator[bytes] | None = None


def json_reply(status: int, document: Any, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(document).encode(), headers=headers or {})


def reply_for(request: RecordedRequest, behaviour: Behaviour, dialect: Dialect, origin: str) -> Reply:
    """The answer to a good request. `origin` is this server's, for the redirect."""
    extra = dict(behaviour.headers)
    if behaviour.retry_after is not None:
        extra["retry-after"] = str(behaviour.retry_after)
    if behaviour.retry_after_ms is not None:
        extra["retry-after-ms"] = str(behaviour.retry_after_ms)
    reply = _reply(request, behaviour, dialect, origin)
    content_type = behaviour.content_type or reply.content_type
    return Reply(reply.status, reply.body, content_type, {**reply.headers, **extra}, reply.stream)


def _reply(request: RecordedRequest, behaviour: Behaviour, dialect: Dialect, origin: str) -> Reply:
    status = behaviour.status or 200
    if behaviour.body is not None:
        return Reply(status, behaviour.body.encode() if isinstance(behaviour.body, str) else behaviour.body)
    if status >= 400:
        error = dialect.error_for(status, behaviour.error_type, behaviour.error_code, behaviour.error_message)
        return json_reply(status, [error] if behaviour.list_body else error)
    if status >= 300 or behaviour.answer is Answer.REDIRECT:
        return Reply(behaviour.status or 307, headers={"location": f"{origin}/redirected{request.path}"})
    match behaviour.answer:
        case Answer.HTML:
            return Reply(status, _HTML.encode(), "text/html; charset=utf-8")
        case Answer.EMPTY:
            return Reply(status)
        case Answer.NULL:
            return Reply(status, b"null")
        case Answer.ERROR_IN_200:
            code = behaviour.error_code or "429"
            number = int(code) if code.isdigit() else code
            words = dialect.error_for(number if isinstance(number, int) else 429, behaviour.error_type, number, behaviour.error_message)
            return json_reply(status, [words] if behaviour.list_body else words)
        case Answer.GZIP_BOMB:
            return Reply(status, _gzip_bomb(behaviour.size), headers={"content-encoding": "gzip"})
        case Answer.BIG_BODY:
            return Reply(status, stream=_big_document(behaviour.size))
    completion = _completion(request, behaviour, dialect)
    if behaviour.answer is Answer.SSE or request.body.get("stream") is True:
        return Reply(status, "".join(dialect.events(completion)).encode(), "text/event-stream")
    return json_reply(status, dialect.completion(completion))


def _completion(request: RecordedRequest, behaviour: Behaviour, dialect: Dialect) -> Completion:
    asked = dialect.user_text(request.body)
    document = extract(asked)
    wants_json = dialect.wants_json(request.body)
    spoken = _spoken(asked, document, wants_json, behaviour.answer)
    limit = _token_limit(request.body)
    text, finish, refusal = spoken.text, spoken.finish, spoken.refusal
    if limit and text is not None and tokens(text) > limit:
        text, finish = text.encode()[: limit * 4].decode(errors="ignore"), "length"
    reasoning = behaviour.reasoning_tokens
    if behaviour.answer is Answer.EMPTY_LENGTH:
        reasoning = reasoning or limit or 1024
    prompt = tokens(request.prompt) + 4 if behaviour.prompt_tokens is None else behaviour.prompt_tokens
    usage = Usage(prompt, tokens(text or refusal or "") + reasoning, min(behaviour.cached_tokens, prompt), reasoning)
    return Completion(
        id=uuid.uuid4().hex[:24],
        model=request.model.partition(";")[0],
        text=text,
        finish=finish,
        usage=None if behaviour.no_usage else usage,
        refusal=refusal,
        choices=behaviour.answer is not Answer.NO_CHOICES,
    )


@dataclass(frozen=True)
class _Spoken:
    text: str | None
    finish: str = "stop"
    refusal: str | None = None


def _spoken(asked: str, document: dict[str, Any] | None, wants_json: bool, answer: Answer) -> _Spoken:
    """The model's own words. Without paragraphs in the request, misbehaviours of JSON work on an empty document."""
    match answer:
        case Answer.EMPTY_LENGTH:
            return _Spoken("", "length")
        case Answer.BLANK:
            return _Spoken("  ")
        case Answer.REFUSAL:
            return _Spoken(None, refusal="I'm sorry, but I can't help with that request.")
        case Answer.CONTENT_FILTER:
            return _Spoken("", "content_filter")
        case Answer.REPAIRABLE:
            return _Spoken(_fenced(_with_trailing_commas(document or _NOTHING)))
        case Answer.LENGTH_CLOSED:
            whole = document or _NOTHING
            return _Spoken(_dump(whole | {"facts": whole["facts"][:1]}), "length")
    spoil = _SPOILED.get(answer)
    if spoil is None and document is None:
        text = _prose(asked)
    else:
        written = spoil(document or _NOTHING) if spoil else _dump(document)
        text = written if wants_json else _fenced(written)
    if answer is Answer.TRUNCATED:
        return _Spoken(text[: max(1, len(text) * 3 // 5)], "length")
    return _Spoken(text)


_NOTHING: dict[str, Any] = {"summary": "There is nothing to report.", "facts": []}


def _dump(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)


def _fenced(text: str) -> str:
    return f"{_PROSE}\n\n```json\n{text}\n```"


def _with_trailing_commas(document: dict[str, Any]) -> str:
    facts = "".join(f"\n    {_dump(fact)}," for fact in document["facts"])
    return f'{{\n  "summary": {_dump(document["summary"])},\n  "facts": [{facts}\n  ],\n}}'


def _malformed(document: dict[str, Any]) -> str:
    # A value is missing and nothing is closed: whoever reads a document out of this has made it up.
    return f'{{"summary": {_dump(document["summary"])}, "facts": [{{"text": , "paragraph": "p1"}}, {{"text": "'


def _wrong_schema(document: dict[str, Any]) -> str:
    return _dump({"summary": len(document["facts"]), "facts": document["summary"], "confidence": "high"})


def _bad_reference(document: dict[str, Any]) -> str:
    first, *rest = document["facts"] or [{"text": document["summary"]}]
    return _dump(document | {"facts": [first | {"paragraph": "p999"}, *rest]})


_SPOILED: Mapping[Answer, Callable[[dict[str, Any]], str]] = {
    Answer.MALFORMED: _malformed,
    Answer.WRONG_SCHEMA: _wrong_schema,
    Answer.BAD_REFERENCE: _bad_reference,
}


def _prose(asked: str) -> str:
    words = " ".join(between_directives(asked)).split()
    if not words:
        return "You sent no text."
    opening = " ".join(words[:12])
    return f"You sent {len(words)} words, beginning with “{opening[:120]}”."


def tokens(text: str) -> int:
    """About as many as a tokenizer would count: one for four bytes."""
    return math.ceil(len(text.encode(errors="replace")) / 4)


def _token_limit(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = body.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


def _big_document(size: int) -> Iterator[bytes]:
    yield _BIG_HEAD
    for start in range(0, size, _CHUNK):
        yield b"0" * min(_CHUNK, size - start)
    yield _BIG_TAIL


@lru_cache(maxsize=4)
def _gzip_bomb(size: int) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return b"".join(map(packer.compress, _big_document(size))) + packer.flush()
