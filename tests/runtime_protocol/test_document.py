"""PROTOCOL.md tells the truth: its examples are a real run's, its tables are made from the code.

UPDATE_PROTOCOL_MD=1 python -m pytest tests/runtime_protocol/test_document.py      # writes them anew
"""

import json
import os
import re
from http import HTTPStatus
from typing import Any

import pytest
import yaml

from runtime_jobs.errors import RULES
from runtime_protocol.errors import CODES
from runtime_protocol.files import CONTRACT, DOCUMENT
from tests.runtime_protocol.conftest import OUTPUT, Runtime, sha

UPDATE = "UPDATE_PROTOCOL_MD=1 python -m pytest tests/runtime_protocol/test_document.py"
MARK = re.compile(r"<!-- (example|table): ([a-z ]+) -->\n(?:\n<!-- begin -->\n.*?<!-- end -->\n)?", re.DOTALL)

pytestmark = pytest.mark.django_db

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Recorder:
    """Writes down what travels, with ids, times and secrets that are the same in every run."""

    def __init__(self, send: Any) -> None:
        self.send, self.last, self._ids = send, "", dict[str, str]()

    def __call__(self, method: str, path: str, headers: dict[str, str], data: bytes | None) -> Any:
        asked = dict(headers)
        answer = self.send(method, path, headers, data)
        shown = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items()), ""]
        if data:
            shown += [json.dumps(json.loads(data), indent=2, ensure_ascii=False), ""]
        kept = ("Content-Type", "ETag", "Cache-Control", "X-Request-Id", "X-Protocol-Version")
        shown += [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        shown += [f"{name}: {answer.headers[name]}" for name in kept if name in answer.headers]
        shown += ["", json.dumps(answer.body, indent=2, ensure_ascii=False)]
        self.last = self._normal("\n".join(shown))
        return answer

    def _normal(self, text: str) -> str:
        text = re.sub(r"Bearer rt_\S+", "Bearer rt_<keyId>_<secret>", text)
        text = re.sub(r'("lockToken": "|X-Lock-Token: )[0-9a-f]{64}', r"\1<lockToken>", text)
        text = re.sub(r'"apiKey": "[^"]+"', '"apiKey": "<the key in clear>"', text)
        text = re.sub(r'("expiresInSeconds"): [\d.]+', r"\1: 119.8", text)
        text = re.sub(r'"baseUrl": "[^"]+"', '"baseUrl": "https://provider.example/v1"', text)
        text = _TIME.sub("2026-11-29T12:00:00.000Z", text)
        for name, time in (("lockUntil", "12:01:00.000"), ("deadlineAt", "12:02:00.000"), ("nextAttemptAt", "12:00:13.742")):
            text = re.sub(rf'"{name}": "2026-11-29T12:00:00.000Z"', f'"{name}": "2026-11-29T{time}Z"', text)
        return _UUID.sub(lambda found: self._ids.setdefault(found[0], f"01932f5e-0000-7000-8000-{len(self._ids) + 1:012}"), text)


@pytest.fixture
def examples(runtime, make_job):
    recorder = Recorder(runtime._send)
    speaker = Runtime(recorder, runtime.token, "runtime-7f3a")
    found = {}

    def keep(name, answer, status=200):
        assert answer.status == status, answer.body
        found[name] = recorder.last
        return answer

    make_job(target_id="42")
    lease = keep("poll", speaker.pull(jobTypes=["synthetic.extract_facts_runtime"], waitSeconds=20))["jobs"][0]["lease"]
    keep("heartbeat", speaker.beat(lease, progress=40, progressMessage="paragraph 3 of 7", checkpoint={"paragraph": 3}))
    keep("snapshot", speaker.snapshot(lease))
    keep("resolve", speaker.resolve(lease))
    call = {
        "invocationId": "call-1", "provider": "simulator", "model": "simulator-1", "credentialMode": "platform", "inputTokens": 812,
        "outputTokens": 144, "latencyMs": 1380, "costUsd": "0.00041", "finishReason": "stop",
    }  # fmt: skip
    keep("logs", speaker.log(lease, call))
    keep("result", speaker.result(lease, validatedOutput=OUTPUT))
    lease = keep("lock", speaker.lock(make_job(target_id="43"))).body
    keep("fail", speaker.fail(lease, "provider_rate_limited", retryAfterSeconds=12.5))
    lease = speaker.lock(make_job(target_id="44")).body
    keep("release", speaker.release(lease, reason="shutdown"))
    lease = speaker.lock(make_job(target_id="45")).body
    raw = '{"summary": "A river.", "facts": [{"text": "It is long.", "paragraph": "p9"}]}'
    keep("rejected", speaker.result(lease, raw, outputHash=sha(raw)), 422)
    keep("health", speaker.get("health"))
    return {name: f"```http\n{text}\n```\n" for name, text in found.items()}


def tables():
    errors = ["| status | errorCode | retryable | when | what to do |", "| --- | --- | --- | --- | --- |"]
    errors += [f"| {rule.status} | `{code}` | {_yes(rule.retryable)} | {rule.meaning} | {rule.advice} |" for code, rule in CODES.items()]
    attempts = ["| errorCode | retryable | |", "| --- | --- | --- |"]
    attempts += [f"| `{code}` | {_yes(rule.retryable)} | {rule.public_error} |" for code, rule in RULES.items()]
    return {"errors": _lines(errors), "attempt codes": _lines(attempts), "fields": fields()}


def fields():
    schemas = yaml.safe_load(CONTRACT.read_text())["components"]["schemas"]
    parts = []
    for name, schema in schemas.items():
        if "properties" not in schema:
            continue
        rows = [f"**{name}**", "", "| field | req | type and bounds | |", "| --- | --- | --- | --- |"]
        for field, form in schema["properties"].items():
            required = "yes" if field in schema.get("required", ()) else ""
            rows.append(f"| {field} | {required} | {_type(form, schemas)} | {form.get('description', '')} |")
        parts.append(_lines(rows))
    return "\n".join(parts)


def _type(form: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "allOf" in form:
        return _type(form["allOf"][0], schemas)
    if "oneOf" in form:
        return _type(form["oneOf"][0], schemas)
    if "$ref" in form:
        name = form["$ref"].split("/")[-1]
        if name == "RuntimeErrorCode":
            return "an errorCode"
        return " / ".join(f"`{value}`" for value in schemas[name]["enum"]) if "enum" in schemas[name] else name
    kind = form.get("type", "any JSON")
    kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if one != "null"]
    words = [form["format"] if form.get("format") in ("uuid", "date-time") else " or ".join(kinds)]
    if kinds[0] == "array":
        words.append(f"of {_type(form['items'], schemas)}")
    for low, high, unit in (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " items")):
        if high in form and form[high] < 2**53 - 1 and form[high] != 1e9:
            words.append(
                f"{form.get(low, 0):g} to {form[high]:g}{unit}" if form[high] < 1e6 else f"{form.get(low, 0)} to {int(form[high])}{unit}"
            )
        elif form.get(low):
            words.append(f"from {form[low]:g}{unit}")
    if "pattern" in form:
        words.append(f"`{form['pattern']}`".replace("|", "\\|"))
    return ", ".join(words).replace("array, of", "array of")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _lines(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


def test_acceptance_1_the_document_is_complete_and_true(examples):
    made = {("example", name): text for name, text in examples.items()} | {("table", name): text for name, text in tables().items()}
    text = DOCUMENT.read_text()
    marks = {(match[1], match[2]) for match in MARK.finditer(text)}
    assert marks == made.keys()
    new = MARK.sub(lambda mark: f"<!-- {mark[1]}: {mark[2]} -->\n\n<!-- begin -->\n{made[mark[1], mark[2]]}<!-- end -->\n", text)
    if os.environ.get("UPDATE_PROTOCOL_MD") and new != text:
        DOCUMENT.write_text(new)
    assert new == text, f"PROTOCOL.md is not what the server does. Look at what that does to runtimes, then run: {UPDATE}"


def test_acceptance_1_the_document_names_every_endpoint_dto_and_error():
    text = DOCUMENT.read_text()
    contract = yaml.safe_load(CONTRACT.read_text())
    for name in [*contract["components"]["schemas"]["RuntimeErrorCode"]["enum"], *CODES]:
        assert f"`{name}`" in text, name
    for name, schema in contract["components"]["schemas"].items():
        assert name in text or "enum" in schema, name
    for path in contract["paths"]:
        assert path.split("/")[-1] in text, path
