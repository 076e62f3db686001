"""What the database reads for each of the hot statements, with 200,000 finished and 5,000 waiting jobs behind it.

The statements are those that the services execute, caught on their way. Bounds are about three times what was measured; a
scan of the backlog or of the history reads a hundred times as much.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import QuerySet

from runtime_jobs import registry
from runtime_jobs.models import AiRuntimeJob, RuntimeInstance
from runtime_jobs.registry import Limits
from runtime_jobs.services import claims, fairness, lapses, leases, offers, workers
from runtime_jobs.services.events import SYSTEM
from runtime_jobs.services.jobs import cancel_job
from runtime_jobs.states import Lane
from tests.conftest import triggers_off
from tests.factories import CredentialFactory, JobFactory
from tests.services.steps import deliver

pytestmark = pytest.mark.django_db

FINISHED, WAITING, LEASED = 200_000, 5_000, 60
TYPES = ["synthetic.extract_facts", "synthetic.extract_facts_runtime", "synthetic.extract_facts_background"]
LANES = ["interactive", "runtime", "background"]
OF_MODELS = {"job_model_queued", "job_model_retrying"}
CLAIM_INDEXES = OF_MODELS | {"ai_runtime_job_pkey"}


def pick(values: list[str], number: str = "n") -> str:
    return f"(ARRAY{values!r})[1 + ({number}) % {len(values)}]"


HELD = {"lock_token": "repeat(md5(n::text), 2)", "locked_by": "'w'", "locked_at": "now()", "attempt_no": "1", "started_at": "now()"}
# The history knows two lanes only: of the third, the statistics hear when its first jobs wait.
OF_HISTORY = {
    **HELD,
    "status": pick(["succeeded"] * 8 + ["failed", "cancelled"], "n / 2"),
    "error_code": pick([""] * 8 + ["internal_error", "cancelled"], "n / 2"),
    "finished_at": "now()",
    "lane": pick(LANES[:2]),
    "job_type": pick(TYPES[:2]),
    "target_id": "(n / 3)::text",
    "idempotency_key": "CASE WHEN n % 2 = 0 THEN 'key ' || n END",
}
OF_LANE = {"lane": pick(LANES), "job_type": pick(TYPES)}
OF_BACKLOG = {
    **OF_LANE,
    "status": pick(["queued"] * 4 + ["retrying"]),
    "sort_at": "now() + n * interval '1 ms'",
    "available_at": "now() - n * interval '1 ms'",
    "created_at": "now() - interval '1 hour'",
}
OF_LEASED = {**HELD, **OF_LANE, "status": "'running'", "lock_until": "now() + (n % 2 * 2 - 1) * interval '1 hour'"}


def load(first: int, count: int, columns: dict[str, str]) -> None:
    """Copies of the template job with ids in order of age; the values are SQL over `n`."""
    own = {
        "id": "(lpad(to_hex(1767225600000 + n), 12, '0') || '7000a000' || lpad(to_hex(n), 12, '0'))::uuid",
        "user_id": "(SELECT min(id) FROM auth_user) + n % 50",
        "target_id": "'job ' || n",
        **columns,
    }
    names = [field.attname for field in AiRuntimeJob._meta.concrete_fields]
    with triggers_off(), connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO ai_runtime_job ({', '.join(names)}) SELECT {', '.join(own.get(name, 't.' + name) for name in names)} "
            f"FROM ai_runtime_job t, generate_series({first}, {first + count - 1}) n WHERE t.target_id = 'template'"
        )


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(scope="module", autouse=True)
def history(django_db_setup: Any, django_db_blocker: Any) -> Iterator[None]:
    users = get_user_model().objects
    with django_db_blocker.unblock():
        try:
            users.bulk_create([users.model(username=f"plans {number}") for number in range(50)])
            JobFactory(user=users.earliest("pk"), credential=CredentialFactory(), target_id="template")
            # What was committed without waiting for the disk is not all-visible to a VACUUM that follows at once.
            execute("SET synchronous_commit = on", "ALTER TABLE ai_runtime_job SET (autovacuum_enabled = false)")
            load(1, FINISHED, OF_HISTORY)
            load(FINISHED + 1, WAITING, OF_BACKLOG)
            load(FINISHED + WAITING + 1, LEASED, OF_LEASED)
            execute("VACUUM ANALYZE ai_runtime_job")
            yield
        finally:
            with triggers_off():
                execute("TRUNCATE auth_user CASCADE", "TRUNCATE ai_model_credential CASCADE", "TRUNCATE ai_job_snapshot CASCADE")
            execute("ALTER TABLE ai_runtime_job RESET (autovacuum_enabled)", "RESET synchronous_commit")


# --- reading plans ----------------------------------------------------------------------------------------------------------------


@dataclass
class Statement:
    sql: str
    parameters: Any


@dataclass
class Plan:
    blocks: int
    indexes: set[str]  # of the job table, that were read at all
    seq_scan: bool  # of the job table
    text: str


def caught(action: Any) -> list[Statement]:
    """The statements about jobs that an action executes; what it does is taken back."""
    found = []

    def catch(run: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        if "ai_runtime_job" in sql:
            found.append(Statement(sql, parameters))
        return run(sql, parameters, many, context)

    with transaction.atomic(), connection.execute_wrapper(catch):
        action()
        transaction.set_rollback(True)
    assert found
    return found


def explain(statement: Statement | QuerySet[Any], *, generic: bool = False) -> Plan:
    """How it is executed now. `generic`: as a prepared statement whose plan knows no parameter."""
    if isinstance(statement, QuerySet):
        statement = Statement(*statement.query.sql_with_params())
    how = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
    with transaction.atomic(), connection.cursor() as cursor:
        if generic:
            cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            names = list(statement.parameters)
            sql = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement.sql)
            cursor.execute(f"PREPARE generic ({', '.join(PARAMETER_TYPES.get(name, 'unknown') for name in names)}) AS {sql}")
            try:
                cursor.execute(f"{how} EXECUTE generic ({', '.join(f'%({name})s' for name in names)})", statement.parameters)
                row = cursor.fetchone()
            finally:
                cursor.execute("DEALLOCATE generic")
        else:
            cursor.execute(f"{how} {statement.sql}", statement.parameters)
            row = cursor.fetchone()
        cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'ai_runtime_job'")
        of_jobs = {name for (name,) in cursor.fetchall()}
        transaction.set_rollback(True)
    top = row[0][0]["Plan"]
    nodes = [node for node in every_node(top) if node["Actual Loops"]]
    return Plan(
        blocks=top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        indexes={node["Index Name"] for node in nodes if node.get("Index Name") in of_jobs},
        seq_scan=any(node["Node Type"] == "Seq Scan" and node["Relation Name"] == "ai_runtime_job" for node in nodes),
        text="\n".join(
            f"{node['Node Type']} {node.get('Index Name', node.get('Relation Name', ''))} {node['Actual Rows']} x {node['Actual Loops']}"
            for node in nodes
        ),
    )


# What the server cannot infer from where a parameter stands.
PARAMETER_TYPES = {"attempt_ids": "uuid[]", "service_token": "uuid", "request_id": "uuid", "job_id": "uuid"}


def every_node(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from every_node(below)


def check(plan: Plan, indexes: set[str], blocks: int) -> None:
    assert not plan.seq_scan, plan.text
    assert plan.indexes == indexes, plan.text
    assert plan.blocks <= blocks, f"{plan.blocks} blocks\n{plan.text}"


def claim(lane: str = "interactive", count: int = 1, **more: Any) -> list[claims.Claim]:
    return claims.claim(lane=lane, worker="plans", job_types=TYPES, count=count, lease_seconds=30, **more)


def the_claim(**arguments: Any) -> Statement:
    return next(statement for statement in caught(lambda: claim(**arguments)) if "claimed AS" in statement.sql)


def the_offer(lane: str = "runtime") -> Statement:
    return caught(lambda: offers.offer(lane=lane, worker="plans", job_types=TYPES, count=8, offer_seconds=30))[0]


def waiting_in(lane: str) -> AiRuntimeJob:
    return AiRuntimeJob.objects.filter(lane=lane, status="queued").order_by("-pk")[7]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each type at a limit that leaves room."""
    for job_type in TYPES:
        monkeypatch.setattr(type(registry.get(job_type)), "limits", Limits(running=1_000, running_per_model=500))


