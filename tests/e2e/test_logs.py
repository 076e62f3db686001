"""What an engine process writes to its log: one line per attempt, as text or as JSON, and nothing that is secret."""

import json
import re
from datetime import datetime

import pytest

from config.logs import ATTEMPT_FIELDS
from runtime_jobs.models import AiRuntimeJob
from tests.factories import KEY, JobFactory, payload
from tests.support.processes import engine, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

# A sentence and a name that nobody else writes; the simulator's answer repeats both.
CANARY = "The quinquereme Zephyrine carried apricots to Xanadu in the year 1234."
SUCCEEDS, FAILS = CANARY, CANARY + " [[simulate: status=401]]"


def run_two_jobs(platform, **settings):
    """One that succeeds and one that fails, and what the engine logged."""
    jobs = [JobFactory(user=platform, payload=payload(text), credential=None) for text in (SUCCEEDS, FAILS)]
    with engine(**settings) as running:
        wait_for(lambda: AiRuntimeJob.objects.filter(finished_at__isnull=False).count() == 2, what="both jobs have ended")
        # An attempt's line comes after its end; a stop waits for it, and has lines of its own.
        running.signal_group()
        running.process.wait(30)
        log = running.log()
    tokens = AiRuntimeJob.objects.exclude(lock_token=None).values_list("lock_token", flat=True)
    for secret in (CANARY, "Zephyrine", KEY, KEY[:12], *map(str, tokens)):
        assert secret not in log
    return jobs, log


def test_as_json_every_line_is_an_object_and_each_attempt_is_one_line_of_fields(platform):
    (succeeded, failed), log = run_two_jobs(platform, LOG_FORMAT="json")
    lines = [json.loads(line) for line in log.splitlines()]
    for line in lines:
        assert set(line) <= {"time", "level", "logger", "message", "exc_info", *ATTEMPT_FIELDS}
        assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert {"runtime_jobs.engine.cluster", "runtime_jobs.engine.lane"} <= {line["logger"] for line in lines}

    attempts = {line["job"]: line for line in lines if "job" in line}
    assert len([line for line in lines if "job" in line]) == 2
    for job, outcome, code in ((succeeded, "succeeded", ""), (failed, "failed", "provider_auth_failed")):
        line = attempts[str(job.pk)]
        assert set(ATTEMPT_FIELDS) <= set(line)
        assert (line["attempt"], line["type"], line["lane"]) == (1, "synthetic.extract_facts", "interactive")
        assert line["worker"].startswith("interactive@")
        assert (line["outcome"], line["error_code"]) == (outcome, code)
        assert 0 < line["seconds"] < 30


def test_as_text_each_attempt_is_one_readable_line(platform):
    (succeeded, failed), log = run_two_jobs(platform)
    for job, end in ((succeeded, "outcome=succeeded error_code= "), (failed, "outcome=failed error_code=provider_auth_failed ")):
        (line,) = [line for line in log.splitlines() if f"job={job.pk} " in line]
        assert re.fullmatch(
            rf"\S+ \S+ INFO    runtime_jobs\.engine\.attempt: job={job.pk} attempt=1 type=synthetic\.extract_facts lane=interactive "
            rf"worker=interactive@\S+ {end}seconds=\d+(\.\d+)?",
            line,
        )


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_chattiest_level_shows_no_secret_either(platform, form):
    run_two_jobs(platform, LOG_FORMAT=form, LOG_LEVEL="DEBUG")
