"""The provider simulator does on the wire what it says."""

import asyncio
import contextlib
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.provider_simulator import Answer, Behaviour, Outcome, ProviderSimulator, RecordedRequest, Wire
from tests.support.provider_simulator.extraction import extract, paragraphs, sentences

KEY = "sk-test-0123456789"
TEXT = """Read these paragraphs.

[p1] The harbour of Tarn was built in 1874 by the engineer Ada Lind. It gave the town a deep quay for grain ships. Yes.
Grain made the town rich for forty years.

This line belongs to no paragraph.

[p2] In 1921 the grain trade moved to the railway, and the harbour of Tarn fell silent. Dr. Hale kept a diary of these years.
[p3] Today the deep quay carries ferries, which bring 300 000 visitors to the town every year."""
OTHER_TEXT = "[p1] Bees dance to tell the hive where flowers are. The angle of the dance gives the direction of the flowers."


@pytest.fixture
def simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(drip_interval=0.001) as simulator:
        yield simulator


def ask(
    simulator: ProviderSimulator, prompt: str = "Say hello to me, please.", *, key: str = KEY, timeout: float = 5, **fields: Any
) -> httpx2.Response:
    body = {"model": "simulator-1", "messages": [{"role": "user", "content": prompt}], **fields}
    headers = {"accept-encoding": "identity", "x-client-request-id": "call-7"} | ({"authorization": f"Bearer {key}"} if key else {})
    with httpx2.Client(trust_env=False, timeout=timeout) as client:
        return client.post(f"{simulator.url}/chat/completions", json=body, headers=headers)


def ask_anthropic(simulator: ProviderSimulator, prompt: str, **fields: Any) -> httpx2.Response:
    body = {"model": "simulator-1", "max_tokens": 2000, "messages": [{"role": "user", "content": prompt}], **fields}
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    return httpx2.post(f"{simulator.url}/messages", json=body, headers=headers, trust_env=False)


def raw_request(prompt: str = "hello", **fields: Any) -> bytes:
    body = json.dumps({"model": "simulator-1", "messages": [{"role": "user", "content": prompt}], **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(simulator: ProviderSimulator) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", simulator.port), timeout=5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def read_to_end(peer: socket.socket) -> bytes:
    received = b""
    while piece := peer.recv(65536):
        received += piece
    return received


def content(response: httpx2.Response) -> str:
    text = response.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


JSON_FORMAT: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"name": "facts", "schema": {"type": "object"}}}}


