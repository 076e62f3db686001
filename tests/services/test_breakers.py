"""A provider that is down is left alone, but for one job at a time that tries it."""

import pytest
from django.db.models.functions import Now

from runtime_jobs.errors import ErrorCode
from runtime_jobs.model_call import CallReport, ProviderTarget
from runtime_jobs.models import AiUsageLog, ClaimGate
from runtime_jobs.models.base import new_id
from runtime_jobs.redaction import Secret
from runtime_jobs.services import breakers, claims, offers, usage
from runtime_jobs.services.usage import ClosedCall, OpenCall, Outcome
from runtime_jobs.states import ApiKeyMode, Lane
from tests.factories import CredentialFactory, JobFactory, UserFactory

pytestmark = pytest.mark.django_db

TYPE = "synthetic.extract_facts"
TARGET = ProviderTarget("simulator", "http://127.0.0.1:9/v1", "simulator-1", Secret("k"), ApiKeyMode.PLATFORM)


@pytest.fixture(autouse=True)
def _three_failures(settings):
    settings.BREAKER_FAILURES = 3
    settings.BREAKER_REST_SECONDS = 600


@pytest.fixture
def jobs():
    user, credential = UserFactory(), CredentialFactory()
    return [JobFactory(user=user, credential=credential) for _ in range(6)]


def take(count=10, worker="w"):
    return claims.claim(lane=Lane.INTERACTIVE, worker=worker, job_types=[TYPE], count=count, lease_seconds=60)


def call(claim, code="", no=1):
    call_id = new_id()
    assert usage.open_calls([OpenCall(call_id, claim.job_id, claim.token, no, TARGET)]) == [True]
    usage.close_call(ClosedCall(call_id, Outcome.FAILED if code else Outcome.SUCCEEDED, CallReport(), str(code)))
    if code:
        breakers.note_failure("simulator", "simulator-1", code)
    else:
        breakers.note_success("simulator", "simulator-1")


def rested():
    """The rest is over."""
    assert ClaimGate.objects.filter(kind=ClaimGate.Kind.BREAKER).update(until=Now()) == 1


def test_so_many_failures_in_a_row_open_the_breaker_and_nothing_more_is_claimed(jobs):
    (claim,) = take(1)
    for no in (1, 2):
        call(claim, ErrorCode.PROVIDER_UNAVAILABLE, no)
    assert not ClaimGate.objects.exists()
    call(claim, ErrorCode.PROVIDER_TIMEOUT, 3)
    gate = ClaimGate.objects.get()
    assert (gate.kind, gate.key, gate.closed_by) == ("breaker", "simulator/simulator-1", "breaker")
    assert "the last 3 calls failed" in gate.reason
    assert take() == []
    assert offers.offer(lane=Lane.INTERACTIVE, worker="w", job_types=[TYPE], count=5, offer_seconds=9) == []


def test_a_success_or_a_fault_of_the_request_between_them_keeps_it_closed(jobs):
    (claim,) = take(1)
    for no, code in enumerate(["provider_unavailable", "provider_unavailable", "", "provider_unavailable", "provider_rejected_request"], 1):
        call(claim, code, no)
    call(claim, "provider_unavailable", 6)
    assert not ClaimGate.objects.exists()


def test_calls_that_we_ended_ourselves_say_nothing_about_the_provider(jobs):
    (claim,) = take(1)
    for no, code in enumerate(["provider_unavailable", "cancelled", "provider_unavailable", "lease_expired"], 1):
        call(claim, code, no)
    assert not ClaimGate.objects.exists()
    call(claim, "provider_unavailable", 5)
    assert ClaimGate.objects.exists()


def test_other_models_of_the_provider_go_on(jobs):
    (claim,) = take(1)
    for no in (1, 2, 3):
        call(claim, "provider_unavailable", no)
    other = JobFactory(user=jobs[0].user, credential=jobs[0].credential, model_name="simulator-2")
    assert [claim.job_id for claim in take()] == [other.pk]


def test_after_the_rest_one_job_tries_and_its_failure_starts_the_next_rest(jobs):
    """engine 35: one probe"""
    (claim,) = take(1)
    for no in (1, 2, 3):
        call(claim, "provider_unavailable", no)
    rested()
    probes = [*take(worker="w1"), *take(worker="w2")]
    assert len(probes) == 1
    call(probes[0], "provider_unavailable")
    assert take() == []
    rested()
    (probe,) = take()
    call(probe)
    assert not ClaimGate.objects.exists()
    assert len(take()) == 3


def test_the_chance_to_try_is_not_spent_where_no_job_waits(jobs):
    (claim,) = take(1)
    for no in (1, 2, 3):
        call(claim, "provider_unavailable", no)
    rested()
    background = "synthetic.extract_facts_background"
    assert claims.claim(lane=Lane.BACKGROUND, worker="b", job_types=[background], count=5, lease_seconds=60) == []
    assert len(take()) == 1


def test_the_calls_that_are_looked_at_are_the_models_own(jobs):
    (claim,) = take(1)
    call(claim, "provider_unavailable", 1)
    AiUsageLog.objects.update(model_requested="another")
    for no in (2, 3):
        call(claim, "provider_unavailable", no)
    assert not ClaimGate.objects.exists()
