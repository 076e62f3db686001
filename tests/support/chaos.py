"""Two hundred jobs on a system that is being broken: `python -m tests.support.chaos FOLDER [JOBS]`.

The provider misbehaves in every way, workers are killed by SIGKILL ten times, the database is restarted once, on a server of its own in
FOLDER. Prints what it saw as JSON; exit status 1 when something does not hold. A process of its own, since a test's own connection would
not survive the restart.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

KILLS = 10
SEED = 20261129

# What the provider does, and how the job must end whatever else happens to it. Without `times` a directive always holds.
ENDINGS: list[tuple[str, str, str]] = [
    ("", "succeeded", ""),
    ("", "succeeded", ""),
    ("delay=1", "succeeded", ""),
    ("status=429 retry-after=1 times=1", "succeeded", ""),
    ("status=503 times=2", "succeeded", ""),
    ("status=500 times=1", "succeeded", ""),
    ("reset times=1", "succeeded", ""),
    ("reset=mid_body times=1", "succeeded", ""),
    ("short times=1", "succeeded", ""),
    ("short_chunk times=1", "succeeded", ""),
    ("html times=1", "succeeded", ""),
    ("empty times=1", "succeeded", ""),
    ("null times=1", "succeeded", ""),
    ("sse times=1", "succeeded", ""),
    ("no_choices times=1", "succeeded", ""),
    ("error_in_200=429 times=1", "succeeded", ""),
    ("repairable", "succeeded", ""),
    ("status=503", "failed", "provider_unavailable"),
    ("hang", "failed", "provider_timeout"),
    ("drip interval=0.2", "failed", "provider_timeout"),
    ("slow_headers interval=0.2", "failed", "provider_timeout"),
    ("status=401", "failed", "provider_auth_failed"),
    ("status=402", "failed", "provider_quota_exhausted"),
    ("status=404", "failed", "provider_rejected_request"),
    ("redirect", "failed", "provider_rejected_request"),
    ("truncated", "failed", "output_truncated"),
    ("length_closed", "failed", "output_truncated"),
    ("malformed", "failed", "schema_validation_failed"),
    ("wrong_schema", "failed", "schema_validation_failed"),
    ("bad_reference", "failed", "reference_validation_failed"),
    ("refusal", "failed", "content_filtered"),
    ("content_filter", "failed", "content_filtered"),
    ("gzip_bomb size=8388608", "failed", "provider_unavailable"),
    ("big_body size=8388608", "failed", "invalid_model_output"),
]


def main(folder: Path, count: int) -> int:
    from config.embedded import start_or_join

    def start() -> Any:
        return start_or_join(folder / "postgres", stop_with_last_user=False)

    server = start()
    os.environ.update(DATABASE_URL=server.get_uri(), DEBUG="1", DJANGO_SETTINGS_MODULE="config.settings")
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    try:
        return _run(count, server, start)
    finally:
        start().stop()


def _run(count: int, server: Any, start: Any) -> int:
    from tests.factories import CredentialFactory, UserFactory
    from tests.support.processes import Engine
    from tests.support.provider_simulator import ProviderSimulator

    dice = random.Random(SEED)
    with ProviderSimulator() as provider:
        user = UserFactory(username="root", is_superuser=True)
        CredentialFactory(base_url=provider.url)
        expected = _create(user, count, dice)
        # Ten kills of one worker in two let a job lapse more often than any real day would.
        engine = Engine(workers=2, ENGINE_LEASE_SECONDS=2, RETRY_CAP_SECONDS=2, ENGINE_CONCURRENCY=12, LOG_LEVEL="WARNING")
        try:
            seconds = _break_things(engine, dice, expected, server, start)
        finally:
            engine.end()
        seen = _judge(expected, provider)
    seen["seconds"] = round(seconds, 1)
    print(json.dumps(seen, indent=2))
    return 0 if not seen["wrong"] else 1


def _create(user: Any, count: int, dice: random.Random) -> dict[Any, tuple[str, str, str]]:
    from runtime_jobs.services.jobs import create_job
    from runtime_jobs.synthetic.ai_jobs import split_paragraphs

    expected = {}
    for number in range(count):
        ending = ENDINGS[number % len(ENDINGS)] if number < len(ENDINGS) else dice.choice(ENDINGS)
        directive = f" [[simulate: {ending[0]}]]" if ending[0] else ""
        text = f"Job number {number} tells of the river Danube, which is long.{directive}\n\nIt rises in the Black Forest."
        job = create_job(
            user=user,
            job_type="synthetic.extract_facts",
            payload={"paragraphs": split_paragraphs(text)},
            target_type="chaos",
            target_id=str(number),
            timeout_seconds=3,
            max_retry_count=4 if ending[1] == "succeeded" else 1,
        )
        expected[job.pk] = ending
    return expected


def _break_things(engine: Any, dice: random.Random, expected: dict[Any, Any], server: Any, start: Any) -> float:
    """Kill and restart while jobs run; until all have ended. Returns how long it took."""
    from django.db import Error, connection

    from runtime_jobs.models import AiRuntimeJob
    from runtime_jobs.states import TERMINAL

    began = time.monotonic()
    kills, restarted = 0, False
    while time.monotonic() - began < 150:
        time.sleep(0.5)
        try:
            ended = AiRuntimeJob.objects.filter(pk__in=list(expected), status__in=TERMINAL).count()
            workers = engine.workers()
        except Error:
            connection.close()
            continue
        if ended == len(expected):
            return time.monotonic() - began
        if kills < KILLS and workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(workers), signal.SIGKILL)
                kills += 1
        elif not restarted:
            restarted = True
            server.stop()
            start()
    print(engine.log()[-5000:], file=sys.stderr)
    return time.monotonic() - began


def _judge(expected: dict[Any, tuple[str, str, str]], provider: Any) -> dict[str, Any]:
    from django.db.models import Count

    from runtime_jobs.models import AiRuntimeJob, AiUsageLog
    from runtime_jobs.synthetic.models import ExtractedText

    wrong: list[str] = []
    jobs = {job.pk: job for job in AiRuntimeJob.objects.filter(pk__in=list(expected))}
    for pk, (directive, status, code) in expected.items():
        job = jobs[pk]
        # Four kills of one and the same job exhaust its lapses: that is the budget at work.
        lapsed_out = job.error_code == "lease_expired" and job.lapse_count == 3
        if (job.status, job.error_code) != (status, code) and not lapsed_out:
            wrong.append(f"{directive or 'normal'}: {job.status} {job.error_code}, not {status} {code}")
        artifacts = ExtractedText.objects.filter(job_id=pk).count()
        if artifacts != (job.status == "succeeded"):
            wrong.append(f"{directive}: {artifacts} artifacts of a job that {job.status}")
    rows = {str(row.pk): row for row in AiUsageLog.objects.all()}
    asked = [request.client_request_id for request in provider.requests]
    wrong += [f"request {number} has no usage row" for number in asked if number not in rows]
    wrong += [f"usage row {number} was asked {times} times" for number, times in Counter(asked).items() if times > 1]
    for number, row in rows.items():
        if row.outcome == "started":
            wrong.append(f"usage row of attempt {row.attempt_no} is still open")
        if number not in asked and row.dispatch == "sent":
            wrong.append("a usage row says sent, and there was no request")
    doubled = AiRuntimeJob.objects.filter(results__status="succeeded").annotate(n=Count("results")).filter(n__gt=1).count()
    if doubled:
        wrong.append(f"{doubled} jobs have two successes")
    return {
        "jobs": len(jobs),
        "statuses": dict(Counter(job.status for job in jobs.values())),
        "requests": len(asked),
        "lapses": sum(job.lapse_count for job in jobs.values()),
        "retries": sum(job.retry_count for job in jobs.values()),
        "dispatches": dict(Counter(row.dispatch for row in rows.values())),
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200))
