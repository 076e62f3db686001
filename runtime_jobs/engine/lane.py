"""What one worker process of a lane does: claim the best jobs whenever slots are free, run them side by side, sleep when there are none."""

import gc
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import UUID

import psycopg
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections

from runtime_jobs import gateway, registry
from runtime_jobs.abort import AbortReason, AbortSignal
from runtime_jobs.engine import process, writes
from runtime_jobs.engine.attempt import run_attempt
from runtime_jobs.engine.connections import database, use_lender
from runtime_jobs.engine.figures import FiguresThread
from runtime_jobs.engine.lease import LeaseKeeper
from runtime_jobs.engine.outbox import OutboxThread
from runtime_jobs.queries import WorkItem
from runtime_jobs.services import claims, credentials, workers
from runtime_jobs.services.calling import make_service
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.lending import ConnectionLender
from runtime_jobs.services.listening import Listener
from runtime_jobs.services.notify import lane_channel

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.25  # how soon a wish to drain is noticed
_NOTE_SECONDS = 60.0  # how often a credential's use is noted
_RELEASE_SECONDS = 3.0  # what aborted attempts get to hand their jobs back
# Jobs that a claim asks for: more tokens to make and rows to look at take time even where a single job waits. More after each full hand.
_FIRST_HAND = 8
_GROWTH = 4


def run_lane(lane: str) -> None:
    """Work on the lane until this process is told to drain or has run ENGINE_RECYCLE_ATTEMPTS attempts; then end what runs."""
    if process.is_draining():
        return
    # What was loaded until now stays for good: without this every full collection walks over all of it, while attempts wait.
    gc.collect()
    gc.freeze()
    lender = ConnectionLender(settings.ENGINE_CONNECTIONS, patience_seconds=None)
    use_lender(lender)
    connections.close_all()
    try:
        LaneWorker(lane).run()
    finally:
        use_lender(None)
        gateway.shutdown()
        lender.close()


class LaneWorker:
    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._name = f"{lane}@{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"[:128]
        self._job_types = registry.job_types()
        self._service = make_service()
        self._writes = writes.WritesTogether()
        self._keeper = LeaseKeeper(self._name, lane)
        self._outbox = OutboxThread()
        self._figures = FiguresThread()
        self._running: set[Future[None]] = set()
        self._slot_freed = threading.Event()
        self._attempts = 0
        self._hand = _FIRST_HAND
        self._noted: dict[UUID, float] = {}

    def run(self) -> None:
        logger.info("worker %s takes jobs of lane %s", self._name, self._lane)
        self._keeper.start()
        self._outbox.start()
        self._figures.start()
        pool = ThreadPoolExecutor(settings.ENGINE_CONCURRENCY, thread_name_prefix="attempt")
        try:
            self._take_jobs(pool)
            self._drain()
        finally:
            pool.shutdown(wait=False)
            self._outbox.stop()
            self._figures.stop()
            self._keeper.stop()
            with database():
                workers.gone(self._name)
        logger.info("worker %s has ended after %d attempts", self._name, self._attempts)

    def _take_jobs(self, pool: ThreadPoolExecutor) -> None:
        with Listener([lane_channel(self._lane)], name="ai-jobs lane") as listener:
            next_look = 0.0
            while not self._should_stop():
                free = settings.ENGINE_CONCURRENCY - len(self._running)
                try:
                    if free and time.monotonic() >= next_look:
                        wanted = min(free, self._hand)
                        claimed = self._claim(wanted)
                        for claim, item in claimed:
                            self._start(pool, claim, item)
                        self._note_credentials(item for _, item in claimed)
                        # A full hand means that there may be more; else sleep until a hint or the poll.
                        is_full = len(claimed) == wanted
                        self._hand = max(wanted * _GROWTH, _FIRST_HAND) if is_full else _FIRST_HAND
                        next_look = 0.0 if is_full else time.monotonic() + settings.ENGINE_POLL_SECONDS
                    elif not free:
                        self._slot_freed.wait(_TICK_SECONDS)
                        next_look = 0.0
                    elif listener.wait(min(_TICK_SECONDS, max(0.0, next_look - time.monotonic()))):
                        next_look = 0.0
                except (DatabaseError, psycopg.Error) as error:
                    logger.warning("worker %s: the database does not answer (%s); trying again", self._name, type(error).__name__)
                    time.sleep(1)

    def _should_stop(self) -> bool:
        process.pulse()
        self._slot_freed.clear()
        self._running = {attempt for attempt in self._running if not attempt.done()}
        return process.is_draining() or self._keeper.drain_wanted or self._attempts >= settings.ENGINE_RECYCLE_ATTEMPTS

    def _claim(self, count: int) -> list[tuple[Claim, WorkItem]]:
        with database():
            return claims.claim_work(
                lane=self._lane,
                worker=self._name,
                job_types=self._job_types,
                count=count,
                lease_seconds=settings.ENGINE_LEASE_SECONDS,
            )

    def _note_credentials(self, items: Iterable[WorkItem]) -> None:
        due = {item.credential.pk: item.credential for item in items if self._noted.get(item.credential.pk, 0.0) <= time.monotonic()}
        for credential in due.values():
            with database():
                credentials.note_use(credential)
            self._noted[credential.pk] = time.monotonic() + _NOTE_SECONDS

    def _start(self, pool: ThreadPoolExecutor, claim: Claim, item: WorkItem) -> None:
        self._attempts += 1
        signal = AbortSignal(claim.timeout_seconds)
        self._keeper.hold(claim, signal)
        self._running.add(pool.submit(self._attempt, claim, signal, item))

    def _attempt(self, claim: Claim, signal: AbortSignal, item: WorkItem) -> None:
        try:
            run_attempt(claim, signal, self._service, item, self._writes)
        finally:
            self._keeper.drop(claim)
            self._slot_freed.set()

    def _drain(self) -> None:
        """Let what runs end; after ENGINE_DRAIN_SECONDS abort it, and it hands its jobs back. A worker that only recycles waits for all."""
        recycling = not (process.is_draining() or self._keeper.drain_wanted)
        deadline = time.monotonic() + settings.ENGINE_DRAIN_SECONDS
        while self._still_running():
            process.pulse()
            if not recycling and time.monotonic() >= deadline:
                self._keeper.abort_all(AbortReason.SHUTDOWN)
                break
            recycling = recycling and not process.is_draining()
            self._slot_freed.wait(_TICK_SECONDS)
            self._slot_freed.clear()
        give_up = time.monotonic() + _RELEASE_SECONDS
        while self._still_running() and time.monotonic() < give_up:
            self._slot_freed.wait(_TICK_SECONDS)
            self._slot_freed.clear()

    def _still_running(self) -> bool:
        self._running = {attempt for attempt in self._running if not attempt.done()}
        return bool(self._running)
