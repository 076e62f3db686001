"""What a hostile body may cost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.provider_simulator import Answer, Behaviour

# In a process of its own, so that neither the simulator's memory nor that of other tests counts. ru_maxrss is the peak, in KiB.
SCRIPT = """
import asyncio, resource, sys
from uuid import uuid4
from runtime_jobs.errors import AttemptError
from runtime_jobs.gateway import AddressPolicy, AiGatewayService
from runtime_jobs.model_call import CallReport, Message, ModelRequest, ProviderTarget
from runtime_jobs.redaction import Secret
from runtime_jobs.states import ApiKeyMode

service = AiGatewayService(user_addresses=AddressPolicy(allow_loopback_http=True))
target = ProviderTarget("openai_compatible", sys.argv[1], "m", Secret("sk-0123456789"), ApiKeyMode.USER)

def call(text):
    report = CallReport()
    try:
        asyncio.run(service.complete(target, ModelRequest((Message("user", text),)), report, call_id=uuid4(), timeout_seconds=30))
    except AttemptError as error:
        return error.code, report.response_bytes
    return "answer", report.response_bytes

call("warm up")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(3):
    code, received = call("hostile")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(code, received, (after - before) // 1024)
"""


@pytest.mark.parametrize(
    ("answer", "code", "most_received"),
    [
        (Answer.BIG_BODY, "invalid_model_output", 4 * 1024 * 1024 + 64 * 1024),
        (Answer.GZIP_BOMB, "provider_unavailable", 1024 * 1024),
    ],
)
def test_sixty_four_megabytes_cost_less_than_fifty(answer, code, most_received, simulator):
    """Scenario 39: no more than the cap is read, nothing is unpacked."""
    simulator.script("hostile", Behaviour(answer=answer, size=64 * 1024 * 1024, times=3))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, simulator.url],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found, received, megabytes = done.stdout.split()
    assert found == code
    assert int(received) <= most_received
    assert int(megabytes) < 50
