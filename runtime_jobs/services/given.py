"""Statements about rows that the caller has in hand: bound value by value for one row, sent as JSON for several.

(Taking JSON apart costs the server more than the row is worth when there is only one.)
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from runtime_jobs import prepared


class GivenStatement:
    """A statement that begins after `WITH given AS (…)`, a relation with these columns (name: SQL type). Prepared."""

    def __init__(self, columns: Mapping[str, str], statement: str) -> None:
        self._columns = columns
        # As text: psycopg sends a number as int2, int4 or int8 by its size, and each mix would be a prepared statement of its own.
        values = ", ".join(f"%({name})s::text::{kind} AS {name}" for name, kind in columns.items())
        names = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        self._one = f"WITH given AS MATERIALIZED (SELECT {values}){statement}"
        # The LIMIT tells the planner that there are few.
        self._many = f"WITH given AS MATERIALIZED (SELECT * FROM jsonb_to_recordset(%(given)s) AS g({names}) LIMIT %(count)s){statement}"  # noqa: S608 - our own constants

    def run(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """`rows` as JSON has them: a UUID or Decimal as text, a jsonb column as what it holds. Raises Django's database errors."""
        if len(rows) == 1:
            return prepared.run(self._one, {name: _as_text(rows[0][name], kind) for name, kind in self._columns.items()})
        return prepared.run(self._many, {"given": Jsonb(list(rows)), "count": len(rows)})


def _as_text(value: Any, kind: str) -> str | None:
    if kind == "jsonb":
        return json.dumps(value)
    return None if value is None else str(value)
