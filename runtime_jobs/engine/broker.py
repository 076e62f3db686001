"""What django-q2's clusters are fed with: tickets. A ticket names a lane, never a job; which job runs is decided by the claim."""

import os
import select
import signal
import uuid
from typing import Any

from django.utils import timezone
from django_q.brokers import Broker
from django_q.conf import Conf
from django_q.signing import SignedPackage

PROCESSORS = {
    "interactive": "runtime_jobs.tasks.interactive_job_worker",
    "background": "runtime_jobs.tasks.background_job_worker",
}

_WAIT_SECONDS = 0.2

# A byte for each ticket that is wanted. Shared by fork; a killed process cannot hold it as it could a lock.
_wanted, _want = os.pipe()


def ticket_taken() -> None:
    """A worker has taken a ticket: one more may wait in the queue."""
    os.write(_want, b".")


class TicketBroker(Broker):  # type: ignore[misc]
    """Keeps one ticket waiting per worker, so that a new or recycled worker finds one.

    The pusher never blocks on a full queue: a stop would then wait for ever once the workers have gone.
    """

    def enqueue(self, task: Any) -> None:
        raise TypeError("Nothing is enqueued here: create a job (runtime_jobs.services.jobs.create_job).")

    def dequeue(self) -> list[tuple[None, str]]:
        ready, _, _ = select.select([_wanted], [], [], _WAIT_SECONDS)
        if not ready:
            return []
        os.read(_wanted, 1)
        ticket = {
            "id": uuid.uuid4().hex,
            "name": f"{self.list_key} worker",
            "func": PROCESSORS[self.list_key],
            "args": (self.list_key,),
            "kwargs": {},
            "started": timezone.now(),
            "save": False,
            "ack_failure": True,
        }
        return [(None, SignedPackage.dumps(ticket))]

    def ping(self) -> bool:
        """Called once, by the sentinel, just after it has given SIGTERM back its default (django-q2 1.11, Sentinel.__init__).

        A SIGTERM to the whole process group would kill it, and the main process then hangs in its stop. It ends by the stop event alone.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(_want, b"." * Conf.WORKERS)
        return True

    def set_stat(self, key: str, value: str, timeout: int) -> None:
        """django-q2's own figures need a shared cache; ours are rows (RuntimeInstance)."""

    def get_stat(self, key: str) -> None:
        return None

    def queue_size(self) -> int:
        return 0

    def info(self) -> str:
        return "tickets"
