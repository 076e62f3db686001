"""Records what the engine says to PostgreSQL for a batch of jobs, and writes it as a pgbench script that does the same for any jobs.

The attempts run here, one after the other, by the engine's own code; psycopg's cursors are listened to. What differs from job to job
becomes a variable: the jobs' ids (read from the claim), the tokens, and every UUID that was made during the recording. Statements that the
engine prepares are prepared once per client, the others are sent as they were.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import TransactionStatus

_UUID = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-?[0-9a-f]{4}-?7[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}(?![0-9a-f])")
_NUMBER = re.compile(r"\$(\d+)")
_NIL = "00000000-0000-0000-0000-000000000000"


@dataclass
class Said:
    """One statement: as text with everything in it, and for a prepared one its parts."""

    text: str
    prepared: str = ""  # with $1, $2 …
    arguments: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    query: str = ""  # as psycopg got it, for the plain view
    params: Any = None
    is_prepared: bool = False


class Recorder:
    def __init__(self) -> None:
        self.said: list[Said] = []
        self.claim: Said | None = None
        self.claim_column = ""
        self.transactions = 0

    def __enter__(self) -> "Recorder":
        self._execute, self._commit = psycopg.Cursor.execute, psycopg.Connection.commit
        recorder = self

        def execute(cursor: Any, query: Any, params: Any = None, *, prepare: bool | None = None, **options: Any) -> Any:
            return recorder._record(cursor, query, params, prepare, options)

        def commit(made: Any) -> None:
            if made.info.transaction_status != TransactionStatus.IDLE:
                recorder.said.append(Said("COMMIT"))
            recorder._commit(made)

        psycopg.Cursor.execute, psycopg.Connection.commit = execute, commit  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        psycopg.Cursor.execute, psycopg.Connection.commit = self._execute, self._commit  # type: ignore[method-assign]

    def _record(self, cursor: Any, query: Any, params: Any, prepare: bool | None, options: Any) -> Any:
        made = cursor.connection
        if made.info.transaction_status == TransactionStatus.IDLE:
            self.transactions += 1
            if not made.autocommit:
                self.said.append(Said("BEGIN"))
        text = query.as_string(made) if isinstance(query, sql.Composable) else query if isinstance(query, str) else query.decode()
        is_raw = isinstance(cursor, psycopg.RawCursor)
        said = Said("" if is_raw else psycopg.ClientCursor(made).mogrify(query, params), query=text, params=params, is_prepared=is_raw)
        done = self._execute(cursor, query, params, prepare=prepare, **options)
        if is_raw:
            said.prepared = text
            said.arguments = [sql.Literal(value).as_string(made) for value in params]
            said.types = [_type(made, value) for value in params]
            said.text = _NUMBER.sub(lambda found: said.arguments[int(found[1]) - 1], text)
        self.said.append(said)
        if self.claim is None and "SKIP LOCKED" in text and cursor.pgresult.ntuples:
            self.claim, self.claim_column = said, _id_column(cursor)
        return done


def _type(made: Any, value: Any) -> int:
    return 0 if value is None else Transformer(made).get_dumper(value, PyFormat.AUTO).oid


def _id_column(cursor: Any) -> str:
    """The claim's column that holds the job's id."""
    return next(str(column.name) for column in cursor.description if column.name == "job_id")


def capture(batch: int) -> dict[str, Any]:
    """The script, and how many statements and transactions it has for the batch."""
    from runtime_jobs.abort import AbortSignal
    from runtime_jobs.engine.attempt import run_attempt
    from runtime_jobs.engine.lane import LaneWorker
    from runtime_jobs.services.calling import make_service
    from runtime_jobs.services.tokens import token_hash

    service, lane = make_service(), LaneWorker("interactive")

    def work(count: int) -> list[tuple[Any, Any]]:
        # What a lane does in several threads, in one: the order of the statements is then the order of the script.
        claimed = lane._claim(count)
        return [(claim, run_attempt(claim, AbortSignal(60), service, item)) for claim, item in claimed]

    work(1)  # some things are looked up once in a worker's life
    since = time.time()
    time.sleep(0.01)
    with Recorder() as recorder:
        done = work(batch)
    if len(done) != batch or recorder.claim is None or not all(end and end.job_status == "succeeded" for _, end in done):
        raise RuntimeError(f"of {batch} jobs were claimed and ended: {[end for _, end in done]}")
    script = Script(recorder, [(claim.job_id, token_hash(claim.token)) for claim, _ in done], since)
    return {"script": script.text(), "statements": len(recorder.said), "transactions": recorder.transactions}


class Script:
    def __init__(self, recorder: Recorder, held: list[tuple[UUID, str]], since: float) -> None:
        """`held`: job and hash of the token of each claim."""
        self._recorder = recorder
        self._jobs = {job_id: f"job{number}" for number, (job_id, _) in enumerate(held, start=1)}
        self._hashes = {token_hash: f"hash{number}" for number, (_, token_hash) in enumerate(held, start=1)}
        self._since = since
        self._made: dict[UUID, str] = {}
        self._prepared: dict[str, str] = {}

    def text(self) -> str:
        body = [self._statement(said) for said in self._recorder.said]
        fresh = [f"gen_random_uuid() AS {name}" for name in self._made.values()]
        fresh += [f"md5(random()::text) || md5(random()::text) AS {name}" for name in self._hashes.values()]
        return "\n".join([r"\if :new", *self._preparations, r"\set new 0", r"\endif", f"SELECT {', '.join(fresh)} \\gset", *body])

    @property
    def _preparations(self) -> list[str]:
        return [f"{statement};" for statement in self._prepared]

    def _statement(self, said: Said) -> str:
        is_claim = said is self._recorder.claim
        end = " \\gset" if is_claim else ";"
        wrap: Callable[[str], str] = self._in_one_row if is_claim else lambda text: text
        if not said.prepared:
            return self._with_variables(wrap(said.text)) + end
        made = f"({', '.join(self._type_names(said.types))})" if said.types else ""
        known = f"{made} AS {wrap(said.prepared)}"
        name = next((name for statement, name in self._prepared.items() if statement.endswith(known)), "")
        if not name:
            name = f"said{len(self._prepared)}"
            self._prepared[f"PREPARE {name}{known}"] = name
        arguments = f"({', '.join(said.arguments)})" if said.arguments else ""
        return self._with_variables(f"EXECUTE {name}{arguments}") + end

    def _in_one_row(self, text: str) -> str:
        """The claim, so that pgbench can read the jobs' ids: \\gset takes one row."""
        text = re.sub(r"--[^\n]*", "", text)
        depth, at = 0, -1
        for match in re.finditer(r"'(?:[^']|'')*'|[()]|\bSELECT\b", text):
            if match[0] in "()":
                depth += 1 if match[0] == "(" else -1
            elif match[0] == "SELECT" and depth == 0:
                at = match.start()
        column = self._recorder.claim_column
        ids = [
            f"coalesce((array_agg(one.{column}))[{number}]::text, '{_NIL}') AS {name}"
            for number, name in enumerate(self._jobs.values(), start=1)
        ]
        return f"{text[:at].rstrip()}, one AS ({text[at:].rstrip()}) SELECT {', '.join(ids)} FROM one"

    def _with_variables(self, text: str) -> str:
        for known, name in self._hashes.items():
            text = text.replace(known, f":{name}")
        return _UUID.sub(self._variable, text)

    def _variable(self, match: re.Match[str]) -> str:
        value = UUID(match[0])
        if value in self._jobs:
            return f":{self._jobs[value]}"
        if (value.int >> 80) / 1_000 < self._since:
            return match[0]  # it was there before: a credential, a snapshot
        return ":" + self._made.setdefault(value, f"made{len(self._made)}")

    @staticmethod
    def _type_names(oids: list[int]) -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT coalesce(nullif(o, 0)::regtype::text, 'unknown') FROM unnest(%s::oid[]) WITH ORDINALITY AS t(o, n) ORDER BY n",
                [oids],
            )
            return [row[0] for row in cursor.fetchall()]
