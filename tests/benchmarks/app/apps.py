import os

from django.apps import AppConfig, apps


class BenchmarksConfig(AppConfig):
    name = "tests.benchmarks.app"
    label = "benchmarks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        if apps.is_installed("runtime_jobs"):
            from tests.benchmarks.app.instant import answer_at_once

            answer_at_once()
            if os.environ.get("BENCH_WRITES_ALONE"):
                from runtime_jobs.engine import writes

                writes.WritesTogether = writes.WritesAlone  # type: ignore[misc, assignment]
