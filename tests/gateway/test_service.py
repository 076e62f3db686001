"""One call from end to end, against a real server that behaves and misbehaves."""

import asyncio
import threading
from uuid import uuid4

import pytest

from runtime_jobs.gateway import AiGatewayService
from runtime_jobs.gateway.openai_compatible import OpenAiCompatible
from runtime_jobs.gateway.reading import PROMPT_TRUNCATED_SUSPECTED, RETRY_AFTER_CAPPED
from runtime_jobs.model_call import CallReport, Dispatch, FinishReason, TokenUsage
from runtime_jobs.redaction import Secret
from tests.gateway.conftest import KEY, LOOPBACK, a_request, a_target, call, openai_error, raw
from tests.support.provider_simulator import Answer, Behaviour, Outcome, ProviderSimulator, Wire

BOTH = pytest.mark.parametrize("provider", ["openai_compatible", "anthropic"])


@BOTH
def test_a_call_gives_the_answer_and_a_full_report(simulator, service, provider):
    report, call_id = CallReport(), uuid4()
    target = a_target(simulator.url, provider=provider)
    answer = asyncio.run(service.complete(target, a_request(), report, call_id=call_id, timeout_seconds=10))
    assert answer.text
    assert answer.finish_reason is FinishReason.STOP
    assert answer.model == report.model_used == "simulator-1"
    assert answer.usage == report.usage
    assert report.usage.input_tokens
    assert report.usage.output_tokens
    assert report.usage_raw
    assert (report.dispatch, report.http_status) == (Dispatch.SENT, 200)
    assert report.finish_reason == ("end_turn" if provider == "anthropic" else "stop")
    assert report.provider_request_id.startswith("req_")
    assert report.latency_ms is not None
    assert report.request_bytes
    assert report.response_bytes
    assert (report.provider_error_code, report.retry_after_ms, report.warnings) == ("", None, [])
    (seen,) = simulator.requests
    assert seen.client_request_id == str(call_id)


def test_a_request_says_no_more_than_it_must(simulator, ask):
    """No cookies, no organisation, no compression; the key once."""
    ask(raw(200, {}, {"set-cookie": "session=1; Path=/"}))
    ask()
    first, second = simulator.requests
    assert set(first.headers) == set(second.headers) == {
        "host", "accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "user-agent",
        "x-client-request-id",
    }  # fmt: skip
    assert first.headers["accept-encoding"] == "identity"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.headers["x-client-request-id"] != second.headers["x-client-request-id"]


