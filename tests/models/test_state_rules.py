"""psql cannot do what the services cannot: the state table, every constraint and every trigger, each tried with raw SQL."""

import ast
import inspect
import uuid
from itertools import product
from typing import Any

import pgtrigger
import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import IntegrityError, ProgrammingError, connection, models, transaction

from runtime_jobs.models import (
    AiEventDelivery,
    AiJobAttempt,
    AiJobEvent,
    AiJobSnapshot,
    AiModelCredential,
    AiRuntimeJob,
    AiRuntimeResult,
    AiUsageLog,
    ClaimGate,
    HourlyFigures,
    LoginTries,
    RuntimeInstance,
    RuntimeServiceToken,
)
from runtime_jobs.models.base import new_id
from runtime_jobs.states import LEASED, TERMINAL, TRANSITIONS, JobStatus
from runtime_jobs.synthetic.models import ExtractedFact, ExtractedText
from tests.conftest import triggers_off
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db

OURS = [model for label in ("runtime_jobs", "synthetic") for model in apps.get_app_config(label).get_models()]
S = JobStatus


def execute(sql, parameters=None):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else None


def update(model, pk, **columns):
    """A raw UPDATE of one row; the values are SQL."""
    changes = ", ".join(f"{column} = {value}" for column, value in columns.items())
    execute(f"UPDATE {model._meta.db_table} SET {changes} WHERE {model._meta.pk.column} = %s", [pk])


def insert_copy(model, pk, **columns):
    """A raw INSERT of a row like this one, but for the given columns; the values are SQL."""
    columns.setdefault("id", f"'{new_id()}'")
    names = [field.attname for field in model._meta.concrete_fields]
    values = ", ".join(columns.get(name, name) for name in names)
    table = model._meta.db_table
    execute(f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table} WHERE id = %s", [pk])


def shape(status):
    """All columns that a CHECK ties to the status, as that status wants them. The values are SQL."""
    held = status in LEASED
    return {
        "status": f"'{status}'",
        "lock_token": "repeat('a', 64)" if held else "NULL",
        "locked_by": "'psql'" if held else "NULL",
        "locked_at": "now()" if held else "NULL",
        "lock_until": "now() + interval '1 minute'" if held else "NULL",
        "cancel_requested_at": "now()",
        "finished_at": "now()" if status in TERMINAL else "NULL",
        "error_code": "'internal_error'" if status is S.FAILED else "''",
    }


def make_job(status=S.QUEUED, **more):
    user = get_user_model().objects.create(username=f"user-{uuid.uuid4()}")
    job = JobFactory(user=user, **more)
    if status is not S.QUEUED:
        with triggers_off():
            update(AiRuntimeJob, job.pk, **shape(status))
    return job


def constraint_of(error):
    return error.value.__cause__.diag.constraint_name


# --- the state table -------------------------------------------------------------------------------------------------------------


def test_the_table_in_the_code_is_the_one_that_was_designed():
    assert {(old, new) for old, news in TRANSITIONS.items() for new in news} == {
        (S.QUEUED, S.RUNNING),
        (S.QUEUED, S.CANCELLED),
        (S.QUEUED, S.FAILED),
        (S.RUNNING, S.SUCCEEDED),
        (S.RUNNING, S.RETRYING),
        (S.RUNNING, S.FAILED),
        (S.RUNNING, S.CANCEL_REQUESTED),
        (S.RETRYING, S.RUNNING),
        (S.RETRYING, S.SUCCEEDED),
        (S.RETRYING, S.FAILED),
        (S.RETRYING, S.CANCELLED),
        (S.CANCEL_REQUESTED, S.CANCELLED),
    }
    assert set(TRANSITIONS) == set(JobStatus)


@pytest.mark.parametrize(("old", "new"), list(product(JobStatus, JobStatus)))
def test_acceptance_9_the_database_takes_the_steps_of_the_table_and_refuses_all_others_naming_both_states(old, new):
    job = make_job(old)
    if new in TRANSITIONS[old] or (new is old and old not in TERMINAL):  # to stay is no step: a heartbeat, a note of progress
        update(AiRuntimeJob, job.pk, **shape(new))
        job.refresh_from_db()
        assert job.status == new
        return
    with pytest.raises(IntegrityError) as refused:
        update(AiRuntimeJob, job.pk, **shape(new))
    said = str(refused.value).splitlines()[0]
    if new is old:
        assert said == f"job {job.pk}: it has ended as {old} and does not change any more"
    else:
        assert said == f"job {job.pk}: no step from {old} to {new}"


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not S.QUEUED])
def test_a_job_is_born_queued_and_nothing_else(status):
    job = make_job()
    with pytest.raises(IntegrityError, match=f"a job is born queued, not {status}"):
        insert_copy(AiRuntimeJob, job.pk, **shape(status))


