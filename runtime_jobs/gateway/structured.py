"""A JSON Schema as the providers' constrained decoding takes it.

Both big providers answer 400 to a keyword they do not know: OpenAI's strict mode refuses lengths and optional members,
Anthropic's refuses lengths, ranges and counts. So the schema is cut down to the shape, which is what a decoder can enforce, and
what was cut is said in the description. Nothing is lost: the output chain checks the whole schema in any case.
"""

import json
from collections.abc import Mapping
from typing import Any

_SHAPE = frozenset({"type", "title", "description", "enum", "const"})
_BOUNDS = (
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
)
_MAX_DEPTH = 32


class _CannotExpress(Exception):
    """The schema says something that constrained decoding cannot."""


def strict_schema(schema: Mapping[str, Any], *, all_required: bool) -> dict[str, Any] | None:
    """The shape of `schema` for constrained decoding, or None where it has none that would do.

    Objects are closed. With `all_required` (OpenAI) an optional member cannot be expressed: requiring it would make the model
    invent a value.
    """
    if schema.get("type") != "object":
        return None
    try:
        shape = _shape(schema, all_required, _MAX_DEPTH)
        for name in ("$defs", "definitions"):
            if name in schema:
                shape[name] = {key: _shape(part, all_required, _MAX_DEPTH) for key, part in schema[name].items()}
    except (_CannotExpress, AttributeError, TypeError):
        return None
    return shape


def instruction(schema: Mapping[str, Any]) -> str:
    """The schema as a sentence of the prompt, for providers and schemas without constrained decoding."""
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"Answer with one JSON document that satisfies this JSON Schema, and with nothing else:\n{text}"


def _shape(node: Mapping[str, Any], all_required: bool, depth: int) -> dict[str, Any]:
    if depth == 0:
        raise _CannotExpress
    if "$ref" in node:
        if not str(node["$ref"]).startswith("#"):
            raise _CannotExpress
        return {"$ref": node["$ref"]}
    kept = {name: value for name, value in node.items() if name in _SHAPE}
    if "anyOf" in node:
        kept["anyOf"] = [_shape(part, all_required, depth - 1) for part in node["anyOf"]]
    kinds = node.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "object" in kinds:
        kept.update(_object(node, all_required, depth))
    if "array" in kinds:
        if "items" not in node:
            raise _CannotExpress
        kept["items"] = _shape(node["items"], all_required, depth - 1)
    if not kept.keys() & {"type", "anyOf", "enum", "const"}:
        raise _CannotExpress
    return _with_bounds(kept, node)


def _object(node: Mapping[str, Any], all_required: bool, depth: int) -> dict[str, Any]:
    members: Mapping[str, Any] = node.get("properties", {})
    required = [name for name in node.get("required", ()) if name in members]
    # A map with free names cannot be closed; one without a rule can, since what a closed one allows an open one allows too.
    if not members or node.get("additionalProperties", False) not in (False, True) or (all_required and len(required) < len(members)):
        raise _CannotExpress
    return {
        "properties": {name: _shape(part, all_required, depth - 1) for name, part in members.items()},
        "required": required,
        "additionalProperties": False,
    }


def _with_bounds(kept: dict[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    bounds = ", ".join(f"{name} {json.dumps(node[name], ensure_ascii=False)}" for name in _BOUNDS if name in node)
    if bounds:
        kept["description"] = f"{kept.get('description', '')} ({bounds})".strip()
    return kept
