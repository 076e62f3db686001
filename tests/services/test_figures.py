"""Rolling up: whatever happened in an hour is counted once, however often and by however many it is counted."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connections

from runtime_jobs.models import AiRuntimeJob, AiUsageLog, HourlyFigures, RolledUpHour
from runtime_jobs.queries import CLOCKS_APART, dashboard, first_id
from runtime_jobs.services import figures
from tests.conftest import triggers_off
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
THIS_HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
LONG_AGO = THIS_HOUR - 5 * HOUR


def ended(moment, status="succeeded", **more):
    """A job that ended then."""
    job = JobFactory()
    error = "internal_error" if status == "failed" else "cancelled" if status == "cancelled" else ""
    with triggers_off():
        AiRuntimeJob.objects.filter(pk=job.pk).update(**{"status": status, "finished_at": moment, "error_code": error, **more})
    return job


def called(moment, outcome="succeeded", job=None, **more):
    """A call that began then."""
    job = job or JobFactory()
    number = AiUsageLog.objects.count()
    return AiUsageLog.objects.create(
        id=UUID(int=first_id(moment, timedelta(0)).int + number),
        job=job, user_id=job.user_id, attempt_no=1, call_no=1, invocation_id=str(number), credential_mode="platform",
        provider="simulator", model_requested="simulator-1", outcome=outcome, created_at=moment,
        **{"closed_at": None if outcome == "started" else moment, **more},
    )  # fmt: skip


def total(hour=None):
    rows = HourlyFigures.objects.filter(hour=hour) if hour else HourlyFigures.objects.all()
    names = ("succeeded", "failed", "cancelled", "calls", "calls_failed", "calls_unpriced", "input_tokens", "output_tokens", "cost_usd")
    return {name: value for name in names if (value := sum(getattr(row, name) for row in rows))}


def test_jobs_count_in_the_hour_they_ended_in_and_calls_in_the_hour_they_began_in():
    ended(LONG_AGO)
    ended(LONG_AGO + HOUR - timedelta(microseconds=1), "failed")
    ended(LONG_AGO + HOUR, "cancelled")
    called(LONG_AGO, input_tokens=10, output_tokens=2, cost_usd=Decimal("0.5"))
    called(LONG_AGO + HOUR / 2, "failed", error_code="provider_timeout", closed_at=LONG_AGO + 3 * HOUR)
    called(LONG_AGO + HOUR)
    assert figures.roll_up() == 6
    one_hour = {"succeeded": 1, "failed": 1, "calls": 2, "calls_failed": 1, "calls_unpriced": 1}
    assert total(LONG_AGO) == {**one_hour, "input_tokens": 10, "output_tokens": 2, "cost_usd": Decimal("0.5")}
    assert total(LONG_AGO + HOUR) == {"cancelled": 1, "calls": 1, "calls_unpriced": 1}


def test_a_call_whose_id_was_made_by_a_clock_that_is_a_little_off_is_found_all_the_same():
    with triggers_off():
        call = called(LONG_AGO)
        early = first_id(LONG_AGO, -CLOCKS_APART)
        AiUsageLog.objects.filter(pk=call.pk).update(id=early)
    figures.roll_up()
    assert total(LONG_AGO)["calls"] == 1


def test_counting_again_changes_nothing_and_a_final_hour_is_left_alone():
    ended(LONG_AGO)
    figures.roll_up(every_seconds=0)
    first = list(HourlyFigures.objects.filter(hour=LONG_AGO).values())
    ended(LONG_AGO)  # which cannot be: it would have had to commit hours ago
    figures.roll_up(every_seconds=0)
    assert list(HourlyFigures.objects.filter(hour=LONG_AGO).values()) == first
    assert RolledUpHour.objects.get(hour=LONG_AGO).final


def test_the_running_hour_is_counted_again_but_not_more_often_than_it_has_to_be():
    ended(datetime.now(UTC))
    assert figures.roll_up() >= 1
    ended(datetime.now(UTC), "failed")
    assert figures.roll_up() == 0
    assert total() == {"succeeded": 1}
    figures.roll_up(every_seconds=0)
    assert total() == {"succeeded": 1, "failed": 1}


def test_an_hour_waits_for_its_open_calls_for_a_day_and_no_longer():
    open_call, stuck = called(LONG_AGO, "started"), called(THIS_HOUR - 30 * HOUR, "started")
    figures.roll_up()
    assert not RolledUpHour.objects.get(hour=LONG_AGO).final
    assert RolledUpHour.objects.get(hour=THIS_HOUR - 30 * HOUR).final
    AiUsageLog.objects.filter(pk=open_call.pk).update(
        outcome="failed", error_code="provider_timeout", closed_at=datetime.now(UTC), input_tokens=7
    )
    figures.roll_up(every_seconds=0)
    assert RolledUpHour.objects.get(hour=LONG_AGO).final
    # Its row without an error code is gone with it: the call is counted once.
    assert total(LONG_AGO) == {"calls": 1, "calls_failed": 1, "calls_unpriced": 1, "input_tokens": 7}
    assert stuck.outcome == "started"


def test_what_is_new_is_counted_first_and_the_rest_in_passes():
    ended(THIS_HOUR - 10 * HOUR)
    ended(THIS_HOUR - HOUR)
    assert figures.roll_up(hours=3) == 3
    assert set(RolledUpHour.objects.values_list("hour", flat=True)) == {THIS_HOUR, THIS_HOUR - HOUR, THIS_HOUR - 2 * HOUR}
    call_command("roll_up_figures", verbosity=0)
    assert total() == {"succeeded": 2}
    assert RolledUpHour.objects.count() == 11


def test_nothing_is_older_than_a_month_and_old_figures_are_forgotten():
    ended(THIS_HOUR - timedelta(days=200))
    figures.roll_up(hours=2_000)
    assert not HourlyFigures.objects.exists()
    hour = THIS_HOUR - timedelta(days=figures.KEPT_DAYS + 1)
    HourlyFigures.objects.create(hour=hour, lane="interactive", job_type="t", provider="p", model="m", succeeded=1)
    assert figures.forget_old() == 1


def test_an_empty_system_has_nothing_to_count():
    assert figures.roll_up() == 0
    assert dashboard.figures("24h").counted_at is None


@pytest.mark.django_db(transaction=True)
def test_many_at_once_count_every_job_once():
    for number in range(6):
        ended(LONG_AGO + number * HOUR / 2)

    def count(_: int) -> None:
        try:
            figures.roll_up(every_seconds=0)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(24)))
    figures.roll_up(every_seconds=0)
    assert total() == {"succeeded": 6}


def test_the_windows_sum_up_to_the_same_and_every_kind_is_there():
    yesterday = THIS_HOUR - timedelta(days=3)
    ended(LONG_AGO, "failed")
    ended(yesterday)
    called(LONG_AGO, input_tokens=3, output_tokens=4, cost_usd=Decimal("0.25"))
    while figures.roll_up(every_seconds=1):
        pass
    day, week, month = (dashboard.figures(window) for window in dashboard.WINDOWS)
    assert (day.total.ended, week.total.ended, month.total.ended) == (1, 2, 2)
    assert (len(day.buckets), len(week.buckets), len(month.buckets)) == (24, 7, 30)
    assert all(before.end == after.start for before, after in zip(day.buckets, day.buckets[1:], strict=False))
    assert [(name, sums.ended) for name, sums in week.job_types] == [("synthetic.extract_facts", 2)]
    assert [(name, sums.tokens, sums.cost_usd) for name, sums in week.models] == [(("simulator", "simulator-1"), 7, Decimal("0.25"))]
    assert week.errors == [("internal_error", 1)]
    assert week.total.success_rate == 0.5
    assert day.counted_at is not None


def test_days_are_those_of_the_sites_time_zone(settings):
    settings.TIME_ZONE = "Asia/Shanghai"
    buckets = dashboard.figures("7d").buckets
    assert {bucket.start.astimezone(UTC).hour for bucket in buckets} == {16}
    assert buckets[-1].start <= datetime.now(UTC) < buckets[-1].end


def test_the_oldest_of_each_lane_is_told_by_its_id_and_counts_end_at_their_cap(monkeypatch):
    first = JobFactory()
    JobFactory()
    JobFactory(job_type="synthetic.extract_facts_background")
    lanes = {str(lane.lane): lane for lane in dashboard.now(alive_seconds=20).lanes}
    assert (lanes["interactive"].queued, lanes["background"].queued, lanes["runtime"].queued) == (2, 1, 0)
    oldest = lanes["interactive"].oldest_created_at
    first.refresh_from_db()
    assert oldest is not None
    assert abs(oldest - first.created_at) < timedelta(seconds=2)
    monkeypatch.setattr(dashboard, "COUNT_CAP", 1)
    assert dashboard.now(alive_seconds=20).lanes[0].queued == 2  # the cap and one more: "1+"