def test_a_job_that_is_born_queued_may_come_from_psql():
    job = make_job()
    insert_copy(AiRuntimeJob, job.pk)
    assert AiRuntimeJob.objects.filter(status=S.QUEUED).count() == 2


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_no_column_of_an_ended_job_changes(status):
    job = make_job(status)
    before = AiRuntimeJob.objects.filter(pk=job.pk).values().get()
    other = {
        "progress": "50",
        "attempt_no": "7",
        "finished_at": "now() + interval '1 s'",
        "internal_error": "'x'",
        "lock_token": "lock_token",
    }
    for field in AiRuntimeJob._meta.concrete_fields:
        with pytest.raises(IntegrityError, match=f"it has ended as {status} and does not change any more"), transaction.atomic():
            update(AiRuntimeJob, job.pk, **{field.attname: other.get(field.attname, field.attname)})
    assert AiRuntimeJob.objects.filter(pk=job.pk).values().get() == before


# --- constraints -----------------------------------------------------------------------------------------------------------------


class World:
    """One row of every table."""

    def __init__(self):
        self.job = make_job(idempotency_key="once")
        self.running = make_job(S.RUNNING)
        ids = {"job_id": self.job.pk, "user_id": self.job.user_id}
        self.attempt = AiJobAttempt.objects.create(job=self.job, attempt_no=1, lock_token="t", worker="w")
        self.event = AiJobEvent.objects.get(job=self.job)
        self.delivery = AiEventDelivery.objects.create(event=self.event, handler="h", job_id=self.job.pk, seq=1)
        self.result = AiRuntimeResult.objects.create(
            **ids, runtime_instance_id="w", status="succeeded", attempt_no=1, result_idempotency_key="k", output_hash="h", raw_output="{}",
            validated_output={}, schema_version="1",
        )  # fmt: skip
        self.usage = AiUsageLog.objects.create(
            **ids, attempt_no=1, call_no=1, invocation_id="i", credential_mode="platform", provider="p", model_requested="m"
        )
        self.gate = ClaimGate.objects.create(kind="lane", key="interactive")
        self.instance = RuntimeInstance.objects.create(name="w", kind="engine", lane="interactive")
        self.token = RuntimeServiceToken.objects.create(name="t", key_id="k", secret_hash="h", expires_at=self.job.created_at)
        self.figures = HourlyFigures.objects.create(hour=self.job.created_at, lane="interactive", job_type="t", provider="p", model="m")
        self.tries = LoginTries.objects.create(key="k", tries=1, until=self.job.created_at)
        self.text = ExtractedText.objects.create(job_id=self.job.pk, target_type="t", target_id="1", summary="s")
        self.fact = ExtractedFact.objects.create(text=self.text, position=1, fact="f", paragraph="p1")


def second_success(world):
    insert_copy(AiRuntimeResult, world.result.pk, attempt_no="2", result_idempotency_key="'other'", output_hash="'other'")


def two_reruns(world):
    old = make_job(S.FAILED)
    for _ in range(2):
        insert_copy(AiRuntimeJob, world.job.pk, idempotency_key="NULL", retried_from_job_id=f"'{old.pk}'")


def counter_below_zero(column):
    def violate(world):
        # Django's own CHECK of a positive column says the same and comes first by its name.
        execute(f"ALTER TABLE ai_runtime_job DROP CONSTRAINT ai_runtime_job_{column}_check")
        update(AiRuntimeJob, world.job.pk, **{column: "-1"})

    return violate


def job_update(**columns):
    return lambda world: update(AiRuntimeJob, world.job.pk, **columns)


def running_update(**columns):
    return lambda world: update(AiRuntimeJob, world.running.pk, **columns)


