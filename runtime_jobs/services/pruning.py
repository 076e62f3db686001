"""Deleting what is older than the retention: finished jobs with all that is theirs, snapshots without a job, workers long gone.

Safe while the system runs, and beside another prune: every batch is one short transaction that skips whatever somebody else has locked.
A job is kept as long as another job names it as `retried_from_job`, one of its events is still undelivered (parked ones too: staff may
retry them), or a row of another table points at it or at something of its. Rows of other tables are never deleted: a foreign key keeps
the job whatever its `on_delete` says, but for SET_NULL, which says that the row can do without. An artifact that must not keep its job
holds the job's id as a plain UUID (synthetic/models.py).
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pgtrigger
from django.db import IntegrityError, connection, models, transaction
from django.db.models.functions import Now

from runtime_jobs.models import (
    AiEventDelivery,
    AiJobAttempt,
    AiJobEvent,
    AiJobSnapshot,
    AiRuntimeJob,
    AiRuntimeResult,
    AiUsageLog,
    RuntimeInstance,
)
from runtime_jobs.redaction import safe_trace

logger = logging.getLogger(__name__)

BATCH = 500
COUNT_CAP = 100_000
WORKER_UNSEEN_FOR = timedelta(days=1)

# What is a job's, children first, and the column that names the job.
_FAMILY: tuple[tuple[type[models.Model], str], ...] = (
    (AiEventDelivery, "job_id"),
    (AiJobEvent, "job_id"),
    (AiRuntimeResult, "job_id"),
    (AiUsageLog, "job_id"),
    (AiJobAttempt, "job_id"),
    (AiRuntimeJob, "id"),
)
_TABLES = [model._meta.db_table for model, _ in _FAMILY]
_NO_DELETE = [f"{model._meta.label}:no_delete" for model in (AiJobEvent, AiRuntimeJob, AiJobSnapshot)]

_FIRST, _KEPT_BY_RERUN = UUID(int=0), "another job is its rerun"


@dataclass
class Pruned:
    """What was deleted, or would be. `kept` counts the old jobs that stay, by reason."""

    jobs: int = 0
    snapshots: int = 0
    workers: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    more: bool = False  # a preview that ended at its limit


def prune_older_than(*, days: int, batch: int = BATCH, on_progress: Callable[[int], object] | None = None) -> Pruned:
    """Delete jobs that finished more than `days` days ago, at most `batch` in a transaction; then snapshots and workers.

    `on_progress` gets the number of jobs that were looked at since it was last called. Not to be called inside a transaction. What was
    locked, or was pointed at while it was being deleted, is left to the next prune.
    """
    pruned = Pruned()
    before = cutoff = _cutoff(days)
    before_id, held_by, nullable = _FIRST, _foreign_keys(), _nullable_relations()
    while True:
        seen: Sequence[tuple[datetime, UUID]] = ()
        try:
            with _may_delete():
                seen = _old_jobs(before, before_id, batch, lock=True)
                leaving, kept = _judge([job_id for _, job_id in seen], held_by, set())
                _delete_jobs(leaving, nullable)
        except IntegrityError as error:
            # Something pointed at a result or event just then: rows that are no job's own are not locked.
            logger.warning("prune: a batch of %d jobs stays until the next prune\n%s", len(seen), safe_trace(error))
            leaving, kept = [], Counter({"in a batch that changed meanwhile": len(seen)})
        pruned.jobs += len(leaving)
        pruned.kept += kept
        if on_progress is not None:
            on_progress(len(seen))
        if len(seen) < batch:
            break
        before, before_id = seen[-1]
    pruned.snapshots = _prune_snapshots(cutoff, batch)
    pruned.workers, _ = RuntimeInstance.objects.filter(last_seen_at__lt=Now() - WORKER_UNSEEN_FOR).delete()
    return pruned


def preview(*, days: int, batch: int = BATCH, limit: int = COUNT_CAP) -> Pruned:
    """What `prune_older_than` would do with the jobs, without a lock; it looks at `limit` jobs at the most."""
    pruned = Pruned()
    before, before_id = _cutoff(days), _FIRST
    held_by = _foreign_keys()
    all_leaving: set[UUID] = set()
    looked = 0
    while True:
        seen = _old_jobs(before, before_id, min(batch, limit - looked), lock=False)
        leaving, kept = _judge([job_id for _, job_id in seen], held_by, all_leaving)
        all_leaving.update(leaving)
        pruned.kept += kept
        looked += len(seen)
        if looked >= limit or len(seen) < batch:
            break
        before, before_id = seen[-1]
    pruned.jobs, pruned.more = len(all_leaving), looked >= limit
    return pruned


def count_old(*, days: int) -> int:
    """How many finished jobs are older, to COUNT_CAP."""
    return AiRuntimeJob.objects.filter(finished_at__lt=_cutoff(days))[:COUNT_CAP].count()


@contextmanager
def _may_delete() -> Iterator[None]:
    """A transaction in which the no_delete triggers stand aside.

    The transaction is the inner one: pgtrigger sets the lift with SET LOCAL, so it ends with the transaction, whatever its end, and no
    later statement of the connection has it. The other way round pgtrigger 4 resets it by a statement, which hides the error of a
    transaction that has failed behind one of its own.
    """
    with pgtrigger.ignore(*_NO_DELETE), transaction.atomic(durable=True):
        yield


def _cutoff(days: int) -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp() - make_interval(days => %s)", [days])
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


# Newest first: a rerun ends after the job that it reruns, so it has gone by the time that one is looked at. From where the last batch
# ended, so index entries of deleted rows are not walked over again; job_finished serves it (tests/services/test_pruning.py).
# No named placeholders from here on: pgtrigger puts a positional one in front.
_OLD_JOBS = """
    SELECT finished_at, id FROM ai_runtime_job WHERE finished_at IS NOT NULL AND (finished_at, id) < (%s, %s)
    ORDER BY finished_at DESC, id DESC LIMIT %s
