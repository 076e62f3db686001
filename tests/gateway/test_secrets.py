"""No key and no prompt in what a failed call leaves behind."""

import base64
import logging
import traceback
from types import TracebackType

import pytest

from runtime_jobs.gateway import quiet_client_loggers
from runtime_jobs.gateway.foreign import clean, without_request
from runtime_jobs.redaction import Secret
from runtime_jobs.states import ApiKeyMode
from tests.gateway.conftest import KEY, Outcome, a_request, a_target, call, raw
from tests.support.provider_simulator import Answer, Behaviour, Wire

PROMPT = "Patient CANARY-4711 was admitted on a Tuesday\nwith a broken left arm."
CLIENT_LOGGERS = ("httpx2", "httpcore2", "httpcore2.connection", "httpcore2.http11")
# Every form in which a key has been seen in foreign text.
KEY_FORMS = (KEY, KEY[:8], KEY[-8:], base64.b64encode(KEY.encode()).decode())

ECHOES = {
    "status 401": raw(401, {"error": {"message": f"Incorrect API key provided: {KEY[:8]}***{KEY[-8:]}.", "code": "invalid_api_key"}}),
    "the key as the code": raw(400, {"error": {"message": "no", "code": KEY, "type": KEY}}),
    "the key and the prompt": raw(400, {"error": {"message": f"Bearer {KEY} sent {PROMPT}", "code": "invalid_request_error"}}),
    "the prompt in a 422": raw(422, {"message": f"Input should be shorter: {PROMPT}"}),
    "the prompt as the code": raw(400, {"error": {"code": PROMPT, "message": ""}}),
    "the key in base64": raw(500, {"error": {"message": base64.b64encode(KEY.encode()).decode()}}),
    "headers": raw(429, {"error": {"code": KEY}}, {"x-request-id": KEY, "retry-after": KEY, "set-cookie": KEY}),
    "HTML": raw(502, f"<html>{KEY} {PROMPT}</html>", content_type="text/html"),
    "a 200 of text": raw(200, f"{KEY} {PROMPT}"),
    "an error in a 200": raw(200, {"error": {"message": f"{KEY} {PROMPT}", "code": KEY}}),
    "the model and the reason": raw(200, {"model": KEY, "choices": [{"finish_reason": KEY, "message": {"content": ""}}]}),
    "the usage": raw(200, {"usage": {KEY: 1, "prompt_tokens": KEY, "note": PROMPT}, "choices": []}),
    "a redirect": raw(307, "", {"location": f"https://elsewhere.test/?key={KEY}"}),
    "a hang": Behaviour(wire=Wire.HANG),
    "a reset": Behaviour(wire=Wire.RESET_BEFORE),
    "a short body": Behaviour(wire=Wire.SHORT),
    "a refusal": Behaviour(answer=Answer.REFUSAL),
    "a cut": Behaviour(answer=Answer.TRUNCATED),
}  # fmt: skip


def everything_reachable(error: BaseException | None) -> str:
    """The text of an exception, of all that stand behind it, and of the locals of every frame: what an error reporter collects."""
    parts: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        parts += [repr(error), str(error), repr(error.args), repr(vars(error)), *traceback.format_exception(error)]
        # Not the frames of the test itself, which knows the key.
        parts += [repr(value) for frame in frames_of(error.__traceback__) for value in frame.values()]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def frames_of(trace: TracebackType | None) -> list[dict[str, object]]:
    frames = []
    while trace:
        if "/runtime_jobs/" in trace.tb_frame.f_code.co_filename or "site-packages" in trace.tb_frame.f_code.co_filename:
            frames.append({name: value for name, value in trace.tb_frame.f_locals.items() if name != "request"})
        trace = trace.tb_next
    return frames


def assert_clean(text: str) -> None:
    for form in KEY_FORMS:
        assert form not in text
    for word in ("CANARY", "broken left arm"):
        assert word not in text


