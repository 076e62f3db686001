"""Two or more want the same row at the same moment, in real threads with connections of their own: one outcome each time, and a right one.

A race is run in 500 rounds by the same threads, which meet at a barrier before each. What came of a round is what the callers were told,
and it must be what the rows say.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from runtime_jobs.errors import (
    IdempotencyConflict,
    JobAlreadyFinished,
    JobCancelled,
    JobNotCancellable,
    LockLost,
    NotLockable,
    ServiceError,
)
from runtime_jobs.models import AiJobSnapshot, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.services import claims, jobs, lapses
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.events import Actor
from runtime_jobs.services.settlements import Settlement
from runtime_jobs.states import Lane
from tests.factories import CredentialFactory, payload
from tests.services import worker as act
from tests.services.threads import SECONDS, Worker

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 500
ONE, OTHER = Actor("1", "one"), Actor("2", "other")


@pytest.fixture(autouse=True)
def _at_once(settings: Any) -> None:
    settings.RETRY_BASE_SECONDS = 0
    settings.ENGINE_LEASE_SECONDS = 0


_LATE_SECONDS = 0.02


@contextmanager
def rivals(*actors: Callable[[Any], Any]) -> Iterator[Callable[[Any], list[Any]]]:
    """Give a function that lets all actors loose on one thing at once, and tells what each of them got: an answer or a refusal."""
    barrier = threading.Barrier(len(actors) + 1, timeout=SECONDS)
    given: list[Any] = [None]
    got: list[Any] = [None] * len(actors)
    # Every tenth round one of them, in turn, comes a little late: where one side is always the quicker, both orders still occur.
    late: list[int | None] = [None]
    rounds = itertools.count(1)

    def work(place: int) -> None:
        while True:
            barrier.wait()
            if given[0] is None:
                return
            if late[0] == place:
                time.sleep(_LATE_SECONDS)
            try:
                got[place] = actors[place](given[0])
            except Exception as error:
                got[place] = error
            barrier.wait()

    def meet(thing: Any) -> list[Any]:
        given[0] = thing
        number = next(rounds)
        late[0] = number // 10 % len(actors) if number % 10 == 0 else None
        barrier.wait()
        barrier.wait()
        for outcome in got:
            if isinstance(outcome, Exception) and not isinstance(outcome, ServiceError):
                raise outcome
        return list(got)

    threads = [Worker(lambda place=place: work(place)) for place in range(len(actors))]  # type: ignore[misc]
    try:
        yield meet
        given[0] = None
        barrier.wait()
    finally:
        barrier.abort()
        for thread in threads:
            thread.join(SECONDS)


def make_jobs(number: int, **how: Any) -> list[UUID]:
    request = {"user": get_user_model().objects.create(username="someone"), "credential": CredentialFactory(), "payload": payload()}
    request |= {"job_type": act.INTERACTIVE, "target_type": "document"}
    return [jobs.create_job(**{**request, "target_id": str(place), **how}).pk for place in range(number)]


def make_running(number: int) -> list[Claim]:
    make_jobs(number)
    held = act.take("holder", count=number)
    assert len(held) == number
    return held


def stories() -> dict[UUID, str]:
    """What happened to each job, as one line."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT job_id, string_agg(substr(name, 5), ' ' ORDER BY seq) FROM ai_job_event GROUP BY job_id")
        return dict(cursor.fetchall())


def kept() -> dict[UUID, tuple[Any, ...]]:
    """Of each job: status, attempt_no, attempts, succeeded results, artifacts."""
    with connection.cursor() as cursor:
        cursor.execute("""
            SELECT id, status, attempt_no, (SELECT count(*) FROM ai_job_attempt a WHERE a.job_id = j.id),
                   (SELECT count(*) FROM ai_runtime_result r WHERE r.job_id = j.id AND r.status = 'succeeded'),
                   (SELECT count(*) FROM synthetic_extracted_text t WHERE t.job_id = j.id)
            FROM ai_runtime_job j
        """)
        return {job_id: tuple(rest) for job_id, *rest in cursor.fetchall()}


def kinds(outcomes: Sequence[Any]) -> tuple[str, ...]:
    """The shape of what each actor got."""
    return tuple(_kind(outcome) for outcome in outcomes)


def _kind(outcome: Any) -> str:
    if isinstance(outcome, ServiceError):
        return type(outcome).__name__
    if isinstance(outcome, Settlement):
        return f"{outcome.job_status}{' refused' if outcome.refused else ''}{' late' if outcome.late else ''}"
    return str(outcome)


