"""A runtime as tests use it: the calls of the protocol, in a line each, over Django's client or over real HTTP."""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from runtime_jobs.models import AiJobEvent, AiRuntimeJob, AiRuntimeResult, AiUsageLog
from runtime_jobs.services import lapses, service_tokens
from runtime_protocol import presence
from runtime_protocol.throttling import buckets
from tests.factories import CredentialFactory, JobFactory, UserFactory
from tests.services.worker import run_out

JOB_TYPE = "synthetic.extract_facts_runtime"
OUTPUT = {"summary": "A river.", "facts": [{"text": "The Danube is 2,850 kilometres long.", "paragraph": "p1"}]}
RAW = json.dumps(OUTPUT)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


@dataclass
class Answer:
    status: int
    body: Any
    headers: Any

    def __getitem__(self, name: str) -> Any:
        return self.body[name]

    @property
    def code(self) -> str | None:
        return self.body.get("errorCode") if isinstance(self.body, dict) else None


Send = Callable[[str, str, dict[str, str], bytes | None], Answer]


class Runtime:
    """One instance with its token. `send` is how a request travels."""

    def __init__(self, send: Send, token: str, instance: str = "runtime-1") -> None:
        self._send, self.token, self.instance = send, token, instance

    def named(self, instance: str) -> "Runtime":
        return Runtime(self._send, self.token, instance)

    def with_token(self, token: str) -> "Runtime":
        return Runtime(self._send, token, self.instance)

    def call(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        return self._send(method, f"/internal/runtime/{path}", {name: value for name, value in sent.items() if value}, data)

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.call("POST", path, body, **more)

    def get(self, path: str, **more: Any) -> Answer:
        return self.call("GET", path, **more)

    def poll(self, **more: Any) -> Answer:
        return self.post("jobs/poll", {"runtimeInstanceId": self.instance, **more})

    def pull(self, request_id: str | None = None, **more: Any) -> Answer:
        return self.poll(autoLock=True, requestId=request_id or str(uuid.uuid4()), **more)

    def take(self, **more: Any) -> dict[str, Any]:
        """A lease, by poll with autoLock."""
        [offer] = self.pull(**more)["jobs"]
        lease: dict[str, Any] = offer["lease"]
        return lease

    def lock(self, job: Any, request_id: str | None = None, **more: Any) -> Answer:
        body = {"runtimeInstanceId": self.instance, "requestId": request_id or str(uuid.uuid4()), **more}
        return self.post(f"jobs/{getattr(job, 'pk', job)}/lock", body)

    def holder(self, lease: dict[str, Any]) -> dict[str, Any]:
        return {"runtimeInstanceId": self.instance, "attemptNo": lease["attemptNo"], "lockToken": lease["lockToken"]}

    def beat(self, lease: dict[str, Any], **more: Any) -> Answer:
        return self.post(f"jobs/{lease['jobId']}/heartbeat", {**self.holder(lease), **more})

    def beat_all(self, *leases: dict[str, Any], **more: Any) -> Answer:
        jobs = [{"jobId": one["jobId"], "attemptNo": one["attemptNo"], "lockToken": one["lockToken"], **more} for one in leases]
        return self.post("jobs/heartbeat", {"runtimeInstanceId": self.instance, "jobs": jobs})

    def snapshot(self, lease: dict[str, Any], **headers: str) -> Answer:
        held = {
            "X-Runtime-Instance-Id": self.instance, "X-Attempt-No": str(lease["attemptNo"]), "X-Lock-Token": lease["lockToken"], **headers
        }  # fmt: skip
        return self.get(f"jobs/{lease['jobId']}/snapshot", headers=held)

    def resolve(self, lease: dict[str, Any], **more: Any) -> Answer:
        return self.post("model-credentials/resolve", {"jobId": lease["jobId"], **self.holder(lease), **more})

    def result(self, lease: dict[str, Any], raw: str = RAW, **more: Any) -> Answer:
        body = {
            "jobId": lease["jobId"], **self.holder(lease), "schemaVersion": "1", "rawOutput": raw, "outputHash": sha(raw), **more
        }  # fmt: skip
        return self.post(f"jobs/{lease['jobId']}/result", body)

    def fail(self, lease: dict[str, Any], code: str = "provider_unavailable", *, retryable: bool = True, **more: Any) -> Answer:
        body = {"jobId": lease["jobId"], **self.holder(lease), "errorCode": code, "message": "no answer", "retryable": retryable, **more}
        return self.post(f"jobs/{lease['jobId']}/fail", body)

    def release(self, lease: dict[str, Any], **more: Any) -> Answer:
        return self.post(f"jobs/{lease['jobId']}/release", {**self.holder(lease), **more})

    def log(self, lease: dict[str, Any], *calls: dict[str, Any]) -> Answer:
        return self.post("invocation-logs", {"logs": [{"jobId": lease["jobId"], **self.holder(lease), **one} for one in calls]})


def usage(invocation_id: str = "call-1", **more: Any) -> dict[str, Any]:
    return {
        "invocationId": invocation_id, "provider": "simulator", "model": "simulator-1", "credentialMode": "platform", "inputTokens": 10,
        "outputTokens": 5, "costUsd": "0.00012", **more,
    }  # fmt: skip


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