# --- the claim --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "blocks"), [(1, 300), (8, 1_200)])
def test_a_claim_reads_the_two_claim_indexes_a_few_rows_each_and_the_rows_that_it_takes(count, blocks):
    assert len(claim(count=count)) == count
    check(explain(the_claim(count=count)), CLAIM_INDEXES | {"job_offers"}, blocks)


def test_a_claim_of_limited_types_also_counts_what_runs_along_the_leases_and_offers(limited):
    check(explain(the_claim(count=8)), CLAIM_INDEXES | {"job_leases", "job_offers"}, 1_200)


def test_an_offer_reads_what_a_claim_reads():
    check(explain(the_offer()), CLAIM_INDEXES, 1_200)


def test_a_lock_of_one_job_reads_that_row():
    check(explain(the_claim(job_id=waiting_in("interactive").pk)), {"ai_runtime_job_pkey"}, 200)


def test_a_claim_that_finds_nothing_reads_next_to_nothing():
    statement = caught(lambda: claims.claim(lane="interactive", worker="w", job_types=["other"], count=8, lease_seconds=30))[0]
    check(explain(statement), OF_MODELS | {"job_offers"}, 60)


def never_analysed() -> None:
    execute(
        "DELETE FROM pg_statistic WHERE starelid = 'ai_runtime_job'::regclass",
        "UPDATE pg_class SET relpages = 0, reltuples = -1, relallvisible = 0 WHERE oid = 'ai_runtime_job'::regclass "
        "OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'ai_runtime_job'::regclass)",
    )