def test_the_environment_changes_nothing(simulator, ask, monkeypatch):
    """Scenario 23: neither a platform's key nor a proxy from the environment is ever used."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-platform-key-of-the-environment")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-platform-key-of-the-environment")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask().answer
    assert ask(api_key=Secret("")).code == "provider_auth_failed"
    (seen,) = simulator.requests
    assert "environment" not in str(seen.headers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status, simulator, ask):
    outcome = ask(raw(status, "", {"location": f"{simulator.origin}/v1/elsewhere"}))
    assert outcome.judged == ("provider_rejected_request", False, None)
    assert len(simulator.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_one_call_is_one_request_whatever_the_answer(status, simulator, ask):
    """Scenarios 2 and 4: no hidden retries."""
    outcome = ask(Behaviour(status=status, retry_after=0, times=5))
    assert outcome.error
    assert outcome.error.retryable
    assert len(simulator.requests) == 1


def test_an_empty_account_is_permanent_after_one_request(simulator, ask):
    """Scenario 4."""
    outcome = ask(openai_error(429, "credit_balance_exhausted"), provider="openai")
    assert outcome.judged == ("provider_quota_exhausted", False, None)
    assert outcome.report.provider_error_code == "credit_balance_exhausted"
    assert "user's key" in str(outcome.error)
    assert len(simulator.requests) == 1


def test_the_wait_of_a_rate_limit_reaches_error_and_report(ask):
    """Scenario 5."""
    outcome = ask(Behaviour(status=429, retry_after_ms="14000"))
    assert outcome.judged == ("provider_rate_limited", True, 14.0)
    assert outcome.report.retry_after_ms == 14_000
    assert outcome.report.warnings == []


def test_a_wait_of_years_is_capped_and_marked(ask):
    outcome = ask(Behaviour(status=429, retry_after="Fri, 01 Jan 2037 00:00:00 GMT"))
    assert outcome.judged == ("provider_rate_limited", True, 900.0)
    assert outcome.report.retry_after_ms == 900_000
    assert outcome.report.warnings == [RETRY_AFTER_CAPPED]


# Every way to misbehave that the simulator knows: what it is, and whether tokens were reported.
ANSWERS = {
    Answer.NORMAL: ((None, None, None), True),
    Answer.HTML: (("provider_unavailable", True, None), False),
    Answer.EMPTY: (("provider_unavailable", True, None), False),
    Answer.NULL: (("provider_unavailable", True, None), False),
    Answer.ERROR_IN_200: (("provider_rate_limited", True, None), False),
    Answer.SSE: (("provider_unavailable", True, None), False),
    Answer.NO_CHOICES: (("provider_unavailable", True, None), True),
    Answer.REDIRECT: (("provider_rejected_request", False, None), False),
    Answer.GZIP_BOMB: (("provider_unavailable", True, None), False),
    Answer.BIG_BODY: (("invalid_model_output", False, None), False),
    Answer.TRUNCATED: (("output_truncated", False, None), True),
    Answer.LENGTH_CLOSED: (("output_truncated", False, None), True),
    Answer.EMPTY_LENGTH: (("output_truncated", False, None), True),
    Answer.BLANK: (("invalid_model_output", True, None), True),
    # Whether the text is good JSON is for the output chain to say.
    Answer.MALFORMED: ((None, None, None), True),
    Answer.REPAIRABLE: ((None, None, None), True),
    Answer.WRONG_SCHEMA: ((None, None, None), True),
    Answer.BAD_REFERENCE: ((None, None, None), True),
    Answer.REFUSAL: (("content_filtered", False, None), True),
    Answer.CONTENT_FILTER: (("content_filtered", False, None), True),
}


@BOTH
@pytest.mark.parametrize("answer", Answer)
def test_every_answer_of_the_simulator_is_judged(answer, provider, simulator, ask):
    """Scenarios 7, 8, 10, 12, 13: what it is called, and that the report has the tokens where the body had them."""
    judged, has_usage = ANSWERS[answer]
    text = "[p1] The mill was built in 1830. It burned down twice.\n\n[p2] Nobody was ever hurt in it, as far as is known."
    outcome = ask(Behaviour(answer=answer, size=8 * 1024 * 1024), a_request(text), provider=provider)
    assert outcome.judged == judged
    assert (outcome.report.usage != TokenUsage()) is has_usage
    assert outcome.report.dispatch is Dispatch.SENT
    assert len(simulator.requests) == 1


WIRES = {
    Wire.NORMAL: (None, Dispatch.SENT),
    Wire.HANG: ("provider_timeout", Dispatch.SENT),
    Wire.SLOW_HEADERS: ("provider_timeout", Dispatch.SENT),
    Wire.DRIP: ("provider_timeout", Dispatch.SENT),
    Wire.RESET_BEFORE: ("provider_unavailable", Dispatch.SENT),
    Wire.RESET_MID_BODY: ("provider_unavailable", Dispatch.SENT),
    Wire.SHORT: ("provider_unavailable", Dispatch.SENT),
    Wire.SHORT_CHUNK: ("provider_unavailable", Dispatch.SENT),
}


@pytest.mark.parametrize("wire", Wire)
def test_every_broken_wire_of_the_simulator_is_judged(wire, simulator, ask):
    code, dispatch = WIRES[wire]
    outcome = ask(Behaviour(wire=wire, interval=0.05), timeout_seconds=0.4)
    assert outcome.code == code
    assert outcome.report.dispatch is dispatch
    assert outcome.report.latency_ms is not None
    assert outcome.error is None or outcome.error.retryable
    assert len(simulator.requests) == 1


@pytest.mark.parametrize("wire", [Wire.DRIP, Wire.SLOW_HEADERS, Wire.HANG])
def test_the_deadline_is_for_the_whole_call_and_closes_the_socket(wire, simulator, ask):
    """Scenario 1: a byte each 0.3 s never meets a timeout that is per read."""
    outcome = ask(Behaviour(wire=wire, interval=0.3), timeout_seconds=1.0)
    assert outcome.judged == ("provider_timeout", True, None)
    assert 0.95 <= outcome.seconds < 5  # the wire would go on for ever
    assert outcome.report.dispatch is Dispatch.SENT
    assert simulator.wait_for(lambda requests: requests[0].outcome is Outcome.CLOSED_BY_PEER, timeout=5)


def test_a_code_inside_a_200_is_read_like_a_status(ask):
    """Scenario 8."""
    assert ask(raw(200, {"error": {"code": 429, "message": "slow"}})).judged == ("provider_rate_limited", True, None)
    assert ask(raw(200, {"choices": [{"finish_reason": "error", "error": {"code": 502}}]})).judged[0] == "provider_unavailable"
    assert ask(raw(200, {"choices": [{"finish_reason": "error", "error": {"code": 402}}]})).judged[:2] == (
        "provider_quota_exhausted",
        False,
    )
    assert ask(raw(200, [{"error": {"code": 401}}])).judged[0] == "provider_auth_failed"


def test_reasoning_that_took_all_tokens_is_a_cut_with_its_tokens_logged(ask):
    """Scenario 12."""
    outcome = ask(Behaviour(answer=Answer.EMPTY_LENGTH, reasoning_tokens=4_000))
    assert outcome.judged == ("output_truncated", False, None)
    assert outcome.report.usage.reasoning_tokens == 4_000
    assert outcome.report.usage.output_tokens
    assert outcome.report.usage.output_tokens >= 4_000
    assert outcome.report.finish_reason == "length"


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("openai_compatible", {"choices": [{"message": {"content": "half of"}, "finish_reason": None}]}),
        ("openai_compatible", {"choices": [{"message": {"content": "half of"}}]}),
        ("anthropic", {"content": [{"type": "text", "text": "half of"}], "stop_reason": None}),
    ],
)
def test_an_answer_without_a_finish_reason_may_be_half_an_answer(provider, body, ask):
    """Scenario 38."""
    assert ask(raw(200, body), provider=provider).judged == ("provider_unavailable", True, None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"message": {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]}}, "yes"),
        ({"message": {"content": "yes", "refusal": None, "reasoning_content": "hm"}}, "yes"),
        ({"message": {"content": "yes", "refusal": ""}}, "yes"),
    ],
)
def test_the_text_is_read_from_where_providers_put_it(body, text, ask):
    outcome = ask(raw(200, {"choices": [{"finish_reason": "stop", **body}]}))
    assert outcome.answer
    assert (outcome.answer.text, outcome.answer.usage) == (text, TokenUsage())


@pytest.mark.parametrize(("stop_reason", "code"), [("model_context_window_exceeded", "output_truncated"), ("refusal", "content_filtered")])
def test_a_stop_reason_of_anthropic_goes_before_its_text(stop_reason, code, ask):
    body = {"content": [{"type": "text", "text": "some"}], "stop_reason": stop_reason, "usage": {"input_tokens": 3, "output_tokens": 2}}
    outcome = ask(raw(200, body), provider="anthropic")
    assert outcome.judged == (code, False, None)
    assert outcome.report.usage == TokenUsage(3, 2)


def test_a_prompt_that_gemini_blocks_is_filtered(ask):
    assert ask(raw(200, {"promptFeedback": {"blockReason": "SAFETY"}})).judged == ("content_filtered", False, None)


def test_a_prompt_that_was_cut_without_a_word_is_suspected(ask):
    """Scenario 34: 2,050 tokens are reported for a prompt of 8,000."""
    long = a_request("some words " * 4_000)
    assert ask(Behaviour(prompt_tokens=2_050), long).report.warnings == [PROMPT_TRUNCATED_SUSPECTED]
    assert ask(Behaviour(prompt_tokens=8_000), long).report.warnings == []
    assert ask(Behaviour(prompt_tokens=1), a_request("short")).report.warnings == []


def test_a_refused_connection_was_not_sent(service):
    outcome = call(service, a_target("http://127.0.0.1:9/v1"))
    assert outcome.judged == ("provider_unavailable", True, None)
    assert outcome.report.dispatch is Dispatch.NOT_SENT
    assert outcome.report.http_status is None


def test_the_largest_answer_is_a_setting(simulator):
    service = AiGatewayService(user_addresses=LOOPBACK, max_response_bytes=100)
    outcome = call(service, a_target(simulator.url))
    assert outcome.judged == ("invalid_model_output", False, None)
    assert outcome.report.http_status == 200


def test_an_error_with_an_endless_body_is_still_known_by_its_status(ask):
    outcome = ask(Behaviour(answer=Answer.BIG_BODY, status=503, size=8 * 1024 * 1024))
    assert outcome.judged == ("provider_unavailable", True, None)
    assert (outcome.report.response_bytes or 0) < 1024 * 1024


def test_an_adapter_of_ones_own_can_be_added(simulator):
    class Other(OpenAiCompatible):
        def path(self, base_path):
            return f"{base_path}/models"

    service = AiGatewayService(user_addresses=LOOPBACK, adapters={"other": Other()})
    assert call(service, a_target(simulator.url, provider="Other")).judged == ("provider_rejected_request", False, None)
    assert simulator.requests[0].path == "/v1/models"


def test_many_calls_at_once_do_not_wait_for_each_other(service):
    with ProviderSimulator(latency=0.5) as slow:
        target = a_target(slow.url)

        async def all_at_once():
            calls = (service.complete(target, a_request(), CallReport(), call_id=uuid4(), timeout_seconds=5) for _ in range(50))
            return await asyncio.gather(*calls)

        before = threading.active_count()
        assert len(asyncio.run(asyncio.wait_for(all_at_once(), 4))) == 50
        assert threading.active_count() <= before