# What violates each constraint, in one or more ways.
VIOLATIONS = [
    ("job_idempotency_key", lambda world: insert_copy(AiRuntimeJob, world.job.pk)),
    ("job_one_unfinished_rerun", two_reruns),
    ("job_status_known", job_update(status="'paused'")),
    ("job_lane_known", job_update(lane="'slow'")),
    ("job_token_and_holder_together", job_update(lock_token="'t'")),
    ("job_token_and_holder_together", job_update(locked_by="'w'", locked_at="now()")),
    ("job_lease_while_leased", job_update(lock_until="now()")),
    ("job_lease_while_leased", running_update(lock_until="NULL")),
    ("job_lease_while_leased", running_update(lock_token="NULL", locked_by="NULL", locked_at="NULL")),
    ("job_finished_at_when_terminal", job_update(finished_at="now()")),
    ("job_finished_at_when_terminal", job_update(status="'cancelled'", error_code="'cancelled'")),
    ("job_retries_within_budget", job_update(retry_count="max_retry_count + 1")),
    ("job_counters_positive", counter_below_zero("attempt_no")),
    ("job_counters_positive", counter_below_zero("lapse_count")),
    ("job_counters_positive", counter_below_zero("release_count")),
    ("job_priority_0_to_9", job_update(priority="10")),
    ("job_timeout_positive", job_update(timeout_seconds="0")),
    ("job_progress_percent", job_update(progress="101")),
    ("job_offer_while_waiting", job_update(offered_to="'w'")),
    ("job_offer_while_waiting", running_update(offered_to="'w'", offer_until="now()")),
    ("job_failed_has_error", job_update(status="'failed'", finished_at="now()")),
    ("job_failed_has_error", running_update(**{**shape(S.SUCCEEDED), "error_code": "'internal_error'"})),
    ("job_cancel_was_requested", running_update(status="'cancel_requested'", cancel_requested_at="NULL")),
    ("attempt_no_once_per_job", lambda world: insert_copy(AiJobAttempt, world.attempt.pk)),
    ("attempt_outcome_when_ended", lambda world: update(AiJobAttempt, world.attempt.pk, ended_at="now()")),
    ("attempt_outcome_when_ended", lambda world: update(AiJobAttempt, world.attempt.pk, outcome="'failed'")),
    ("event_seq_once_per_job", lambda world: insert_copy(AiJobEvent, world.event.pk)),
    ("delivery_once_per_handler", lambda world: insert_copy(AiEventDelivery, world.delivery.pk)),
    ("delivery_not_both_ends", lambda world: update(AiEventDelivery, world.delivery.pk, delivered_at="now()", parked_at="now()")),
    ("result_one_success_per_job", second_success),
    (
        "result_once_per_output",
        lambda world: insert_copy(AiRuntimeResult, world.result.pk, status="'rejected'", result_idempotency_key="'n'"),
    ),
    ("result_idempotency_key", lambda world: insert_copy(AiRuntimeResult, world.result.pk, status="'rejected'", output_hash="'n'")),
    ("result_success_has_output", lambda world: update(AiRuntimeResult, world.result.pk, validated_output="NULL")),
    ("result_status_known", lambda world: update(AiRuntimeResult, world.result.pk, status="'accepted'")),
    ("usage_invocation_once_per_job", lambda world: insert_copy(AiUsageLog, world.usage.pk)),
    ("usage_closed_at_when_closed", lambda world: update(AiUsageLog, world.usage.pk, closed_at="now()")),
    ("usage_closed_at_when_closed", lambda world: update(AiUsageLog, world.usage.pk, outcome="'failed'")),
    ("gate_once", lambda world: insert_copy(ClaimGate, world.gate.pk)),
    ("instance_name", lambda world: insert_copy(RuntimeInstance, world.instance.pk)),
    ("service_token_key_id", lambda world: insert_copy(RuntimeServiceToken, world.token.pk)),
    ("snapshot_content_once", lambda world: insert_copy(AiJobSnapshot, world.job.snapshot_id)),
    # Two of the platform's, whose user is NULL: these are not distinct.
    ("credential_name_once_per_user", lambda world: insert_copy(AiModelCredential, world.job.credential_id)),
    ("figures_once_per_kind", lambda world: insert_copy(HourlyFigures, world.figures.pk, id="0")),
    ("extracted_fact_position", lambda world: insert_copy(ExtractedFact, world.fact.pk, id="0")),
]


@pytest.mark.parametrize(("name", "violate"), VIOLATIONS, ids=[f"{number}-{name}" for number, (name, _) in enumerate(VIOLATIONS)])
def test_every_constraint_refuses_by_its_name_what_it_makes_impossible(name, violate):
    world = World()
    execute("SET CONSTRAINTS ALL IMMEDIATE")  # ALTER TABLE wants no foreign key to be looked at later
    with pytest.raises(IntegrityError) as refused:
        violate(world)
    assert constraint_of(refused) == name


