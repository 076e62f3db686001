"""Acceptance 9: everything that may happen to a job, in random order, on the real database, against a plain model of the state table.

The model below is a second reading of the design's table, in dictionaries and lists. After each step the whole of what the database holds
must be what the model says, and a call that was refused must have left every row as it was, to the byte.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, pairwise, product
from random import Random
from typing import Any, ClassVar, NamedTuple, TypeVar
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from runtime_jobs import errors, registry
from runtime_jobs.errors import ErrorCode, ServiceError
from runtime_jobs.models import AiRuntimeJob, RuntimeInstance
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.services import claims, jobs, lapses, leases, offers, terminal, workers
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.events import Actor
from runtime_jobs.services.settlements import Settlement
from runtime_jobs.services.tokens import token_hash
from runtime_jobs.states import Lane
from runtime_jobs.synthetic.ai_jobs import ExtractFacts
from runtime_jobs.synthetic.models import ExtractedText
from tests.factories import CredentialFactory, payload
from tests.services import worker as act
from tests.services.steps import fence

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
EXAMPLES = 1_500 if THOROUGH else 120
STEPS = 40
MOST_UNFINISHED = 4
LEASE, GRACE = 300, 5
STAFF = Actor("1", "staff")

# --- the model -----------------------------------------------------------------------------------------------------------------

LEGAL = {
    ("", "queued"),
    ("queued", "running"), ("queued", "cancelled"), ("queued", "failed"),
    ("running", "succeeded"), ("running", "failed"), ("running", "retrying"), ("running", "cancel_requested"),
    ("retrying", "running"), ("retrying", "succeeded"), ("retrying", "failed"), ("retrying", "cancelled"),
    ("cancel_requested", "cancelled"),
}  # fmt: skip
ENDED = {"succeeded", "failed", "cancelled"}
HELD = {"running", "cancel_requested"}
LAPSES, FREE_RELEASES = 3, 5
MOST_RETRIES_OF = {ErrorCode.INVALID_MODEL_OUTPUT: 1, ErrorCode.INTERNAL_ERROR: 2}


class Answer(NamedTuple):
    status: str
    attempt_no: int
    retry_count: int
    refused: str = ""
    late: bool = False
    duplicate: bool = False


class Refusal(Exception):
    def __init__(self, error: type[ServiceError]) -> None:
        self.error = error


@dataclass(eq=False)
class Attempt:
    job: "Job"
    claim: Claim
    outcome: str = ""
    error: str = ""
    deadline_passed: bool = False
    content: tuple[Any, ...] = ()  # what its terminal call said
    answer: Answer | None = None
    delivered: bool = False  # a result of it is stored
    repeat: Callable[[], Settlement] | None = None

    @property
    def no(self) -> int:
        return self.claim.attempt_no

    @property
    def current(self) -> bool:
        return self.job.holder is self

    @property
    def state(self) -> str:
        return self.job.state if self.current else "overtaken"


@dataclass(eq=False)
class Job:
    id: UUID
    lane: str
    max_retry_count: int
    fails_on_lapse: bool
    rerun_of: "Job | None" = None
    status: str = "queued"
    retries: int = 0
    lapses: int = 0
    releases: int = 0
    due: bool = True
    lease_ran_out: bool = False
    offered_to: str | None = None
    holder: Attempt | None = None
    attempts: list[Attempt] = field(default_factory=list)
    events: list[str] = field(default_factory=lambda: ["job.created"])
    rejected: int = 0

    def __repr__(self) -> str:
        return f"{self.id} ({self.state}; {', '.join(self.events)})"

    @property
    def waits(self) -> bool:
        return self.status in ("queued", "retrying")

    @property
    def state(self) -> str:
        """The status, with what the table tells apart beside it."""
        return "late" if self.late else "ended" if self.ended else self.status

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def late(self) -> bool:
        return self.status == "retrying" and self.holder is not None

    def claimable(self, worker: str | None) -> bool:
        """`worker` None: for nobody who has it reserved already."""
        return self.waits and self.due and self.offered_to in (None, worker)

    def become(self, status: str, event: str, *, holder: Attempt | None) -> None:
        self.status, self.holder = status, holder
        self.events.append(event)
        if status not in HELD:
            self.lease_ran_out = False
        if status != "retrying":
            self.offered_to = None

    def end(self, status: str) -> None:
        self.become(status, f"job.{status}", holder=self.holder)

    def start(self, claim: Claim) -> None:
        attempt = Attempt(self, claim)
        self.attempts.append(attempt)
        self.become("running", "job.claimed", holder=attempt)

    def cancel(self) -> None:
        if self.ended:
            raise Refusal(errors.JobNotCancellable)
        if self.waits:
            self.end("cancelled")
        elif self.status == "running":
            self.become("cancel_requested", "job.cancel_requested", holder=self.holder)

    def lapse(self) -> None:
        assert self.holder
        self.holder.outcome, self.holder.error = "lapsed", "lease_expired"
        if self.status == "cancel_requested":
            self.end("cancelled")
        else:
            self._lose_lease(holder=self.holder)

    def _lose_lease(self, *, holder: Attempt | None) -> None:
        if self.lapses == LAPSES or self.fails_on_lapse:
            self.end("failed")
        else:
            self.lapses += 1
            self.due = True
            self.become("retrying", "job.lapsed", holder=holder)

    def err(self, code: str, outcome: str, *, retryable: bool, due: bool = True) -> None:
        assert self.holder
        self.holder.outcome, self.holder.error = outcome, code
        ended_so = sum(attempt.error == code for attempt in self.attempts)
        may_again = self.retries < self.max_retry_count and ended_so <= MOST_RETRIES_OF.get(ErrorCode(code), 99)
        if retryable and self.late:
            self.holder = None
        elif retryable and may_again:
            self.retries += 1
            self.due = due
            self.become("retrying", "job.retry_scheduled", holder=None)
        else:
            self.end("failed")

    def succeed(self) -> None:
        assert self.holder
        self.holder.outcome, self.holder.error = "succeeded", ""
        self.end("succeeded")

    def take_back(self) -> None:
        """A release. The table has no row for a late one: like a late retryable error, it only lets go."""
        assert self.holder
        if self.late:
            self.holder = None
            return
        self.holder.outcome = "released"
        if self.releases == FREE_RELEASES:
            self._lose_lease(holder=None)
            return
        self.releases += 1
        self.due = True
        self.become("retrying", "job.released", holder=None)


def settle(attempt: Attempt, content: tuple[Any, ...], key_of: tuple[UUID, int] | None, happen: Callable[[Job], str]) -> Answer:
    """A terminal call, in the order that the design gives. `key_of`: whose the result's idempotency key is, if it is anybody's."""
    job = attempt.job
    result = content[0] == "result"
    if attempt.answer and attempt.content == content:
        return attempt.answer._replace(duplicate=True)
    if result and (attempt.delivered or key_of not in (None, (job.id, attempt.no))):
        raise Refusal(errors.ResultConflict)
    if not attempt.current:
        raise Refusal(errors.LockLost)
    if job.ended:
        raise Refusal(errors.JobCancelled if job.status == "cancelled" else errors.JobAlreadyFinished)
    late, refused = job.late, ""
    if job.status == "cancel_requested":
        attempt.outcome, attempt.error = "cancelled", "cancelled"
        job.end("cancelled")
        refused = "job_cancelled" if result else ""
    else:
        refused = happen(job)
    attempt.content = content
    attempt.answer = Answer(job.status, attempt.no, job.retries, refused, late)
    return attempt.answer


def answer_of(settlement: Settlement) -> Answer:
    return Answer(
        str(settlement.job_status), settlement.attempt_no, settlement.retry_count, settlement.refused, settlement.late, settlement.duplicate
    )


# --- what the database holds -----------------------------------------------------------------------------------------------------

_ALL = """
    SELECT j.id, md5(j::text), j.status, j.attempt_no, j.retry_count, j.lapse_count, j.release_count, j.lock_token,
           j.lock_until < statement_timestamp(), j.available_at <= statement_timestamp(),
           CASE WHEN j.offer_until > statement_timestamp() THEN j.offered_to END, j.retried_from_job_id,
           e.names, e.seqs, e.statuses, a.numbers, a.tokens, a.outcomes, r.succeeded, r.rejected,
           (SELECT count(*) FROM synthetic_extracted_text t WHERE t.job_id = j.id)
    FROM ai_runtime_job j,
    LATERAL (SELECT array_agg(name ORDER BY seq), array_agg(seq ORDER BY seq),
                    array_agg(data ->> 'status' ORDER BY seq) FILTER (WHERE data ? 'status')
             FROM ai_job_event WHERE job_id = j.id) e(names, seqs, statuses),
    LATERAL (SELECT coalesce(array_agg(attempt_no ORDER BY attempt_no), '{}'), coalesce(array_agg(lock_token ORDER BY attempt_no), '{}'),
                    coalesce(array_agg(outcome || '/' || error_code ORDER BY attempt_no), '{}')
             FROM ai_job_attempt WHERE job_id = j.id) a(numbers, tokens, outcomes),
    LATERAL (SELECT count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status = 'rejected')
             FROM ai_runtime_result WHERE job_id = j.id) r(succeeded, rejected)
    WHERE j.target_type = %s ORDER BY j.id
