"""The few statements that every job runs: prepared once per connection, bound by the server.

Django binds in the client and never prepares (psycopg's prepare_threshold is None there), so the server would parse and plan each of these
long statements every time.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections

_generic: WeakSet[psycopg.Connection[Any]] = WeakSet()
_PARAMETER = re.compile(r"%\((\w+)\)s")


@cache
def numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """The statement with $1, $2 … in place of %(name)s, and the names in that order.

    psycopg would do it anew for each execution: it remembers only what is shorter than 4,096 characters.
    """
    names = tuple(dict.fromkeys(_PARAMETER.findall(statement)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%"), names


def run(statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Execute on Django's current connection and transaction, and return the rows. Raises Django's database errors."""
    wrapper = connections[DEFAULT_DB_ALIAS]  # once: `connection` looks it up for each attribute
    wrapper.ensure_connection()
    if wrapper.execute_wrappers or wrapper.queries_logged:
        # Somebody looks at the queries (a test, a debugger): by Django's own way.
        with wrapper.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []
    wrapper.validate_no_broken_transaction()
    text, names = numbered(statement)
    with wrapper.wrap_database_errors, psycopg.RawCursor(wrapper.connection) as cursor:
        if wrapper.connection not in _generic:
            # Else the server may plan the claim anew each time, which takes longer than running it. Nothing else on it is prepared.
            cursor.execute("SET plan_cache_mode = force_generic_plan")
            _generic.add(wrapper.connection)
        cursor.execute(text, [parameters[name] for name in names], prepare=True)
        # Not `description`, which makes an object for each column.
        return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []
