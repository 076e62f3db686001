"""A resolver that hangs."""

import asyncio
import socket
import threading
import time
from uuid import uuid4

import pytest

from runtime_jobs.gateway import AiGatewayService
from runtime_jobs.gateway.names import NameTimeout, NameUnresolved, resolve
from runtime_jobs.model_call import CallReport, Dispatch
from tests.gateway.conftest import LOOPBACK, a_request, a_target, call


@pytest.fixture
def hanging(monkeypatch):
    """getaddrinfo hangs for *.hang until the test is over. Gives the names that were asked for."""
    release, asked = threading.Event(), []
    real = socket.getaddrinfo

    def fake(host, *args, **kwargs):
        if str(host).endswith(".hang"):
            asked.append(host)
            release.wait(30)
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    yield asked
    release.set()


def test_a_hanging_resolver_does_not_hold_the_worker(hanging):
    """Scenario 22: free again at the deadline, the whole of asyncio.run included, and nothing was sent."""
    outcome = call(AiGatewayService(), a_target("https://slow.hang/v1"), timeout_seconds=0.5)
    assert outcome.judged == ("provider_timeout", True, None)
    assert outcome.report.dispatch is Dispatch.NOT_SENT
    assert outcome.seconds < 5


def test_the_look_up_counts_as_connecting(hanging):
    service = AiGatewayService(connect_timeout_seconds=0.2)
    outcome = call(service, a_target("https://slow.hang/v1"), timeout_seconds=10)
    assert outcome.judged == ("provider_timeout", True, None)
    assert "name" in str(outcome.error)
    assert outcome.seconds < 5


def test_a_hundred_calls_of_a_hanging_name_cost_one_thread_and_stop_nobody(hanging, simulator):
    service = AiGatewayService(user_addresses=LOOPBACK)
    before = threading.active_count()

    async def crowd():
        hangers = [
            asyncio.create_task(
                service.complete(a_target("https://crowd.hang/v1"), a_request(), CallReport(), call_id=uuid4(), timeout_seconds=3)
            )
            for _ in range(100)
        ]
        await asyncio.sleep(0)
        started = time.monotonic()
        answer = await service.complete(
            a_target(f"http://localhost:{simulator.port}/v1"), a_request(), CallReport(), call_id=uuid4(), timeout_seconds=5
        )
        took = time.monotonic() - started
        threads = threading.active_count() - before
        return answer, took, threads, await asyncio.gather(*hangers, return_exceptions=True)

    answer, took, threads, failed = asyncio.run(crowd())
    assert answer.text
    assert took < 2.5
    assert threads <= 2
    assert len(failed) == 100
    assert hanging == ["crowd.hang"]


def test_one_that_gives_up_does_not_take_the_answer_from_the_others(monkeypatch):
    release = threading.Event()

    def fake(host, port, **_):
        release.wait(5)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", port))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", fake)

    async def both():
        patient = asyncio.create_task(resolve("shared.test", 443, timeout_seconds=5))
        with pytest.raises(NameTimeout):
            await resolve("shared.test", 443, timeout_seconds=0.05)
        release.set()
        return await patient

    assert [str(address) for address in asyncio.run(both())] == ["8.8.8.8"]


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "unknown"), UnicodeError("label too long"), OSError(24, "too many files")])
def test_a_resolver_that_fails_gives_no_address(failure, monkeypatch):
    def fake(*_, **__):
        raise failure

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    with pytest.raises(NameUnresolved):
        asyncio.run(resolve("broken.test", 443, timeout_seconds=5))


def test_an_address_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("looked up"))
    assert [str(address) for address in asyncio.run(resolve("::1", 443, timeout_seconds=1))] == ["::1"]