"""


def _old_jobs(before: datetime, before_id: UUID, batch: int, *, lock: bool) -> list[tuple[datetime, UUID]]:
    with connection.cursor() as cursor:
        # While a row is locked, no rerun of it and no row that points at it can be made.
        cursor.execute(_OLD_JOBS + ("FOR UPDATE SKIP LOCKED" if lock else ""), [before, before_id, batch])
        seen: list[tuple[datetime, UUID]] = cursor.fetchall()
        return seen


# In a statement after the one that locks: only then does its snapshot show all that was committed before the lock.
_JUDGE = """
    SELECT j.id, ARRAY(SELECT r.id FROM ai_runtime_job r WHERE r.retried_from_job_id = j.id),
           CASE WHEN EXISTS (SELECT FROM ai_job_event e JOIN ai_event_delivery d ON d.event_id = e.id
                             WHERE e.job_id = j.id AND d.delivered_at IS NULL) THEN 'an event is not delivered'
                {held} END
    FROM ai_runtime_job j WHERE j.id = ANY(%s) ORDER BY j.finished_at DESC, j.id DESC
"""


def _judge(job_ids: list[UUID], held_by: Sequence[str], left: Collection[UUID]) -> tuple[list[UUID], Counter[str]]:
    """Which of the jobs may go, given those that have `left` already, and why the others stay."""
    leaving: dict[UUID, None] = {}
    kept: Counter[str] = Counter()
    with connection.cursor() as cursor:
        cursor.execute(_JUDGE.format(held=" ".join(held_by)), [job_ids])
        for job_id, reruns, reason in cursor.fetchall():
            if reason is None and any(rerun not in leaving and rerun not in left for rerun in reruns):
                reason = _KEPT_BY_RERUN
            if reason is None:
                leaving[job_id] = None
            else:
                kept[reason] += 1
    return list(leaving), kept


# Deliveries by their events, since the index on their job has the waiting ones only.
_DELETE_DELIVERIES = "DELETE FROM ai_event_delivery d USING ai_job_event e WHERE e.job_id = ANY(%s) AND d.event_id = e.id"


def _delete_jobs(job_ids: list[UUID], nullable: Sequence[tuple[Any, str]]) -> None:
    for foreign, job in nullable:
        foreign.model._base_manager.filter(**{f"{foreign.name}__{job}__in": job_ids}).update(**{foreign.name: None})
    with connection.cursor() as cursor:
        for model, job in _FAMILY:
            table = model._meta.db_table
            # Not Django's delete(): it would read every result and event first.
            cursor.execute(
                _DELETE_DELIVERIES if model is AiEventDelivery else f"DELETE FROM {table} WHERE {job} = ANY(%s)",  # noqa: S608 - own names
                [job_ids],
            )


# From the catalogue, since a table that no installed app knows counts as well. Only keys that the database itself would not resolve.
_FOREIGN_KEYS = """
    SELECT source.relname, c.conrelid::regclass::text, target.relname, c.confrelid::regclass::text,
           array_agg(a.attname::text), string_agg(format('f.%%I = t.%%I', a.attname, b.attname), ' AND ')
    FROM pg_constraint c
    JOIN pg_class source ON source.oid = c.conrelid
    JOIN pg_class target ON target.oid = c.confrelid
    CROSS JOIN LATERAL unnest(c.conkey, c.confkey) AS k(source, target)
    JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.source
    JOIN pg_attribute b ON b.attrelid = c.confrelid AND b.attnum = k.target
    WHERE c.contype = 'f' AND c.confdeltype IN ('a', 'r') AND c.conparentid = 0
      AND c.confrelid = ANY(%(own)s::regclass[]) AND c.conrelid <> ALL(%(own)s::regclass[])
    GROUP BY c.oid, source.relname, target.relname
    ORDER BY source.relname