def judge(told: dict[UUID, tuple[str, ...]], right: dict[tuple[str, ...], tuple[str, tuple[Any, ...]]]) -> Counter[tuple[str, ...]]:
    """Each round's outcome is one of the right ones, and story and rows are those that belong to it. How often each came."""
    story, rows = stories(), kept()
    for job_id, outcome in told.items():
        assert outcome in right
        assert (story[job_id], rows[job_id]) == right[outcome]
    return Counter(told.values())


# --- creating ------------------------------------------------------------------------------------------------------------------


def test_fifty_creates_with_one_key_make_one_job_and_give_fifty_identical_answers() -> None:
    """Engine 7, acceptance 4."""
    user, credential = get_user_model().objects.create(username="someone"), CredentialFactory()

    def create(text: str) -> AiRuntimeJob:
        return jobs.create_job(
            user=user,
            job_type=act.INTERACTIVE,
            payload=payload(text),
            target_type="document",
            target_id="1",
            idempotency_key="one key",
            credential=credential,
        )

    barrier = threading.Barrier(50, timeout=SECONDS)

    def at_once() -> AiRuntimeJob:
        connection.ensure_connection()
        barrier.wait()
        return create("A text.")

    answers = [thread.join_or_raise() for thread in [Worker(at_once) for _ in range(50)]]
    job = AiRuntimeJob.objects.get()
    shown = [{field.attname: getattr(answer, field.attname) for field in AiRuntimeJob._meta.concrete_fields} for answer in answers]
    assert shown == [{field.attname: getattr(job, field.attname) for field in AiRuntimeJob._meta.concrete_fields}] * 50
    assert stories() == {job.pk: "created"}
    with pytest.raises(IdempotencyConflict):
        create("Another text.")
    assert AiRuntimeJob.objects.count() == 1


def test_of_fifty_creates_with_one_key_and_two_requests_one_request_wins_and_the_other_conflicts() -> None:
    """Engine 7."""
    user, credential = get_user_model().objects.create(username="someone"), CredentialFactory()
    barrier = threading.Barrier(50, timeout=SECONDS)

    def create(place: int) -> UUID | None:
        connection.ensure_connection()
        barrier.wait()
        try:
            return jobs.create_job(
                user=user,
                job_type=act.INTERACTIVE,
                payload=payload(f"Text {place % 2}."),
                target_type="document",
                target_id="1",
                idempotency_key="one key",
                credential=credential,
            ).pk
        except IdempotencyConflict:
            return None

    threads = [Worker(lambda place=place: create(place)) for place in range(50)]  # type: ignore[misc]
    answers = Counter(thread.join_or_raise() for thread in threads)
    assert answers == {AiRuntimeJob.objects.get().pk: 25, None: 25}


def test_twenty_creates_with_the_same_content_store_it_once() -> None:
    user, credential = get_user_model().objects.create(username="someone"), CredentialFactory()
    barrier = threading.Barrier(20, timeout=SECONDS)

    def create(place: int) -> UUID:
        connection.ensure_connection()
        barrier.wait()
        return jobs.create_job(
            user=user, job_type=act.INTERACTIVE, payload=payload(), target_type="document", target_id=str(place), credential=credential
        ).snapshot_id

    threads = [Worker(lambda place=place: create(place)) for place in range(20)]  # type: ignore[misc]
    assert {thread.join_or_raise() for thread in threads} == {AiJobSnapshot.objects.get().pk}
    assert AiRuntimeJob.objects.count() == 20


# --- claiming ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4])
def test_sixteen_claimers_take_each_of_500_jobs_once_and_leave_none(count: int) -> None:
    wanted = set(make_jobs(500))
    barrier = threading.Barrier(16, timeout=SECONDS)

    def claim_all(name: str) -> list[Claim]:
        connection.ensure_connection()
        barrier.wait()
        mine: list[Claim] = []
        while got := act.take(name, count=count):
            mine += got
        return mine

    threads = [Worker(lambda name=name: claim_all(name)) for name in map(str, range(16))]  # type: ignore[misc]
    taken = [held for thread in threads for held in thread.join_or_raise()]
    assert len(taken) == 500
    assert {held.job_id for held in taken} == wanted
    assert len({held.token.reveal() for held in taken}) == 500
    # An empty answer means that there was nothing, not that others were faster: nobody had to ask twice.
    assert set(kept().values()) == {("running", 1, 1, 0, 0)}
    assert set(stories().values()) == {"created claimed"}
    assert dict(AiRuntimeJob.objects.values_list("pk", "locked_by")) == {held.job_id: held.worker for held in taken}