def test_no_constraint_of_the_models_is_without_a_violation_above():
    declared = {constraint.name for model in OURS for constraint in model._meta.constraints}
    assert declared == {name for name, _ in VIOLATIONS}


def positive_columns():
    kinds = (models.PositiveIntegerField, models.PositiveSmallIntegerField, models.PositiveBigIntegerField)
    return [(model, field.column) for model in OURS for field in model._meta.concrete_fields if isinstance(field, kinds)]


def test_no_counter_or_size_of_any_table_goes_below_zero():
    world = World()
    rows = {type(row): row.pk for row in vars(world).values()} | {AiJobSnapshot: world.job.snapshot_id}
    tried = 0
    with triggers_off():  # what is read-only refuses before a CHECK could
        for model, column in positive_columns():
            with pytest.raises(IntegrityError) as refused, transaction.atomic():
                update(model, rows[model], **{column: "-1"})
            assert constraint_of(refused) == f"{model._meta.db_table}_{column}_check"
            tried += 1
    assert tried > 15


def test_acceptance_3_and_12_a_job_has_one_succeeded_result_and_any_number_of_rejected_ones():
    world = World()
    insert_copy(
        AiRuntimeResult, world.result.pk, status="'rejected'", attempt_no="2", result_idempotency_key="'2'", output_hash="'2'",
        validated_output="NULL",
    )  # fmt: skip
    assert world.job.results.count() == 2
    assert world.job.result == world.result
    with pytest.raises(IntegrityError) as refused:
        second_success(world)
    assert constraint_of(refused) == "result_one_success_per_job"


def test_an_artifact_belongs_to_one_job_and_a_job_has_one():
    world = World()
    with pytest.raises(IntegrityError, match="job_id"):
        insert_copy(ExtractedText, world.text.pk, id="0")


def test_a_finished_rerun_makes_room_for_another():
    world, old = World(), make_job(S.FAILED)
    insert_copy(AiRuntimeJob, world.job.pk, idempotency_key="NULL", retried_from_job_id=f"'{old.pk}'")
    rerun = AiRuntimeJob.objects.get(retried_from_job=old)
    update(AiRuntimeJob, rerun.pk, **shape(S.CANCELLED))
    insert_copy(AiRuntimeJob, world.job.pk, idempotency_key="NULL", retried_from_job_id=f"'{old.pk}'")
    assert old.reruns.count() == 2


# --- what never changes and never goes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [field.attname for field in AiJobSnapshot._meta.concrete_fields])
def test_no_column_of_a_snapshot_changes(column):
    job = make_job()
    with pytest.raises(ProgrammingError, match="Cannot update rows from ai_job_snapshot"):
        update(AiJobSnapshot, job.snapshot_id, **{column: column})


@pytest.mark.parametrize("column", [field.attname for field in AiJobEvent._meta.concrete_fields])
def test_no_column_of_an_event_changes(column):
    event = AiJobEvent.objects.get(job=make_job())
    with pytest.raises(ProgrammingError, match="Cannot update rows from ai_job_event"):
        update(AiJobEvent, event.pk, **{column: column})


@pytest.mark.parametrize("table", ["ai_runtime_job", "ai_job_snapshot", "ai_job_event"])
def test_nothing_is_deleted_from_jobs_snapshots_and_events(table):
    make_job()
    with pytest.raises(ProgrammingError, match=f"Cannot delete rows from {table}"):
        execute(f"DELETE FROM {table}")


@pytest.mark.parametrize("table", ["ai_runtime_job", "ai_job_snapshot", "ai_job_event"])
def test_jobs_snapshots_and_events_are_not_truncated(table):
    make_job()
    execute("SET CONSTRAINTS ALL IMMEDIATE")  # else PostgreSQL refuses first, for the foreign keys still to be checked
    with pytest.raises(IntegrityError, match=f"table {table} is not truncated"):
        execute(f"TRUNCATE {table} CASCADE")


