"""A long history for measuring. Development mode only."""

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runtime_jobs.synthetic.history import make_history


class Command(BaseCommand):
    help = (
        "Insert synthetic jobs that nobody ran, with attempts and calls, and for the newest with results and events: to see lists and "
        "pages at their real size. The newest wait or run: without an engine they stay so."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--jobs", type=int, default=1_000_000, help="how many; default 1,000,000 (about a minute and 2 GB)")
        parser.add_argument("--days", type=float, default=30, help="over how many days until now they were created; default 30")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("Synthetic jobs belong into no production database: only in development mode (DEBUG=1).", returncode=2)
        if not 100 <= options["jobs"] <= 10_000_000:
            raise CommandError("--jobs must be 100 to 10,000,000.", returncode=2)
        if not 0 < options["days"] <= 3_650:
            raise CommandError("--days must be more than 0 and at most 3,650.", returncode=2)
        make_history(jobs=options["jobs"], days=options["days"], say=self.stdout.write)
        call_command("roll_up_figures", stdout=self.stdout)
