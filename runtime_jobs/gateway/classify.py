"""From an error answer to our code: which one, whether to try again, and when."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime_jobs.errors import ErrorCode
from runtime_jobs.gateway.complaint import complaint_of, status_in_body
from runtime_jobs.gateway.rules import rule_for
from runtime_jobs.gateway.waits import wait_seconds


@dataclass(frozen=True)
class Verdict:
    """What an error answer means. `provider_code` and `message` are the provider's words, not redacted yet."""

    code: ErrorCode
    retryable: bool
    retry_after_seconds: float | None
    provider_code: str
    message: str


def classify(provider: str, status: int, headers: Mapping[str, str], document: Any) -> Verdict:
    """Judge an error answer, or an error inside a 200.

    `headers` are by lower-case name, `document` is the parsed body or None. A wait is given only where trying again makes
    sense; it is capped at waits.MAX_WAIT_SECONDS and stays retryable, so the engine schedules it and nobody sleeps.
    """
    if 200 <= status < 300:
        status = status_in_body(document)
    complaint = complaint_of(status, headers, document)
    rule = rule_for(provider, complaint)
    wait = wait_seconds(status, headers, document) if rule.may_retry else None
    return Verdict(
        code=rule.code,
        retryable=rule.may_retry,
        retry_after_seconds=rule.wait_seconds if wait is None else wait,
        provider_code=complaint.code,
        message=complaint.message,
    )
