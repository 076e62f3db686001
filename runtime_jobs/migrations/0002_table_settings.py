"""Settings fit for a queue: room for HOT updates on the page, and vacuum long before a fifth of a large table has changed."""

from django.db import migrations

_HOT = "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 1"
_GROWING = "autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02"

_SETTINGS = {
    "ai_runtime_job": _HOT,
    "ai_job_attempt": _HOT,
    "ai_usage_log": _HOT,
    "runtime_instance": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01",
    "ai_event_delivery": _HOT,
    "ai_job_event": _GROWING,
    "ai_runtime_result": _GROWING,
}


def _reset(settings: str) -> str:
    return ", ".join(part.split("=")[0].strip() for part in settings.split(","))


class Migration(migrations.Migration):
    dependencies = [("runtime_jobs", "0001_initial")]

    operations = [
        # What is queued or running changes by the minute: after an idle night the statistics say "nothing", and the planner then reads the
        # next morning's whole backlog for each claim. Without any it expects one row in 200 of each state, now and for ever.
        migrations.RunSQL(
            "ALTER TABLE ai_runtime_job ALTER COLUMN status SET STATISTICS 0",
            "ALTER TABLE ai_runtime_job ALTER COLUMN status SET STATISTICS -1",
        ),
    ] + [
        migrations.RunSQL(f"ALTER TABLE {table} SET ({settings})", f"ALTER TABLE {table} RESET ({_reset(settings)})")
        for table, settings in _SETTINGS.items()
    ]
