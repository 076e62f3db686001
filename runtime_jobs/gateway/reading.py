"""From an HTTP answer to a ModelAnswer or an AttemptError. Pure: no I/O, and errors are values.

An error raised here would carry these frames with it, and with them the body: an error reporter that collects locals would have
the whole answer.

Whatever is known (usage, model, finish reason) goes into the report before anything is judged: a refused or cut answer was
billed too.
"""

from typing import Any

from runtime_jobs.errors import AttemptError, ErrorCode
from runtime_jobs.gateway.adapter import Adapter, Reading
from runtime_jobs.gateway.answer import HttpAnswer
from runtime_jobs.gateway.classify import classify
from runtime_jobs.gateway.foreign import clean, without_request
from runtime_jobs.gateway.usage import numbers_only
from runtime_jobs.gateway.waits import MAX_WAIT_SECONDS
from runtime_jobs.model_call import CallReport, FinishReason, ModelAnswer, ModelRequest, ProviderTarget

PROMPT_TRUNCATED_SUSPECTED = "prompt_truncated_suspected"
RETRY_AFTER_CAPPED = "retry_after_capped"

_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-dashscope-request-id")
_MAX_MESSAGE_CHARACTERS = 200
# Below this a prompt is too short to tell. Above it, even the sparsest text has a token in ten bytes; a server that reports fewer
# has cut the prompt without a word (Ollama: 2,050 tokens of 8,000).
_MIN_PROMPT_BYTES = 8_000
_BYTES_PER_TOKEN = 10


def read_answer(
    adapter: Adapter, target: ProviderTarget, request: ModelRequest, answer: HttpAnswer, report: CallReport
) -> ModelAnswer | AttemptError:
    """The model's answer, or the error that anything else is; what is known goes into the report."""
    report.http_status = answer.status
    report.provider_request_id = _request_id(answer, target)
    document = answer.document()
    _note_usage(adapter, target, request, document, report)
    if not answer.ok:
        return _refusal(target, request, answer, document, report)
    if isinstance(document, list) and document and isinstance(document[0], dict) and document[0].get("error"):
        document = document[0]
    if not isinstance(document, dict):
        return _no_envelope(answer, report)
    reading = adapter.read(document)
    report.model_used = clean(reading.model, target.api_key, limit=200)
    report.finish_reason = clean(reading.finish_reason, target.api_key, limit=32)
    if reading.error is not None:
        return _refusal(target, request, answer, reading.error, report)
    return _judge(reading, target, report)


def _judge(reading: Reading, target: ProviderTarget, report: CallReport) -> ModelAnswer | AttemptError:
    if reading.text is None:
        return _error(ErrorCode.PROVIDER_UNAVAILABLE, report, "the envelope holds no answer")
    if reading.refused or reading.finish is FinishReason.CONTENT_FILTER:
        return _error(ErrorCode.CONTENT_FILTERED, report, "the model refused" if reading.refused else "")
    if reading.finish is FinishReason.LENGTH:
        # Also when the JSON happens to close, and when it is empty because reasoning took all tokens.
        return _error(ErrorCode.OUTPUT_TRUNCATED, report, "" if reading.text.strip() else "no text, all tokens went elsewhere")
    if not report.finish_reason:
        # The upstream of a proxy died in the middle; nothing says whether this text is whole.
        return _error(ErrorCode.PROVIDER_UNAVAILABLE, report, "no finish reason")
    if not reading.text.strip():
        return _error(ErrorCode.INVALID_MODEL_OUTPUT, report, "the answer is blank")
    return ModelAnswer(reading.text, reading.finish, report.model_used or target.model, report.usage)


def _note_usage(adapter: Adapter, target: ProviderTarget, request: ModelRequest, document: Any, report: CallReport) -> None:
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return
    report.usage_raw = numbers_only(usage)
    report.usage = adapter.usage(target, usage)
    prompt_bytes = sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)
    seen = report.usage.input_tokens
    if seen is not None and prompt_bytes >= _MIN_PROMPT_BYTES and seen * _BYTES_PER_TOKEN < prompt_bytes:
        report.warnings.append(PROMPT_TRUNCATED_SUSPECTED)


def _request_id(answer: HttpAnswer, target: ProviderTarget) -> str:
    found = next((answer.headers[name] for name in _REQUEST_ID_HEADERS if answer.headers.get(name)), "")
    return clean(found, target.api_key, limit=100)


def _refusal(target: ProviderTarget, request: ModelRequest, answer: HttpAnswer, document: Any, report: CallReport) -> AttemptError:
    verdict = classify(target.provider, answer.status, answer.headers, document)
    sent = [message.content for message in request.messages]
    report.provider_error_code = without_request(clean(verdict.provider_code, target.api_key, limit=64), sent)
    if verdict.retry_after_seconds is not None:
        report.retry_after_ms = round(verdict.retry_after_seconds * 1000)
        if verdict.retry_after_seconds >= MAX_WAIT_SECONDS:
            report.warnings.append(RETRY_AFTER_CAPPED)
    message = clean(verdict.message, target.api_key, limit=_MAX_MESSAGE_CHARACTERS)
    whose = f"{target.credential_mode}'s key" if verdict.code in _ABOUT_THE_ACCOUNT else ""
    return _error(
        verdict.code,
        report,
        whose,
        without_request(message, sent),
        retryable=verdict.retryable,
        retry_after_seconds=verdict.retry_after_seconds,
    )


_ABOUT_THE_ACCOUNT = frozenset({ErrorCode.PROVIDER_AUTH_FAILED, ErrorCode.PROVIDER_QUOTA_EXHAUSTED})


def _no_envelope(answer: HttpAnswer, report: CallReport) -> AttemptError:
    """A 200 that is no JSON object. The envelope is the provider's, so this is not the model's output."""
    if answer.cut:
        return _error(ErrorCode.INVALID_MODEL_OUTPUT, report, f"the body goes on after {len(answer.body)} bytes", retryable=False)
    if not answer.body.strip():
        what = "the body is empty"
    elif answer.is_event_stream:
        what = "an event stream that nobody asked for"
    elif answer.headers.get("content-encoding", "identity") != "identity":
        what = "a compressed body although identity was asked for"
    else:
        what = "the body is no JSON object"
    return _error(ErrorCode.PROVIDER_UNAVAILABLE, report, what)


def _error(
    code: ErrorCode,
    report: CallReport,
    *words: str,
    retryable: bool | None = None,
    retry_after_seconds: float | None = None,
) -> AttemptError:
    """An error whose internal text is put together from fields: never a body, never the text of an exception."""
    facts = [
        f"HTTP {report.http_status}",
        f"finish reason {report.finish_reason}" if report.finish_reason else "",
        f"provider code {report.provider_error_code}" if report.provider_error_code else "",
        f"request id {report.provider_request_id}" if report.provider_request_id else "",
        *words,
    ]
    internal = "; ".join(fact for fact in facts if fact)
    return AttemptError(code, internal, retryable=retryable, retry_after_seconds=retry_after_seconds)
