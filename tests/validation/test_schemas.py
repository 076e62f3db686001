"""Schemas: what stops the start, and what is said about a value that does not match."""

import socket
from typing import Any

import pytest

from runtime_jobs.schemas import MAX_ISSUES, MAX_POINTER_CHARACTERS, CompiledSchema

TEXT = {"type": "string", "maxLength": 10}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 5}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def a_list(items: Any, most: int = 3) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


def rules(schema: Any, instance: Any) -> list[tuple[str, str]]:
    return [(issue.path, issue.rule) for issue in CompiledSchema(schema).issues(instance)]


def test_a_valid_value_has_no_issues():
    schema = an_object(title=TEXT, facts=a_list(an_object(score=NUMBER)))
    assert rules(schema, {"title": "Q1", "facts": [{"score": 3}]}) == []


def test_each_issue_names_its_place_and_its_rule():
    schema = an_object(title=TEXT, facts=a_list(an_object(score=NUMBER))) | {"required": ["title", "facts"]}
    assert rules(schema, {"facts": [{"score": 3}, {"score": 9}, {"score": "3"}]}) == [
        ("", "required"),
        ("/facts/1/score", "maximum"),
        ("/facts/2/score", "type"),
    ]


def test_a_pointer_escapes_slash_and_tilde():
    assert rules(an_object(**{"a/b~c": NUMBER}), {"a/b~c": 9}) == [("/a~1b~0c", "maximum")]


@pytest.mark.parametrize(
    "schema",
    [
        NUMBER | {"multipleOf": 2},
        TEXT | {"minLength": 2, "pattern": "^x$", "format": "date"},
        {"enum": ["x"]},
        {"const": "x"},
        a_list(NUMBER, 1),
        an_object(a=NUMBER) | {"required": ["b"]},
        an_object(a=False) | {"propertyNames": {"maxLength": 1}, "minProperties": 2},
        an_object() | {"patternProperties": {"^S": NUMBER}, "maxProperties": 1},
        an_object(CANARY=NUMBER) | {"dependentRequired": {"CANARY": ["b"]}, "not": {"required": ["CANARY"]}},
        {"type": "object", "allOf": [{"properties": {"a": NUMBER}}], "unevaluatedProperties": False},
        {"oneOf": [NUMBER, {"type": "null"}]},
        {"anyOf": [NUMBER, {"type": "null"}]},
        a_list(TEXT) | {"contains": {"const": "x"}, "minContains": 2, "uniqueItems": True, "minItems": 4},
        a_list(False) | {"prefixItems": [NUMBER]},
        {"$defs": {"n": NUMBER}, "$ref": "#/$defs/n"},
    ],
)
@pytest.mark.parametrize("instance", ["CANARY TEXT OF A PATIENT", {"CANARY": "CANARY", "a": "CANARY"}, ["CANARY", "CANARY"]])
def test_no_message_holds_data_of_the_instance(schema: Any, instance: Any):
    issues = CompiledSchema(schema).issues(instance)
    assert issues
    for issue in issues:
        assert "CANARY" not in issue.message
        assert issue.message.endswith(".")
        assert "{" not in issue.message


def test_at_most_twenty_issues_are_reported():
    assert len(CompiledSchema(a_list(NUMBER, 1000)).issues(["x"] * 1000)) == MAX_ISSUES


def test_a_huge_invalid_value_costs_one_issue_and_not_a_million():
    """jsonschema-rs makes all errors before it yields the first."""
    assert len(CompiledSchema(a_list(NUMBER, 10**6)).issues(["x"] * 300_000)) == 1


@pytest.mark.parametrize("levels", [65, 1_000, 100_000])
def test_a_deep_value_is_an_issue_and_no_recursion_error(levels: int):
    value: Any = 1
    for _ in range(levels):
        value = [value]
    assert rules(a_list({"type": "integer"}), value) == [("", "maxDepth")]


def test_a_value_of_sixty_four_levels_is_not_too_deep():
    value: Any = 1
    for _ in range(64):
        value = [value]
    assert rules(a_list({"type": "integer"}), value) == [("/0", "type")]


@pytest.mark.parametrize("value", [10**5_000, float("nan"), float("inf")], ids=["digits", "nan", "inf"])
def test_a_number_that_the_validator_cannot_judge_is_an_issue(value: float):
    assert rules(an_object(n={"type": "number", "maximum": 5}), {"n": value}) == [("", "number")]


@pytest.mark.parametrize("value", [{1: 2}, object()], ids=["key", "object"])
def test_a_value_that_is_no_json_is_an_issue(value: Any):
    assert [rule for _, rule in rules(an_object(n=TEXT), {"n": value})] == ["json"]


