"""The rows of the providers' error table that are not among the cases."""

import json

import pytest

from runtime_jobs.errors import ErrorCode
from runtime_jobs.gateway.classify import classify

C = ErrorCode


def error(code=None, type=None, message="", **more):
    return {"error": {"code": code, "type": type, "message": message, **more}}


def google(status, message="", **detail):
    return [{"error": {"code": 429, "status": status, "message": message, "details": [detail] if detail else []}}]


PER_DAY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}
PER_MINUTE = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}],
}

ROWS = [
    # provider, status, document, code, retryable
    ("openai", 429, error("insufficient_quota", "insufficient_quota"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openai", 429, error("credit_balance_exhausted", "insufficient_quota"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openai", 429, error("billing_hard_limit_reached", "insufficient_quota"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openai", 429, error("project_spend_limit_exceeded", "insufficient_quota"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openai", 429, error("organization_usage_limit_exceeded", "insufficient_quota"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openai", 429, error("rate_limit_exceeded", "insufficient_quota"), C.PROVIDER_RATE_LIMITED, True),
    ("openai", 429, error("slow_down", "requests"), C.PROVIDER_RATE_LIMITED, True),
    ("openai", 401, error("invalid_api_key"), C.PROVIDER_AUTH_FAILED, False),
    ("openai", 400, error("content_policy_violation"), C.CONTENT_FILTERED, False),
    ("openai", 400, error("unsupported_parameter"), C.PROVIDER_REJECTED_REQUEST, False),
    ("openai", 404, error("model_not_found"), C.PROVIDER_REJECTED_REQUEST, False),
    ("openai", 503, error("server_is_overloaded"), C.PROVIDER_UNAVAILABLE, True),
    # The same word, the opposite meaning.
    ("dashscope", 429, error("insufficient_quota"), C.PROVIDER_RATE_LIMITED, True),
    ("qwen", 429, error("Throttling.AllocationQuota"), C.PROVIDER_RATE_LIMITED, True),
    ("dashscope", 403, error("AllocationQuota.FreeTierOnly"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("dashscope", 403, error("AccessDenied", message="Your account is overdue."), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("dashscope", 400, error("DataInspectionFailed"), C.CONTENT_FILTERED, False),
    ("dashscope", 400, error(None, "invalid_request_error", "Range of input length should be [1, 30720]"), C.CONTEXT_TOO_LONG, False),
    ("moonshot", 429, error(None, "exceeded_current_quota_error"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("zai", 429, error("1113"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("zai", 429, error(1310), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("zai", 429, error("1302"), C.PROVIDER_RATE_LIMITED, True),
    ("anthropic", 401, error(None, "authentication_error"), C.PROVIDER_AUTH_FAILED, False),
    ("anthropic", 402, error(None, "billing_error"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("anthropic", 403, error(None, "permission_error"), C.PROVIDER_AUTH_FAILED, False),
    ("anthropic", 429, error(None, "rate_limit_error"), C.PROVIDER_RATE_LIMITED, True),
    ("anthropic", 429, error(None, "enforced_spend_limit_reached"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("anthropic", 400, error(None, "invalid_request_error", "prompt is too long: 210000 tokens > 200000"), C.CONTEXT_TOO_LONG, False),
    ("anthropic", 413, error(None, "request_too_large"), C.CONTEXT_TOO_LONG, False),
    ("anthropic", 500, error(None, "api_error"), C.PROVIDER_UNAVAILABLE, True),
    ("gemini", 429, google("RESOURCE_EXHAUSTED", "You exceeded your current quota", **PER_DAY), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("gemini", 429, google("RESOURCE_EXHAUSTED", "You exceeded your current quota", **PER_MINUTE), C.PROVIDER_RATE_LIMITED, True),
    ("gemini", 400, google("FAILED_PRECONDITION", "Please enable billing."), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("gemini", 400, google("FAILED_PRECONDITION", "Location is not supported."), C.PROVIDER_REJECTED_REQUEST, False),
    ("gemini", 400, google("INVALID_ARGUMENT", "The input token count (2000000) exceeds …"), C.CONTEXT_TOO_LONG, False),
    ("gemini", 403, google("PERMISSION_DENIED"), C.PROVIDER_AUTH_FAILED, False),
    ("gemini", 499, google("CANCELLED"), C.PROVIDER_TIMEOUT, True),
    ("gemini", 504, google("DEADLINE_EXCEEDED"), C.PROVIDER_TIMEOUT, True),
    ("openrouter", 402, error(402), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openrouter", 402, error("in_flight_budget_exhausted"), C.PROVIDER_RATE_LIMITED, True),
    ("bedrock", 403, {"__type": "com.amazon#MPAgreementBeingCreated", "message": "wait"}, C.PROVIDER_UNAVAILABLE, True),
    ("bedrock", 429, {"__type": "ThrottlingException"}, C.PROVIDER_RATE_LIMITED, True),
    ("bedrock", 429, {"__type": "ModelNotReadyException"}, C.PROVIDER_UNAVAILABLE, True),
    ("bedrock", 400, {"__type": "ServiceQuotaExceededException"}, C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("bedrock", 400, {"__type": "ValidationException", "message": "Input is too long for requested model."}, C.CONTEXT_TOO_LONG, False),
    # Prose alone never makes a 429 permanent.
    ("azure", 429, error("429", None, "Quota exceeded for this deployment"), C.PROVIDER_RATE_LIMITED, True),
    ("cerebras", 429, {"message": "Tokens per day limit exceeded - quota exceeded"}, C.PROVIDER_RATE_LIMITED, True),
    ("groq", 429, None, C.PROVIDER_RATE_LIMITED, True),
    ("llamacpp", 400, error(400, "exceed_context_size_error", "the request exceeds the available context size"), C.CONTEXT_TOO_LONG, False),
    ("vllm", 400, error(400, "BadRequestError", "This model's maximum context length is 4096 tokens."), C.CONTEXT_TOO_LONG, False),
    ("deepseek", 503, error(None, "service_unavailable_error"), C.PROVIDER_UNAVAILABLE, True),
    ("any", 405, None, C.PROVIDER_REJECTED_REQUEST, False),
    ("any", 415, None, C.PROVIDER_REJECTED_REQUEST, False),
    ("any", 301, None, C.PROVIDER_REJECTED_REQUEST, False),
    ("any", 413, None, C.CONTEXT_TOO_LONG, False),
    ("any", 425, None, C.PROVIDER_UNAVAILABLE, True),
    ("any", 599, None, C.PROVIDER_UNAVAILABLE, True),
    # An error inside a 200 counts as the status that it names, else by its label, else as an outage.
    ("openrouter", 200, error(429, message="Rate limited upstream"), C.PROVIDER_RATE_LIMITED, True),
    ("openrouter", 200, error("402"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("openrouter", 200, error(502), C.PROVIDER_UNAVAILABLE, True),
    ("openai", 200, error("insufficient_quota"), C.PROVIDER_QUOTA_EXHAUSTED, False),
    ("anthropic", 200, error(None, "overloaded_error"), C.PROVIDER_UNAVAILABLE, True),
    ("any", 200, {"error": "something"}, C.PROVIDER_UNAVAILABLE, True),
    ("any", 200, error("context_length_exceeded"), C.CONTEXT_TOO_LONG, False),
]


@pytest.mark.parametrize(
    ("provider", "status", "document", "code", "retryable"), ROWS, ids=[f"{row[0]}-{row[1]}-{n}" for n, row in enumerate(ROWS)]
)
def test_an_error_gets_the_code_of_the_table(provider, status, document, code, retryable):
    """Scenarios 4 and 5 among others."""
    verdict = classify(provider, status, {}, document)
    assert (verdict.code, verdict.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        [[]],
        "text",
        5,
        {"error": []},
        {"error": {"code": {}, "message": []}},
        {"error": {"details": [None, {"violations": [1]}]}},
        {"error": {"code": 10**400}},
        {"detail": [{"msg": "x"}]},
        [None],
    ],
    ids=lambda document: json.dumps(document)[:30],
)
def test_no_shape_of_an_error_body_breaks_the_classifier(document):
    for status in (200, 400, 429, 500):
        assert classify("gemini", status, {}, document).code in ErrorCode


def test_the_agreement_of_a_new_bedrock_model_is_waited_for():
    verdict = classify("bedrock", 403, {"x-amzn-errortype": "MPAgreementBeingCreated:http://x"}, {})
    assert (verdict.retryable, verdict.retry_after_seconds) == (True, 900.0)


def test_a_permanent_error_has_no_wait_even_when_the_provider_sends_one():
    assert classify("openai", 429, {"retry-after": "5"}, error("insufficient_quota")).retry_after_seconds is None
