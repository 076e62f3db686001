"""What all tables share."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any
from uuid import UUID

import pgtrigger
from django.db import models
from django.utils.translation import gettext_lazy
from uuid_utils.compat import uuid7


def new_id() -> UUID:
    """A UUID of version 7: new rows land at the end of the index, and ordering by id is ordering by age (RFC 9562 §5.7)."""
    return uuid7()


def choices(values: Iterable[StrEnum]) -> list[tuple[str, Any]]:
    # Translated where the catalogue has the words: it gets them from admin/vocabulary.py and field_names.py.
    return [(str(value), gettext_lazy(str(value).replace("_", " "))) for value in values]


def sql_list(values: Iterable[str]) -> str:
    """`'a', 'b'` for an IN (…) made of our own constants."""
    return ", ".join(f"'{value}'" for value in sorted(values))


class UuidModel(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)

    class Meta:
        abstract = True


def no_truncate() -> pgtrigger.Trigger:
    """TRUNCATE would pass by every row trigger."""
    return pgtrigger.Trigger(
        name="no_truncate",
        when=pgtrigger.Before,
        operation=pgtrigger.Truncate,
        level=pgtrigger.Statement,
        func="RAISE EXCEPTION 'table % is not truncated; use manage.py prune', TG_TABLE_NAME USING ERRCODE = 'check_violation';",
    )


def delete_only_by_prune() -> pgtrigger.Trigger:
    """Rows leave by `manage.py prune` alone, which lifts this trigger for its own transaction (pgtrigger.ignore)."""
    return pgtrigger.Protect(name="no_delete", operation=pgtrigger.Delete)