def test_the_bypass_lifts_the_named_trigger_for_its_block_only():
    job = make_job()
    with pgtrigger.ignore("runtime_jobs.AiJobSnapshot:never_changes"):
        update(AiJobSnapshot, job.snapshot_id, size_bytes="1")
    assert AiJobSnapshot.objects.get(pk=job.snapshot_id).size_bytes == 1
    with pytest.raises(ProgrammingError, match="Cannot update"), transaction.atomic():
        update(AiJobSnapshot, job.snapshot_id, size_bytes="2")

    with pgtrigger.ignore("runtime_jobs.AiJobEvent:no_delete"):
        execute("DELETE FROM ai_job_event WHERE job_id = %s", [job.pk])
    assert not AiJobEvent.objects.filter(job=job).exists()
    with (
        pytest.raises(ProgrammingError, match="Cannot delete rows from ai_runtime_job"),
        pgtrigger.ignore("runtime_jobs.AiJobEvent:no_delete"),
        transaction.atomic(),
    ):
        execute("DELETE FROM ai_runtime_job WHERE id = %s", [job.pk])


def test_the_bypass_repairs_a_state_that_no_step_leads_to():
    job = make_job(S.FAILED)
    with pgtrigger.ignore("runtime_jobs.AiRuntimeJob:legal_step"):
        update(AiRuntimeJob, job.pk, **shape(S.QUEUED))
    job.refresh_from_db()
    assert job.status == S.QUEUED


# --- what the customer listed -----------------------------------------------------------------------------------------------------

CUSTOMER_FIELDS = {
    AiRuntimeJob: """user job_type target_type target_id snapshot status priority idempotency_key api_key_mode credential model_provider
        model_name prompt_version output_schema_version attempt_no retried_from_job locked_by locked_at lock_until started_at finished_at
        retry_count max_retry_count timeout_seconds error_code error_message created_at updated_at""",
    AiRuntimeResult: """job user runtime_instance_id status attempt_no result_idempotency_key output_hash raw_output validated_output
        schema_version validation_errors created_at updated_at""",
    AiUsageLog: "job user attempt_no credential_mode error_code provider model_requested model_used input_tokens output_tokens",
}


@pytest.mark.parametrize("model", CUSTOMER_FIELDS, ids=["acceptance 1 AiRuntimeJob", "acceptance 2 AiRuntimeResult", "AiUsageLog"])
def test_every_field_of_the_customers_lists_is_a_column(model):
    columns = dict(execute("SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s", [model._meta.db_table]))
    for name in CUSTOMER_FIELDS[model].split():
        assert model._meta.get_field(name).column in columns


@pytest.mark.parametrize(
    ("table", "unique", "columns"),
    [
        ("ai_runtime_job", False, "status"),
        ("ai_runtime_job", False, "job_type"),
        ("ai_runtime_job", False, "user_id"),
        ("ai_runtime_job", False, "target_type, target_id"),
        ("ai_runtime_job", False, "lock_until"),
        ("ai_runtime_job", True, "idempotency_key"),
        ("ai_runtime_job", True, "retried_from_job_id"),
        ("ai_runtime_result", True, "job_id"),
        ("ai_runtime_result", True, "result_idempotency_key"),
        ("ai_runtime_result", True, "job_id, attempt_no, output_hash"),
    ],
)
def test_every_index_of_the_customers_list_exists(table, unique, columns):
    indexes = [row[0] for row in execute("SELECT indexdef FROM pg_indexes WHERE tablename = %s", [table])]
    kind = "CREATE UNIQUE INDEX" if unique else "CREATE INDEX"
    assert [index for index in indexes if index.startswith(kind) and f"USING btree ({columns}" in index]


# --- the source -------------------------------------------------------------------------------------------------------------------


def declarations(model):
    """The constraints and indexes in the source of a model's Meta: line, name, and the line above each."""
    source = inspect.getsource(model)
    lines = source.splitlines()
    (meta,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == "Meta"]
    node: Any
    for node in meta.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("constraints", "indexes"):
            calls: Any = node.value
            for call in calls.elts:
                (name,) = [keyword.value.value for keyword in call.keywords if keyword.arg == "name"]
                yield name, lines[call.lineno - 2].strip()


@pytest.mark.parametrize("model", OURS)
def test_a_comment_stands_above_every_constraint_and_index(model):
    found = dict(declarations(model))
    assert set(found) == {declared.name for declared in [*model._meta.constraints, *model._meta.indexes]}
    assert [name for name, above in found.items() if not above.startswith("# ")] == []


def test_the_number_of_attempts_never_goes_down():
    job = JobFactory()
    update(AiRuntimeJob, job.pk, attempt_no="2")
    with pytest.raises(IntegrityError, match="attempt_no never goes down, not from 2 to 1"), transaction.atomic():
        update(AiRuntimeJob, job.pk, attempt_no="1")
