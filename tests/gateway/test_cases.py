"""Every row of tests/cases/provider_answers.jsonl, through the pure reader and over a real socket."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_jobs.errors import AttemptError
from runtime_jobs.gateway.answer import HttpAnswer
from runtime_jobs.gateway.anthropic import AnthropicMessages
from runtime_jobs.gateway.openai_compatible import OpenAiCompatible
from runtime_jobs.gateway.reading import read_answer
from runtime_jobs.gateway.waits import MAX_WAIT_SECONDS
from runtime_jobs.model_call import CallReport, TokenUsage
from tests.gateway.conftest import Outcome, a_request, a_target, raw

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "provider_answers.jsonl").read_text().splitlines()]
every_row = pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])


def expected(row: dict[str, Any]) -> tuple[Any, Any, Any]:
    expect = row["expect"]
    wait = expect["retryAfterSeconds"]
    return expect["errorCode"], expect["retryable"], MAX_WAIT_SECONDS if wait == "capped" else wait


@every_row
def test_the_reader_judges_every_case_right(row):
    body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
    answer = HttpAnswer(row["status"], {"content-type": row["content_type"], **row["headers"]}, body.encode())
    adapter = AnthropicMessages() if row["provider"] == "anthropic" else OpenAiCompatible()
    result = read_answer(adapter, a_target("https://provider.test", provider=row["provider"]), a_request(), answer, CallReport())
    outcome = Outcome(error=result) if isinstance(result, AttemptError) else Outcome(answer=result)
    assert outcome.judged == expected(row), row["why"]


@every_row
def test_every_case_is_judged_right_over_http(row, simulator, ask: Callable[..., Outcome]):
    outcome = ask(raw(row["status"], row["body"], row["headers"], row["content_type"]), provider=row["provider"])
    assert outcome.judged == expected(row), row["why"]
    assert outcome.report.http_status == row["status"]
    assert len(simulator.requests) == 1
    if "usage" in str(row["why"]) and row["name"] == "ok_filter":
        assert outcome.report.usage == TokenUsage(11, 7)


def test_no_case_puts_its_body_into_an_error(ask: Callable[..., Outcome]):
    """Scenario 7: no body text of an envelope that cannot be read."""
    outcome = ask(raw(502, "<html><body>customer 4711 secret page</body></html>", content_type="text/html"))
    assert outcome.error
    assert "secret page" not in str(outcome.error)
    assert outcome.report == CallReport(
        dispatch=outcome.report.dispatch,
        http_status=502,
        provider_request_id=outcome.report.provider_request_id,
        latency_ms=outcome.report.latency_ms,
        request_bytes=outcome.report.request_bytes,
        response_bytes=outcome.report.response_bytes,
    )
