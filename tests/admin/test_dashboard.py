"""The dashboard: what it says is what the lists hold, it costs the same whatever the history, and shows nobody more than they may see."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import psycopg
import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runtime_jobs.admin import charts, numbers
from runtime_jobs.admin.charts import Bar, Part
from runtime_jobs.models import AiEventDelivery, AiJobEvent, AiRuntimeJob, ClaimGate, HourlyFigures, RuntimeInstance
from runtime_jobs.queries import dashboard
from runtime_jobs.services import claims, figures, gates, workers
from runtime_jobs.services.events import Actor
from runtime_jobs.states import Lane
from tests.admin import people
from tests.conftest import triggers_off
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db

DASHBOARD = "/admin/"
MOST_QUERIES, MOST_BUFFERS = 15, 5_000


@pytest.fixture(autouse=True)
def _nothing_is_shared(monkeypatch):
    """Each look is a new one, unless a test says otherwise."""
    cache.clear()
    monkeypatch.setattr("runtime_jobs.admin.dashboard.SHARED_SECONDS", 0)


@pytest.fixture
def root(client):
    user = people.root()
    client.force_login(user)
    return user


def tile(text, label):
    """The value, the note and the link of a tile."""
    found = re.search(
        rf'<(a href="([^"]*)"|div)>\s*<span class="tile-label">{label}</span>\s*<span class="tile-value">([^<]*)</span>\s*'
        r'<span class="tile-note">([^<]*)</span>',
        text,
    )
    assert found, label
    return found[3], found[4], unescape(found[2] or "")


def listed(client, url):
    """How many rows the list behind a figure shows."""
    page = client.get(url)
    assert page.status_code == 200, url
    return page.context["cl"].result_count


def busy_system():
    """Something of everything that the dashboard counts."""
    for _ in range(3):
        JobFactory()
    claims.claim(lane="interactive", worker="w", job_types=["synthetic.extract_facts"], count=1, lease_seconds=30)
    JobFactory(job_type="synthetic.extract_facts_background")
    for status, error in (("succeeded", ""), ("succeeded", ""), ("failed", "provider_timeout")):
        job = JobFactory()
        with triggers_off():
            AiRuntimeJob.objects.filter(pk=job.pk).update(status=status, error_code=error, finished_at=datetime.now(UTC))
    workers.seen("w", kind=RuntimeInstance.Kind.ENGINE, lane="interactive", version="1", job_types=[])
    gates.pause(ClaimGate.Kind.LANE, "background", actor=Actor("", "ann"), reason="the provider is moving")
    ClaimGate.objects.create(kind="breaker", key="simulator/simulator-1", reason="the last 5 calls failed")
    event = AiJobEvent.objects.order_by("id").first()
    assert event
    AiEventDelivery.objects.create(event=event, handler="h", job_id=event.job_id, seq=1, parked_at=datetime.now(UTC))
    figures.roll_up()


def test_each_figure_is_what_the_list_behind_it_holds(client, root):
    busy_system()
    text = client.get(DASHBOARD).content.decode()
    for label, value in (("Running", "1"), ("Queued", "3"), ("Retrying", "0"), ("Parked events", "1")):
        shown, _, url = tile(text, label)
        assert (shown, listed(client, url)) == (value, int(value)), label
    shown, note, url = tile(text, "Success rate")
    assert (shown, note, listed(client, url)) == ("66.7 %", "1 failed of 3 ended", 1)
    assert tile(text, "Workers alive")[0] == "1"
    assert listed(client, tile(text, "Workers alive")[2]) == 1
    assert tile(text, "Open breakers")[:2] == ("1", "and 1 paused")
    assert listed(client, tile(text, "Open breakers")[2]) == 2
    assert "the provider is moving" in text
    assert "provider_timeout" in text


def test_every_link_of_the_dashboard_leads_to_a_page(client, root):
    busy_system()
    text = client.get(f"{DASHBOARD}?window=7d").content.decode()
    live = text.split('<div id="live"')[1]
    links = {unescape(link) for link in re.findall(r'href="([^"#]+)"', live)}
    assert len(links) > 25
    for link in links:
        answer = client.get(link if link.startswith("/") else f"{DASHBOARD}{link}")
        assert answer.status_code == 200, link
        # A filter that the list does not know is dropped by a redirect with e=1, or shows all.
        assert "e=1" not in answer.request.get("QUERY_STRING", "")


def test_the_jobs_of_an_hour_and_of_a_type_are_those_that_the_bar_counts(client, root):
    busy_system()
    page = client.get(DASHBOARD)
    chart = page.context["charts"][0]
    urls = [bar.url for bar in chart.bars if bar.rects]
    assert sum(listed(client, url) for url in urls) == 3
    (kind,) = page.context["job_types"]
    assert listed(client, kind["cells"][0].url) == 3
    assert listed(client, kind["cells"][1].url) == 1


def test_without_a_worker_a_lane_that_has_work_says_so(client, root):
    JobFactory()
    assert "no worker" in client.get(DASHBOARD).content.decode()


def test_figures_that_nobody_counts_any_more_say_so(client, root):
    JobFactory()
    assert "Nothing has been counted yet" in client.get(DASHBOARD).content.decode()
    busy_system()
    assert "old: no worker" not in client.get(DASHBOARD).content.decode()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE rolled_up_hour SET counted_at = counted_at - interval '3 hours'")
    assert "These figures are 3 h 0 min old" in client.get(DASHBOARD).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_stays_open_is_told_of(client, monkeypatch):
    """Engine 27: a report that runs for minutes makes claims slower and slower."""
    client.force_login(people.root())
    monkeypatch.setattr(dashboard, "_HELD_SECONDS", 0)
    said = "A transaction has been open for"
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as report:
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT count(*) FROM ai_runtime_job")
        assert said in client.get(DASHBOARD).content.decode()
        report.rollback()
        monkeypatch.setattr(dashboard, "_HELD_SECONDS", 300)
        assert said not in client.get(DASHBOARD).content.decode()


def test_whoever_may_not_see_jobs_sees_no_figure_and_links_follow_permissions(client):
    busy_system()
    client.force_login(people.staff())
    text = client.get(DASHBOARD).content.decode()
    assert "You may not view jobs" in text
    assert "tile-value" not in text
    client.force_login(people.staff("view_airuntimejob"))
    text = client.get(DASHBOARD).content.decode()
    assert tile(text, "Running")[2]
    assert not tile(text, "Workers alive")[2]
    assert not tile(text, "Tokens")[2]


def test_a_window_that_does_not_exist_is_the_usual_one(client, root):
    assert client.get(f"{DASHBOARD}?window=%27nonsense").context["windows"][0][3]


def fill(jobs=12_000):
    """Long queues in every lane, and a month of figures of many kinds."""
    first = JobFactory()
    columns = {field.attname: getattr(first, field.attname) for field in AiRuntimeJob._meta.concrete_fields if field.attname != "id"}
    lanes, now = list(Lane), datetime.now(UTC)
    with triggers_off():
        AiRuntimeJob.objects.bulk_create(
            AiRuntimeJob(
                **{
                    **columns,
                    "lane": lanes[number % 3],
                    "status": "retrying" if number % 4 == 0 else "queued",
                    "available_at": now,
                    "sort_at": now,
                    "created_at": now,
                    "updated_at": now,
                }
            )
            for number in range(jobs)
        )
    HourlyFigures.objects.bulk_create(
        HourlyFigures(
            hour=now - timedelta(hours=hour), lane="interactive", job_type=f"type{kind}", provider="p", model=f"m{kind % 5}", succeeded=10,
            failed=1, calls=11, input_tokens=100, output_tokens=100, cost_usd=1,
        )
        for hour in range(30 * 24)
        for kind in range(40)
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ai_runtime_job, hourly_figures")


def buffers_of(sql):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (plan,) = cursor.fetchone()[0]
    return plan["Plan"].get("Shared Hit Blocks", 0) + plan["Plan"].get("Shared Read Blocks", 0)


@pytest.mark.parametrize("window", dashboard.WINDOWS)
def test_it_takes_few_queries_and_few_buffers_however_long_the_queues_and_the_history(client, root, window):
    fill()
    with CaptureQueriesContext(connection) as captured:
        text = client.get(f"{DASHBOARD}?window={window}").content.decode()
    assert HourlyFigures.objects.count() == 28_800
    assert tile(text, "Queued")[0] == "9,001"
    assert len(captured) <= MOST_QUERIES
    for query in captured.captured_queries:
        if query["sql"].lstrip().upper().startswith(("SELECT", "WITH")):
            assert buffers_of(query["sql"]) <= MOST_BUFFERS, query["sql"]
            assert 'COUNT(*) FROM "ai_runtime_job"' not in query["sql"].upper()


def test_05_twenty_open_tabs_count_once_in_an_interval(client, root, monkeypatch):
    """scenario 5 of admin.md, for the dashboard"""
    monkeypatch.setattr("runtime_jobs.admin.dashboard.SHARED_SECONDS", 60)
    with CaptureQueriesContext(connection) as one:
        client.get(DASHBOARD)
    with CaptureQueriesContext(connection) as twenty:
        for _ in range(20):
            client.get(DASHBOARD)
    assert any("ai_runtime_job" in query["sql"] for query in one.captured_queries)
    assert not any("ai_runtime_job" in query["sql"] for query in twenty.captured_queries)


def test_a_count_that_ended_at_its_cap_says_so(client, root, monkeypatch):
    for _ in range(4):
        JobFactory()
    monkeypatch.setattr(dashboard, "COUNT_CAP", 2)
    monkeypatch.setattr("runtime_jobs.admin.dashboard.COUNT_CAP", 2)
    text = client.get(DASHBOARD).content.decode()
    assert tile(text, "Queued")[0] == "3+"
    assert ">2+</a>" in text


def test_a_bar_is_as_high_as_its_share_and_never_out_of_sight():
    bars = [
        Bar("a", [Part("good", "g", 75), Part("bad", "b", 25)], "x"),
        Bar("b", [Part("good", "g", 0.001)], "y"),
        Bar("c", [Part("good", "g", 0)], "z"),
    ]
    chart = charts.draw("t", bars, top=str, axis=[], header=("h", "v"))
    full, tiny, none = (bar.rects for bar in chart.bars)
    assert [(rect.kind, rect.y, rect.height) for rect in full] == [("good", "25.00", "75.00"), ("bad", "0.00", "25.00")]
    assert float(tiny[0].height) > 1
    assert none == []
    assert chart.top == "100"
    assert charts.draw("t", [], top=str, axis=[], header=("h", "v")).top == "0"


@pytest.mark.parametrize(
    ("said", "is_"),
    [
        (numbers.short(9_999), "9,999"), (numbers.short(12_345), "12.3k"), (numbers.short(4_560_000), "4.6M"),
        (numbers.short(250_000), "250k"),
        (numbers.money(0), "$0"), (numbers.money(12.346), "$12.35"), (numbers.money(0.0123), "$0.012"), (numbers.money(0.5), "$0.50"),
        (numbers.money(12_345.6), "$12.3k"), (numbers.money(0.00000001), "$0.00000001"),
        (numbers.percent(None), "–"), (numbers.percent(1), "100 %"), (numbers.percent(0.99999), "99.9 %"), (numbers.percent(0.5), "50.0 %"),
        (numbers.capped(11, 10), "10+"), (numbers.capped(10, 10), "10"),
    ],
)  # fmt: skip
def test_numbers_are_short_and_never_say_more_than_is_so(said, is_):
    assert said == is_


def test_every_lane_has_its_row(client, root):
    text = client.get(DASHBOARD).content.decode()
    for lane in Lane:
        assert f"lane__exact={lane}" in text