class TestExtraction:
    def test_every_fact_is_a_verbatim_sentence_of_the_paragraph_that_it_names(self, simulator: ProviderSimulator) -> None:
        found = json.loads(content(ask(simulator, TEXT, **JSON_FORMAT)))
        numbered = dict(paragraphs(TEXT))
        assert set(numbered) == {"p1", "p2", "p3"}
        assert {fact["paragraph"] for fact in found["facts"]} == {"p1", "p2", "p3"}
        for fact in found["facts"]:
            assert fact["text"] in sentences(numbered[fact["paragraph"]])
        assert 0 < len(found["summary"]) <= 600

    def test_the_answer_depends_on_the_input_and_on_nothing_else(self, simulator: ProviderSimulator) -> None:
        first, second, other = (content(ask(simulator, text, **JSON_FORMAT)) for text in (TEXT, TEXT, OTHER_TEXT))
        assert first == second != other
        assert "flowers" in json.loads(other)["summary"]

    def test_facts_are_at_most_ten_two_a_paragraph_and_in_the_order_of_the_text(self) -> None:
        numbered = "\n\n".join(
            f"[p{number}] " + " ".join(f"Measure {number}.{part} found {part} litres of water in tank {number}." for part in range(5))
            for number in range(1, 30)
        )
        document = extract(numbered)
        assert document is not None
        named = [int(fact["paragraph"][1:]) for fact in document["facts"]]
        assert len(named) == 10
        assert named == sorted(named)
        assert max(named.count(number) for number in named) <= 2

    def test_a_sentence_over_five_hundred_characters_is_passed_over_and_cut_only_when_there_is_no_other(self) -> None:
        long = "The river " + "bends and " * 80 + "ends."
        document = extract(f"[p1] {long} A short sentence about the river stands here.")
        assert document is not None
        assert [fact["text"] for fact in document["facts"]] == ["A short sentence about the river stands here."]
        alone = extract(f"[p1] {long}")
        assert alone is not None
        assert long.startswith(alone["facts"][0]["text"])
        assert 400 < len(alone["facts"][0]["text"]) <= 500

    def test_a_paragraph_ends_at_a_blank_line_or_at_the_next_marker(self) -> None:
        assert paragraphs("[p1] a\nb\n\nnot this\n[p2] c\n[p3] d\r\n\r\ne") == [("p1", "a\nb"), ("p2", "c\n"), ("p3", "d\r")]
        assert paragraphs("see [p1] here") == []

    def test_abbreviations_end_no_sentence_and_east_asian_full_stops_do(self) -> None:
        assert sentences("Dr. Hale met J. Ross. They talked.") == ["Dr. Hale met J. Ross.", "They talked."]
        assert sentences("今日は晴れです。明日は雨です。") == ["今日は晴れです。", "明日は雨です。"]

    def test_a_directive_is_never_part_of_a_fact(self, simulator: ProviderSimulator) -> None:
        prompt = "[p1] The old mill stands at the river. [[simulate: cached-tokens=5]] The mill grinds rye in October."
        found = json.loads(content(ask(simulator, prompt, **JSON_FORMAT)))
        assert [fact["text"] for fact in found["facts"]] == [
            "The old mill stands at the river.",
            "The mill grinds rye in October.",
        ]

    @pytest.mark.parametrize("text", ["[p1] " + "." * 200_000, "[p1] " + "a" * 300_000, "[p1]" + " \n" * 100_000, "[p1] x\n" * 20_000])
    def test_no_text_makes_the_extraction_slow(self, text: str) -> None:
        started = time.thread_time()
        extract(text)
        assert time.thread_time() - started < 2

    def test_without_a_json_format_the_document_stands_in_a_fence_behind_a_sentence(self, simulator: ProviderSimulator) -> None:
        text = content(ask(simulator, TEXT))
        fenced = re.fullmatch(r"(\w[^\n]+)\n\n```json\n(.*)\n```", text, re.DOTALL)
        assert fenced
        assert json.loads(fenced[2]) == extract(TEXT)

    def test_a_request_without_paragraphs_gets_prose(self, simulator: ProviderSimulator) -> None:
        assert content(ask(simulator, "Say hello to me, please.")) == "You sent 5 words, beginning with “Say hello to me, please.”."


