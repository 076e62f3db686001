"""A runtime as tests use it, over Django's client or over real HTTP, and the rows that it works on."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from runtime_jobs.models import AiJobEvent, AiRuntimeJob, AiRuntimeResult, AiUsageLog
from runtime_jobs.services import lapses, service_tokens
from runtime_protocol import presence
from runtime_protocol.throttling import buckets
from tests.conformance.calls import JOB_TYPE, OUTPUT, RAW, Answer, Runtime, Send, sha, usage
from tests.factories import CredentialFactory, JobFactory, UserFactory
from tests.services.worker import run_out

__all__ = ["JOB_TYPE", "OUTPUT", "RAW", "Answer", "Runtime", "Send", "sha", "usage"]


def through(client: Client) -> Send:
    def send(method: str, path: str, headers: dict[str, str], data: bytes | None) -> Answer:
        content_type = headers.pop("Content-Type", "application/octet-stream")
        # Django's client leaves the type of an empty body out.
        typed: dict[str, Any] = {"CONTENT_TYPE": content_type} if data == b"" else {}
        response = client.generic(method, path, data or b"", content_type=content_type, headers=headers, **typed)
        text = response.content.decode()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return Answer(response.status_code, json.loads(text) if is_json and text else text, response.headers)

    return send


def issue(**more: Any) -> str:
    _, secret = service_tokens.issue(**{"name": "test", "days": 30, **more})
    return secret.reveal()


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    buckets.clear()
    presence.forget()
    yield
    buckets.clear()
    presence.forget()


@pytest.fixture
def credential(db: None) -> Any:
    return CredentialFactory()


@pytest.fixture
def runtime(db: None, client: Client, credential: Any) -> Runtime:
    return Runtime(through(client), issue())


@pytest.fixture
def make_job(credential: Any) -> Callable[..., AiRuntimeJob]:
    user = UserFactory()

    def make(**more: Any) -> AiRuntimeJob:
        return JobFactory(**{"user": user, "job_type": JOB_TYPE, "credential": credential, **more})

    return make


@pytest.fixture
def job(make_job: Callable[..., AiRuntimeJob]) -> AiRuntimeJob:
    return make_job()


def lapse(*jobs: Any) -> None:
    """Their leases end unrenewed and are taken back; they are due again at once."""
    for one in jobs:
        _lapse_one(getattr(one, "pk", one))


def _lapse_one(job_id: Any) -> None:
    run_out(job_id)
    token = AiRuntimeJob.objects.values_list("lock_token", flat=True).get(pk=job_id)
    assert token is not None
    assert lapses._lapse_one(job_id, token)
    due(job_id)


def due(*job_ids: Any) -> None:
    """Their back-off is over."""
    AiRuntimeJob.objects.filter(pk__in=job_ids, finished_at=None).update(available_at=Now())


def written(job: Any) -> tuple[Any, ...]:
    """Everything that is stored of the job: equal before and after a call that must write nothing."""
    return (
        list(AiRuntimeJob.objects.filter(pk=job.pk).values()),
        list(AiRuntimeResult.objects.filter(job=job).order_by("id").values()),
        list(AiUsageLog.objects.filter(job=job).order_by("id").values()),
        list(AiJobEvent.objects.filter(job=job).order_by("id").values()),
    )


def status_of(job: Any) -> str:
    return AiRuntimeJob.objects.values_list("status", flat=True).get(pk=getattr(job, "pk", job))