@pytest.mark.parametrize("behaviour", ECHOES.values(), ids=ECHOES.keys())
def test_no_failure_shows_key_or_prompt(behaviour, ask, caplog):
    """Scenarios 25 and 27 at this level: not the exception, not what is behind it, not the report, not a log at DEBUG."""
    for name in ("", *CLIENT_LOGGERS):
        caplog.set_level(logging.DEBUG, logger=name)
    outcome = ask(behaviour, a_request(PROMPT), timeout_seconds=0.3 if behaviour.wire is Wire.HANG else 5)
    assert outcome.error is not None
    assert outcome.error.__cause__ is None
    assert outcome.error.__context__ is None
    assert_clean(everything_reachable(outcome.error))
    assert_clean(repr(outcome.report))
    assert_clean(caplog.text)
    assert not [record for record in caplog.records if record.name in CLIENT_LOGGERS]


@pytest.mark.parametrize("mode", ApiKeyMode)
@pytest.mark.parametrize(
    "key", [f"{KEY}\n", f" {KEY}", f"{KEY}\r\nX-Injected: 1", "sk-with space", "sk-\x00", "sk-schlüssel-0123456789", ""], ids=repr
)
def test_a_key_that_cannot_be_one_is_refused_before_anything_is_sent(key, mode, simulator, service):
    """Scenario 25."""
    outcome = call(service, a_target(simulator.url, api_key=Secret(key), credential_mode=mode))
    assert outcome.judged == ("provider_auth_failed", False, None)
    assert not simulator.requests
    assert f"{mode}'s key" in str(outcome.error)
    if key:
        assert key not in everything_reachable(outcome.error)
        assert key.strip() not in everything_reachable(outcome.error)


def test_a_useful_message_of_the_provider_stays(ask):
    outcome = ask(
        raw(400, {"error": {"message": "Unsupported parameter: 'temperature'\n is not  supported.", "code": "unsupported_parameter"}})
    )
    assert str(outcome.error).startswith("provider_rejected_request: HTTP 400; provider code unsupported_parameter; request id req_")
    assert str(outcome.error).endswith("; Unsupported parameter: 'temperature' is not supported.")


def test_a_long_message_is_cut():
    assert len(clean("x" * 100_000, Secret(KEY), limit=200)) == 200


def test_a_key_at_the_place_of_the_cut_does_not_get_through():
    for padding in range(180, 201):
        text = clean("y" * padding + KEY + "z" * 5_000, Secret(KEY), limit=200)
        assert KEY[:6] not in text


def test_text_that_no_database_takes_is_made_harmless():
    assert clean("a\x00b\ud800c\u2028d", Secret(KEY), limit=50) == "a b\ufffdc d"
    assert clean({"a": 1}, Secret(KEY), limit=50) == clean(True, Secret(KEY), limit=50) == ""
    assert clean(429, Secret(KEY), limit=50) == "429"


def test_a_message_that_repeats_the_request_is_withheld():
    note = "[message withheld: it repeats the request]"
    assert without_request("value 'with a broken left arm.' is bad", [PROMPT]) == note
    assert without_request("admitted on a Tuesday with a broken", [PROMPT]) == note  # the newline became a space
    assert without_request("temperature is not supported", [PROMPT]) == "temperature is not supported"
    assert without_request("", [PROMPT]) == ""


def test_the_loggers_of_the_client_stay_quiet_when_somebody_raises_their_level(caplog):
    quiet_client_loggers()
    quiet_client_loggers()
    for name in CLIENT_LOGGERS:
        caplog.set_level(logging.DEBUG, logger=name)
        logging.getLogger(name).info("HTTP Request: POST https://…")
        logging.getLogger(name).warning("worth knowing")
    assert [record.getMessage() for record in caplog.records] == ["worth knowing"] * len(CLIENT_LOGGERS)


def test_an_outcome_of_a_good_call_shows_no_key(ask):
    outcome: Outcome = ask()
    assert KEY not in repr(outcome.report)
    assert KEY not in repr(outcome.answer)