def test_claim_against_cancel_a_cancelled_job_never_starts() -> None:
    """Engine 19: whoever has its id in hand (a prefetched message, an offer) loses against the cancel, or the cancel becomes a wish."""
    waiting = make_jobs(ROUNDS)

    def claim(job_id: UUID) -> str:
        claims.lock_job(job_id, lane=Lane.INTERACTIVE, worker="worker", lease_seconds=300)
        return "claimed"

    with rivals(claim, lambda job_id: str(jobs.cancel_job(job_id, actor=ONE).status)) as meet:
        told = {job_id: kinds(meet(job_id)) for job_id in waiting}
    came = judge(
        told,
        {
            ("claimed", "cancel_requested"): ("created claimed cancel_requested", ("cancel_requested", 1, 1, 0, 0)),
            (NotLockable.__name__, "cancelled"): ("created cancelled", ("cancelled", 0, 0, 0, 0)),
        },
    )
    assert len(came) == 2


# --- ending --------------------------------------------------------------------------------------------------------------------


def test_result_against_reaper_the_work_counts_exactly_once() -> None:
    """Engine 3: the lease has run out, the answer arrives while it is taken back. Nobody has taken the job over, so the answer counts in
    either order; a completion is never undone by the reaper, and no second execution starts."""
    running = make_running(ROUNDS)

    def reap(held: Claim) -> str:
        return f"reaped {lapses.reap()}"

    with rivals(act.deliver, reap) as meet:
        told = {}
        for held in running:
            act.run_out(held.job_id)
            told[held.job_id] = kinds(meet(held))
    came = judge(
        told,
        {
            ("succeeded", "reaped 0"): ("created claimed succeeded", ("succeeded", 1, 1, 1, 1)),
            ("succeeded late", "reaped 1"): ("created claimed lapsed succeeded", ("succeeded", 1, 1, 1, 1)),
        },
    )
    assert len(came) == 2


def test_result_against_reaper_and_next_worker_one_of_the_two_executions_counts() -> None:
    """Engine 3, engine 5: as soon as another has the job, the first one's answer is refused and nothing of it is kept."""
    running = make_running(ROUNDS)

    def take_over(held: Claim) -> str:
        lapses.reap()
        return str([claim.attempt_no for claim in act.take("next", count=2)])

    with rivals(act.deliver, take_over) as meet:
        told = {}
        for held in running:
            act.run_out(held.job_id)
            told[held.job_id] = kinds(meet(held))
    came = judge(
        told,
        {
            ("succeeded", "[]"): ("created claimed succeeded", ("succeeded", 1, 1, 1, 1)),
            ("succeeded late", "[]"): ("created claimed lapsed succeeded", ("succeeded", 1, 1, 1, 1)),
            ("LockLost", "[2]"): ("created claimed lapsed claimed", ("running", 2, 2, 0, 0)),
        },
    )
    assert {("succeeded", "[]"), (LockLost.__name__, "[2]")} <= set(came)


def test_cancel_against_result_one_of_them_is_refused() -> None:
    running = make_running(ROUNDS)

    def cancel(held: Claim) -> str:
        return str(jobs.cancel_job(held.job_id, actor=ONE).status)

    with rivals(cancel, act.deliver) as meet:
        told = {held.job_id: kinds(meet(held)) for held in running}
    came = judge(
        told,
        {
            (JobNotCancellable.__name__, "succeeded"): ("created claimed succeeded", ("succeeded", 1, 1, 1, 1)),
            ("cancel_requested", "cancelled refused"): ("created claimed cancel_requested cancelled", ("cancelled", 1, 1, 0, 0)),
        },
    )
    assert len(came) == 2
    assert AiRuntimeResult.objects.count() == came[JobNotCancellable.__name__, "succeeded"]


def test_cancel_against_a_late_result_one_of_them_is_refused() -> None:
    """The job waits for its retry: the cancel is at once, and then no answer counts."""
    running = make_running(ROUNDS)
    act.run_out(*[held.job_id for held in running])
    while lapses.reap():
        pass

    def cancel(held: Claim) -> str:
        return str(jobs.cancel_job(held.job_id, actor=ONE).status)

    with rivals(cancel, act.deliver) as meet:
        told = {held.job_id: kinds(meet(held)) for held in running}
    came = judge(
        told,
        {
            (JobNotCancellable.__name__, "succeeded late"): ("created claimed lapsed succeeded", ("succeeded", 1, 1, 1, 1)),
            ("cancelled", JobCancelled.__name__): ("created claimed lapsed cancelled", ("cancelled", 1, 1, 0, 0)),
        },
    )
    assert len(came) == 2


