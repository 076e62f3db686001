"""The one place that keeps a worker's leases: renews them, hears of cancels, takes back what others let lapse.

One thread per worker process, so it goes on while all attempts wait for their providers.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import psycopg
from django.conf import settings
from django.db import Error as DatabaseError

from runtime_jobs import registry
from runtime_jobs.abort import AbortReason, AbortSignal
from runtime_jobs.engine.connections import database
from runtime_jobs.errors import ServiceError
from runtime_jobs.models import RuntimeInstance
from runtime_jobs.services import lapses, leases, workers
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.listening import Listener
from runtime_jobs.services.notify import CANCEL_CHANNEL
from runtime_jobs.states import JobStatus

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_REAP_EVERY_SECONDS = 1.0
_GIVE_UP_EVERY_SECONDS = 10.0


@dataclass(frozen=True)
class Held:
    claim: Claim
    signal: AbortSignal


class LeaseKeeper:
    """Knows what this process holds. Its thread runs between `start()` and `stop()`."""

    def __init__(self, worker: str, lane: str) -> None:
        self._worker, self._lane = worker, lane
        self._held: dict[UUID, Held] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._drain_wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        lease = settings.ENGINE_LEASE_SECONDS
        self._chores: list[tuple[float, Callable[[], object]]] = [
            (min(lease / 4, 10.0), self._renew),
            (_REAP_EVERY_SECONDS, lapses.reap),
            (_GIVE_UP_EVERY_SECONDS, lapses.give_up_unknown_types),
            (workers.SEEN_EVERY_SECONDS, self._seen),
        ]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def drain_wanted(self) -> bool:
        """Whether staff asked this worker to drain."""
        return self._drain_wanted.is_set()

    def hold(self, claim: Claim, signal: AbortSignal) -> None:
        with self._lock:
            self._held[claim.job_id] = Held(claim, signal)

    def drop(self, claim: Claim) -> None:
        with self._lock:
            held = self._held.get(claim.job_id)
            # The job may be held again by a newer attempt of this same process.
            if held is not None and held.claim.attempt_no == claim.attempt_no:
                del self._held[claim.job_id]

    def abort_all(self, reason: AbortReason) -> None:
        for held in self._snapshot():
            held.signal.abort(reason)

    def _snapshot(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def _run(self) -> None:
        due = [0.0] * len(self._chores)
        with Listener([CANCEL_CHANNEL], name="ai-jobs leases") as listener:
            while not self._stopping.is_set():
                try:
                    self._hear(listener)
                    for index, (every, chore) in enumerate(self._chores):
                        if time.monotonic() >= due[index]:
                            due[index] = time.monotonic() + every
                            with database():
                                chore()
                except (DatabaseError, psycopg.Error) as error:
                    logger.warning("lease keeper: the database does not answer (%s); trying again", type(error).__name__)
                    self._stopping.wait(1)

    def _hear(self, listener: Listener) -> None:
        for payload in listener.wait(_TICK_SECONDS):
            held = self._held.get(UUID(payload))
            if held is not None:
                held.signal.abort(AbortReason.CANCELLED)

    def _renew(self) -> None:
        held = self._snapshot()
        if not held:
            return
        lease = settings.ENGINE_LEASE_SECONDS
        statuses = leases.renew([one.claim for one in held], lease_seconds=lease, grace_seconds=lease)
        for one in held:
            status = statuses.get(one.claim.job_id)
            if status == JobStatus.CANCEL_REQUESTED:
                one.signal.abort(AbortReason.CANCELLED)
            elif status is None:
                self._resume_or_abort(one)

    @staticmethod
    def _resume_or_abort(one: Held) -> None:
        """The lease has lapsed (this process or the database stood still). While nobody has taken the job, the paid call goes on."""
        try:
            leases.beat(
                one.claim.job_id,
                attempt_no=one.claim.attempt_no,
                token=one.claim.token,
                lease_seconds=settings.ENGINE_LEASE_SECONDS,
            )
        except ServiceError:
            # Taken over, or just ended by its own thread: then nobody listens to the signal any more.
            one.signal.abort(AbortReason.LEASE_LOST)

    def _seen(self) -> None:
        drain = workers.seen(
            self._worker,
            kind=RuntimeInstance.Kind.ENGINE,
            lane=self._lane,
            version=settings.VERSION,
            job_types=registry.job_types(),
        )
        if drain:
            self._drain_wanted.set()
