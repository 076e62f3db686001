"""What a request and an answer are made of: fields under the names of the wire, read strictly, written plainly."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self
from uuid import UUID

from rest_framework import serializers

from runtime_protocol.wire.texts import camel, moment


class Dto(serializers.Serializer[None]):
    """A request or an answer, or a part of one. `example` is shown in the contract and is checked by a test.

    `also` is what the contract says of it beyond its fields, as JSON Schema: what `validate` checks.
    """

    example: ClassVar[Mapping[str, Any]] = {}
    also: ClassVar[Mapping[str, Any]] = {}
    default_error_messages = {"invalid": "A JSON object is needed.", "unknown": "There is no such field in this version of the protocol."}

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields = {}
        for name, field in super().get_fields().items():
            wire_name = camel(name)
            if wire_name != name:
                field.source = name
            fields[wire_name] = field
        return fields

    @classmethod
    @cache
    def shared(cls) -> Self:
        """The one instance whose fields all requests use: making them anew cost more than everything else of a request."""
        made = cls()
        made._writable_list  # noqa: B018 - built now, not by the first two requests at once
        return made

    @property
    def _writable_list(self) -> list[Any]:
        return list(self._writable_fields)

    @classmethod
    def parse(cls, data: Any) -> dict[str, Any]:
        """The values by their Python names; an optional one that was left out or null is missing. Raises ValidationError."""
        return cls.shared().run_validation(data)  # type: ignore[no-any-return]

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if type(data) is not dict:
            raise serializers.ValidationError({"": [self.error_messages["invalid"]]}, code="invalid")
        unknown = data.keys() - self.fields.keys()
        if unknown:
            # Before all else: a field of a newer version explains what else is wrong.
            raise serializers.ValidationError(
                {_printable(name): [self.error_messages["unknown"]] for name in sorted(unknown)[:20]}, code="unknown"
            )
        given = {name: value for name, value in data.items() if value is not None or self.fields[name].required}
        return super().to_internal_value(given)  # type: ignore[no-any-return]

    @classmethod
    @cache
    def _outline(cls) -> dict[str, tuple[str, bool]]:
        return {name: (camel(name), field.required) for name, field in cls._declared_fields.items()}

    @classmethod
    def answer(cls, **values: Any) -> dict[str, Any]:
        """The wire's form of an answer: None is left out, and only optional fields may be None. Raises TypeError on a wrong name."""
        made, outline = {}, cls._outline()
        if not values.keys() <= outline.keys():
            raise TypeError(f"{cls.__name__} has no {sorted(values.keys() - outline.keys())}")
        for name, (wire_name, required) in outline.items():
            value = values.get(name)
            if value is not None:
                made[wire_name] = _plain(value)
            elif required:
                raise TypeError(f"{cls.__name__} needs {name}")
        return made


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value


def _printable(name: str) -> str:
    return name[:100].encode(errors="replace").decode().replace("\x00", "�")


def many(dto: type[Dto], *, least: int = 0, most: int, required: bool = True) -> Any:
    """A list of DTOs in a request; one that may be left out may be null too."""
    made: Any = dto  # with many=True the class makes a list of itself, whose bounds the stubs do not know
    return made(many=True, min_length=least or None, max_length=most, required=required, allow_null=not required)


def issues(detail: Any, path: str = "") -> Iterator[dict[str, str]]:
    """DRF's nested findings as a flat list, each at its JSON pointer."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            key = str(name).replace("~", "~0").replace("/", "~1")
            yield from issues(inner, path if name == "" else f"{path}/{key}")
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            yield from issues(inner, path if not isinstance(inner, dict) else f"{path}/{index}")
    else:
        yield {"path": path, "rule": getattr(detail, "code", "invalid"), "message": str(detail)}
