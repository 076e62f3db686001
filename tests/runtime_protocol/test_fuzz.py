"""schemathesis reads openapi.yaml and sends a real server whatever that allows, and what it does not allow.

`make fuzz` is the same for longer, from a seed of its own: FUZZ_EXAMPLES per operation, FUZZ_SEED to repeat one.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_protocol.files import CONTRACT
from tests.factories import CredentialFactory, JobFactory
from tests.runtime_protocol.conftest import JOB_TYPE, Runtime, issue
from tests.runtime_protocol.web import through_http, web_server
from tests.support.processes import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "20")
SEED = os.environ.get("FUZZ_SEED", "1")
CONFIG = ROOT / "tests/runtime_protocol/schemathesis.toml"
OPERATIONS = 12


def fuzz(port, leases, *options):
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        CONFIG,
        "run",
        CONTRACT,
        "--url",
        f"http://127.0.0.1:{port}",
    ]
    limits = [
        "--seed",
        SEED,
        "--max-examples",
        EXAMPLES,
        "--checks",
        "all",
        "--continue-on-failure",
        "--no-color",
        "--generation-database",
        "none",
    ]
    known = {"SCHEMATHESIS_HOOKS": "tests.runtime_protocol.fuzz_hooks", "FUZZ_LEASES": json.dumps(leases)}
    done = subprocess.run([*command, *limits, *options], cwd=ROOT, env={**os.environ, **known}, capture_output=True, text=True, check=False)
    print(done.stdout[-20_000:], done.stderr[-2_000:])
    return done


@pytest.mark.parametrize("with_token", [True, False])
def test_whatever_is_sent_the_answer_is_what_the_contract_says(with_token):
    credential = CredentialFactory()
    for _ in range(20):
        JobFactory(job_type=JOB_TYPE, credential=credential)
    with web_server(workers=1, threads=8, RUNTIME_RATE_PER_SECOND=100_000) as web:
        token = issue()
        leases = [offer["lease"] for offer in Runtime(through_http(web.port), token).pull(maxJobs=10)["jobs"]]
        before = len(web.log())
        done = fuzz(web.port, leases, *(["--header", f"Authorization: Bearer {token}"] if with_token else []))
        answered = re.findall(r"status=(\d+)", web.log()[before:])
    assert done.returncode == 0, done.stdout[-20_000:]
    assert f"Selected: {OPERATIONS}/{OPERATIONS}" in done.stdout
    assert not [status for status in answered if status.startswith("5")]
    assert ("200" in answered) is with_token