"""


class Row(NamedTuple):
    id: UUID
    fingerprint: str
    status: str
    attempt_no: int
    retries: int
    lapses: int
    releases: int
    lock_token: str | None
    lease_ran_out: bool | None
    due: bool
    offered_to: str | None
    rerun_of: UUID | None
    events: list[str]
    seqs: list[int]
    statuses: list[str]
    numbers: list[int]
    tokens: list[str]
    outcomes: list[str]
    succeeded: int
    rejected: int
    artifacts: int


def expected(job: Job, row: Row) -> Row:
    """The row as the model has it; what the model does not say is taken from the row."""
    tokens = [token_hash(attempt.claim.token) for attempt in job.attempts]
    return row._replace(
        status=job.status,
        attempt_no=len(job.attempts),
        retries=job.retries,
        lapses=job.lapses,
        releases=job.releases,
        lock_token=token_hash(job.holder.claim.token) if job.holder else None,
        lease_ran_out=job.lease_ran_out if job.status in HELD else None,
        due=job.due,
        offered_to=job.offered_to,
        rerun_of=job.rerun_of.id if job.rerun_of else None,
        events=job.events,
        numbers=[attempt.no for attempt in job.attempts],
        tokens=tokens,
        outcomes=[f"{attempt.outcome}/{attempt.error}" for attempt in job.attempts],
        succeeded=int(job.status == "succeeded"),
        rejected=job.rejected,
        artifacts=int(job.status == "succeeded"),
    )


# --- what may happen -------------------------------------------------------------------------------------------------------------


class Paid(ExtractFacts):
    """Its calls cost so much that a person decides after a lapse."""

    job_type = "test.paid"
    on_lapse = "fail"


class HalfProjected(ExtractFacts):
    """Its projector dies after its first row."""

    def project(self, output: Any, job: JobInput) -> None:
        super().project(output, job)
        raise RuntimeError("the business is closed")


TYPES = {act.INTERACTIVE: Lane.INTERACTIVE, Paid.job_type: Lane.INTERACTIVE, act.RUNTIME: Lane.RUNTIME}
SEED = st.integers(0, 2**32)
WORKERS = st.sampled_from(["anna", "ben", "cleo"])
LANES = st.sampled_from([Lane.INTERACTIVE, Lane.RUNTIME])
VARIANT = st.integers(0, 2)
RESULT_KEYS = st.sampled_from([None, None, "result key"])
OUTPUTS = st.sampled_from(["an answer", "another answer"])
# Nothing is proved that was not tried: each call in each state.
CALLS_OF_A_HOLDER = ("renew", "beat", "deliver", "reject", "fail", "release")
HOLDS, PAST = ("running", "late", "cancel_requested"), ("ended", "overtaken")
CALLS_OF_OTHERS = ("cancel", "rerun", "lock", "give_up")
PASSES = ("a_lease_ends", "a_lease_lapses", "a_lease_lapses", "reap", "a_deadline_passes", "retries_fall_due", "offers_run_out")
SEEN_BY_OTHERS = ("queued", "running", "retrying", "late", "cancel_requested", "ended")

T = TypeVar("T", Job, Attempt)


class JobsUnderFire(RuleBasedStateMachine):
    users: ClassVar[list[Any]]
    credential: ClassVar[Any]
    steps: ClassVar[int] = 0
    tried: ClassVar[Counter[tuple[str, str]]]
    examples: ClassVar[Iterator[int]]

    def __init__(self) -> None:
        super().__init__()
        self.tag = f"example {next(self.examples)}"
        self.jobs: dict[UUID, Job] = {}
        self.keys: dict[str, tuple[tuple[Any, ...], Job]] = {}
        self.result_keys: dict[str, tuple[UUID, int]] = {}
        self.rows: dict[UUID, Row] = {}
        self.steps_so_far = 0
        self.untouched = False  # the last step was refused, or asked for what was so already
        end_all_jobs()

    # -- choosing

    def chance(self, seed: int) -> Random:
        """Hypothesis likes small numbers, and the same ones again; choices among states are to be even."""
        return Random(f"{seed} {self.steps_so_far}")

    def one_of(self, things: Sequence[T], chance: Random) -> T:
        """Each state that there is has the same chance, however many are in it."""
        state = chance.choice(sorted({thing.state for thing in things}))
        return chance.choice([thing for thing in things if thing.state == state])

    def attempts(self, *states: str) -> list[Attempt]:
        return [attempt for job in self.jobs.values() for attempt in job.attempts if not states or attempt.state in states]

    def some_jobs(self) -> bool:
        return bool(self.jobs)

    def some_waiting(self) -> bool:
        return any(job.waits for job in self.jobs.values())

    def said(self, call: Callable[[], Any], foretold: Callable[[], Any]) -> Any:
        """Make a call of which the model foretells the answer or the refusal."""
        try:
            says: Any = foretold()
        except Refusal as refusal:
            says = refusal
        if isinstance(says, Refusal):
            self.untouched = True
            with pytest.raises(ServiceError) as raised:
                call()
            assert type(raised.value) is says.error
            return None
        got = call()
        assert got == says
        return got

    # -- applications and staff

    @initialize(every_type=st.permutations(sorted(TYPES)), claimed=st.booleans())
    def begin(self, every_type: list[str], claimed: bool) -> None:
        for job_type in every_type:
            self.create_job(0, job_type, None, 2, "A")
        if claimed:
            self.claim("anna", Lane.INTERACTIVE, 2)

    @precondition(lambda self: sum(not job.ended for job in self.jobs.values()) < MOST_UNFINISHED)
    @rule(
        who=st.integers(0, 1), job_type=st.sampled_from(sorted(TYPES)), key=st.sampled_from([None, "key 1", "key 2"]),
        retries=st.integers(0, 3), text=st.sampled_from(["A", "B"]), then=st.sampled_from(SEEN_BY_OTHERS[:-1]), worker=WORKERS,
    )  # fmt: skip
    def create(self, who: int, job_type: str, key: str | None, retries: int, text: str, then: str, worker: str) -> None:
        job = self.create_job(who, job_type, key, retries, text)
        if job is not None:
            self.bring(job, then, worker)

    def bring(self, job: Job, state: str, worker: str = "anna") -> None:
        """Take a job that was just created to a state, as far as its type goes with that."""
        if state == "queued":
            return
        self.lock(job, worker)
        assert job.holder
        if state in ("late", "late and offered", "overtaken"):
            self.a_lease_lapses(job.holder)
        if state == "overtaken":
            self.lock(job, "ben")
        elif state == "late and offered":
            self.offer("ben", Lane(job.lane), STEPS)
        elif state == "retrying":
            self.release(job.holder)
        elif state in ("cancel_requested", "cancelled"):
            self.cancel(job)
        if state in ("succeeded", "cancelled"):
            self.deliver(job.holder, "an answer", None, 0)
        elif state == "failed":
            self.fail(job.holder, 2)
        self.untouched = False

    def create_job(self, who: int, job_type: str, key: str | None, retries: int, text: str) -> Job | None:
        request = (who, job_type, retries, text)
        stored_key = key and f"{self.tag} {key}"

        def call() -> UUID:
            return jobs.create_job(
                user=self.users[who],
                job_type=job_type,
                payload=payload(text),
                target_type=self.tag,
                target_id="1",
                idempotency_key=stored_key,
                credential=self.credential,
                max_retry_count=retries,
            ).pk

        if key in self.keys:
            first, job = self.keys[key]
            self.untouched = True
            if first == request:
                assert call() == job.id
            else:
                with pytest.raises(errors.IdempotencyConflict):
                    call()
            return None
        job = Job(call(), TYPES[job_type], retries, fails_on_lapse=job_type == Paid.job_type)
        assert job.id not in self.jobs
        self.jobs[job.id] = job
        if key:
            self.keys[key] = (request, job)
        return job

    @precondition(some_jobs)
    @rule(worker=WORKERS, seed=SEED)
    def somebody_asks(self, worker: str, seed: int) -> None:
        chance = self.chance(seed)
        call = chance.choice(CALLS_OF_OTHERS)
        job = self.one_of(list(self.jobs.values()), chance)
        note(f"# {call}: {job}")
        self.ask(call, job, worker)

    def ask(self, call: str, job: Job, worker: str = "anna") -> None:
        self.tried[call, job.state] += 1
        self.lock(job, worker) if call == "lock" else getattr(self, call)(job)

    def cancel(self, job: Job) -> None:
        self.untouched = job.status == "cancel_requested"

        def foretold() -> str:
            job.cancel()
            return job.status

        self.said(lambda: str(jobs.cancel_job(job.id, actor=STAFF).status), foretold)

    def rerun(self, old: Job) -> None:
        if not old.ended:
            self.untouched = True
            with pytest.raises(errors.JobNotRerunnable):
                jobs.rerun_job(old.id, actor=STAFF)
            return
        unfinished = [job for job in self.jobs.values() if job.rerun_of is old and not job.ended]
        again = jobs.rerun_job(old.id, actor=STAFF)
        assert again.created == (not unfinished)
        if unfinished:
            self.untouched = True
            assert [again.job.pk] == [job.id for job in unfinished]
            return
        old.events.append("job.rerun")
        self.jobs[again.job.pk] = Job(again.job.pk, old.lane, old.max_retry_count, old.fails_on_lapse, rerun_of=old)

    def give_up(self, job: Job) -> None:
        self.untouched = not job.waits
        assert lapses.give_up_unknown_type(job.id) == job.waits
        if job.waits:
            job.end("failed")

    # -- taking jobs

    def taken(self, lane: Lane, worker: str | None) -> list[UUID]:
        return [job.id for job in self.jobs.values() if job.lane == lane and job.claimable(worker)]

    @precondition(some_waiting)
    @rule(how=st.sampled_from(["claim", "claim", "offer"]), worker=WORKERS, lane=LANES, most=st.integers(1, 3))
    def a_worker_looks_for_jobs(self, how: str, worker: str, lane: Lane, most: int) -> None:
        getattr(self, how)(worker, lane, most)

    def claim(self, worker: str, lane: Lane, most: int) -> None:
        free = self.taken(lane, worker)
        got = act.take(worker, lane=lane, count=most, job_types=sorted(TYPES), lease=LEASE)
        self.untouched = not free
        assert len({claim.job_id for claim in got}) == len(got) == min(most, len(free))
        assert {claim.job_id for claim in got} <= set(free)
        for claim in got:
            self.jobs[claim.job_id].start(claim)

    def lock(self, job: Job, worker: str) -> None:
        def call() -> Claim:
            return claims.lock_job(job.id, lane=job.lane, worker=worker, lease_seconds=LEASE)

        if job.claimable(worker):
            job.start(call())
            return
        taken = job.status in HELD or (job.waits and job.offered_to not in (None, worker))
        self.untouched = True
        with pytest.raises(errors.LockConflict if taken else errors.NotLockable):
            call()

    def offer(self, worker: str, lane: Lane, most: int) -> None:
        free = self.taken(lane, None)
        got = offers.offer(lane=lane, worker=worker, job_types=sorted(TYPES), count=most, offer_seconds=LEASE)
        self.untouched = not free
        assert len(set(got)) == len(got) == min(most, len(free))
        assert set(got) <= set(free)
        for job_id in got:
            self.jobs[job_id].offered_to = worker

    # -- keeping them

    @precondition(lambda self: self.attempts(*HOLDS))
    @rule(raw=OUTPUTS, key=RESULT_KEYS, variant=VARIANT, seed=SEED)
    def a_holder_calls(self, raw: str, key: str | None, variant: int, seed: int) -> None:
        chance = self.chance(seed)
        attempt = self.one_of(self.attempts(*HOLDS), chance)
        call = chance.choice(CALLS_OF_A_HOLDER)
        note(f"# {call}: attempt {attempt.no} of {attempt.job}")
        self.attempt_calls(call, attempt, raw, key, variant)

    @precondition(lambda self: self.attempts(*PAST))
    @rule(raw=OUTPUTS, key=RESULT_KEYS, variant=VARIANT, seed=SEED)
    def somebody_of_the_past_calls(self, raw: str, key: str | None, variant: int, seed: int) -> None:
        chance = self.chance(seed)
        attempt = self.one_of(self.attempts(*PAST), chance)
        call = chance.choice([*CALLS_OF_A_HOLDER, "repeat", "everything"])
        note(f"# {call}: attempt {attempt.no} of {attempt.job}")
        if call == "repeat":
            self.repeat(attempt)
        elif call == "everything":
            self.try_everything(attempt)
        else:
            self.attempt_calls(call, attempt, raw, key, variant)

    def attempt_calls(self, call: str, attempt: Attempt, raw: str, key: str | None, variant: int) -> None:
        self.tried[call, attempt.state] += 1
        if call in ("deliver", "reject"):
            getattr(self, call)(attempt, raw, key and f"{self.tag} {key}", variant)
        elif call == "fail":
            self.fail(attempt, variant)
        else:
            getattr(self, call)(attempt)

    def renew(self, attempt: Attempt) -> None:
        job = attempt.job
        holds = attempt.current and job.status in HELD
        self.untouched = not holds
        told = leases.renew([attempt.claim], lease_seconds=LEASE, grace_seconds=GRACE)
        assert told == ({job.id: job.status} if holds else {})
        assert leases.held_status(attempt.claim) == (job.status if holds else None)
        if holds and not attempt.deadline_passed:
            job.lease_ran_out = False

    def beat(self, attempt: Attempt) -> None:
        job = attempt.job

        def foretold() -> tuple[str, bool]:
            if not attempt.current:
                raise Refusal(errors.LockLost)
            if job.ended:
                raise Refusal(errors.JobCancelled if job.status == "cancelled" else errors.JobAlreadyFinished)
            late = job.late
            if late and attempt.deadline_passed:
                raise Refusal(errors.LockLost)
            if late:
                attempt.outcome = attempt.error = ""
                job.become("running", "job.resumed", holder=attempt)
            if not attempt.deadline_passed:
                job.lease_ran_out = False
            return job.status, late

        def call() -> tuple[str, bool]:
            beat = leases.beat(job.id, attempt_no=attempt.no, token=attempt.claim.token, lease_seconds=LEASE, progress=50)
            return str(beat.status), beat.late

        self.said(call, foretold)

    # -- ending attempts

    def terminal_call(
        self, attempt: Attempt, content: tuple[Any, ...], happen: Callable[[Job], str], call: Callable[[], Settlement]
    ) -> None:
        key = content[2] if content[0] == "result" else None
        known = attempt.answer is not None and attempt.content == content

        def foretold() -> Answer:
            return settle(attempt, content, self.result_keys.get(key) if key else None, happen)

        if self.said(lambda: answer_of(call()), foretold) is None:
            return
        self.untouched = known
        attempt.repeat = call
        if attempt.delivered and key:
            self.result_keys[key] = (attempt.job.id, attempt.no)

    def deliver(self, attempt: Attempt, raw: str, key: str | None, variant: int) -> None:
        breaks = variant == 2
        definition = HalfProjected() if breaks else None

        def happen(job: Job) -> str:
            if breaks:
                job.err("internal_error", "failed", retryable=True)
            else:
                attempt.delivered = True
                job.succeed()
            return ""

        self.terminal_call(
            attempt, ("result", raw, key), happen, lambda: act.deliver(attempt.claim, raw, key=key, definition=definition)
        )  # fmt: skip

    def reject(self, attempt: Attempt, raw: str, key: str | None, variant: int) -> None:
        code = ErrorCode.BUSINESS_VALIDATION_FAILED if variant == 2 else ErrorCode.INVALID_MODEL_OUTPUT

        def happen(job: Job) -> str:
            attempt.delivered = True
            job.rejected += 1
            job.err(code, "rejected", retryable=code == ErrorCode.INVALID_MODEL_OUTPUT)
            return code

        self.terminal_call(attempt, ("result", raw, key), happen, lambda: act.reject(attempt.claim, raw, code=code, key=key))

    def fail(self, attempt: Attempt, variant: int) -> None:
        kind = ("now", "later", "for good")[variant]
        code = ErrorCode.PROVIDER_AUTH_FAILED if kind == "for good" else ErrorCode.PROVIDER_RATE_LIMITED
        retry_after = 3_600.0 if kind == "later" else None

        def happen(job: Job) -> str:
            job.err(code, "failed", retryable=kind != "for good", due=kind != "later")
            return ""

        self.terminal_call(attempt, ("fail", kind), happen, lambda: act.fail(attempt.claim, code, retry_after=retry_after))

    def release(self, attempt: Attempt) -> None:
        def happen(job: Job) -> str:
            job.take_back()
            return ""

        self.terminal_call(attempt, ("release",), happen, lambda: act.hand_back(attempt.claim))

    def repeat(self, attempt: Attempt) -> None:
        if attempt.repeat:
            assert attempt.answer
            self.untouched = True
            assert answer_of(attempt.repeat()) == attempt.answer._replace(duplicate=True)

    def try_everything(self, attempt: Attempt) -> None:
        if attempt.current:
            return
        held = attempt.claim
        self.untouched = True
        assert leases.renew([held], lease_seconds=LEASE, grace_seconds=GRACE) == {}
        calls: list[Callable[[], Any]] = [
            lambda: leases.beat(held.job_id, attempt_no=held.attempt_no, token=held.token, lease_seconds=LEASE),
            lambda: terminal.submit_failure(fence(held), errors.AttemptError(ErrorCode.INTERNAL_ERROR, "a new one")),
            lambda: act.deliver(held, "a new answer"),
            lambda: act.reject(held, "a new answer"),
        ]
        if attempt.content != ("release",):
            calls.append(lambda: act.hand_back(held))
        for call in calls:
            with pytest.raises((errors.LockLost, errors.ResultConflict)):
                call()

    # -- time

    @precondition(some_jobs)
    @rule(seed=SEED)
    def time_passes(self, seed: int) -> None:
        chance = self.chance(seed)
        what = chance.choice(PASSES)
        note(f"# {what}")
        if not what.startswith("a_"):
            getattr(self, what)()
        elif held := self.attempts(*HOLDS):
            getattr(self, what)(self.one_of(held, chance))

    def a_lease_ends(self, held: Attempt) -> None:
        if held.job.status in HELD:
            act.run_out(held.job.id)
            held.job.lease_ran_out = True

    def a_lease_lapses(self, held: Attempt) -> None:
        self.a_lease_ends(held)
        self.reap()

    def reap(self) -> None:
        workers.seen("web", kind=RuntimeInstance.Kind.WEB, lane=Lane.RUNTIME, version="", job_types=[])
        expired = [job for job in self.jobs.values() if job.lease_ran_out]
        assert lapses.reap() == len(expired)
        for job in expired:
            job.lapse()

    def a_deadline_passes(self, held: Attempt) -> None:
        AiRuntimeJob.objects.filter(pk=held.job.id).update(locked_at=Now() - timedelta(hours=1))
        held.deadline_passed = True

    def retries_fall_due(self) -> None:
        AiRuntimeJob.objects.filter(target_type=self.tag, status="retrying").update(available_at=Now() - timedelta(seconds=1))
        for job in self.jobs.values():
            job.due = job.due or job.status == "retrying"

    def offers_run_out(self) -> None:
        offered = [job for job in self.jobs.values() if job.offered_to]
        AiRuntimeJob.objects.filter(pk__in=[job.id for job in offered]).update(offer_until=F("offer_until") - timedelta(hours=1))
        for job in offered:
            job.offered_to = None

    # -- what always holds

    @invariant()
    def database_and_model_agree(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_ALL, [self.tag])
            rows = {row.id: row for row in map(Row._make, cursor.fetchall())}
        assert set(rows) == set(self.jobs)
        for row in rows.values():
            assert row == expected(self.jobs[row.id], row)
            hold_the_rules(row)
        tokens = [token for row in rows.values() for token in row.tokens]
        assert len(set(tokens)) == len(tokens)
        if self.untouched:
            assert rows == self.rows
        self.rows, self.untouched = rows, False
        self.steps_so_far += 1
        JobsUnderFire.steps += 1

    def teardown(self) -> None:
        """No job is lost: each one that waits can be claimed in the end."""
        AiRuntimeJob.objects.filter(target_type=self.tag, status="retrying").update(available_at=Now(), offer_until=None, offered_to=None)
        AiRuntimeJob.objects.filter(target_type=self.tag, status="queued").update(offer_until=None, offered_to=None)
        for lane in (Lane.INTERACTIVE, Lane.RUNTIME):
            waiting = {job.id for job in self.jobs.values() if job.waits and job.lane == lane}
            got = act.take("the last", lane=lane, count=STEPS, job_types=sorted(TYPES))
            assert {claim.job_id for claim in got} == waiting


def hold_the_rules(row: Row) -> None:
    """Whatever the model says."""
    assert row.succeeded <= 1
    assert row.artifacts == row.succeeded == (row.status == "succeeded")
    assert row.attempt_no == len(row.numbers) == row.events.count("job.claimed")
    assert row.numbers == list(range(1, row.attempt_no + 1))
    assert row.seqs == list(range(1, len(row.seqs) + 1))
    # Each step left its event, and no step is outside the table.
    assert row.statuses[-1] == row.status
    assert set(pairwise(["", *row.statuses])) <= LEGAL
    if "job.cancel_requested" in row.events:
        assert row.status in ("cancel_requested", "cancelled")
    # Waiting, or held by somebody whose lease will end, or over: never in between.
    assert (row.lease_ran_out is not None) == (row.status in HELD)


def end_all_jobs() -> None:
    """Whatever an earlier example left: cancelled, and where somebody holds it, taken back."""
    workers.seen("web", kind=RuntimeInstance.Kind.WEB, lane=Lane.RUNTIME, version="", job_types=[])
    for job_id in AiRuntimeJob.objects.filter(finished_at=None).values_list("pk", flat=True):
        if jobs.cancel_job(job_id, actor=STAFF).status == "cancel_requested":
            act.run_out(job_id)
    lapses.reap()
    assert not AiRuntimeJob.objects.filter(finished_at=None).exists()


@pytest.fixture
def _world(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "runtime_jobs.services.terminal")  # the projector that fails on purpose
    settings.RETRY_BASE_SECONDS = 0
    settings.ENGINE_LEASE_SECONDS = settings.RUNTIME_LEASE_SECONDS = 0
    paid: JobDefinition = Paid()
    monkeypatch.setitem(registry._definitions, Paid.job_type, paid)
    JobsUnderFire.users = [get_user_model().objects.create(username=name) for name in ("the one", "the other")]
    JobsUnderFire.credential = CredentialFactory()
    JobsUnderFire.examples = count()
    JobsUnderFire.steps = 0
    JobsUnderFire.tried = Counter()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_world")
@pytest.mark.timeout(7_200 if THOROUGH else 300)
def test_no_order_of_events_breaks_a_job() -> None:
    """Acceptance 9. The thorough profile: HYPOTHESIS_PROFILE=thorough, with another seed each time."""
    run_state_machine_as_test(JobsUnderFire, settings=_profile())
    assert JobsUnderFire.steps >= 3_000
    assert {call for call, _ in JobsUnderFire.tried} == {*CALLS_OF_A_HOLDER, *CALLS_OF_OTHERS}
    assert {state for _, state in JobsUnderFire.tried} == {*HOLDS, *PAST, *SEEN_BY_OTHERS}
    assert ExtractedText.objects.count() == AiRuntimeJob.objects.filter(status="succeeded").count() > 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_world")
@pytest.mark.parametrize("job_type", sorted(TYPES))
@pytest.mark.parametrize("call", CALLS_OF_A_HOLDER)
def test_each_call_of_an_attempt_does_what_the_table_says_in_each_state(call: str, job_type: str) -> None:
    """Acceptance 9: chance may leave a pair out; this does not."""
    machine = JobsUnderFire()
    for state, variant in product((*HOLDS, "late and offered", *sorted(ENDED), "overtaken"), range(3)):
        job = machine.create_job(0, job_type, None, 2, "A")
        assert job
        machine.bring(job, state)
        machine.database_and_model_agree()
        machine.attempt_calls(call, job.attempts[0], "another answer", None, variant)
        machine.database_and_model_agree()
        machine.repeat(job.attempts[0])
        machine.database_and_model_agree()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_world")
@pytest.mark.parametrize("call", CALLS_OF_OTHERS)
def test_each_wish_of_others_does_what_the_table_says_in_each_state(call: str) -> None:
    """Acceptance 9."""
    machine = JobsUnderFire()
    for state in (*SEEN_BY_OTHERS[:-1], *sorted(ENDED)):
        job = machine.create_job(0, act.INTERACTIVE, None, 2, "A")
        assert job
        machine.bring(job, state)
        assert state in (job.state, job.status)
        machine.database_and_model_agree()
        machine.ask(call, job)
        machine.database_and_model_agree()
        machine.ask(call, job)
        machine.database_and_model_agree()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_world")
@pytest.mark.parametrize(
    ("end", "times"),
    [("lapse", LAPSES + 1), ("release", FREE_RELEASES + LAPSES + 1), ("fail", 4), ("reject", 2), ("deliver", 3)],
)
def test_what_is_done_again_and_again_ends_where_the_table_says(end: str, times: int) -> None:
    """Acceptance 9: chance seldom comes to the end of a budget. Here a job has three retries, and its deliveries break the projector."""
    machine = JobsUnderFire()
    job = machine.create_job(0, act.INTERACTIVE, None, 3, "A")
    assert job
    for _ in range(times):
        assert job.waits
        machine.lock(job, "anna")
        assert job.holder
        if end == "lapse":
            machine.a_lease_lapses(job.holder)
        else:
            machine.attempt_calls(end, job.holder, "an answer", None, 2 if end == "deliver" else 0)
        machine.database_and_model_agree()
    assert (job.status, len(job.attempts)) == ("failed", times)


def _profile() -> settings:
    return settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        derandomize=not THOROUGH,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