def analysed_in_an_idle_night_before_a_burst() -> None:
    with triggers_off():
        execute("DELETE FROM ai_runtime_job WHERE status IN ('queued', 'retrying') AND target_id <> 'template'")
    execute(
        "ANALYZE ai_runtime_job",
        # What VACUUM notes of an index that everything has left but its pages.
        "UPDATE pg_class SET reltuples = 0, relpages = 10 WHERE oid IN "
        "(SELECT indexrelid FROM pg_index WHERE indrelid = 'ai_runtime_job'::regclass AND indpred IS NOT NULL)",
    )
    load(2 * FINISHED, WAITING, OF_BACKLOG)


def up_to_date() -> None:
    pass


@pytest.mark.parametrize("generic", [False, True], ids=["planned with its parameters", "planned without"])
@pytest.mark.parametrize("statistics", [up_to_date, never_analysed, analysed_in_an_idle_night_before_a_burst])
def test_the_claims_plan_stays_whatever_the_statistics_say(limited, statistics, generic):
    statistics()
    counting = {"job_leases", "job_offers"}
    # In the background lane, of which the night's statistics have never heard.
    for lane in ("interactive", "background"):
        check(explain(the_claim(lane=lane, count=8), generic=generic), CLAIM_INDEXES | counting, 2_500)
        check(explain(the_offer(lane), generic=generic), CLAIM_INDEXES | counting, 2_500)
        one = the_claim(lane=lane, job_id=waiting_in(lane).pk)
        check(explain(one, generic=generic), {"ai_runtime_job_pkey"} | counting, 300)


@pytest.mark.parametrize("statistics", [up_to_date, never_analysed, analysed_in_an_idle_night_before_a_burst])
def test_a_new_jobs_place_is_found_without_reading_the_backlog(statistics):
    statistics()
    user = get_user_model().objects.earliest("pk").pk
    (place,) = caught(lambda: fairness.place(lane=Lane.BACKGROUND, user_id=user, priority=5))
    # The dead rows of the night, three times, where no vacuum has come yet.
    check(explain(place), {"job_model_queued", "job_user_queued"}, 1_200)


