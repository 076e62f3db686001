"""What goes out: the bodies of both wire formats."""

import json

import pytest

from runtime_jobs.gateway.anthropic import DEFAULT_MAX_TOKENS, AnthropicMessages
from runtime_jobs.gateway.openai_compatible import OpenAiCompatible
from runtime_jobs.gateway.structured import strict_schema
from runtime_jobs.model_call import Message, ModelRequest
from tests.gateway.conftest import a_target

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 200, "description": "A title."},
        "facts": {
            "type": "array",
            "maxItems": 10,
            "items": {
                "type": "object",
                # Members that are named like keywords are members.
                "properties": {"maxLength": {"type": "integer", "minimum": 1}, "ref": {"$ref": "#/$defs/id"}},
                "required": ["maxLength", "ref"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["title", "facts"],
    "additionalProperties": False,
    "$defs": {"id": {"type": "string", "pattern": "^p[0-9]+$"}},
}
OPTIONAL = {**SCHEMA, "required": ["title"]}


def body(provider, **changes):
    messages = (Message("system", "Be brief."), Message("user", "Hello"))
    adapter = AnthropicMessages() if provider == "anthropic" else OpenAiCompatible()
    return adapter.body(a_target("https://x.test", provider=provider, model="m"), ModelRequest(messages, **changes))


def test_a_plain_request_holds_nothing_that_was_not_asked_for():
    assert body("mistral") == {
        "model": "m",
        "stream": False,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    }


def test_openai_gets_the_newer_name_of_max_tokens_and_others_the_older():
    assert body("openai", max_output_tokens=5)["max_completion_tokens"] == 5
    assert "max_tokens" not in body("openai", max_output_tokens=5)
    assert body("vllm", max_output_tokens=5, temperature=0.0) | {"max_tokens": 5, "temperature": 0.0} == body(
        "vllm", max_output_tokens=5, temperature=0.0
    )


def test_openai_gets_the_shape_of_the_schema_and_the_bounds_as_words():
    sent = body("openai", response_schema=SCHEMA)["response_format"]["json_schema"]
    assert sent["strict"] is True
    properties = sent["schema"]["properties"]
    assert properties["title"] == {"type": "string", "description": "A title. (maxLength 200)"}
    assert properties["facts"]["description"] == "(maxItems 10)"
    assert properties["facts"]["items"]["properties"] == {
        "maxLength": {"type": "integer", "description": "(minimum 1)"},
        "ref": {"$ref": "#/$defs/id"},
    }
    assert sent["schema"]["$defs"] == {"id": {"type": "string", "description": '(pattern "^p[0-9]+$")'}}


def test_a_local_server_gets_the_whole_schema_since_it_enforces_the_bounds():
    sent = body("llamacpp", response_schema=SCHEMA)["response_format"]
    assert sent == {"type": "json_schema", "json_schema": {"name": "output", "strict": True, "schema": SCHEMA}}


def test_a_schema_with_optional_members_is_a_hint_for_openai_and_strict_for_anthropic():
    sent = body("openai", response_schema=OPTIONAL)["response_format"]["json_schema"]
    assert (sent["strict"], sent["schema"]) == (False, OPTIONAL)
    assert body("anthropic", response_schema=OPTIONAL)["output_config"]["format"]["schema"]["required"] == ["title"]


def test_a_provider_with_json_mode_only_gets_the_schema_in_the_prompt():
    sent = body("deepseek", response_schema=SCHEMA)
    assert sent["response_format"] == {"type": "json_object"}
    assert sent["messages"][0]["role"] == "system"
    assert json.dumps(SCHEMA, separators=(",", ":")) in sent["messages"][0]["content"]


def test_anthropic_gets_system_text_apart_and_always_a_maximum():
    sent = body("anthropic")
    assert sent == {
        "model": "m",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello"}],
    }
    assert body("anthropic", max_output_tokens=5, temperature=0.5).items() >= {"max_tokens": 5, "temperature": 0.5}.items()


def test_anthropic_gets_its_own_structured_output_or_the_schema_in_the_prompt():
    assert body("anthropic", response_schema=SCHEMA)["output_config"]["format"]["type"] == "json_schema"
    free = {"type": "object", "additionalProperties": {"type": "string"}}
    sent = body("anthropic", response_schema=free)
    assert "output_config" not in sent
    assert "JSON Schema" in sent["system"]


@pytest.mark.parametrize("base_path", ["", "/v1", "/proxy", "/proxy/v1"])
def test_the_base_url_of_anthropic_may_hold_the_version_or_not(base_path):
    assert AnthropicMessages().path(base_path) == f"{base_path.removesuffix('/v1')}/v1/messages"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "https://x.test/schema"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": True}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string"}}},
    ],
)
def test_a_schema_that_strict_decoding_cannot_express_is_not_forced_into_it(schema):
    assert strict_schema(schema, all_required=True) is None


def test_a_schema_that_nests_without_end_is_not_walked_without_end():
    schema: dict = {"type": "string"}
    for _ in range(100):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    assert strict_schema(schema, all_required=True) is None
