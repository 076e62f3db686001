"""The recorded statements of an endpoint, executed by a plain Django view: the least that its work can cost in Django.

What differs from request to request is put into the recorded parameters: the job, the hash of its token, and what is made anew. That is
compiled once, so that it costs next to nothing.
"""

import json
import os
import pickle
import re
import secrets
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection
from django.http import HttpRequest, JsonResponse
from psycopg.types.json import Jsonb

from runtime_jobs.models.base import new_id

with open(os.environ["BENCH_SAID"], "rb") as opened:
    RECORDED: dict[str, Any] = pickle.load(opened)  # noqa: S301 - our own file
JOB_ID, HASH = RECORDED["job_id"], RECORDED["hash"]
_KNOWN = re.compile(f"({HASH}|[0-9a-f]{{8}}-[0-9a-f]{{4}}-7[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}})")

Values = dict[Any, Any]
Made = Callable[[Values], Any]


def _compile(value: Any) -> Made | None:
    """From this request's values to the parameter; None when it is always the same."""
    if isinstance(value, UUID):
        if value == JOB_ID:
            return lambda values: values["job_id"]
        # Made in the request: anew in each, and within one the same.
        return (lambda values: values.get(value) or values.setdefault(value, new_id())) if _is_new(value) else None
    if isinstance(value, str):
        return _compile_text(value)
    if isinstance(value, Jsonb):
        inner = _compile(value.obj)
        return None if inner is None else lambda values: Jsonb(inner(values))
    if isinstance(value, list | tuple):
        kind, parts = type(value), [(part, _compile(part)) for part in value]
        if not any(made for _, made in parts):
            return None
        return lambda values: kind(part if made is None else made(values) for part, made in parts)
    if isinstance(value, dict):
        named = {name: made for name, part in value.items() if (made := _compile(part))}
        return (lambda values: {**value, **{name: made(values) for name, made in named.items()}}) if named else None
    return None


def _compile_text(text: str) -> Made | None:
    pieces = [(piece, (lambda values: values["hash"]) if piece == HASH else _compile_id(piece)) for piece in _KNOWN.split(text)]
    if not any(made for _, made in pieces):
        return None
    return lambda values: "".join(piece if made is None else str(made(values)) for piece, made in pieces)


def _compile_id(text: str) -> Made | None:
    return _compile(UUID(text)) if _KNOWN.fullmatch(text) else None


def _is_new(value: UUID) -> bool:
    return value.version == 7 and bool((value.int >> 80) / 1_000 >= RECORDED["since"])


def replay(name: str) -> Callable[[HttpRequest], JsonResponse]:
    statements = [(text, query, params, _compile(params), prepared) for text, query, params, prepared in RECORDED["said"][name]]
    answer = RECORDED["answers"][name]

    def view(request: HttpRequest) -> JsonResponse:
        given = json.loads(request.body)
        is_poll = name == "poll"
        values: Values = {"hash": secrets.token_hex(32), "job_id": None} if is_poll else {"hash": given["hash"], "job_id": given["jobId"]}
        if not is_poll:
            values["job_id"] = UUID(given["jobId"])
        connection.ensure_connection()
        for text, query, params, made, prepared in statements:
            if text == "BEGIN":
                connection.set_autocommit(False)
            elif text == "COMMIT":
                connection.commit()
                connection.set_autocommit(True)
            else:
                rows = _execute(query, params if made is None else made(values), prepared)
                if is_poll and values["job_id"] is None and "SKIP LOCKED" in query and rows:
                    values["job_id"] = rows[0].get("job_id")
        return JsonResponse({**answer, "jobId": str(values["job_id"]), "hash": values["hash"]})

    return view


def _execute(query: str, params: Any, prepared: bool) -> list[dict[str, Any]]:
    if prepared:
        with psycopg.RawCursor(connection.connection) as cursor:
            cursor.execute(query, params, prepare=True)
            return _rows(cursor)
    with connection.cursor() as wrapper:
        wrapper.execute(query, params)
        return _rows(wrapper)


def _rows(cursor: Any) -> list[dict[str, Any]]:
    if not cursor.description:
        return []
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
