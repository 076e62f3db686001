"""A simulated provider, and a gateway that may call it."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from runtime_jobs.errors import AttemptError
from runtime_jobs.gateway import AddressPolicy, AiGatewayService
from runtime_jobs.model_call import CallReport, Message, ModelAnswer, ModelRequest, ProviderTarget
from runtime_jobs.redaction import Secret
from runtime_jobs.states import ApiKeyMode
from tests.support.provider_simulator import Behaviour, ProviderSimulator

KEY = "sk-proj-canary0123456789abcdefghijklmnopqrstuvwxyz"
LOOPBACK = AddressPolicy(allow_loopback_http=True)
Script = Behaviour | str


@dataclass
class Outcome:
    """How a call went: an answer or an error, the report in any case."""

    report: CallReport = field(default_factory=CallReport)
    answer: ModelAnswer | None = None
    error: AttemptError | None = None
    seconds: float = 0.0

    @property
    def code(self) -> str | None:
        return str(self.error.code) if self.error else None

    @property
    def judged(self) -> tuple[str | None, bool | None, float | None]:
        """(error code, retryable, wait in seconds); None three times for an answer."""
        return (self.code, self.error.retryable, self.error.retry_after_seconds) if self.error else (None, None, None)


def a_target(base_url: str, **changes: Any) -> ProviderTarget:
    fields: dict[str, Any] = {
        "provider": "openai_compatible",
        "base_url": base_url,
        "model": "simulator-1",
        "api_key": Secret(KEY),
        "credential_mode": ApiKeyMode.USER,
    }
    return ProviderTarget(**{**fields, **changes})


def a_request(text: str = "Say something.", **changes: Any) -> ModelRequest:
    return ModelRequest((Message("user", text),), **changes)


def call(
    service: AiGatewayService, target: ProviderTarget, request: ModelRequest | None = None, *, timeout_seconds: float = 10.0
) -> Outcome:
    """One call on an event loop of its own."""
    outcome = Outcome()
    started = time.monotonic()
    try:
        outcome.answer = asyncio.run(
            service.complete(target, request or a_request(), outcome.report, call_id=uuid4(), timeout_seconds=timeout_seconds)
        )
    except AttemptError as error:
        outcome.error = error
    outcome.seconds = time.monotonic() - started
    return outcome


@pytest.fixture(scope="module")
def running_simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator() as simulator:
        yield simulator


@pytest.fixture
def simulator(running_simulator: ProviderSimulator) -> ProviderSimulator:
    running_simulator.clear()
    return running_simulator


@pytest.fixture
def service() -> AiGatewayService:
    return AiGatewayService(user_addresses=LOOPBACK, platform_addresses=LOOPBACK)


@pytest.fixture
def ask(simulator: ProviderSimulator, service: AiGatewayService) -> Callable[..., Outcome]:
    """ask(behaviour, request=…, timeout_seconds=…, provider=…): one call of the simulator, which behaves so."""

    def asking(
        behaviour: Script | None = None, request: ModelRequest | None = None, timeout_seconds: float = 10.0, **target: Any
    ) -> Outcome:
        if behaviour is not None:
            simulator.script("", behaviour)
        return call(service, a_target(simulator.url, **target), request, timeout_seconds=timeout_seconds)

    return asking


def raw(status: int, body: Any, headers: dict[str, str] | None = None, content_type: str = "application/json") -> Behaviour:
    return Behaviour.raw(status, body if isinstance(body, str) else json.dumps(body), headers=headers or {}, content_type=content_type)


def openai_error(status: int, code: str, message: str = "no", **more: Any) -> Behaviour:
    return raw(status, {"error": {"message": message, "type": code, "code": code, **more}})