def test_release_against_cancel_the_job_ends_cancelled_and_is_never_handed_on() -> None:
    running = make_running(ROUNDS)

    def cancel(held: Claim) -> str:
        return str(jobs.cancel_job(held.job_id, actor=ONE).status)

    with rivals(act.hand_back, cancel) as meet:
        told = {held.job_id: kinds(meet(held)) for held in running}
    came = judge(
        told,
        {
            ("retrying", "cancelled"): ("created claimed released cancelled", ("cancelled", 1, 1, 0, 0)),
            ("cancelled", "cancel_requested"): ("created claimed cancel_requested cancelled", ("cancelled", 1, 1, 0, 0)),
        },
    )
    assert len(came) == 2
    assert act.take("next") == []


def test_one_result_sent_twice_at_once_is_stored_once_and_both_get_the_same_answer() -> None:
    """Acceptance 10: as after a lost answer, when the repeat overtakes the first."""
    running = make_running(ROUNDS)
    with rivals(act.deliver, act.deliver) as meet:
        for held in running:
            first, second = meet(held)
            assert {first.duplicate, second.duplicate} == {False, True}
            assert first.result_id == second.result_id is not None
            assert (first.job_status, first.attempt_no) == (second.job_status, second.attempt_no) == ("succeeded", 1)
    assert set(stories().values()) == {"created claimed succeeded"}
    assert set(kept().values()) == {("succeeded", 1, 1, 1, 1)}


def test_two_different_ends_of_one_attempt_at_once_one_counts() -> None:
    running = make_running(ROUNDS)
    with rivals(act.deliver, act.fail) as meet:
        told = {held.job_id: kinds(meet(held)) for held in running}
    came = judge(
        told,
        {
            ("succeeded", JobAlreadyFinished.__name__): ("created claimed succeeded", ("succeeded", 1, 1, 1, 1)),
            (LockLost.__name__, "retrying"): ("created claimed retry_scheduled", ("retrying", 1, 1, 0, 0)),
        },
    )
    assert len(came) == 2


@pytest.mark.parametrize("end", [act.deliver, act.reject])
def test_one_result_key_sent_for_two_jobs_at_once_belongs_to_one_of_them(end: Callable[..., Settlement]) -> None:
    """The other is told so, and its job is as before: it is nobody's mistake but the caller's."""
    running = make_running(200)
    pairs = list(zip(running[::2], running[1::2], strict=True))

    def send(place: int) -> Callable[[tuple[int, tuple[Claim, Claim]]], Settlement]:
        return lambda given: end(given[1][place], key=f"key {given[0]}")

    with rivals(send(0), send(1)) as meet:
        losers = []
        for number, pair in enumerate(pairs):
            outcomes = kinds(meet((number, pair)))
            ended = "succeeded" if end is act.deliver else "failed refused"
            assert sorted(outcomes) == sorted(["ResultConflict", ended])
            losers.append(pair[outcomes.index("ResultConflict")].job_id)
    rows = kept()
    assert {rows[job_id] for job_id in losers} == {("running", 1, 1, 0, 0)}
    assert AiRuntimeResult.objects.count() == len(pairs)


# --- again ---------------------------------------------------------------------------------------------------------------------


def test_rerun_against_rerun_makes_one_new_job_and_shows_it_to_both() -> None:
    """Engine 20, acceptance 11."""
    ended = make_jobs(ROUNDS)
    for job_id in ended:
        jobs.cancel_job(job_id, actor=ONE)
    before = dict(AiRuntimeJob.objects.values_list("pk", "updated_at"))
    with rivals(lambda job_id: jobs.rerun_job(job_id, actor=ONE), lambda job_id: jobs.rerun_job(job_id, actor=OTHER)) as meet:
        for job_id in ended:
            one, other = meet(job_id)
            assert one.job.pk == other.job.pk != job_id
            assert {one.created, other.created} == {True, False}
    family = dict(AiRuntimeJob.objects.exclude(retried_from_job=None).values_list("pk", "retried_from_job_id"))
    assert len(family) == ROUNDS
    assert set(family.values()) == set(ended)
    story = stories()
    assert {story[job_id] for job_id in ended} == {"created cancelled rerun"}
    assert {story[job_id] for job_id in family} == {"created"}
    assert dict(AiRuntimeJob.objects.filter(pk__in=ended).values_list("pk", "updated_at")) == before
