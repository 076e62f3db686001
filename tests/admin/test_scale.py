"""The back office with a million jobs behind it: how many statements a page takes, and what the database reads for each.

Leave it out while working on something else: `pytest -m "not scale"`. Times are measured by `make bench`, not here.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, transaction
from django.urls import reverse
from django.utils import timezone

from runtime_jobs.models import AiJobEvent, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.services import roles
from runtime_jobs.states import JobStatus, Lane
from runtime_jobs.synthetic.history import make_history
from tests.admin.people import LIST
from tests.conftest import triggers_off

JOBS = 1_000_000
MOST_QUERIES = 15
LARGE = {"ai_runtime_job", "ai_job_attempt", "ai_usage_log"}
MOST_BUFFERS = 5_000  # of 8 KiB, hit or read, for one statement

pytestmark = [pytest.mark.django_db, pytest.mark.scale, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def history(django_db_setup: Any, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        try:
            make_history(jobs=JOBS)
            call_command("roll_up_figures", verbosity=0)
            get_user_model().objects.create(username="scale", is_staff=True)
            yield
        finally:
            with triggers_off(), connection.cursor() as cursor:
                for table in ("auth_user", "ai_model_credential", "ai_job_snapshot", "hourly_figures", "rolled_up_hour"):
                    cursor.execute(f"TRUNCATE {table} CASCADE")


@pytest.fixture
def administrator(client):
    user: Any = get_user_model().objects.get(username="scale")
    user.groups.add(Group.objects.get(name=roles.ADMINISTRATOR))
    client.force_login(user)
    cache.clear()
    return client


FILTERS = [
    *(f"status__exact={status}" for status in JobStatus),
    *(f"lane__exact={lane}" for lane in Lane),
    "job_type=synthetic.extract_facts", "job_type=synthetic.extract_facts_runtime", "job_type=no.such.type",
    "error_code=provider_timeout", "error_code=lease_expired", "error_code=cancelled",
    "provider=simulator", "provider=second", "provider=rare", "provider=none",
    "user=many-001", "user=many-200", "user=scale", "user=nobody",
    "created=1h", "created=24h", "created=7d", "created=30d", "until={old}", "since={old}&until={older_end}",
    "ended_since={old}&ended_until={older_end}", "ended_since={old}", "ended_until={old}",
    "rerun=yes", "rerun=yes&status__exact=failed",
    "status__exact=failed&provider=rare", "status__exact=failed&lane__exact=runtime", "status__exact=queued&lane__exact=runtime",
    "user=many-001&status__exact=failed", "lane__exact=interactive&error_code=provider_timeout&created=7d",
]  # fmt: skip
SEARCHES = ["q={job}", "q={key}", "q=document+250000", "q=250000", "q=many-001", "q=many-200", "q=no+such+thing"]
OTHERS = ["p=2", "p=200", "o=10", "o=-10", "status__exact=succeeded&p=200", "status__exact=failed&p=200"]
# Whatever page of the back office is to open as fast with a million jobs as with a thousand stands here.
PAGES = [
    "/admin/",
    "/admin/?window=7d",
    "/admin/?window=30d",
    LIST,
    *(f"{LIST}?{query}" for query in FILTERS + SEARCHES + OTHERS),
    "{succeeded}",
    "{running}",
    "{queued}",
    "{failed_long_ago}",
    "{rerun}",
    "{result}",
    "{event}",
    *(
        f"/admin/runtime_jobs/{name}/{query}"
        for name in ("airuntimeresult", "aiusagelog", "aijobevent", "aieventdelivery", "aistaffevent", "runtimeinstance", "claimgate")
        for query in ("", "?q={job}")
    ),
    "/admin/runtime_jobs/aiusagelog/?provider=rare",
    "/admin/runtime_jobs/aiusagelog/?provider=simulator&model=simulator-1&created=24h",
    "/admin/runtime_jobs/aiusagelog/?p=200",
    "/admin/runtime_jobs/aieventdelivery/?state=parked",
    "/admin/runtime_jobs/aieventdelivery/?state=waiting",
]


def address(page: str) -> str:
    """The page's address, with what is only known once the jobs are there."""
    jobs = AiRuntimeJob.objects.order_by("-id")
    then = AiRuntimeJob.objects.earliest("id").created_at + timedelta(days=10)
    values: dict[str, Callable[[], Any]] = {
        "old": lambda: f"{timezone.localtime(then):%Y-%m-%dT%H:%M}",
        "older_end": lambda: f"{timezone.localtime(then + timedelta(hours=1)):%Y-%m-%dT%H:%M}",
        "job": lambda: jobs[500].pk,
        "key": lambda: jobs.exclude(idempotency_key=None)[300].idempotency_key,
        "succeeded": lambda: page_of(jobs.filter(status="succeeded").first()),
        "running": lambda: page_of(jobs.filter(status="running").first()),
        "queued": lambda: page_of(jobs.filter(status="queued").first()),
        "failed_long_ago": lambda: page_of(jobs.filter(status="failed", created_at__lt=then).first()),
        "rerun": lambda: page_of(jobs.exclude(retried_from_job=None).first()),
        "result": lambda: page_of(AiRuntimeResult.objects.latest("id")),
        "event": lambda: page_of(AiJobEvent.objects.latest("id")),
    }
    return page.format(**{name: find() for name, find in values.items() if f"{{{name}}}" in page})


def page_of(row: Any) -> str:
    return reverse(f"admin:runtime_jobs_{row._meta.model_name}_change", args=[row.pk])


def every_node(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from every_node(below)


def name(node: dict[str, Any]) -> str:
    return f"{node['Node Type']} {node.get('Index Name', node.get('Relation Name', ''))}"


def buffers_of(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_takes_few_statements_and_none_reads_much(administrator, page):
    """admin 1, 2, 6 and 7"""
    url = address(page)
    statements = []

    def catch(run, sql, parameters, many, context):
        statements.append((sql, parameters))
        return run(sql, parameters, many, context)

    with connection.execute_wrapper(catch):
        answer = administrator.get(url)
    assert answer.status_code == 200, url
    assert len(statements) <= MOST_QUERIES, "\n".join(sql for sql, _ in statements)
    for sql, parameters in statements:
        if sql.startswith(("SAVEPOINT", "RELEASE")):
            continue
        assert "COUNT(*)" not in sql or "LIMIT" in sql, sql
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
            plan = cursor.fetchone()[0][0]["Plan"]
            transaction.set_rollback(True)
        nodes = [node for node in every_node(plan) if node["Actual Loops"]]
        shown = "\n".join(
            f"{name(node)}: {node['Actual Rows']} rows x {node['Actual Loops']}, {buffers_of(node)} buffers" for node in nodes
        )
        scanned = [node for node in nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE]
        assert not scanned, f"{sql}\n{shown}"
        assert buffers_of(plan) <= MOST_BUFFERS, f"{buffers_of(plan)} buffers\n{sql}\n{shown}"
