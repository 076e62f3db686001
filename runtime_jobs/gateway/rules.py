"""The table of what providers' errors mean. The first rule that matches decides: a provider's own ones, the common ones, the
status.

The same word means opposite things at different providers (`insufficient_quota` is an empty account at OpenAI and a rate limit at
DashScope), so what is not unmistakable stands with its provider only. Prose never makes a 429 permanent: "quota exceeded" is how
Gemini, Azure and Cerebras speak of a rate.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runtime_jobs.errors import RULES, ErrorCode
from runtime_jobs.gateway.complaint import Complaint

_C = ErrorCode


@dataclass(frozen=True)
class Rule:
    """Matches when the status is among `statuses` and one of `labels` or `prose` is found; what is empty asks for nothing."""

    code: ErrorCode
    statuses: frozenset[int] = frozenset()
    labels: frozenset[str] = frozenset()
    # A part of a label, for ids that are put together ("GenerateRequestsPerDayPerProject…").
    label_part: str = ""
    prose: re.Pattern[str] | None = None
    # None takes the code's own default.
    retryable: bool | None = None
    wait_seconds: float | None = None

    def matches(self, complaint: Complaint) -> bool:
        # An error in a 200 that names no status is known by its labels alone.
        if self.statuses and complaint.status and complaint.status not in self.statuses:
            return False
        if self.labels and self.labels & complaint.labels:
            return True
        if self.label_part and any(self.label_part in label for label in complaint.labels):
            return True
        if self.prose and self.prose.search(complaint.message):
            return True
        return not (self.labels or self.label_part or self.prose)

    @property
    def may_retry(self) -> bool:
        return RULES[self.code].retryable if self.retryable is None else self.retryable


def _on(*statuses: int) -> frozenset[int]:
    return frozenset(statuses)


def _any(*labels: str) -> frozenset[str]:
    return frozenset(labels)


def _says(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_OPENAI = (
    # The code goes before the type, which stays insufficient_quota for several codes.
    Rule(_C.PROVIDER_RATE_LIMITED, _on(429), _any("rate_limit_exceeded", "slow_down")),
    Rule(
        _C.PROVIDER_QUOTA_EXHAUSTED,
        _on(429),
        _any(
            "insufficient_quota",
            "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
        ),
    ),
)

PROVIDER_RULES: Mapping[str, tuple[Rule, ...]] = {
    "openai": _OPENAI,
    "azure": _OPENAI,
    "anthropic": (
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(400, 429), prose=_says("credit balance is too low")),
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(429), _any("enforced_spend_limit_reached")),
        # Without a status, when an error stands in a 200.
        Rule(_C.PROVIDER_UNAVAILABLE, _on(500, 529), _any("overloaded_error", "api_error")),
        Rule(_C.PROVIDER_RATE_LIMITED, _on(429), _any("rate_limit_error")),
        Rule(_C.PROVIDER_AUTH_FAILED, _on(401, 403), _any("authentication_error", "permission_error")),
    ),
    "dashscope": (
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(400, 403), _any("arrearage"), prose=_says("overdue|in arrears")),
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(403), _any("allocationquota.freetieronly")),
        Rule(_C.PROVIDER_RATE_LIMITED, _on(429), _any("insufficient_quota", "throttling", "throttling.allocationquota")),
    ),
    "gemini": (
        # Until midnight, Pacific time.
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(429), label_part="perday"),
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(400), prose=_says("billing")),
    ),
    "mistral": (Rule(_C.CONTEXT_TOO_LONG, _on(400, 422), _any("3051")),),
    "openrouter": (
        # The budget is held by calls that are running now; it comes back when they end.
        Rule(_C.PROVIDER_RATE_LIMITED, _on(402), _any("in_flight_budget_exhausted")),
    ),
    "bedrock": (
        # The agreement of a new model is being made: a 403 that goes by within a quarter of an hour.
        Rule(
            _C.PROVIDER_UNAVAILABLE,
            _on(403),
            _any("mpagreementbeingcreated"),
            prose=_says("MPAgreementBeingCreated"),
            wait_seconds=900.0,
        ),
        Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(400, 402, 429), _any("servicequotaexceededexception")),
        Rule(_C.PROVIDER_UNAVAILABLE, _on(429), _any("modelnotreadyexception")),
    ),
    "zai": (Rule(_C.PROVIDER_QUOTA_EXHAUSTED, _on(429), _any("1113", *map(str, range(1308, 1322)))),),
}

# Other names under which a provider's rules are looked up.
ALIASES: Mapping[str, str] = {
    "qwen": "dashscope",
    "alibaba": "dashscope",
    "google": "gemini",
    "z.ai": "zai",
    "zhipu": "zai",
    "azure_openai": "azure",
}

_REFUSED = _on(400, 403, 413, 422)

COMMON_RULES: tuple[Rule, ...] = (
    Rule(_C.PROVIDER_AUTH_FAILED, _on(400, 401, 403), _any("api_key_invalid", "invalid_api_key", "unauthenticated")),
    Rule(
        _C.PROVIDER_QUOTA_EXHAUSTED,
        _on(402, 429),
        _any("credit_balance_exhausted", "billing_hard_limit_reached", "exceeded_current_quota_error", "billing_error"),
    ),
    Rule(
        _C.CONTEXT_TOO_LONG,
        _REFUSED,
        # exceed_context_size_error is the type of llama.cpp, whose code is the number 400.
        _any("context_length_exceeded", "exceed_context_size_error", "request_too_large"),
        prose=_says(
            "maximum context length|prompt is too long|input token count|input is too long|range of input length should be"
            "|exceeds the available context size"
        ),
    ),
    Rule(
        _C.CONTENT_FILTERED,
        _REFUSED,
        _any(
            "content_filter",
            "content_policy_violation",
            "responsibleaipolicyviolation",
            "datainspectionfailed",
            "data_inspection_failed",
        ),
    ),
    # Only for errors in a 200 without a status; with one, the status says the same.
    Rule(_C.PROVIDER_RATE_LIMITED, _on(429), _any("rate_limit_exceeded", "rate_limit_error", "resource_exhausted")),
)

_BY_STATUS: Mapping[int, Rule] = {
    401: Rule(_C.PROVIDER_AUTH_FAILED),
    402: Rule(_C.PROVIDER_QUOTA_EXHAUSTED),
    # Not always the key: a region that is not served, a moderation. Permanent all the same.
    403: Rule(_C.PROVIDER_AUTH_FAILED),
    408: Rule(_C.PROVIDER_TIMEOUT),
    409: Rule(_C.PROVIDER_UNAVAILABLE),
    413: Rule(_C.CONTEXT_TOO_LONG),
    425: Rule(_C.PROVIDER_UNAVAILABLE),
    429: Rule(_C.PROVIDER_RATE_LIMITED),
    # Gemini's CANCELLED. A call that we cancelled never gets here.
    499: Rule(_C.PROVIDER_TIMEOUT),
    504: Rule(_C.PROVIDER_TIMEOUT),
}
_REJECTED = Rule(_C.PROVIDER_REJECTED_REQUEST)
_UNAVAILABLE = Rule(_C.PROVIDER_UNAVAILABLE)


def rule_for(provider: str, complaint: Complaint) -> Rule:
    """The rule that decides. There is always one."""
    name = provider.lower()
    own = PROVIDER_RULES.get(ALIASES.get(name, name), ())
    for rule in (*own, *COMMON_RULES):
        if rule.matches(complaint):
            return rule
    status = complaint.status
    # Redirects are never followed: a 307 would carry the prompt and the key elsewhere.
    return _BY_STATUS.get(status) or (_REJECTED if 300 <= status < 500 else _UNAVAILABLE)
