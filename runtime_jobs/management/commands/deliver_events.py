"""Deliver events to their handlers."""

from typing import Any

from django.core.management.base import BaseCommand

from runtime_jobs.services import deliveries

_BATCH = 100


class Command(BaseCommand):
    help = (
        "Deliver the events that are due to their handlers, until nothing is due. The workers of the engine do this all the time; the "
        "command is for systems without an engine, and for a look at what waits. Exit status 0, also when handlers failed."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        delivered = failed = 0
        while True:
            done = deliveries.deliver_due(_BATCH)
            delivered += done.delivered
            failed += done.failed
            if done.delivered + done.failed < _BATCH:
                break
        backlog = deliveries.backlog()
        self.stdout.write(f"delivered: {delivered:,}")
        self.stdout.write(f"failed tries: {failed:,}")
        self.stdout.write(f"waiting: {_capped(backlog.waiting)}")
        if backlog.waiting_for_unknown_handlers:
            self.stdout.write(f"  for handlers that this process does not know: {_capped(backlog.waiting_for_unknown_handlers)}")
        self.stdout.write(f"parked: {_capped(backlog.parked)}")


def _capped(count: int) -> str:
    return f"{count:,}" + (" or more" if count >= deliveries.COUNT_CAP else "")
