"""The calls of the protocol, in a line each, as a runtime makes them. How they travel is for the caller to say."""

import hashlib
import http.client
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

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


def through_http(base_url: str, timeout: float = 40) -> Send:
    """One connection per request, so that threads need not share any."""
    at = urlsplit(base_url)
    connect = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection

    def send(method: str, path: str, headers: dict[str, str], data: bytes | None) -> Answer:
        connection = connect(at.hostname or "", at.port, timeout=timeout)
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = (response.getheader("Content-Type") or "").startswith("application/json")
            return Answer(response.status, json.loads(text) if is_json and text else text, dict(response.getheaders()))
        finally:
            connection.close()

    return send
