"""Calls from threads: aborts, deadlines, forks and the end of the process."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

from runtime_jobs.abort import Aborted, AbortReason, AbortSignal
from runtime_jobs.errors import AttemptError, ErrorCode
from runtime_jobs.gateway import run, shutdown
from runtime_jobs.model_call import CallReport, Dispatch
from tests.gateway.conftest import a_request, a_target
from tests.support.provider_simulator import Behaviour, Outcome, Wire

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_loop_stays():
    yield
    shutdown()


def a_call(service, simulator, report, timeout_seconds=30.0):
    return service.complete(a_target(simulator.url), a_request(), report, call_id=uuid4(), timeout_seconds=timeout_seconds)


async def give(value):
    await asyncio.sleep(0)
    return value


async def forever():
    await asyncio.Event().wait()


def test_a_result_and_an_error_come_back_to_the_thread(simulator, service):
    signal = AbortSignal(10)
    assert run(a_call(service, simulator, CallReport()), signal).text
    simulator.script("", "status=500")
    with pytest.raises(AttemptError) as caught:
        run(a_call(service, simulator, CallReport()), signal)
    assert caught.value.code is ErrorCode.PROVIDER_UNAVAILABLE


@pytest.mark.parametrize("reason", [AbortReason.CANCELLED, AbortReason.LEASE_LOST, AbortReason.SHUTDOWN])
@pytest.mark.parametrize("wire", [Wire.HANG, Wire.DRIP])
def test_pulling_the_signal_closes_the_socket_within_a_second(reason, wire, simulator, service):
    """Scenario 21: the provider sees the connection go."""
    simulator.script("", Behaviour(wire=wire))
    signal, report = AbortSignal(30), CallReport()
    pulled_at = []

    def pull():
        simulator.wait_for(lambda requests: requests and report.dispatch is Dispatch.SENT)
        pulled_at.append(time.monotonic())
        signal.abort(reason)

    puller = threading.Thread(target=pull)
    puller.start()
    with pytest.raises(Aborted) as caught:
        run(a_call(service, simulator, report), signal)
    puller.join()
    assert caught.value.reason is reason
    assert time.monotonic() - pulled_at[0] < 1
    closed = simulator.wait_for(lambda requests: requests[0].closed_by_peer_at, timeout=1)
    assert closed - pulled_at[0] < 1
    assert report.dispatch is Dispatch.SENT
    assert report.latency_ms is not None


def test_a_deadline_of_the_signal_is_a_provider_timeout(simulator, service):
    simulator.script("", "hang")
    signal, report = AbortSignal(0.4), CallReport()
    started = time.monotonic()
    with pytest.raises(AttemptError) as caught:
        run(a_call(service, simulator, report), signal)
    assert time.monotonic() - started < 5
    assert caught.value.code is ErrorCode.PROVIDER_TIMEOUT
    assert signal.reason is AbortReason.TIMEOUT
    assert report.latency_ms is not None
    assert simulator.wait_for(lambda requests: requests[0].outcome is Outcome.CLOSED_BY_PEER, timeout=1)


def test_the_calls_own_timeout_may_come_first(simulator, service):
    simulator.script("", "hang")
    signal = AbortSignal(30)
    with pytest.raises(AttemptError) as caught:
        run(a_call(service, simulator, CallReport(), timeout_seconds=0.2), signal)
    assert caught.value.code is ErrorCode.PROVIDER_TIMEOUT
    assert signal.reason is None


def test_nothing_is_sent_once_the_signal_is_pulled(simulator, service):
    signal = AbortSignal(30)
    signal.abort(AbortReason.CANCELLED)
    with pytest.raises(Aborted):
        run(a_call(service, simulator, CallReport()), signal)
    with pytest.raises(AttemptError):
        run(a_call(service, simulator, CallReport()), AbortSignal(0))
    assert not simulator.requests


def test_an_answer_that_came_with_the_cancel_is_dropped_and_its_report_kept():
    signal = AbortSignal(30)

    async def answer_and_cancel():
        signal.abort(AbortReason.CANCELLED)
        return "answer"

    with pytest.raises(Aborted):
        run(answer_and_cancel(), signal)


def test_a_coroutine_that_does_not_stop_holds_its_caller_for_the_grace_only(monkeypatch):
    monkeypatch.setattr("runtime_jobs.gateway.loop._GRACE_SECONDS", 0.3)
    signal, release = AbortSignal(30), threading.Event()

    async def stubborn():
        signal.abort(AbortReason.CANCELLED)
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    started = time.monotonic()
    with pytest.raises(Aborted):
        run(stubborn(), signal)
    assert 0.3 <= time.monotonic() - started < 5
    release.set()


def test_many_threads_share_one_loop():
    before = threading.active_count()
    results: list[int] = []

    async def together(number):
        await asyncio.sleep(0.05)
        assert threading.current_thread().name == "gateway-loop"
        return number

    threads = [threading.Thread(target=lambda n=number: results.append(run(together(n), AbortSignal(10)))) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(32))
    assert threading.active_count() <= before + 1


def test_shutdown_ends_calls_and_the_next_call_starts_anew():
    ended: list[Aborted] = []
    begun = threading.Event()

    async def wait():
        begun.set()
        await forever()

    def work():
        try:
            run(wait(), AbortSignal(30))
        except Aborted as aborted:
            ended.append(aborted)

    worker = threading.Thread(target=work)
    worker.start()
    assert begun.wait(5)
    shutdown()
    worker.join(5)
    assert [aborted.reason for aborted in ended] == [AbortReason.SHUTDOWN]
    assert not [thread for thread in threading.enumerate() if thread.name == "gateway-loop"]
    shutdown()
    assert run(give("again"), AbortSignal(10)) == "again"


def python(script: str, *arguments: str) -> str:
    """Run a script in a process of its own; its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


FORK = """
import asyncio, os, threading
from runtime_jobs.abort import AbortSignal
from runtime_jobs.gateway import run
from runtime_jobs.gateway import loop

async def give(value):
    await asyncio.sleep(0.01)
    return value

assert run(give(1), AbortSignal(5)) == 1
loop._lock.acquire()  # as if another thread held it at the moment of the fork
child = os.fork()
if child == 0:
    ok = run(give(2), AbortSignal(5)) == 2
    os._exit(0 if ok else 1)
loop._lock.release()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert run(give(3), AbortSignal(5)) == 3  # the parent's loop is unharmed
print("done")
"""

EXIT = """
import asyncio, socket, threading, time
from uuid import uuid4
from runtime_jobs.abort import AbortSignal
from runtime_jobs.errors import AttemptError
from runtime_jobs.gateway import AiGatewayService, run
from runtime_jobs.model_call import *
from runtime_jobs.redaction import Secret
from runtime_jobs.states import ApiKeyMode

socket.getaddrinfo = lambda *_, **__: time.sleep(60)
target = ProviderTarget("openai", "https://slow.test/v1", "m", Secret("sk-0123456789"), ApiKeyMode.USER)
try:
    run(AiGatewayService().complete(target, ModelRequest(()), CallReport(), call_id=uuid4(), timeout_seconds=0.2), AbortSignal(5))
except AttemptError as error:
    print(error.code)
"""


def test_a_forked_child_gets_a_loop_of_its_own():
    assert python(FORK) == "done\n"


def test_the_process_ends_at_once_although_a_look_up_still_hangs():
    """Scenario 22."""
    started = time.monotonic()
    assert python(EXIT) == "provider_timeout\n"
    assert time.monotonic() - started < 10
