"""JSON Schema 2020-12 as definitions use it: compiled at start-up, offline, in linear time, and silent about the values it refuses.

Traps of jsonschema-rs 0.61 that this module is built around: `iter_errors` makes all errors before it yields the first (300,000 errors
took 2.5 s and 450 MB); the mask does not cover the names of unexpected members; an integer of 4,300 digits passes every `maximum`;
another `$schema` is ignored.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

from runtime_jobs.errors import Issue

MAX_ISSUES = 20
MAX_INSTANCE_DEPTH = 64
MAX_POINTER_CHARACTERS = 500
# Beyond so many values only the first error is looked for, see above.
MAX_VALUES_FOR_ALL_ISSUES = 5_000
MAX_INTEGER_BITS = 4_096

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MASK = "[…]"


class CompiledSchema:
    """A schema of a definition. Every value that it admits has a bounded size: see `_unbounded` for the rule.

    Raises ValueError, with a sentence that names the place, when the schema is broken, refers to anything outside itself, or admits
    values without a bound.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = _plain(schema)
        try:
            _refuse_foreign_references(self.schema, "")
            self._validator = _compile(self.schema)
            for pointer, problem in _unbounded(self.schema, "", self.schema):
                raise ValueError(f"The schema at {pointer or 'its root'} {problem}.")
        except RecursionError:
            raise ValueError("The schema is nested too deeply.") from None

    def issues(self, instance: Any) -> tuple[Issue, ...]:
        """What is wrong with a value: empty when it is valid, else at most MAX_ISSUES findings that hold no data of the instance."""
        values, unfit = _measure(instance)
        if unfit:
            return (unfit,)
        try:
            if self._validator.is_valid(instance):
                return ()
            if values > MAX_VALUES_FOR_ALL_ISSUES:
                self._validator.validate(instance)
            return tuple(_issue(error) for error, _ in zip(self._validator.iter_errors(instance), range(MAX_ISSUES), strict=False))
        except ValidationError as error:
            return (_issue(error),)
        except ValueError:
            # A key that is no string, a date, a set: nothing that was read as JSON.
            return (Issue("", "json", "The value is not plain JSON."),)


