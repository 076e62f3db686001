"""What a claim is worth that no disk has seen: `python -m tests.support.power_cut FOLDER`.

A server of its own in FOLDER writes what nobody waits for only seconds later, and is stopped before that as a power cut would stop it.
Prints what was there afterwards as JSON. A process of its own, since a test's own connection would not survive.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

# The longest that PostgreSQL allows.
_LATE = "wal_writer_delay = 10s\nwal_writer_flush_after = 1GB\nautovacuum = off\n"


def main(folder: Path) -> int:
    from config.embedded import start_or_join

    def start() -> Any:
        return start_or_join(folder / "postgres", extra_config=_LATE, stop_with_last_user=False)

    def cut(server: Any) -> None:
        connection.close()
        postmaster = psutil.Process(server.get_pid())
        postmaster.send_signal(signal.SIGQUIT)
        postmaster.wait(30)

    server = start()
    os.environ.update(DATABASE_URL=server.get_uri(), DEBUG="1", DJANGO_SETTINGS_MODULE="config.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    seen: dict[str, Any] = {}
    try:
        job = _create()
        call = _claim()
        cut(server)
        server = start()
        seen["claimed"] = {**_row(job), "may_call": _open(call)}
        call = _claim()
        seen["may_call"] = _open(call)
        cut(server)
        server = start()
        seen["claimed and opened"] = _row(job)
    finally:
        start().stop()
    print(json.dumps(seen))
    return 0


def _create() -> Any:
    from tests.factories import CredentialFactory, JobFactory

    CredentialFactory()
    return JobFactory().pk


def _claim() -> Any:
    from runtime_jobs import registry
    from runtime_jobs.model_call import ProviderTarget
    from runtime_jobs.models.base import new_id
    from runtime_jobs.redaction import Secret
    from runtime_jobs.services import claims
    from runtime_jobs.services.usage import OpenCall
    from runtime_jobs.states import ApiKeyMode, Lane

    [(claim, _)] = claims.claim_work(
        lane="interactive", worker="w", job_types=registry.job_types(Lane.INTERACTIVE), count=1, lease_seconds=300
    )
    target = ProviderTarget("simulator", "http://127.0.0.1:9/v1", "simulator-1", Secret("sk-none"), ApiKeyMode.PLATFORM)
    return OpenCall(new_id(), claim.job_id, claim.token, 1, target)


def _open(call: Any) -> bool:
    from runtime_jobs.services import usage

    return usage.open_calls([call])[0]


def _row(job: Any) -> dict[str, Any]:
    from runtime_jobs.models import AiJobAttempt, AiRuntimeJob, AiUsageLog

    row = AiRuntimeJob.objects.get(pk=job)
    return {
        "status": row.status,
        "attempt_no": row.attempt_no,
        "attempts": AiJobAttempt.objects.filter(job=job).count(),
        "calls": AiUsageLog.objects.filter(job=job).count(),
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
