"""Old jobs leave with all that is theirs, and nothing that anybody still needs leaves with them."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import DataError, IntegrityError, connection, models, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from runtime_jobs.errors import AttemptError, ErrorCode, JobNotFound
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
from runtime_jobs.models.base import new_id
from runtime_jobs.services import claims, pruning
from runtime_jobs.services.events import SYSTEM, Actor
from runtime_jobs.services.jobs import cancel_job, create_job, rerun_job
from runtime_jobs.services.pruning import Pruned, preview, prune_older_than
from runtime_jobs.services.settlements import Fence
from runtime_jobs.services.terminal import submit_failure
from runtime_jobs.synthetic.models import ExtractedText
from tests.conftest import triggers_off
from tests.factories import CredentialFactory, JobFactory, UserFactory, payload
from tests.services.threads import SECONDS, Worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def owner() -> dict[str, Any]:
    return {"user": UserFactory(), "credential": CredentialFactory()}


def grow_old(job: AiRuntimeJob, days: int = 100) -> None:
    """Move the job, and its input unless an older job has it, `days` back in time."""
    with triggers_off(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE ai_runtime_job SET created_at = now() - make_interval(days => %(days)s), "
            "finished_at = finished_at - make_interval(days => %(days)s) WHERE id = %(id)s",
            {"days": days, "id": job.pk},
        )
        # Ids tell the age.
        moment = int((timezone.now() - timedelta(days=days + 1)).timestamp() * 1000)
        older = UUID(int=(moment << 80) | (job.snapshot_id.int & ((1 << 80) - 1)))
        if older < job.snapshot_id:
            cursor.execute("UPDATE ai_job_snapshot SET id = %s WHERE id = %s", [older, job.snapshot_id])
            cursor.execute("UPDATE ai_runtime_job SET snapshot_id = %s WHERE snapshot_id = %s", [older, job.snapshot_id])
    job.refresh_from_db()


def old_job(owner: dict[str, Any], text: str | None = None, days: int = 100) -> AiRuntimeJob:
    """A cancelled job of long ago."""
    job = JobFactory(**owner, payload=payload(text or f"Text {new_id()}."))
    cancel_job(job.pk, actor=SYSTEM)
    job.refresh_from_db()
    grow_old(job, days)
    return job


def failed_job(owner: dict[str, Any]) -> AiRuntimeJob:
    """A job with a row in every table of its family."""
    job = JobFactory(**owner)
    (claim,) = claims.claim(lane=job.lane, worker="w", job_types=[job.job_type], count=1, lease_seconds=30, job_id=job.pk)
    AiUsageLog.objects.create(
        job=job,
        user=owner["user"],
        attempt_no=1,
        call_no=1,
        invocation_id="i",
        credential_mode="platform",
        provider="p",
        model_requested="m",
    )
    AiRuntimeResult.objects.create(
        job=job, user=owner["user"], runtime_instance_id="w", status="rejected", attempt_no=1, result_idempotency_key=str(job.pk),
        output_hash="h", raw_output="{", schema_version="1",
    )  # fmt: skip
    submit_failure(Fence(job.pk, 1, claim.token, "w"), AttemptError(ErrorCode.PROVIDER_REJECTED_REQUEST))
    delivery(job, delivered_at=Now())
    job.refresh_from_db()
    return job


def delivery(job: AiRuntimeJob, **state: Any) -> AiEventDelivery:
    event = AiJobEvent.objects.get(job=job, seq=1)
    return AiEventDelivery.objects.create(event=event, handler="h", job_id=job.pk, seq=1, **state)


def exists(job: AiRuntimeJob) -> bool:
    return AiRuntimeJob.objects.filter(pk=job.pk).exists()


def test_an_old_job_leaves_with_all_that_is_its_and_a_younger_one_stays_whole(owner):
    old, young = failed_job(owner), failed_job(owner)
    grow_old(old, 91)
    grow_old(young, 89)
    assert prune_older_than(days=90) == Pruned(jobs=1)
    for table in (AiJobAttempt, AiRuntimeResult, AiUsageLog):
        assert table.objects.get().job_id == young.pk
    assert AiEventDelivery.objects.get().job_id == young.pk
    assert set(AiJobEvent.objects.values_list("job_id", flat=True)) == {young.pk}
    assert AiRuntimeJob.objects.get() == young
    assert prune_older_than(days=90) == Pruned()


def test_a_job_that_has_not_ended_stays_however_old_it_is(owner):
    job = JobFactory(**owner)
    grow_old(job, 1_000)
    assert prune_older_than(days=90) == Pruned()
    assert exists(job)


def test_all_batches_are_taken_and_progress_is_told(owner):
    for number in range(7):
        old_job(owner, days=100 + number)
    seen: list[int] = []
    assert prune_older_than(days=90, batch=3, on_progress=seen.append).jobs == 7
    assert seen == [3, 3, 1]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_jobs_that_ended_at_the_same_moment_are_all_taken(owner, batch):
    jobs = [old_job(owner) for _ in range(5)]
    with triggers_off():
        AiRuntimeJob.objects.update(finished_at=jobs[0].finished_at)
    assert prune_older_than(days=90, batch=batch).jobs == 5


def test_a_batch_has_a_transaction_of_its_own(owner):
    """A prune that is broken off leaves what it has done, and goes on from there."""
    for _ in range(5):
        old_job(owner)

    def stop(seen: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_older_than(days=90, batch=2, on_progress=stop)
    assert AiRuntimeJob.objects.count() == 3
    assert prune_older_than(days=90, batch=2).jobs == 3


def test_a_job_stays_as_long_as_its_rerun_is_there(owner):
    old = old_job(owner)
    rerun = rerun_job(old.pk, actor=SYSTEM).job
    assert prune_older_than(days=90) == Pruned(kept=Counter({"another job is its rerun": 1}))
    assert exists(old)
    cancel_job(rerun.pk, actor=SYSTEM)
    rerun.refresh_from_db()
    grow_old(rerun, 95)
    assert prune_older_than(days=90) == Pruned(jobs=2, snapshots=1)


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_a_chain_of_reruns_leaves_in_one_go(owner, batch):
    job = old_job(owner, days=200)
    for number in range(1, 5):
        rerun = rerun_job(job.pk, actor=SYSTEM).job
        cancel_job(rerun.pk, actor=SYSTEM)
        rerun.refresh_from_db()
        grow_old(rerun, 200 - number)
        job = rerun
    assert preview(days=90, batch=batch).jobs == 5
    assert prune_older_than(days=90, batch=batch) == Pruned(jobs=5, snapshots=1)


@pytest.mark.parametrize("parked", [False, True])
def test_a_job_stays_as_long_as_an_event_is_not_delivered_parked_or_not(owner, parked):
    job = old_job(owner)
    waiting = delivery(job, parked_at=Now() if parked else None)
    assert prune_older_than(days=90) == Pruned(kept=Counter({"an event is not delivered": 1}))
    AiEventDelivery.objects.filter(pk=waiting.pk).update(delivered_at=Now(), parked_at=None)
    assert prune_older_than(days=90).jobs == 1


def test_what_the_business_made_of_a_result_outlives_the_job(owner):
    job = old_job(owner)
    made = ExtractedText.objects.create(job_id=job.pk, target_type="document", target_id="1", summary="A summary.")
    assert prune_older_than(days=90).jobs == 1
    assert ExtractedText.objects.get() == made


def test_one_job_has_one_artifact(owner):
    job = old_job(owner)
    ExtractedText.objects.create(job_id=job.pk, summary="A summary.")
    with pytest.raises(IntegrityError, match="job_id"):
        ExtractedText.objects.create(job_id=job.pk, summary="Another.")


@pytest.fixture
def foreign_table() -> Iterator[Callable[[str], None]]:
    """A table outside of Django, `invoice 100%`, whose `of` points at the id of the given table."""

    def make(target: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE TABLE "invoice 100%%" (of uuid REFERENCES {target} DEFERRABLE INITIALLY DEFERRED)', [])

    yield make
    with connection.cursor() as cursor:
        cursor.execute('DROP TABLE IF EXISTS "invoice 100%%"', [])


def point_at(row: models.Model) -> None:
    with connection.cursor() as cursor:
        cursor.execute('INSERT INTO "invoice 100%%" VALUES (%s)', [row.pk])


@pytest.mark.parametrize("table", [AiRuntimeJob, AiRuntimeResult, AiJobEvent, AiUsageLog, AiJobAttempt, AiEventDelivery])
def test_a_job_stays_when_a_row_of_another_table_points_at_it_or_at_something_of_it(owner, foreign_table, table):
    foreign_table(table._meta.db_table)
    held, free = failed_job(owner), failed_job(owner)
    grow_old(held)
    grow_old(free)
    point_at(held if table is AiRuntimeJob else table.objects.filter(job_id=held.pk).first())
    kept = Counter({"a row of invoice 100% points at it": 1})
    assert preview(days=90) == Pruned(jobs=1, kept=kept)
    assert prune_older_than(days=90) == Pruned(jobs=1, kept=kept)
    assert (exists(held), exists(free)) == (True, False)
    assert held.attempts.count() == held.results.count() == held.usage.count() == 1


def test_a_row_that_comes_to_point_at_a_batch_keeps_the_batch_and_not_more(owner, foreign_table, monkeypatch, caplog):
    foreign_table("ai_runtime_job")
    jobs = [old_job(owner, days=100 + number) for number in range(4)]
    point_at(jobs[0])
    monkeypatch.setattr(pruning, "_foreign_keys", list)  # as if it came just after the look
    assert prune_older_than(days=90, batch=2) == Pruned(jobs=2, snapshots=2, kept=Counter({"in a batch that changed meanwhile": 2}))
    assert [exists(job) for job in jobs] == [True, True, False, False]
    assert "ForeignKeyViolation" in caplog.text
    assert_no_delete()


@pytest.fixture
def note_model() -> Iterator[Any]:
    """A model of another app, as long as the test runs, with a foreign key that may become NULL."""

    class Note(models.Model):
        job = models.ForeignKey(AiRuntimeJob, models.SET_NULL, null=True, related_name="+")
        result = models.ForeignKey(AiRuntimeResult, models.SET_NULL, null=True, related_name="+")

        class Meta:
            app_label = "synthetic"

    with connection.schema_editor() as editor:
        editor.create_model(Note)
    yield Note
    with connection.schema_editor() as editor:
        editor.delete_model(Note)
    del apps.all_models["synthetic"]["note"]
    apps.clear_cache()


def test_a_foreign_key_with_set_null_lets_the_job_go(owner, note_model):
    job = failed_job(owner)
    grow_old(job)
    note = note_model.objects.create(job=job, result=job.results.get())
    assert prune_older_than(days=90) == Pruned(jobs=1, snapshots=1)
    note.refresh_from_db()
    assert (note.job_id, note.result_id) == (None, None)


def assert_no_delete() -> None:
    """The triggers are as they were, for this connection too."""
    for table in (AiRuntimeJob, AiJobEvent, AiJobSnapshot):
        with connection.cursor() as cursor, pytest.raises(Exception, match="Cannot delete"):
            cursor.execute(f"DELETE FROM {table._meta.db_table}")
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('pgtrigger.ignore', true)")
        assert not cursor.fetchone()[0]


def test_the_triggers_are_lifted_for_prune_alone(owner):
    for _ in range(3):
        old_job(owner)
    JobFactory(**owner)
    refused: list[str] = []

    def meanwhile(seen: int) -> None:
        assert_no_delete()
        Worker(assert_no_delete).join_or_raise()
        refused.append("yes")

    prune_older_than(days=90, batch=2, on_progress=meanwhile)
    assert refused == ["yes", "yes"]
    assert_no_delete()


def test_a_batch_that_fails_shows_its_own_error_and_leaves_no_lift_behind(owner):
    old_job(owner)
    with pytest.raises(DataError, match="division by zero"), pruning._may_delete(), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")
    assert_no_delete()


def test_another_connection_may_not_delete_while_a_prune_is_in_its_transaction(owner):
    job = old_job(owner)
    with pruning._may_delete(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM ai_job_event WHERE job_id = %s", [job.pk])
        Worker(assert_no_delete_of_snapshots).join_or_raise()


def assert_no_delete_of_snapshots() -> None:
    with connection.cursor() as cursor, pytest.raises(Exception, match="Cannot delete"):
        cursor.execute("DELETE FROM ai_job_snapshot")


def test_two_prunes_at_once_share_the_work(owner):
    for number in range(60):
        old_job(owner, days=100 + number)
    start = threading.Barrier(3)

    def work() -> int:
        start.wait(SECONDS)
        return prune_older_than(days=90, batch=4).jobs

    prunes = [Worker(work) for _ in range(3)]
    assert sum(prune.join_or_raise() for prune in prunes) == 60
    prune_older_than(days=90)
    assert not AiRuntimeJob.objects.exists()
    assert not AiJobSnapshot.objects.exists()


def test_a_job_that_somebody_works_on_is_skipped_without_waiting(owner):
    busy, free = old_job(owner), old_job(owner)
    locked, go_on = threading.Event(), threading.Event()

    def rerun() -> AiRuntimeJob:
        with transaction.atomic():
            made = rerun_job(busy.pk, actor=Actor("1", "ann")).job
            locked.set()
            assert go_on.wait(SECONDS)
        return made

    worker = Worker(rerun)
    assert locked.wait(SECONDS)
    assert prune_older_than(days=90).jobs == 1
    go_on.set()
    made = worker.join_or_raise()
    assert (exists(busy), exists(free), exists(made)) == (True, False, True)
    assert prune_older_than(days=90).kept == Counter({"another job is its rerun": 1})


def test_reruns_and_prunes_at_once_end_with_both_jobs_or_with_a_clear_answer(owner):
    jobs = [old_job(owner, days=100 + number) for number in range(24)]
    start = threading.Barrier(4)

    def rerun(some: list[AiRuntimeJob]) -> list[bool]:
        start.wait(SECONDS)
        done = []
        for job in some:
            try:
                done.append(rerun_job(job.pk, actor=SYSTEM).created)
            except JobNotFound:
                done.append(False)
        return done

    def prune() -> list[bool]:
        start.wait(SECONDS)
        prune_older_than(days=90, batch=2)
        return []

    # One from the end at which prune begins, one from the other.
    reruns = [Worker(lambda: rerun(jobs[:12])), Worker(lambda: rerun(jobs[12:]))]
    prunes = [Worker(prune), Worker(prune)]
    created = [made for worker in reruns for made in worker.join_or_raise()]
    for worker in prunes:
        worker.join_or_raise()
    assert [exists(job) for job in jobs] == created
    assert AiRuntimeJob.objects.filter(retried_from_job__isnull=False).count() == sum(created)


def new_job(owner: dict[str, Any], text: str) -> AiRuntimeJob:
    return create_job(**owner, job_type="synthetic.extract_facts", payload=payload(text), target_type="document", target_id="1")


def test_an_input_that_a_new_job_is_about_to_use_stays(owner):
    old = old_job(owner, text="The same text.")
    other = old_job(owner, text="Another text.")
    created, go_on = threading.Event(), threading.Event()

    def create() -> AiRuntimeJob:
        with transaction.atomic():
            made = new_job(owner, "The same text.")
            created.set()
            assert go_on.wait(SECONDS)
        return made

    worker = Worker(create)
    assert created.wait(SECONDS)
    assert prune_older_than(days=90) == Pruned(jobs=2, snapshots=1)
    go_on.set()
    made = worker.join_or_raise()
    assert made.snapshot_id == old.snapshot_id
    assert list(AiJobSnapshot.objects.values_list("pk", flat=True)) == [made.snapshot_id]
    assert other.snapshot_id != made.snapshot_id


def test_a_job_that_takes_an_input_between_the_look_and_the_lock_keeps_it(owner, monkeypatch):
    old_job(owner, text="The same text.")
    made: list[AiRuntimeJob] = []
    may_delete = pruning._may_delete
    calls: list[int] = []

    def meanwhile() -> Any:
        calls.append(1)
        if len(calls) == 2:  # the first is the jobs', the second the snapshots'
            made.append(Worker(lambda: new_job(owner, "The same text.")).join_or_raise())
        return may_delete()

    monkeypatch.setattr(pruning, "_may_delete", meanwhile)
    assert prune_older_than(days=90) == Pruned(jobs=1)
    assert AiJobSnapshot.objects.get().pk == made[0].snapshot_id


def test_creating_jobs_with_the_same_input_goes_on_while_it_is_pruned(owner):
    """Whichever comes first: the job has its input, or an equal one anew."""
    start = threading.Barrier(3)

    def create() -> None:
        start.wait(SECONDS)
        for number in range(15):
            new_job(owner, f"Text {number}.")

    def prune() -> None:
        start.wait(SECONDS)
        for _ in range(15):
            prune_older_than(days=90, batch=3)

    for number in range(15):
        old_job(owner, text=f"Text {number}.")
    threads = [Worker(create), Worker(prune), Worker(prune)]
    for worker in threads:
        worker.join_or_raise()
    assert AiRuntimeJob.objects.count() == 15
    assert set(AiRuntimeJob.objects.values_list("snapshot_id", flat=True)) == set(AiJobSnapshot.objects.values_list("pk", flat=True))


def test_an_input_that_a_younger_job_shares_stays_and_leaves_with_that_one(owner):
    old = old_job(owner, text="The same text.", days=100)
    young = new_job(owner, "The same text.")
    assert prune_older_than(days=90) == Pruned(jobs=1)
    cancel_job(young.pk, actor=SYSTEM)
    young.refresh_from_db()
    assert young.snapshot_id == old.snapshot_id
    grow_old(young, 95)
    assert prune_older_than(days=90) == Pruned(jobs=1, snapshots=1)


def test_workers_not_seen_for_a_day_are_forgotten():
    for name, hours in (("gone", 25), ("here", 23)):
        RuntimeInstance.objects.create(name=name, lane="interactive", last_seen_at=Now() - timedelta(hours=hours))
    assert prune_older_than(days=90) == Pruned(workers=1)
    assert RuntimeInstance.objects.get().name == "here"


def test_a_batch_is_found_by_its_index_however_much_there_is(owner):
    """engine 25."""
    model = old_job(owner)
    with triggers_off(), connection.cursor() as cursor:
        # A history of which a tenth is old enough.
        cursor.execute(
            "INSERT INTO ai_runtime_job SELECT (jsonb_populate_record(j, jsonb_build_object('id', gen_random_uuid(), "
            "'finished_at', now() - (n + 0.5) * interval '1 minute', 'idempotency_key', NULL))).* "
            "FROM ai_runtime_job j, generate_series(1, 20000) n WHERE j.id = %s",
            [model.pk],
        )
        cursor.execute("VACUUM ANALYZE ai_runtime_job, ai_job_event, ai_event_delivery")
    with CaptureQueriesContext(connection) as queries:
        assert prune_older_than(days=13, batch=100).jobs == 1282
    selections = [query["sql"] for query in queries if "ORDER BY finished_at DESC" in query["sql"]]
    verdicts = [query["sql"] for query in queries if "retried_from_job_id = j.id" in query["sql"]]
    assert len(selections) == len(verdicts) == 13
    for statement in (selections[0], selections[-2], verdicts[0]):
        plan = plan_of(statement)
        assert "Seq Scan on ai_runtime_job" not in plan, plan
    for statement in (selections[0], selections[-2]):
        assert "using job_finished" in plan_of(statement)


def plan_of(statement: str) -> str:
    """The plan of a statement of prune's, without the setting that pgtrigger puts before it."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + statement[statement.index("true);") + 6 :].replace("%", "%%"), [])
        return "\n".join(line for (line,) in cursor.fetchall())


