"""Events reach their handlers at least once, in order, and their effects in this database exactly once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from runtime_jobs import subscribers
from runtime_jobs.engine.outbox import OutboxThread
from runtime_jobs.models import AiEventDelivery, AiRuntimeJob
from runtime_jobs.models.base import new_id
from runtime_jobs.services import deliveries
from runtime_jobs.services.events import Actor, NewEvent, record
from runtime_jobs.services.transitions import lock
from runtime_jobs.subscribers import JobEvent
from tests.conftest import triggers_off
from tests.factories import JobFactory
from tests.services.threads import SECONDS, Worker, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def handlers(monkeypatch) -> dict[str, Any]:
    """The registered handlers, empty at first and gone after the test."""
    registered: dict[str, Any] = {}
    monkeypatch.setattr(subscribers, "_handlers", registered)
    return registered


@pytest.fixture
def business() -> Iterator[None]:
    """A table that handlers write to, as an application has one. Nothing in it keeps a row from being there twice."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE business_effect (job_id uuid, seq int)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE business_effect")


def write_effect(event: JobEvent) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO business_effect VALUES (%s, %s)", [event.job_id, event.seq])


def effects() -> list[tuple[Any, int]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT job_id, seq FROM business_effect ORDER BY job_id, seq")
        return list(cursor.fetchall())


def tell(job: AiRuntimeJob, name: str = "test.told", **data: Any) -> None:
    with transaction.atomic():
        lock(job.pk)
        record([NewEvent(job.pk, name, actor=Actor("7", "ann"), data=data)])


def make_due() -> None:
    AiEventDelivery.objects.filter(delivered_at=None).update(next_try_at=Now() - timedelta(seconds=1))


class Recorder:
    """A handler that notes what it gets, and raises first as often as it is told to."""

    def __init__(self, failures: int = 0, only: Any = None) -> None:
        self.events: list[JobEvent] = []
        self._failures, self._only = failures, only

    def __call__(self, event: JobEvent) -> None:
        if self._failures and self._only in (None, event.job_id):
            self._failures -= 1
            raise ValueError("a message with the customer's text")
        self.events.append(event)

    def order(self, job: AiRuntimeJob) -> list[int]:
        return [event.seq for event in self.events if event.job_id == job.pk]


def test_an_event_reaches_every_handler_of_its_name_once(handlers):
    first, second, other = Recorder(), Recorder(), Recorder()
    subscribers.on("test.told", handler_name="first")(first)
    subscribers.on("test.told", "test.else", handler_name="second")(second)
    subscribers.on("test.else", handler_name="other")(other)
    job = JobFactory()
    tell(job, answer=42)
    assert deliveries.deliver() == 2
    assert deliveries.deliver() == 0
    (event,) = first.events
    assert (event.job_id, event.seq, event.name, event.attempt_no) == (job.pk, 2, "test.told", None)
    assert (event.actor_name, event.data) == ("ann", {"answer": 42})
    assert second.events == [event]
    assert other.events == []
    assert AiEventDelivery.objects.filter(delivered_at__isnull=False, tries=0).count() == 2


def test_events_of_a_job_come_in_their_order(handlers):
    handler = Recorder()
    subscribers.on("test.told", handler_name="h")(handler)
    one, two = JobFactory(), JobFactory()
    for _ in range(4):
        tell(one)
        tell(two)
    # Whatever the due times say.
    AiEventDelivery.objects.filter(seq__lt=5).update(next_try_at=Now() - timedelta(seconds=1))
    AiEventDelivery.objects.filter(seq=5).update(next_try_at=Now() - timedelta(seconds=60))
    assert deliveries.deliver() == 8
    assert handler.order(one) == handler.order(two) == [2, 3, 4, 5]


def test_a_pass_ends_at_its_batch(handlers):
    subscribers.on("test.told", handler_name="h")(Recorder())
    job = JobFactory()
    for _ in range(5):
        tell(job)
    assert [deliveries.deliver(2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_failing_event_holds_back_later_ones_of_its_job_and_nobody_elses(handlers):
    """engine 40: what fails does not burst, and is caught up in order."""
    one, two = JobFactory(), JobFactory()
    handler = Recorder(failures=1, only=one.pk)
    subscribers.on("test.told", handler_name="h")(handler)
    for _ in range(3):
        tell(one)
        tell(two)
    assert deliveries.deliver() == 3
    assert handler.order(two) == [2, 3, 4]
    assert handler.order(one) == []
    tell(one)  # business goes on
    assert deliveries.deliver() == 0
    make_due()
    assert deliveries.deliver() == 4
    assert handler.order(one) == [2, 3, 4, 5]


def test_what_waits_behind_a_failure_is_not_looked_at_again_before_its_head(handlers):
    subscribers.on("test.told", handler_name="h")(Recorder(failures=1))
    job = JobFactory()
    for _ in range(3):
        tell(job)
    deliveries.deliver()
    times = set(AiEventDelivery.objects.values_list("next_try_at", flat=True))
    assert len(times) == 1
    assert not AiEventDelivery.objects.filter(next_try_at__lte=Now()).exists()


def test_tries_wait_longer_each_time_and_end_parked_and_then_later_events_go_on(handlers, settings, caplog):
    settings.RETRY_BASE_SECONDS, settings.RETRY_CAP_SECONDS = 100, 400
    handler = Recorder(failures=deliveries.MAX_TRIES)
    subscribers.on("test.told", handler_name="h")(handler)
    job = JobFactory()
    tell(job)
    tell(job)
    head = AiEventDelivery.objects.get(seq=2)
    for tries, (least, most) in enumerate([(100, 200), (200, 400), (400, 800), (400, 800)], start=1):
        make_due()
        assert deliveries.deliver() == 0
        head.refresh_from_db()
        assert head.tries == tries
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM next_try_at - now()) FROM ai_event_delivery WHERE id = %s", [head.pk])
            assert least - 5 < float(cursor.fetchone()[0]) < most + 5
    for _ in range(deliveries.MAX_TRIES - 4):
        assert handler.events == []
        make_due()
        deliveries.deliver()
    head.refresh_from_db()
    assert (head.tries, head.parked_at is not None, head.delivered_at) == (deliveries.MAX_TRIES, True, None)
    assert handler.order(job) == [3]
    assert [entry.levelname for entry in caplog.records if "parked" in entry.getMessage()] == ["ERROR"]


def test_logs_and_last_error_tell_where_it_failed_and_quote_nothing(handlers, caplog):
    subscribers.on("test.told", handler_name="h")(Recorder(failures=1))
    job = JobFactory()
    tell(job)
    deliveries.deliver()
    told = AiEventDelivery.objects.get().last_error
    assert told.startswith("builtins.ValueError")
    assert "test_deliveries.py" in told
    assert str(job.pk) in caplog.text
    assert "the customer's text" not in told + caplog.text


def test_a_long_trace_is_cut(handlers):
    def deep(event: JobEvent, level: int = 100) -> None:
        if level:
            deep(event, level - 1)
        raise ValueError

    subscribers.on("test.told", handler_name="h")(deep)
    tell(JobFactory())
    deliveries.deliver()
    assert len(AiEventDelivery.objects.get().last_error) == 4_000


def test_a_handler_that_this_process_does_not_know_is_left_to_those_that_do(handlers):
    """engine 24, for handlers: a rolling deploy loses nothing."""
    new, old = Recorder(), Recorder()
    subscribers.on("test.told", handler_name="new")(new)
    subscribers.on("test.told", handler_name="old")(old)
    tell(JobFactory())
    elsewhere = handlers.pop("new")
    assert deliveries.deliver() == 1
    left = AiEventDelivery.objects.get(handler="new")
    assert (left.tries, left.delivered_at, left.parked_at) == (0, None, None)
    handlers["new"] = elsewhere
    assert deliveries.deliver() == 1
    assert len(new.events) == len(old.events) == 1


def test_without_handlers_the_database_is_not_asked(handlers, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert deliveries.deliver() == 0


def test_a_lower_id_that_commits_later_is_not_skipped(handlers):
    """engine 37."""
    handler = Recorder()
    subscribers.on("test.told", handler_name="h")(handler)
    early, late = JobFactory(), JobFactory()
    written, commit = threading.Event(), threading.Event()

    def slow_transaction() -> None:
        with transaction.atomic():
            tell(early)
            written.set()
            assert commit.wait(SECONDS)

    worker = Worker(slow_transaction)
    assert written.wait(SECONDS)
    tell(late)
    assert deliveries.deliver() == 1
    commit.set()
    worker.join_or_raise()
    assert deliveries.deliver() == 1
    assert [event.job_id for event in handler.events] == [late.pk, early.pk]
    lower, higher = handler.events[1].id, handler.events[0].id
    assert lower < higher


def test_a_connection_killed_between_effect_and_commit_does_not_double_the_effect(handlers, business):
    """engine 38: the worker is gone before its mark; another delivers again, and the effect is there once."""
    effect_written = threading.Event()
    seen: list[int] = []

    def handler(event: JobEvent) -> None:
        write_effect(event)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            seen.append(cursor.fetchone()[0])
            if len(seen) == 1:
                effect_written.set()
                cursor.execute("SELECT pg_sleep(%s)", [SECONDS])

    subscribers.on("test.told", handler_name="h")(handler)
    job = JobFactory()
    tell(job)
    worker = Worker(deliveries.deliver)
    assert effect_written.wait(SECONDS)
    assert deliveries.deliver() == 0  # the row is locked: nobody delivers it a second time meanwhile
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [seen[0]])
    assert worker.join_or_raise() == 0
    assert effects() == []
    # The lost connection counts as a try: a handler that always loses it ends parked instead of coming first for ever.
    delivery = AiEventDelivery.objects.get()
    assert (delivery.tries, delivery.last_error.partition("\n")[0]) == (1, "django.db.utils.OperationalError")
    make_due()
    assert deliveries.deliver() == 1
    assert effects() == [(job.pk, 2)]
    assert len(seen) == 2


@pytest.mark.parametrize("death", [KeyboardInterrupt, SystemExit])
def test_a_process_that_ends_between_effect_and_commit_does_not_double_the_effect(handlers, business, death):
    """engine 38."""
    deaths = [death]

    def handler(event: JobEvent) -> None:
        write_effect(event)
        if deaths:
            raise deaths.pop()

    subscribers.on("test.told", handler_name="h")(handler)
    job = JobFactory()
    tell(job)
    with pytest.raises(death):
        deliveries.deliver()
    assert effects() == []
    assert deliveries.deliver() == 1
    assert effects() == [(job.pk, 2)]


def test_what_a_failing_handler_wrote_is_undone_and_its_failure_is_kept(handlers, business):
    def handler(event: JobEvent) -> None:
        write_effect(event)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    subscribers.on("test.told", handler_name="h")(handler)
    tell(JobFactory())
    assert deliveries.deliver() == 0
    assert effects() == []
    assert "DivisionByZero" in AiEventDelivery.objects.get().last_error


def test_what_the_commit_refuses_counts_as_the_handlers_failure(handlers):
    def handler(event: JobEvent) -> None:
        AiEventDelivery.objects.create(event_id=new_id(), handler="x", job_id=new_id(), seq=1, delivered_at=Now())

    subscribers.on("test.told", handler_name="h")(handler)
    tell(JobFactory())
    assert deliveries.deliver() == 0
    delivery = AiEventDelivery.objects.get()
    assert (delivery.tries, "ForeignKeyViolation" in delivery.last_error) == (1, True)


def test_a_failure_after_the_commit_does_not_repeat_the_delivery(handlers, caplog):
    def fail() -> None:
        raise ValueError

    subscribers.on("test.told", handler_name="h")(lambda event: transaction.on_commit(fail))
    tell(JobFactory())
    assert deliveries.deliver() == 1
    delivery = AiEventDelivery.objects.get()
    assert (delivery.delivered_at is not None, delivery.tries) == (True, 0)
    assert "something after its commit failed" in caplog.text


def test_one_try_is_counted_once(handlers):
    """Two workers that both lost their connection with the same delivery."""
    subscribers.on("test.told", handler_name="h")(Recorder())
    tell(JobFactory())
    seen = AiEventDelivery.objects.get()
    assert deliveries._record_failure(seen, ValueError())
    assert not deliveries._record_failure(seen, ValueError())
    assert AiEventDelivery.objects.get().tries == 1


def test_many_workers_share_the_work_and_keep_the_order(handlers, business):
    order: list[tuple[Any, int]] = []

    def handler(event: JobEvent) -> None:
        write_effect(event)
        order.append((event.job_id, event.seq))

    subscribers.on("test.told", handler_name="h")(handler)
    jobs = [JobFactory() for _ in range(10)]
    for _ in range(6):
        for job in jobs:
            tell(job)

    def work() -> int:
        done = 0
        while AiEventDelivery.objects.filter(delivered_at=None).exists():
            done += deliveries.deliver(5)
        return done

    workers = [Worker(work) for _ in range(8)]
    assert sum(worker.join_or_raise() for worker in workers) == 60
    assert len(effects()) == len(set(effects())) == len(order) == 60
    for job in jobs:
        assert [seq for job_id, seq in order if job_id == job.pk] == [2, 3, 4, 5, 6, 7]


def test_a_slow_delivery_holds_up_its_own_job_only(handlers):
    slow, quick = JobFactory(), JobFactory()
    busy, go_on = threading.Event(), threading.Event()
    handled: list[Any] = []

    def handler(event: JobEvent) -> None:
        if event.job_id == slow.pk and not busy.is_set():
            busy.set()
            assert go_on.wait(SECONDS)
        handled.append(event.job_id)

    subscribers.on("test.told", handler_name="h")(handler)
    for _ in range(2):
        tell(slow)
        tell(quick)
    worker = Worker(lambda: deliveries.deliver(1))
    assert busy.wait(SECONDS)
    assert deliveries.deliver() == 2
    assert handled == [quick.pk] * 2
    go_on.set()
    assert worker.join_or_raise() == 1
    assert deliveries.deliver() == 1


def test_a_parked_delivery_is_tried_again_when_staff_say_so(handlers, settings):
    settings.RETRY_BASE_SECONDS = 0
    handler = Recorder(failures=deliveries.MAX_TRIES)
    subscribers.on("test.told", handler_name="h")(handler)
    tell(JobFactory())
    assert deliveries.deliver() == 0
    parked = AiEventDelivery.objects.get()
    assert parked.parked_at is not None
    workers = [Worker(lambda: deliveries.retry_parked(parked.pk)) for _ in range(4)]
    assert sorted(worker.join_or_raise() for worker in workers) == [False, False, False, True]
    assert AiEventDelivery.objects.filter(pk=parked.pk, tries=0, parked_at=None).exists()
    assert deliveries.deliver() == 1
    assert not deliveries.retry_parked(parked.pk)
    assert not deliveries.retry_parked(new_id())


def fill_deliveries(count: int, delivered: str) -> None:
    with triggers_off(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ai_event_delivery (id, event_id, handler, job_id, seq, tries, last_error, next_try_at, delivered_at) "
            "SELECT gen_random_uuid(), gen_random_uuid(), 'h', md5((n / 10)::text)::uuid, n %% 10, 0, '', "
            f"now() - interval '1 day' + n * interval '1 microsecond', {delivered} FROM generate_series(1, %s) n",
            [count],
        )


def plan_of(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS) " + statement.replace("%", "%%"), [])
        return "\n".join(line for (line,) in cursor.fetchall())


def test_a_look_costs_the_same_whatever_has_been_delivered_and_whatever_waits(handlers):
    """engine 25: rows that are delivered, or wait for later, are not walked over."""
    subscribers.on("test.told", handler_name="h")(Recorder())
    job = JobFactory()
    for _ in range(3):
        tell(job)
    AiEventDelivery.objects.update(next_try_at=Now() - timedelta(days=2))
    fill_deliveries(50_000, delivered="now()")
    fill_deliveries(5_000, delivered="NULL")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ai_event_delivery")
    with CaptureQueriesContext(connection) as queries:
        assert deliveries.deliver(3) == 3
    looks = [query["sql"] for query in queries if "SKIP LOCKED" in query["sql"]]
    assert len(looks) == 3
    for look in (looks[0], looks[-1]):
        plan = plan_of(look)
        assert "using delivery_due" in plan, plan
        assert "using delivery_order" in plan, plan
        assert "Seq Scan" not in plan, plan
        assert int(plan.partition("shared hit=")[2].split()[0]) < 100, plan


def test_the_command_delivers_until_nothing_is_due_and_says_what_is_left(handlers, monkeypatch):
    monkeypatch.setattr("runtime_jobs.management.commands.deliver_events._BATCH", 2)
    bad, good = JobFactory(), JobFactory()
    subscribers.on("test.told", handler_name="h")(Recorder(failures=1, only=bad.pk))
    subscribers.on("test.told", handler_name="gone")(Recorder())
    for _ in range(3):
        tell(bad)
        tell(good)
    del handlers["gone"]
    AiEventDelivery.objects.filter(handler="gone", seq=2).update(parked_at=Now())
    out = StringIO()
    call_command("deliver_events", stdout=out)
    assert out.getvalue().splitlines() == [
        "delivered: 3",
        "failed tries: 1",
        "waiting: 7",
        "  for handlers that this process does not know: 4",
        "parked: 2",
    ]


@contextmanager
def outbox() -> Iterator[OutboxThread]:
    thread = OutboxThread()
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()
        assert not thread._thread.is_alive()


def test_the_outbox_thread_delivers_what_comes(handlers, business, monkeypatch):
    monkeypatch.setattr("runtime_jobs.engine.outbox._LOOK_EVERY_SECONDS", 0.01)
    subscribers.on("test.told", handler_name="h")(write_effect)
    job = JobFactory()
    with outbox():
        for _ in range(3):
            tell(job)
            wait_for(lambda: len(effects()) == job.events.count() - 1, "the event is delivered")  # all but job.created


@pytest.mark.parametrize("error", [OperationalError, ValueError])
def test_the_outbox_thread_outlives_errors(handlers, business, monkeypatch, caplog, error):
    """engine 40."""
    monkeypatch.setattr("runtime_jobs.engine.outbox._LOOK_EVERY_SECONDS", 0.01)
    subscribers.on("test.told", handler_name="h")(write_effect)
    tell(JobFactory())
    deliver, errors = deliveries.deliver, [error("secret text")] * 3

    def sometimes(batch: int) -> int:
        if errors:
            raise errors.pop()
        return deliver(batch)

    monkeypatch.setattr(deliveries, "deliver", sometimes)
    with outbox():
        wait_for(effects, "the event is delivered")
    assert len([entry for entry in caplog.records if "outbox" in entry.getMessage()]) == 3
    assert "secret text" not in caplog.text


def test_the_outbox_thread_does_not_wait_for_a_handler_that_hangs(handlers, business, monkeypatch, caplog):
    monkeypatch.setattr("runtime_jobs.engine.outbox._STOP_SECONDS", 0.05)
    busy, go_on = threading.Event(), threading.Event()

    def handler(event: JobEvent) -> None:
        busy.set()
        assert go_on.wait(SECONDS)

    subscribers.on("test.told", handler_name="h")(handler)
    tell(JobFactory())
    thread = OutboxThread()
    thread.start()
    assert busy.wait(SECONDS)
    thread.stop()
    assert "still busy" in caplog.text
    go_on.set()
    thread._thread.join(SECONDS)
    assert not thread._thread.is_alive()


def test_the_outbox_thread_opens_no_connection_when_there_is_no_handler(handlers, monkeypatch):
    monkeypatch.setattr("runtime_jobs.engine.outbox._LOOK_EVERY_SECONDS", 0.01)
    passes: list[bool] = []
    deliver = deliveries.deliver

    def watched(batch: int) -> int:
        done = deliver(batch)
        passes.append(connection.connection is None)
        return done

    monkeypatch.setattr(deliveries, "deliver", watched)
    with outbox():
        wait_for(lambda: len(passes) >= 3, "three passes")
    assert all(passes)
