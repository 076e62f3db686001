"""Count the hours that the dashboard is drawn from."""

from typing import Any

from django.core.management.base import BaseCommand

from runtime_jobs.services import figures


class Command(BaseCommand):
    help = (
        "Count the jobs and calls of each hour into the figures of the dashboard. The workers of the engine do this every minute; the "
        "command is for systems without an engine, where cron runs it, and for a system that has just been filled. Safe at any time."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        total = 0
        while counted := figures.roll_up(every_seconds=5):
            total += counted
        figures.forget_old()
        self.stdout.write(f"counted: {total:,} hours")