class TestEnvelopes:
    def test_an_openai_answer_has_what_a_real_one_has(self, simulator: ProviderSimulator) -> None:
        response = ask(simulator, TEXT)
        body = response.json()
        assert response.headers["x-request-id"].startswith("req_")
        assert body["id"].startswith("chatcmpl-")
        assert (body["model"], body["choices"][0]["finish_reason"]) == ("simulator-1", "stop")
        usage = body["usage"]
        assert len(TEXT) / 5 < usage["prompt_tokens"] < len(TEXT) / 3
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"] == 0

    def test_an_anthropic_answer_has_what_a_real_one_has_and_counts_cached_tokens_apart(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "prompt-tokens=100 cached-tokens=40")
        body = ask_anthropic(simulator, TEXT, system="Extract facts.").json()
        assert (body["type"], body["stop_reason"]) == ("message", "end_turn")
        assert "The harbour of Tarn" in body["content"][0]["text"]
        assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (60, 40)
        assert simulator.requests[0].prompt.startswith("Extract facts.\n\nRead these")

    def test_anthropic_wants_its_version_header_and_max_tokens(self, simulator: ProviderSimulator) -> None:
        response = httpx2.post(f"{simulator.url}/messages", json={}, headers={"x-api-key": KEY}, trust_env=False)
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")

    @pytest.mark.parametrize("key", ["bad-0123456789-wxyz", ""])
    def test_a_bad_key_is_refused_and_its_parts_are_echoed(self, simulator: ProviderSimulator, key: str) -> None:
        simulator.script("", "status=500")
        response = ask(simulator, key=key)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert not key or ("bad-0123" in response.text and "wxyz" in response.text and key not in response.text)

    def test_an_answer_over_max_tokens_is_cut(self, simulator: ProviderSimulator) -> None:
        body = ask(simulator, TEXT, max_tokens=20).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 20

    def test_models_are_listed_and_health_is_told_without_a_record(self, simulator: ProviderSimulator) -> None:
        models = httpx2.get(f"{simulator.url}/models", headers={"authorization": f"Bearer {KEY}"}, trust_env=False).json()
        assert models["data"][0]["id"] == "simulator-1"
        assert httpx2.get(f"{simulator.origin}/healthz", trust_env=False).status_code == 200
        assert [request.path for request in simulator.requests] == ["/v1/models"]

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/v1/messages", 405), ("POST", "/v1/models", 405), ("POST", "/v1/elsewhere", 404)]
    )
    def test_a_wrong_method_or_path_is_refused(self, simulator: ProviderSimulator, method: str, path: str, status: int) -> None:
        assert httpx2.request(method, simulator.origin + path, trust_env=False).status_code == status

    @pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": "m"}', b'{"messages": [{"role": "user", "content": "x"}]}', b"[" * 100_000])
    def test_a_body_that_is_no_request_is_a_400(self, simulator: ProviderSimulator, body: bytes) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        assert httpx2.post(f"{simulator.url}/chat/completions", content=body, headers=headers, trust_env=False).status_code == 400


class TestDirectives:
    def test_a_directive_with_times_gives_way_to_the_next_and_then_to_normal(self, simulator: ProviderSimulator) -> None:
        prompt = "hello [[simulate: status=429 retry-after=2 times=2]] and [[simulate: status=503 times=1]]"
        answers = [ask(simulator, prompt) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [429, 429, 503, 200]
        assert answers[0].headers["retry-after"] == "2"
        assert "simulate" not in content(answers[3])

    def test_times_is_counted_for_each_prompt_apart(self, simulator: ProviderSimulator) -> None:
        prompts = [f"text {number} [[simulate: status=500 times=1]]" for number in range(2)]
        assert [ask(simulator, prompt).status_code for prompt in prompts * 2] == [500, 500, 200, 200]

    def test_a_directive_without_times_applies_always(self, simulator: ProviderSimulator) -> None:
        assert {ask(simulator, "[[simulate: status=402]]").status_code for _ in range(3)} == {402}

    def test_the_models_name_can_carry_behaviours_which_the_answer_does_not_repeat(self, simulator: ProviderSimulator) -> None:
        assert ask(simulator, model="simulator-1;status=529;times=1").status_code == 529
        response = ask(simulator, model="simulator-1;status=529;times=1")
        assert (response.status_code, response.json()["model"]) == (200, "simulator-1")

    @pytest.mark.parametrize("text", ["sttaus=429", "status=fast", "delay=-1", "status", "drip=2", "status=429 ???", "times=0 null"])
    def test_a_directive_that_cannot_be_read_is_answered_with_the_reason(self, simulator: ProviderSimulator, text: str) -> None:
        response = ask(simulator, f"[[simulate: {text}]]")
        assert (response.status_code, response.json()["error"]["code"]) == (400, "simulator_directive")
        with pytest.raises(ValueError, match=r"\w"):
            simulator.script("", text)

    def test_every_keyword_is_understood(self) -> None:
        assert Behaviour.parse('status=429; retry-after="Fri, 01 Jan 2037 00:00:00 GMT" error-message=\'a "b"\' list-body') == Behaviour(
            status=429, retry_after="Fri, 01 Jan 2037 00:00:00 GMT", error_message='a "b"', list_body=True
        )
        assert Behaviour.parse("reset=mid-body short-chunk").wire is Wire.SHORT_CHUNK
        assert Behaviour.parse("header.x-a=b no_usage").headers == {"x-a": "b"}
        for answer in Answer:
            assert Behaviour.parse(answer).answer is answer
        for wire in Wire:
            assert Behaviour.parse(wire).wire is wire

    def test_scripts_are_used_up_in_order_before_any_directive(self, simulator: ProviderSimulator) -> None:
        simulator.script("harbour", "status=500 times=2", Behaviour(status=503))
        simulator.script(lambda request: request.model == "other", "status=402 times=always")
        prompt = "harbour [[simulate: status=418]]"
        assert [ask(simulator, prompt).status_code for _ in range(4)] == [500, 500, 503, 418]
        assert {ask(simulator, model="other").status_code for _ in range(2)} == {402}
        assert ask(simulator).status_code == 200
        simulator.clear()
        assert simulator.requests == []
        assert ask(simulator, model="other").status_code == 200


class TestModelMisbehaviours:
    @pytest.mark.parametrize("directive", ["truncated", "length_closed", "empty_length"])
    def test_a_cut_answer_says_length(self, simulator: ProviderSimulator, directive: str) -> None:
        simulator.script("", directive)
        response = ask(simulator, TEXT, **JSON_FORMAT)
        choice, usage = response.json()["choices"][0], response.json()["usage"]
        assert choice["finish_reason"] == "length"
        if directive == "truncated":
            with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
                json.loads(content(response))
        elif directive == "length_closed":
            assert len(json.loads(content(response))["facts"]) == 1
        else:
            assert content(response) == ""
            assert usage["completion_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"] == 1024

    def test_malformed_json_has_no_value(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "malformed")
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(content(ask(simulator, TEXT, **JSON_FORMAT)))

    def test_repairable_json_is_the_normal_one_behind_its_commas_and_its_fence(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "repairable")
        text = content(ask(simulator, TEXT, **JSON_FORMAT))
        inner = text[text.index("```json") + 7 : text.rindex("```")]
        with pytest.raises(ValueError, match=r"\w"):
            json.loads(inner)
        assert json.loads(re.sub(r",(\s*[\]}])", r"\1", inner)) == extract(TEXT)

    def test_json_of_a_wrong_form_and_a_bad_reference_are_json(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "wrong_schema", "bad_reference")
        wrong, bad = (json.loads(content(ask(simulator, TEXT, **JSON_FORMAT))) for _ in range(2))
        assert isinstance(wrong["facts"], str)
        assert bad["facts"][0]["paragraph"] == "p999"
        assert {fact["paragraph"] for fact in bad["facts"][1:]} <= {"p1", "p2", "p3"}

    def test_refusal_filter_blank_and_no_choices_look_as_providers_send_them(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "refusal", "content_filter", "blank", "no_choices", "no_usage")
        refusal, filtered, blank, nothing, uncounted = (ask(simulator, TEXT).json() for _ in range(5))
        assert refusal["choices"][0]["message"]["content"] is None
        assert refusal["choices"][0]["message"]["refusal"]
        assert refusal["choices"][0]["finish_reason"] == "stop"
        assert filtered["choices"][0]["finish_reason"] == "content_filter"
        assert blank["choices"][0]["message"]["content"].strip() == ""
        assert nothing["choices"] == []
        assert nothing["usage"]["prompt_tokens"] > 0
        assert "usage" not in uncounted

    def test_anthropic_words_them_its_own_way(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "refusal", "truncated", "status=529", "error_in_200=500", "sse")
        refusal, truncated, overloaded, wrapped, streamed = (ask_anthropic(simulator, TEXT) for _ in range(5))
        assert (refusal.json()["stop_reason"], refusal.json()["content"]) == ("refusal", [])
        assert truncated.json()["stop_reason"] == "max_tokens"
        assert overloaded.json()["error"]["type"] == "overloaded_error"
        assert (wrapped.status_code, wrapped.json()["error"]["code"]) == (200, 500)
        assert streamed.text.startswith("event: message_start\n")


class TestProviderMisbehaviours:
    def test_an_error_has_the_providers_words_or_those_given(self, simulator: ProviderSimulator) -> None:
        simulator.script(
            "", "status=429 retry-after-ms=120", "status=429 error-code=insufficient_quota error-type=x error-message=y list-body"
        )
        first, second = ask(simulator), ask(simulator)
        assert (first.json()["error"]["code"], first.headers["retry-after-ms"]) == ("rate_limit_exceeded", "120")
        assert second.json() == [{"error": {"message": "y", "type": "x", "param": None, "code": "insufficient_quota"}}]

    def test_any_raw_answer_goes_out_as_it_was_given(self, simulator: ProviderSimulator) -> None:
        simulator.script(
            "",
            Behaviour.raw(429, [{"error": {"code": 429}}], headers={"x-ratelimit-reset-requests": "6m0s"}),
            Behaviour.raw(502, "<html>", content_type="text/html"),
            Behaviour.raw(200, "[" * 50_000),
            Behaviour.raw(200, b"\xff\xfe"),
        )
        listed, page, deep, binary = (ask(simulator) for _ in range(4))
        assert (listed.status_code, listed.json(), listed.headers["x-ratelimit-reset-requests"]) == (
            429,
            [{"error": {"code": 429}}],
            "6m0s",
        )
        assert (page.status_code, page.text, page.headers["content-type"]) == (502, "<html>", "text/html")
        assert deep.text == "[" * 50_000
        assert binary.content == b"\xff\xfe"

    def test_a_200_can_hold_html_nothing_null_an_error_or_events(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "html", "empty", "null", "error_in_200", "error_in_200=insufficient_quota", "sse")
        html, empty, null, error, quota, events = (ask(simulator) for _ in range(6))
        assert {answer.status_code for answer in (html, empty, null, error, quota, events)} == {200}
        assert html.headers["content-type"].startswith("text/html")
        assert (empty.content, null.content) == (b"", b"null")
        assert error.json()["error"]["code"] == 429
        assert quota.json()["error"]["code"] == "insufficient_quota"
        assert events.headers["content-type"] == "text/event-stream"
        assert events.text.endswith("data: [DONE]\n\n")

    def test_a_redirect_that_is_followed_shows(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "redirect times=2")
        assert ask(simulator).status_code == 307
        assert len(simulator.requests) == 1
        with httpx2.Client(trust_env=False, follow_redirects=True) as client:
            client.post(f"{simulator.url}/chat/completions", content=raw_request().split(b"\r\n\r\n")[1], headers={"authorization": KEY})
            client.post(
                f"{simulator.url}/chat/completions",
                content=raw_request().split(b"\r\n\r\n")[1],
                headers={"authorization": f"Bearer {KEY}"},
            )
        assert simulator.requests[-1].path == "/redirected/v1/chat/completions"

    def test_a_gzip_bomb_is_small_on_the_wire_and_large_when_unpacked(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "gzip_bomb size=8000000")
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            head, _, begun = peer.recv(65536).partition(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
            while len(begun) < length:
                begun += peer.recv(65536)
        assert b"content-encoding: gzip" in head
        assert length < 20_000
        assert len(gzip.decompress(begun)) > 8_000_000

    def test_a_big_body_is_streamed_without_a_length(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "big_body size=3000000")
        response = ask(simulator)
        assert "content-length" not in response.headers
        assert len(content(response)) == 3_000_000

    def test_a_client_that_stops_reading_a_big_body_is_noticed(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "big_body")
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            peer.recv(1000)
        assert simulator.wait_for(lambda requests: requests[0].closed_by_peer_at, timeout=2)


class TestWire:
    def test_a_delay_comes_before_the_first_byte(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "delay=0.15")
        started = time.monotonic()
        assert ask(simulator).status_code == 200
        assert time.monotonic() - started >= 0.15

    def test_the_latency_of_the_simulator_is_that_of_every_answer_without_a_delay(self) -> None:
        with ProviderSimulator(latency=0.15) as simulator:
            started = time.monotonic()
            ask(simulator)
            between = time.monotonic()
            simulator.script("", "delay=0")
            ask(simulator)
            assert between - started >= 0.15 > time.monotonic() - between

    @pytest.mark.parametrize("wire", [Wire.DRIP, Wire.SLOW_HEADERS])
    def test_dripping_bytes_keep_a_timeout_per_read_from_ever_firing(self, simulator: ProviderSimulator, wire: Wire) -> None:
        simulator.script("", Behaviour(wire=wire, body="x" * 250, interval=0.001))
        started = time.monotonic()
        assert ask(simulator, timeout=0.15).text == "x" * 250
        assert time.monotonic() - started > 0.2

    def test_a_drip_sends_single_bytes(self, simulator: ProviderSimulator) -> None:
        simulator.script("", Behaviour(wire=Wire.DRIP, body="abcdef", interval=0.03))
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            peer.recv(4096)
            assert [len(peer.recv(4096)) for _ in range(4)] == [1] * 4

    def test_a_reset_comes_instead_of_an_answer(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "reset")
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            with pytest.raises(ConnectionResetError):
                peer.recv(4096)
        assert simulator.wait_for(lambda requests: requests[0].outcome is Outcome.RESET, timeout=2)
        assert simulator.requests[0].closed_by_peer_at is None

    def test_a_reset_in_mid_body_comes_after_the_header_and_half_of_the_body(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "reset=mid_body")
        received: list[bytes] = []
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            with pytest.raises(ConnectionResetError):
                received.extend(iter(lambda: peer.recv(4096), b""))
        assert received[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert b'"id": "chatcmpl-' in b"".join(received)

    @pytest.mark.parametrize("wire", [Wire.SHORT, Wire.SHORT_CHUNK])
    def test_a_short_body_is_an_error_to_a_client_that_counts(self, simulator: ProviderSimulator, wire: Wire) -> None:
        simulator.script("", Behaviour(wire=wire), Behaviour(wire=wire))
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            received = read_to_end(peer)
        assert b'"usage"' in received
        assert (b"transfer-encoding: chunked" in received) == (wire is Wire.SHORT_CHUNK)
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(simulator)

    def test_a_hanging_answer_never_comes_and_the_close_is_noticed(self, simulator: ProviderSimulator) -> None:
        simulator.script("", "hang")
        with pytest.raises(httpx2.ReadTimeout):
            ask(simulator, timeout=0.1)
        closed = simulator.wait_for(lambda requests: requests and requests[0].closed_by_peer_at, timeout=1)
        assert closed
        assert closed >= simulator.requests[0].at + 0.09
        assert (simulator.requests[0].outcome, simulator.requests[0].status) == (Outcome.CLOSED_BY_PEER, None)

    @pytest.mark.parametrize("directive", ["delay=5", "drip interval=1", "slow_headers interval=1"])
    def test_a_close_is_noticed_at_once_whatever_the_answer_is_at(self, simulator: ProviderSimulator, directive: str) -> None:
        simulator.script("", directive)
        with connect(simulator) as peer:
            peer.sendall(raw_request())
            simulator.wait_for(lambda requests: requests)
            time.sleep(0.02)
            before = time.monotonic()
        closed = simulator.wait_for(lambda requests: requests[0].closed_by_peer_at, timeout=1)
        assert closed
        assert before <= closed < before + 0.2

    def test_an_answer_that_was_taken_whole_was_not_closed_by_the_peer(self, simulator: ProviderSimulator) -> None:
        ask(simulator)
        simulator.wait_for(lambda requests: requests[0].outcome is Outcome.ANSWERED)
        assert simulator.requests[0].closed_by_peer_at is None

    def test_one_connection_serves_many_requests_even_sent_at_once(self, simulator: ProviderSimulator) -> None:
        with connect(simulator) as peer:
            peer.sendall(raw_request("one") + raw_request("two") + raw_request("three"))
            peer.shutdown(socket.SHUT_WR)
            read_to_end(peer)
        assert [request.prompt for request in simulator.requests] == ["one", "two", "three"]
        with httpx2.Client(trust_env=False) as client:
            for _ in range(200):
                assert client.post(f"{simulator.url}/chat/completions", json={}, headers={"authorization": "Bearer k"}).status_code == 400

    def test_chunked_requests_are_read_and_rubbish_is_refused(self, simulator: ProviderSimulator) -> None:
        pieces = iter([b'{"model": "m", "messages": [', b'{"role": "user", "content": "in chunks"}]}'])
        headers = {"authorization": f"Bearer {KEY}"}
        assert httpx2.post(f"{simulator.url}/chat/completions", content=pieces, headers=headers, trust_env=False).status_code == 200
        assert simulator.requests[0].prompt == "in chunks"
        for rubbish in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
            with connect(simulator) as peer:
                peer.sendall(rubbish)
                assert read_to_end(peer).startswith(b"HTTP/1.1 400 ")

    def test_five_hundred_requests_at_once_are_answered_together(self) -> None:
        async def call(port: int, number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw_request(f"text {number}"))
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()
                await writer.wait_closed()
            return head.split(b"\r\n")[0]

        async def call_all(port: int) -> list[bytes]:
            return await asyncio.gather(*(call(port, number) for number in range(500)))

        with ProviderSimulator(latency=0.5) as simulator:  # one after the other: 250 s
            started = time.monotonic()
            assert set(asyncio.run(call_all(simulator.port))) == {b"HTTP/1.1 200 OK"}
            assert time.monotonic() - started < 30
            assert len({request.prompt for request in simulator.requests}) == 500

    def test_a_fault_of_a_tests_own_matcher_is_answered_and_not_swallowed(self, simulator: ProviderSimulator) -> None:
        simulator.script(lambda request: bool(request.body["missing"]), "html")
        response = ask(simulator)
        assert (response.status_code, response.json()["error"]["message"]) == (500, "KeyError('missing')")


class TestRecords:
    def test_a_record_has_all_of_the_request_but_shows_neither_key_nor_text(self, simulator: ProviderSimulator) -> None:
        ask(simulator, "a secret text")
        (request,) = simulator.requests
        assert isinstance(request, RecordedRequest)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert (request.client_request_id, request.model, request.prompt) == ("call-7", "simulator-1", "a secret text")
        assert request.body["messages"][0]["role"] == "user"
        assert KEY not in repr(request) + str(request.as_json())
        assert "secret" not in repr(request) + str(request.as_json())

    def test_waiting_in_vain_ends_at_the_deadline_and_says_what_was_seen(self, simulator: ProviderSimulator) -> None:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="no request"):
            simulator.wait_for(lambda requests: len(requests) > 1, timeout=0.1)
        assert time.monotonic() - started < 5

    def test_ending_the_simulator_ends_open_calls(self) -> None:
        with ProviderSimulator() as simulator:
            simulator.script("", "hang")
            peer = connect(simulator)
            peer.sendall(raw_request())
            simulator.wait_for(lambda requests: requests)
        with peer, contextlib.suppress(ConnectionResetError):
            assert peer.recv(10) == b""
        assert simulator.requests[0].outcome is Outcome.STOPPED

    def test_a_port_that_is_taken_is_an_error_at_the_start(self, simulator: ProviderSimulator) -> None:
        with pytest.raises(OSError, match="in use"), ProviderSimulator(simulator.port):
            pass


class TestControl:
    def test_another_process_can_script_and_read_without_seeing_a_key(self, simulator: ProviderSimulator) -> None:
        script = {
            "match": "hello",
            "behaviours": ["status=503", {"status": 429, "retry_after": 2, "body": {"error": "slow"}}, {"wire": "reset"}],
        }
        with httpx2.Client(trust_env=False, base_url=simulator.origin) as control:
            assert control.post("/_control/script", json=script).status_code == 200
            first, second = ask(simulator, "hello"), ask(simulator, "hello")
            assert (first.status_code, second.status_code, second.json()) == (503, 429, {"error": "slow"})
            with pytest.raises(httpx2.TransportError):
                ask(simulator, "hello")
            listed = control.get("/_control/requests")
            assert [request["status"] for request in listed.json()] == [503, 429, None]
            assert listed.json()[0]["client_request_id"] == "call-7"
            assert listed.json()[0]["prompt_length"] == 5
            assert KEY not in listed.text
            control.post("/_control/clear")
            assert control.get("/_control/requests").json() == []

    @pytest.mark.parametrize(
        "wanted",
        [
            {},
            [],
            {"match": "x", "behaviours": ["nonsense"]},
            {"match": 1, "behaviours": []},
            {"match": "", "behaviours": [{"x": 1}]},
        ],
    )
    def test_a_script_that_cannot_be_read_is_refused(self, simulator: ProviderSimulator, wanted: Any) -> None:
        assert httpx2.post(f"{simulator.origin}/_control/script", json=wanted, trust_env=False).status_code == 400


class TestProcess:
    @contextlib.contextmanager
    def start(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        root = Path(__file__).parents[2]
        command = [sys.executable, "-m", "tests.support.provider_simulator", *options]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_serves_logs_without_key_or_text_and_ends_cleanly_on_a_signal(self, number: signal.Signals) -> None:
        with self.start("--port", "0", "--latency", "0") as process:
            assert process.stdout
            url = re.search(r"http://\S+", process.stdout.readline())
            assert url
            with socket.create_connection(("127.0.0.1", urlsplit(url[0]).port or 0), timeout=5) as peer:
                peer.sendall(raw_request("a secret text"))
                assert peer.recv(4096).startswith(b"HTTP/1.1 200")
                process.send_signal(number)
                out, err = process.communicate(timeout=5)
        assert process.returncode == 0
        assert err == ""
        assert "POST /v1/chat/completions 200" in out
        assert KEY not in out
        assert "secret" not in out

    def test_a_port_in_use_is_said_in_a_sentence(self, simulator: ProviderSimulator) -> None:
        with self.start("--port", str(simulator.port)) as process:
            _, err = process.communicate(timeout=5)
        assert process.returncode == 2
        assert err == f"Port {simulator.port} is in use: stop the other program, or choose another port with --port.\n"