def test_a_path_made_of_a_models_own_names_is_cut():
    schema = an_object() | {"patternProperties": {"^a": NUMBER}, "maxProperties": 1}
    (issue,) = CompiledSchema(schema).issues({"a" * 10_000: 9})
    assert len(issue.path) == MAX_POINTER_CHARACTERS


def test_formats_are_checked():
    assert rules(TEXT | {"format": "date"}, "2026-02-30") == [("", "format")]


def test_a_dollar_sign_is_the_end_of_the_text_and_not_of_the_line():
    assert rules(TEXT | {"pattern": "^a$"}, "a\n") == [("", "pattern")]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strin"}, "/type"),
        (TEXT | {"pattern": "("}, "/pattern"),
        (TEXT | {"pattern": "(?=a)b"}, "/pattern"),
        (TEXT | {"format": "nope"}, "nope"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"type": "string", "maxLength": object()}, "plain JSON"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"} | TEXT, "draft-04"),
        (an_object(a=TEXT | {"$id": "x"}), "/properties/a"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "itself"),
        (["type"], "not an object"),
    ],
)
def test_a_broken_schema_is_refused_with_a_reason(schema: Any, said: str):
    with pytest.raises(ValueError, match=r".") as refused:
        CompiledSchema(schema)
    assert said in str(refused.value)


@pytest.mark.parametrize("levels", [300, 900, 20_000])
def test_a_schema_that_is_nested_too_deeply_is_refused(levels: int):
    schema: Any = TEXT
    for _ in range(levels):
        schema = {"allOf": [schema]}
    with pytest.raises(ValueError, match=r"."):
        CompiledSchema(schema)


@pytest.mark.parametrize(
    "reference",
    ["http://127.0.0.1:{port}/schema", "https://example.com/s", "file:///etc/passwd", "other.json", "#/properties/a", "#anchor"],
)
def test_a_reference_to_elsewhere_is_refused_and_opens_no_socket(reference: str):
    """provider_calls 35. A listener of our own, since a library in Rust does not go through Python's socket module."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        reference = reference.format(port=server.getsockname()[1])
        with pytest.raises(ValueError, match="may be referred to"):
            CompiledSchema(an_object(a={"$ref": reference}))
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string"}, "its root"),
        ({"type": ["string", "null"]}, "its root"),
        ({}, "its root"),
        (an_object(a=True), "/properties/a"),
        (an_object(a={"type": "string"}), "/properties/a"),
        (an_object(**{"a/b": {"type": "string"}}), "/properties/a~1b"),
        ({"type": "object", "properties": {}}, "its root"),
        ({"type": "object", "additionalProperties": TEXT}, "its root"),
        ({"type": "array", "items": TEXT}, "its root"),
        ({"type": "array", "maxItems": 3}, "its root"),
        (a_list({"type": "string"}), "/items"),
        (a_list(TEXT) | {"prefixItems": [TEXT, {"type": "string"}]}, "/prefixItems/1"),
        ({"anyOf": [TEXT, {"type": "string"}]}, "/anyOf/1"),
        ({"oneOf": [{"type": "object"}, TEXT]}, "/oneOf/0"),
        ({"allOf": [{"minLength": 1}, {"type": "string"}]}, "/allOf/0"),
        ({"$defs": {"a": {"type": "string"}}} | TEXT, "/$defs/a"),
        (an_object() | {"patternProperties": {"^a": TEXT}}, "its root"),
        ({"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, "/allOf/0/properties/a"),
    ],
)
def test_a_schema_without_bounds_is_refused_at_its_place(schema: Any, place: str):
    with pytest.raises(ValueError, match=r"add ") as refused:
        CompiledSchema(schema)
    assert f"The schema at {place} " in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["a", "b"]},
        {"type": "string", "const": "a"},
        {"type": "object", "const": {"$ref": "http://example.com/is-data-here"}},
        an_object(a={"type": ["string", "null"], "maxLength": 3}, b={"type": "boolean"}),
        an_object(a=TEXT) | {"anyOf": [{"required": ["a"]}, {"properties": {"a": {"minLength": 2}}}]},
        {"allOf": [TEXT, {"minLength": 1}]},
        {"$defs": {"node": an_object(next={"$ref": "#/$defs/node"})}, "$ref": "#/$defs/node"},
        an_object(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        an_object() | {"patternProperties": {"^a": TEXT}, "maxProperties": 3},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/facts", **TEXT},
    ],
)
def test_a_schema_with_bounds_is_taken(schema: Any):
    CompiledSchema(schema)


def test_a_schema_does_not_change_with_the_mapping_that_it_came_from():
    source = an_object(a=dict(TEXT))
    compiled = CompiledSchema(source)
    source["properties"]["b"] = TEXT
    assert [issue.rule for issue in compiled.issues({"b": "x"})] == ["additionalProperties"]
    assert "b" not in compiled.schema["properties"]
