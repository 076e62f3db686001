"""What stands on the wire: JSON read strictly, fields that take exactly their type, and names that are mapped once, by declared field.

A DTO declares its fields in snake_case; on the wire they are camelCase. Only declared names are mapped: JSON that belongs to a job
(payload, checkpoint, validatedOutput) is never walked for names.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import empty

from runtime_jobs.validation import strict

PROTOCOL_VERSION = "1.0"
MIN_PROTOCOL_VERSION = "1.0"
LARGEST_INTEGER = 2**63 - 1
# A column of the database; no count or price comes near it.
LARGEST_COUNT = 2**53 - 1

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
# Cheap to look for; only then is it worth to walk over all numbers.
_LONG_DIGITS = re.compile(r"\d{19}", re.ASCII)


class Malformed(ValueError):
    """The body is no JSON as we take it. `reason` is one of strict.Reason, or not_utf8."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.position = reason, position


def read(body: bytes) -> Any:
    """One JSON document. Refused: bad UTF-8, duplicate keys, NaN and Infinity, more than 64 levels, integers beyond 64 bits.

    NUL and lone surrogates pass: what becomes of them is for each field to say. Raises Malformed.
    """
    try:
        text = body.decode()
        value = strict.loads(text, storable=False)
    except UnicodeDecodeError as error:
        raise Malformed("not_utf8", error.start) from None
    except strict.Unreadable as error:
        raise Malformed(str(error.reason), error.position) from None
    if _LONG_DIGITS.search(text) and any(not -(2**63) <= number <= LARGEST_INTEGER for number in _integers(value)):
        raise Malformed(str(strict.Reason.NUMBER_OUT_OF_RANGE))
    return value


def _integers(value: Any) -> Iterator[int]:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is int:
            yield item
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())


def camel(name: str) -> str:
    """job_id → jobId"""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def moment(value: datetime) -> str:
    """RFC 3339, UTC, milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_uuid(text: str) -> UUID | None:
    return UUID(text) if _UUID.fullmatch(text) else None


class _Strict:
    """Words that never repeat what was sent."""

    default_error_messages: ClassVar[dict[str, Any]] = {"required": "This field is required.", "null": "This field may not be null."}


class Text(_Strict, serializers.CharField):
    """A text of `least` to `most` characters that PostgreSQL can keep; else it is refused."""

    default_error_messages = {"invalid": "A text is needed.", "blank": "This text may not be empty."}

    def __init__(self, *, most: int, least: int = 1, pattern: str | None = None, **kwargs: Any) -> None:
        super().__init__(min_length=least or None, max_length=most, allow_blank=least == 0, trim_whitespace=False, **kwargs)
        if pattern:
            self.validators.append(RegexValidator(f"^{pattern}\\Z", message="This text does not have the required form."))

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(data)


@extend_schema_field({"type": "string"})
class FreeText(_Strict, serializers.Field[str, str, str, Any]):
    """A text of people or models, taken whatever it holds: what PostgreSQL cannot keep is replaced later, and the answer says so."""

    default_error_messages = {"invalid": "A text is needed."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(data)

    def to_representation(self, value: str) -> str:
        return value


class InstanceId(Text):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(most=128, pattern=r"[A-Za-z0-9._:-]{1,128}", **kwargs)


class LockToken(Text):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(most=128, help_text="A secret of this attempt.", **kwargs)


class Id(_Strict, serializers.UUIDField):
    default_error_messages = {"invalid": "A UUID is needed, as text with hyphens."}

    def to_internal_value(self, data: Any) -> UUID:
        found = parse_uuid(data) if isinstance(data, str) else None
        if found is None:
            self.fail("invalid")
        return found


class Whole(_Strict, serializers.IntegerField):
    default_error_messages = {"invalid": "A whole number is needed."}

    def __init__(self, *, least: int = 0, most: int = LARGEST_COUNT, **kwargs: Any) -> None:
        super().__init__(min_value=least, max_value=most, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        # 3.0 is a whole number in JSON.
        if isinstance(data, bool) or not isinstance(data, int | float) or data != data // 1:
            self.fail("invalid")
        return int(data)


class Number(_Strict, serializers.FloatField):
    """Seconds, fractions allowed."""

    default_error_messages = {"invalid": "A number is needed."}

    def __init__(self, *, least: float = 0, most: float = 1e9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.validators += [MinValueValidator(least), MaxValueValidator(most)]

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
            self.fail("invalid")
        return float(data)


class Flag(_Strict, serializers.BooleanField):
    default_error_messages = {"invalid": "true or false is needed."}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


class Choice(_Strict, serializers.ChoiceField):
    default_error_messages = {"invalid_choice": "This is not one of the values that are known here."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.choices:
            self.fail("invalid_choice")
        return data


class Moment(_Strict, serializers.DateTimeField):
    default_error_messages = {"invalid": "A time of RFC 3339 with its offset is needed, such as 2026-01-31T08:00:00.000Z."}

    def to_internal_value(self, value: Any) -> datetime:
        found = None
        if isinstance(value, str) and _MOMENT.fullmatch(value):
            try:
                found = parse_datetime(value)
                found = found and found.astimezone(UTC)
            except (ValueError, OverflowError):
                found = None
        if found is None:
            self.fail("invalid")
        return found


class Money(Text):
    """US dollars, as a decimal text: a JSON number would be rounded on the way."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(most=17, pattern=r"[0-9]{1,8}(?:\.[0-9]{1,8})?", help_text="Decimal text, US dollars.", **kwargs)

    def run_validation(self, data: Any = empty) -> Any:
        text = super().run_validation(data)
        return Decimal(text) if isinstance(text, str) else text


class Json(_Strict, serializers.JSONField):
    """JSON that belongs to the job, of at most `most_bytes` when written compactly."""

    default_error_messages = {
        "unstorable": "A text in it holds NUL or a lone surrogate, which cannot be stored.",
        "container": "A JSON object or array is needed.",
        "too_large": "At most {most:,} bytes are taken.",
    }

    def __init__(self, *, most_bytes: int | None = None, container: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._most, self._container = most_bytes, container

    def to_internal_value(self, data: Any) -> Any:
        if self._container and not isinstance(data, dict | list):
            self.fail("container")
        try:
            strict.check_storable(data)
        except strict.Unreadable:
            self.fail("unstorable")
        if self._most is not None and len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()) > self._most:
            self.fail("too_large", most=self._most)
        return data


class Texts(_Strict, serializers.ListField):
    def __init__(self, *, most: int, of: int, least: int = 0, **kwargs: Any) -> None:
        super().__init__(child=Text(most=of), max_length=most, min_length=least or None, **kwargs)

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            self.fail("not_a_list", input_type="value")
        return super().to_internal_value(data)


class Labels(_Strict, serializers.DictField):
    default_error_messages = {"too_many": "At most 32 labels of 1 to 100 characters are taken."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=Text(most=200, least=0), **kwargs)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type="value")
        if len(data) > 32 or any(not 1 <= len(name) <= 100 or not strict.is_storable(name) for name in data):
            self.fail("too_many")
        return super().to_internal_value(data)


class Dto(serializers.Serializer[None]):
    """A request or an answer, or a part of one. `example` is shown in the contract and is checked by a test."""

    example: ClassVar[Mapping[str, Any]] = {}
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


def optional(field: type[Any], **kwargs: Any) -> Any:
    """A field of a request that may be left out, or be null, which means the same."""
    return field(required=False, allow_null=True, **kwargs)


def sometimes(field: type[Any], **kwargs: Any) -> Any:
    """A field of an answer that is left out when there is nothing to say; it is never null."""
    return field(required=False, **kwargs)


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
