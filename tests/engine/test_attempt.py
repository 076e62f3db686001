"""One attempt in this process, without a lane."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from runtime_jobs.engine.attempt import execute_job
from runtime_jobs.models import AiUsageLog
from runtime_jobs.services.calling import make_service
from runtime_jobs.states import JobStatus
from tests.factories import CredentialFactory, JobFactory
from tests.support.provider_simulator import Behaviour, ProviderSimulator

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_that_is_delivered_again_while_it_runs_is_not_run_again():
    """provider_calls 17: the second worker loses the claim, makes no call and leaves no row."""
    with ProviderSimulator() as provider, ThreadPoolExecutor(1) as other:
        job = JobFactory(credential=CredentialFactory(base_url=provider.url))
        answered = threading.Event()
        provider.script("", Behaviour.parse("delay=3"))

        def first():
            try:
                return execute_job(job.pk, worker="first", service=make_service())
            finally:
                answered.set()
                connections.close_all()

        running = other.submit(first)
        provider.wait_for(lambda requests: requests, timeout=10)
        assert execute_job(job.pk, worker="second", service=make_service()) is None
        assert not answered.is_set()
        assert running.result(20).job_status == JobStatus.SUCCEEDED
        assert execute_job(job.pk, worker="third", service=make_service()) is None
        assert len(provider.requests) == 1
    assert AiUsageLog.objects.filter(job=job).count() == 1
