"""Delete finished jobs whose time has come."""

from collections import Counter
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from runtime_jobs.services import pruning


class Command(BaseCommand):
    help = (
        "Delete jobs that finished more than JOB_RETENTION_DAYS ago, with their attempts, results, usage and events; then inputs that no "
        "job uses, and workers not seen for a day. What applications made of the results stays. Safe at any time; run it daily."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, help=f"instead of JOB_RETENTION_DAYS (now {settings.JOB_RETENTION_DAYS})")
        parser.add_argument("--batch", type=int, default=pruning.BATCH, help=f"jobs in one transaction; default {pruning.BATCH}")
        parser.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        days = settings.JOB_RETENTION_DAYS if options["days"] is None else options["days"]
        batch = options["batch"]
        if not 1 <= days <= 36_500:
            raise CommandError("--days must be 1 to 36,500.", returncode=2)
        if not 1 <= batch <= 10_000:
            raise CommandError("--batch must be 1 to 10,000.", returncode=2)
        if options["dry_run"]:
            self._preview(days, batch)
            return
        total = pruning.count_old(days=days)
        # disable=None: only on a terminal. A count that ended at the cap is no total.
        with tqdm(total=total if total < pruning.COUNT_CAP else None, unit=" jobs", disable=None) as bar:
            pruned = pruning.prune_older_than(days=days, batch=batch, on_progress=bar.update)
        self.stdout.write(f"deleted: {pruned.jobs:,} jobs, {pruned.snapshots:,} inputs, {pruned.workers:,} workers")
        self._kept(pruned.kept)

    def _preview(self, days: int, batch: int) -> None:
        pruned = pruning.preview(days=days, batch=batch)
        more = f" (of the first {pruning.COUNT_CAP:,} that are old enough; there may be more)" if pruned.more else ""
        self.stdout.write(f"would delete: {pruned.jobs:,} jobs{more}")
        self._kept(pruned.kept)

    def _kept(self, kept: Counter[str]) -> None:
        for reason, count in sorted(kept.items()):
            self.stdout.write(f"kept: {count:,}, {reason}")
