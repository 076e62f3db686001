"""Fields that take exactly their type, in words that never repeat what was sent."""

import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import empty

from runtime_jobs.validation import strict
from runtime_protocol.wire.texts import parse_uuid

# A column of the database; no count or price comes near it.
LARGEST_COUNT = 2**53 - 1
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


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
        self._most, self.container = most_bytes, container

    def to_internal_value(self, data: Any) -> Any:
        if self.container and not isinstance(data, dict | list):
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
    MOST, LONGEST_NAME = 32, 100
    default_error_messages = {"too_many": "At most 32 labels of 1 to 100 characters are taken."}

    def __init__(self, **kwargs: Any) -> None:
        bounds = "At most 32; names of 1 to 100 characters, values of at most 200."
        super().__init__(child=Text(most=200, least=0), help_text=bounds, **kwargs)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type="value")
        if len(data) > self.MOST or any(not 1 <= len(name) <= self.LONGEST_NAME or not strict.is_storable(name) for name in data):
            self.fail("too_many")
        return super().to_internal_value(data)


def optional(field: type[Any], **kwargs: Any) -> Any:
    """A field of a request that may be left out, or be null, which means the same."""
    return field(required=False, allow_null=True, **kwargs)


def sometimes(field: type[Any], **kwargs: Any) -> Any:
    """A field of an answer that is left out when there is nothing to say; it is never null."""
    return field(required=False, **kwargs)
