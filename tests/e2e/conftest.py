"""Everything here runs on real parts: the database, qcluster processes, a provider on loopback."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command

from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.jobs import create_job
from runtime_jobs.states import TERMINAL
from tests.factories import CredentialFactory, UserFactory
from tests.support.processes import Engine, wait_for
from tests.support.provider_simulator import ProviderSimulator


@pytest.fixture
def provider() -> Iterator[ProviderSimulator]:
    with ProviderSimulator() as simulator:
        yield simulator


@pytest.fixture
def platform(transactional_db, provider):
    """A superuser and a live platform key for the provider."""
    user = UserFactory(username="root", is_superuser=True, is_staff=True)
    CredentialFactory(base_url=provider.url)
    return user


@dataclass
class System:
    """A user, a key, a provider and an engine that stay up for a whole module."""

    user: Any
    provider: ProviderSimulator
    engine: Engine

    def create(self, prompt: str, job_type: str = "test.scripted", script: dict[str, Any] | None = None, **more: Any) -> AiRuntimeJob:
        """A job whose prompt, hence its provider's behaviour, is its own."""
        return create_job(
            user=self.user, job_type=job_type, payload={"prompt": prompt, **(script or {})}, target_type="t", target_id="1", **more
        )

    def ended(self, job: AiRuntimeJob, seconds: float = 30) -> AiRuntimeJob:
        wait_for(lambda: AiRuntimeJob.objects.filter(pk=job.pk, status__in=TERMINAL).exists(), seconds, f"the end of {job}")
        return AiRuntimeJob.objects.get(pk=job.pk)

    def has_status(self, job: AiRuntimeJob, status: str, seconds: float = 30) -> AiRuntimeJob:
        wait_for(lambda: AiRuntimeJob.objects.filter(pk=job.pk, status=status).exists(), seconds, f"{job} is {status}")
        return AiRuntimeJob.objects.get(pk=job.pk)

    def requests(self, marker: str) -> list[Any]:
        """The provider's requests whose prompt holds the marker."""
        return [request for request in self.provider.requests if marker in request.prompt]


@pytest.fixture(scope="module")
def system(django_db_setup, django_db_blocker) -> Iterator[System]:
    with django_db_blocker.unblock(), ProviderSimulator() as simulator:
        user = UserFactory(username="root", is_superuser=True)
        CredentialFactory(base_url=simulator.url)
        engine = Engine(UNKNOWN_JOB_TYPE_GRACE_SECONDS=1)
        try:
            yield System(user, simulator, engine)
        finally:
            engine.end()
            call_command("flush", verbosity=0, interactive=False)