def pointer_of(path: list[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a path; cut where a long one would only repeat what a model made up."""
    pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return pointer if len(pointer) <= MAX_POINTER_CHARACTERS else pointer[: MAX_POINTER_CHARACTERS - 1] + "…"


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of our own, so that nobody changes it later, of what must be plain JSON."""
    try:
        copy = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The schema is not plain JSON: {error}.") from None
    if not isinstance(copy, dict):
        raise ValueError("The schema is not an object.")
    dialect = copy.get("$schema", DIALECT)
    if dialect != DIALECT:
        raise ValueError(f"The schema is written for {dialect}, not for {DIALECT}.")
    return copy


def _compile(schema: dict[str, Any]) -> Draft202012Validator:
    try:
        return _validator(schema, mask=_MASK)
    except ValidationError:
        # The mask hides the schema too, which is no secret: once more, for a message that says what is wrong.
        try:
            _validator(schema, mask=None)
        except ValidationError as error:
            raise ValueError(f"The schema is broken at {pointer_of(error.instance_path) or 'its root'}: {error.message}.") from None
        raise
    except ValueError as error:
        raise ValueError(f"The schema cannot be compiled: {error}.") from None


def _validator(schema: dict[str, Any], mask: str | None) -> Draft202012Validator:
    return Draft202012Validator(
        schema,
        offline=True,
        mask=mask,
        validate_formats=True,
        ignore_unknown_formats=False,
        # The linear engine: look-around and back-references are refused here, not at run time.
        pattern_options=RegexOptions(),
    )


# -- What an instance must be before the validator sees it


def _measure(instance: Any) -> tuple[int, Issue | None]:
    """How many values the instance has, and what makes it unfit for the validator, which recurses and trusts numbers."""
    values, level, depth = 0, [instance], 0
    while level:
        values += len(level)
        if any(_is_unsafe_number(value) for value in level):
            return values, Issue("", "number", "A number is not finite or has too many digits.")
        level = [child for value in level for child in _children(value)]
        depth += 1
        if depth >= MAX_INSTANCE_DEPTH and any(isinstance(value, (dict, list)) for value in level):
            return values, Issue("", "maxDepth", f"The value is nested deeper than {MAX_INSTANCE_DEPTH} levels.")
    return values, None


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_unsafe_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS


# -- What is said about an invalid one


def _issue(error: ValidationError) -> Issue:
    rule = error.kind.name
    return Issue(pointer_of(error.instance_path), rule, _MESSAGES.get(rule, "Does not match the schema.").format(**_details(error)))


def _details(error: ValidationError) -> dict[str, Any]:
    """What the schema says, never what the instance says: for the keywords whose message needs it."""
    kind: Any = error.kind
    match error.kind.name:
        case "required":
            return {"property": kind.property}
        case "type":
            return {"types": " or ".join(sorted(kind.types))}
        case "format":
            return {"format": kind.format}
        case "multipleOf":
            return {"limit": kind.multiple_of}
        case name:
            return {"limit": kind.limit} if "{limit}" in _MESSAGES.get(name, "") else {}


_MESSAGES = {
    "additionalProperties": "Has a member that is not in the schema.",
    "anyOf": "Matches none of the allowed forms.",
    "const": "Is not the only allowed value.",
    "contains": "Has too few or too many items of the required form.",
    "enum": "Is not one of the allowed values.",
    "exclusiveMaximum": "Must be less than {limit}.",
    "exclusiveMinimum": "Must be greater than {limit}.",
    "falseSchema": "Must not be there.",
    "format": "Is not a valid {format}.",
    "maxItems": "Has more than {limit} items.",
    "maxLength": "Is longer than {limit} characters.",
    "maxProperties": "Has more than {limit} members.",
    "maximum": "Is greater than {limit}.",
    "minItems": "Has fewer than {limit} items.",
    "minLength": "Is shorter than {limit} characters.",
    "minProperties": "Has fewer than {limit} members.",
    "minimum": "Is less than {limit}.",
    "multipleOf": "Is not a multiple of {limit}.",
    "not": "Has a form that is not allowed.",
    "oneOf": "Matches none, or more than one, of the allowed forms.",
    "pattern": "Does not match the required pattern.",
    "propertyNames": "Has a member whose name is not allowed.",
    "required": "Lacks the member {property}.",
    "type": "Is not of type {types}.",
    "unevaluatedItems": "Has an item that is not in the schema.",
    "unevaluatedProperties": "Has a member that is not in the schema.",
    "uniqueItems": "Has the same item twice.",
}


# -- What a schema must be

# Where schemas stand inside a schema. Elsewhere (enum, const, default, examples) a "$ref" is data.
_SCHEMA_KEYWORDS = (
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def _subschemas(schema: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for keyword in _SCHEMA_KEYWORDS:
        if keyword in schema:
            yield f"{pointer}/{keyword}", schema[keyword]
    for keyword in _SCHEMA_LIST_KEYWORDS:
        if isinstance(schema.get(keyword), list):
            yield from ((f"{pointer}/{keyword}/{index}", part) for index, part in enumerate(schema[keyword]))
    for keyword in _SCHEMA_MAP_KEYWORDS:
        if isinstance(schema.get(keyword), dict):
            yield from ((pointer + pointer_of([keyword, name]), part) for name, part in schema[keyword].items())


def _refuse_foreign_references(schema: Any, pointer: str) -> None:
    """A schema refers to its own $defs or its root and to nothing else: no file, no network, no change of base."""
    if not isinstance(schema, dict):
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and not (reference == "#" or (reference.startswith("#/$defs/") and reference.count("/") == 2)):
        raise ValueError(f"The schema at {pointer or 'its root'} refers to {reference}; only # and #/$defs/… may be referred to.")
    for keyword in ("$dynamicRef", "$recursiveRef", "$id") if pointer else ("$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            raise ValueError(f"The schema at {pointer or 'its root'} has {keyword}; only $ref within the schema is supported.")
    for place, part in _subschemas(schema, pointer):
        _refuse_foreign_references(part, place)


def _unbounded(schema: Any, pointer: str, root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a schema admits values of any size, and why.

    Each place of a value says its type, or an enum or const, a $ref, or a choice of such. A string has maxLength, an array maxItems and
    items, an object additionalProperties: false (or unevaluatedProperties: false; with patternProperties also maxProperties). The other
    keywords can only narrow that and are free. A string in an input schema may be long: what counts is that there is a bound.
    """
    if isinstance(schema, dict):
        for name, part in schema.get("$defs", {}).items():
            yield from _unbounded(part, pointer + pointer_of(["$defs", name]), root)
    if schema is False or (isinstance(schema, dict) and ("enum" in schema or "const" in schema)):
        return
    if schema is True or "type" not in schema:
        yield from _unbounded_choice({} if schema is True else schema, pointer, root)
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "string" in types and "maxLength" not in schema:
        yield pointer, "admits strings of any length: add maxLength"
    if "array" in types:
        yield from _unbounded_array(schema, pointer, root)
    if "object" in types:
        yield from _unbounded_object(schema, pointer, root)


def _unbounded_choice(schema: dict[str, Any], pointer: str, root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A schema without a type: something else in it must bound it. One bounded part of allOf is enough; of a choice all must be."""
    if "$ref" in schema:
        if _refers_to_itself(schema, root):
            yield pointer, "refers only to itself"
        return  # its target is looked at in its own place
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            for index, part in enumerate(schema[keyword]):
                yield from _unbounded(part, f"{pointer}/{keyword}/{index}", root)
            return
    parts = [list(_unbounded(part, f"{pointer}/allOf/{index}", root)) for index, part in enumerate(schema.get("allOf", []))]
    if not parts:
        yield pointer, "admits values of any type: add a type, enum, const or $ref"
    elif all(parts):
        yield from parts[0]


def _refers_to_itself(schema: Any, root: dict[str, Any]) -> bool:
    """Whether following $ref from here only ever finds another $ref."""
    seen = set()
    while isinstance(schema, dict) and "$ref" in schema and "type" not in schema:
        reference = schema["$ref"]
        if reference in seen:
            return True
        seen.add(reference)
        name = reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
        schema = root if reference == "#" else root["$defs"].get(name)
    return False


def _unbounded_array(schema: dict[str, Any], pointer: str, root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "maxItems" not in schema:
        yield pointer, "admits arrays of any length: add maxItems"
    for index, part in enumerate(schema.get("prefixItems", [])):
        yield from _unbounded(part, f"{pointer}/prefixItems/{index}", root)
    if "items" in schema:
        yield from _unbounded(schema["items"], f"{pointer}/items", root)
    else:
        yield pointer, "admits items of any form: add items"


def _unbounded_object(schema: dict[str, Any], pointer: str, root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    closed, combined = schema.get("additionalProperties") is False, schema.get("unevaluatedProperties") is False
    if not (closed or combined):
        yield pointer, "admits members of any name: add additionalProperties: false"
    if "patternProperties" in schema and "maxProperties" not in schema:
        yield pointer, "admits any number of members: add maxProperties"
    # With unevaluatedProperties, the parts that are combined declare members too.
    for place, part in _members(schema, pointer, with_parts=not closed):
        yield from _unbounded(part, place, root)


def _members(schema: Any, pointer: str, *, with_parts: bool) -> Iterator[tuple[str, Any]]:
    for place, part in _subschemas(schema, pointer):
        keyword = place[len(pointer) + 1 :].split("/")[0]
        if keyword in ("properties", "patternProperties"):
            yield place, part
        elif with_parts and keyword in ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"):
            yield from _members(part, place, with_parts=True)