def test_the_planner_is_told_nothing_of_the_states():
    """Migration 0002; without it the idle night's claim reads some 30,000 blocks."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stats WHERE tablename = 'ai_runtime_job' AND attname = 'status'")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT count(*) FROM pg_stats WHERE tablename = 'ai_runtime_job' AND attname = 'lane'")
        assert cursor.fetchone() == (1,)


@pytest.mark.parametrize("statistics", [up_to_date, never_analysed, analysed_in_an_idle_night_before_a_burst])
def test_a_success_finds_its_job_by_the_key(statistics):
    statistics()
    (held,) = claim(lane="background")
    statements = [statement for statement in caught(lambda: deliver(held)) if "UPDATE ai_runtime_job" in statement.sql.replace('"', "")]
    assert statements
    for statement in statements:
        plan = explain(statement)
        assert "ai_runtime_job_pkey" in plan.indexes, plan.text
        assert not plan.seq_scan
        assert plan.blocks <= 400, f"{plan.blocks} blocks\n{plan.text}"


# --- leases -----------------------------------------------------------------------------------------------------------------------


def test_the_lease_scan_reads_leased_rows_only():
    scan = caught(lapses.reap)[0]
    assert scan.sql == lapses._EXPIRED
    check(explain(scan), {"job_leases"}, 100)


def test_taking_one_lease_back_finds_its_row_by_the_key(settings):
    settings.ENGINE_LEASE_SECONDS = 0  # the database need not have been up for long
    locks = [statement for statement in caught(lapses.reap) if "FOR UPDATE" in statement.sql]
    assert len(locks) >= LEASED / 4
    for lock in locks[:5]:
        check(explain(lock), {"ai_runtime_job_pkey"}, 20)


def test_a_renewal_reads_the_rows_that_it_renews():
    with transaction.atomic():
        held = claim(count=8)
        (renewal,) = caught(lambda: leases.renew(held, lease_seconds=60, grace_seconds=5))
        plan = explain(renewal)
        transaction.set_rollback(True)
    assert not plan.seq_scan
    assert plan.indexes <= {"ai_runtime_job_pkey", "job_leases"}
    assert plan.blocks <= 1_000


def test_giving_up_on_unknown_types_steps_from_type_to_type():
    for lane in ("interactive", "background"):
        workers.seen(f"engine {lane}", kind=RuntimeInstance.Kind.ENGINE, lane=lane, version="", job_types=["other"])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_instance SET started_at = now() - interval '1 hour'")
    queued, retrying = [one for one in caught(lapses.give_up_unknown_types) if "alive AS (" in one.sql]
    plan = explain(queued)
    # The planner may also take what is queued from the users' index and sort it: a limit, reached only while a type is unknown.
    assert not plan.seq_scan, plan.text
    assert {"job_model_queued"} <= plan.indexes <= {"job_model_queued", "job_user_queued"}, plan.text
    assert plan.blocks <= 5_000, plan.text
    check(explain(retrying), {"job_model_retrying"}, 500)


def test_giving_up_on_nothing_does_not_read_the_backlog():
    for lane in ("interactive", "background"):
        workers.seen(f"engine {lane}", kind=RuntimeInstance.Kind.ENGINE, lane=lane, version="", job_types=TYPES)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_instance SET started_at = now() - interval '1 hour'")
    queued, retrying = caught(lapses.give_up_unknown_types)
    check(explain(queued), {"job_model_queued"}, 60)
    check(explain(retrying), {"job_model_retrying"}, 60)


def test_a_cancel_finds_its_job_by_the_key():
    job = waiting_in("interactive")
    for statement in caught(lambda: cancel_job(job.pk, actor=SYSTEM)):
        plan = explain(statement)
        assert not plan.seq_scan
        assert plan.blocks <= 1_000, plan.text


# --- lists ------------------------------------------------------------------------------------------------------------------------


def test_acceptance_7_a_target_is_looked_up_by_its_index():
    jobs = AiRuntimeJob.objects.filter(target_type="document", target_id="777").order_by("-id")
    assert jobs.count() == 3
    check(explain(jobs), {"job_target"}, 20)


def test_acceptance_7_a_type_is_listed_along_its_index():
    jobs = AiRuntimeJob.objects.filter(job_type=TYPES[2]).order_by("-id")[:50]
    assert len(jobs) == 50
    plan = explain(jobs)
    assert not plan.seq_scan
    assert plan.indexes <= {"job_type", "ai_runtime_job_pkey"}
    assert plan.blocks <= 300


def test_a_users_list_is_read_along_the_users_index():
    user = get_user_model().objects.earliest("pk")
    jobs = AiRuntimeJob.objects.filter(user=user).order_by("-id")[:50]
    assert len(jobs) == 50
    check(explain(jobs), {"job_user"}, 200)