"""


def _foreign_keys() -> list[str]:
    """A WHEN of _JUDGE for each foreign key of other tables that holds a job."""
    job_column = {model._meta.db_table: job for model, job in _FAMILY}
    resolved = {(field.model._meta.db_table, field.column) for field, _ in _nullable_relations()}
    with connection.cursor() as cursor:
        cursor.execute(_FOREIGN_KEYS, {"own": _TABLES})
        keys = cursor.fetchall()
    found = [
        f"WHEN EXISTS (SELECT FROM {source} f JOIN {target} t ON {condition} WHERE t.{job_column[target_name]} = j.id) "
        f"THEN {_literal(f'a row of {name} points at it')}"
        for name, source, target_name, target, columns, condition in keys
        if (name, *columns) not in resolved
    ]
    return [when.replace("%", "%%") for when in found]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _nullable_relations() -> list[tuple[Any, str]]:
    """Foreign keys of other apps with on_delete=SET_NULL, each with the column by which its target names the job."""
    return [
        (relation.field, job)
        for model, job in _FAMILY
        for relation in model._meta.get_fields(include_hidden=True)
        if isinstance(relation, models.ManyToOneRel)
        and relation.on_delete is models.SET_NULL
        and relation.field.model._meta.db_table not in _TABLES
    ]


# A window of snapshots older than the cutoff: one of a pruned job is older than that job. After a prune what is left there is what
# younger jobs share, so the walk is short. Ids are in the order of time, and so is their index.
_SNAPSHOTS = """
    SELECT s.id, EXISTS (SELECT FROM ai_runtime_job j WHERE j.snapshot_id = s.id)
    FROM (SELECT id FROM ai_job_snapshot WHERE id > %s AND id < %s ORDER BY id LIMIT %s) s ORDER BY s.id
"""
# create_job holds what it is about to use FOR KEY SHARE (services/jobs.py): that is skipped, and once locked here nobody takes it.
_LOCK_SNAPSHOTS = "SELECT id FROM ai_job_snapshot WHERE id = ANY(%s) FOR UPDATE SKIP LOCKED"
# A job may have been committed between the look and the lock.
_DELETE_SNAPSHOTS = """
    DELETE FROM ai_job_snapshot s WHERE id = ANY(%s) AND NOT EXISTS (SELECT FROM ai_runtime_job j WHERE j.snapshot_id = s.id)
"""


def _prune_snapshots(cutoff: datetime, batch: int) -> int:
    after, end, deleted = _FIRST, _first_id_at(cutoff), 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_SNAPSHOTS, [after, end, batch])
            window = cursor.fetchall()
        if unused := [snapshot_id for snapshot_id, used in window if not used]:
            with _may_delete(), connection.cursor() as cursor:
                cursor.execute(_LOCK_SNAPSHOTS, [unused])
                cursor.execute(_DELETE_SNAPSHOTS, [[snapshot_id for (snapshot_id,) in cursor.fetchall()]])
                deleted += cursor.rowcount
        if len(window) < batch:
            return deleted
        after = window[-1][0]


def _first_id_at(moment: datetime) -> UUID:
    """The least UUID of version 7 that can be made at this time: 48 bits of milliseconds come first (RFC 9562 §5.7)."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
