"""The calls of one full cycle, in order. The runtime of the benchmark, the recording and the plain view all go by this list."""

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INSTANCE = "bench-1"
RAW = '{"ok": true}'
HASH = hashlib.sha256(RAW.encode()).hexdigest()


@dataclass(frozen=True)
class Call:
    """One request of the cycle: from the lease that the poll gave to what is sent."""

    name: str
    method: str
    path: Callable[[dict[str, Any]], str]
    body: Callable[[dict[str, Any]], dict[str, Any] | None]
    headers: Callable[[dict[str, Any]], dict[str, str]] = lambda _: {}


def _holder(lease: dict[str, Any]) -> dict[str, Any]:
    return {"runtimeInstanceId": lease["lockedBy"], "attemptNo": lease["attemptNo"], "lockToken": lease["lockToken"]}


def _of_job(lease: dict[str, Any]) -> dict[str, Any]:
    return {"jobId": lease["jobId"], **_holder(lease)}


def _held(lease: dict[str, Any]) -> dict[str, str]:
    return {
        "X-Runtime-Instance-Id": lease["lockedBy"],
        "X-Attempt-No": str(lease["attemptNo"]),
        "X-Lock-Token": lease["lockToken"],
    }


def _usage(lease: dict[str, Any]) -> dict[str, Any]:
    return {
        "invocationId": f"call-{lease['jobId']}", "provider": "instant", "model": "instant-1", "credentialMode": "platform",
        "inputTokens": 20, "outputTokens": 5, "latencyMs": 1, "finishReason": "stop",
    }  # fmt: skip


def poll_body(instance: str, request_id: uuid.UUID) -> dict[str, Any]:
    return {"runtimeInstanceId": instance, "autoLock": True, "requestId": str(request_id), "leaseSeconds": 900}


CYCLE = (
    Call("poll", "POST", lambda _: "jobs/poll", lambda given: poll_body(given["lockedBy"], given["requestId"])),
    Call("snapshot", "GET", lambda lease: f"jobs/{lease['jobId']}/snapshot", lambda _: None, _held),
    Call("resolve", "POST", lambda _: "model-credentials/resolve", _of_job),
    Call("log", "POST", lambda _: "invocation-logs", lambda lease: {"logs": [{**_of_job(lease), **_usage(lease)}]}),
    Call(
        "result", "POST", lambda lease: f"jobs/{lease['jobId']}/result",
        lambda lease: {**_of_job(lease), "schemaVersion": "1", "rawOutput": RAW, "validatedOutput": json.loads(RAW), "outputHash": HASH},
    ),
)  # fmt: skip