def test_the_preview_tells_what_would_go_and_touches_nothing(owner):
    for number in range(5):
        old_job(owner, days=100 + number)
    delivery(old_job(owner, days=200))
    kept = Counter({"an event is not delivered": 1})
    assert preview(days=90) == preview(days=90, batch=2) == Pruned(jobs=5, kept=kept)
    assert preview(days=90, batch=2, limit=3) == Pruned(jobs=3, more=True)
    assert AiRuntimeJob.objects.count() == 6


def run(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("prune", *arguments, stdout=out)
    return out.getvalue().splitlines()


def test_the_command_keeps_to_the_retention_and_says_what_it_did(owner, settings, capsys):
    settings.JOB_RETENTION_DAYS = 30
    old_job(owner, days=31)
    old_job(owner, days=29)
    rerun_job(old_job(owner, days=40).pk, actor=SYSTEM)
    assert run("--dry-run") == ["would delete: 1 jobs", "kept: 1, another job is its rerun"]
    assert AiRuntimeJob.objects.count() == 4
    assert run() == ["deleted: 1 jobs, 1 inputs, 0 workers", "kept: 1, another job is its rerun"]
    assert run("--days", "28", "--batch", "1") == ["deleted: 1 jobs, 1 inputs, 0 workers", "kept: 1, another job is its rerun"]
    assert capsys.readouterr().err == ""  # no progress bar where there is no terminal


def test_a_dry_run_that_ends_at_its_limit_says_so(owner, monkeypatch):
    monkeypatch.setattr(pruning.preview, "__kwdefaults__", {"batch": 500, "limit": 2})
    monkeypatch.setattr(pruning, "COUNT_CAP", 2)
    for _ in range(3):
        old_job(owner)
    assert run("--dry-run") == ["would delete: 2 jobs (of the first 2 that are old enough; there may be more)"]


@pytest.mark.parametrize("arguments", [("--days", "0"), ("--days", "-1"), ("--batch", "0"), ("--batch", "10001")])
def test_the_command_refuses_what_makes_no_sense(arguments):
    with pytest.raises(CommandError, match="must be 1 to") as refused:
        run(*arguments)
    assert refused.value.returncode == 2
