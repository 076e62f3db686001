"""Run one lane of the execution engine."""

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, SystemCheckError


class Command(BaseCommand):
    help = (
        "Run the execution engine for the lane that Q_CLUSTER_NAME names (interactive or background): ENGINE_WORKERS processes take jobs "
        "until SIGTERM or Ctrl-C, then give running attempts ENGINE_DRAIN_SECONDS. Run one per lane and machine, under a supervisor."
    )

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Django runs the system checks before any command; here their errors end it as every other refusal does, with status 2."""
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as error:
            raise SystemCheckError(*error.args, returncode=2) from None

    def handle(self, *args: Any, **options: Any) -> None:
        # The environment, not an argument: django-q2 reads its name at import, before any argument is parsed.
        lane = os.environ.get("Q_CLUSTER_NAME", "")
        if lane not in settings.ENGINE_LANES:
            lanes = " or ".join(settings.ENGINE_LANES)
            raise CommandError(
                f"Set Q_CLUSTER_NAME to {lanes}, not {lane!r}: Q_CLUSTER_NAME=interactive python manage.py run_engine",
                returncode=2,
            )
        from runtime_jobs.engine.cluster import run_cluster, use_fork

        use_fork()
        sys.exit(run_cluster(lane))
