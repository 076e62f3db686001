"""A control plane of one process, without a database: jobs, leases, replays, as PROTOCOL.md has them. For driving a runtime."""

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conformance.calls import JOB_TYPE, sha
from tests.conformance.http import Listening, Reply, Request, as_json

LEASE_SECONDS = 4.0
BEAT_SECONDS = 1.0
OFFER_SECONDS = 2.0
PARAGRAPHS = {"paragraphs": [{"id": "p1", "text": "The Danube is 2,850 kilometres long."}]}


@dataclass(frozen=True)
class Call:
    """One request, as it arrived."""

    verb: str
    job_id: str | None
    body: Any
    token: str
    at: float


@dataclass
class Job:
    id: str
    status: str = "queued"
    attempt_no: int = 0
    lock_token: str | None = None
    lease_ends: float = 0.0
    offered_until: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)  # requestId → attempt
    answers: dict[tuple[str, str], tuple[Any, Reply]] = field(default_factory=dict)  # (lockToken, verb) → body, reply
    duplicates: int = 0
    lapses: int = 0
    releases: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


# What a scenario puts in the place of an ordinary answer: given the call, a reply or None.
Override = Callable[[Call], Reply | None]


class Plane:
    """`answer_first` and `answer_always` replace answers of a verb: then nothing is done. Its clock may be another than ours."""

    def __init__(self, *, api_key: str, token: str) -> None:
        self.calls: list[Call] = []
        self.jobs: dict[str, Job] = {}
        self.directives: dict[str, str] = {}  # jobId → cancel, drain
        self.provider_url = ""
        self.lock_tokens: list[str] = []
        self._api_key, self._token, self._shift = api_key, token, timedelta()
        self._overrides: list[Override] = []
        self._lock = threading.RLock()
        self._listening = Listening(self._answer)
        self.url = self._listening.url

    def close(self) -> None:
        self._listening.close()

    def add_job(self) -> Job:
        job = Job(str(uuid.uuid4()))
        with self._lock:
            self.jobs[job.id] = job
        return job

    def seen(self, *verbs: str, job: Job | None = None, since: float = 0.0) -> list[Call]:
        with self._lock:
            return [
                one for one in self.calls if one.verb in verbs and one.at >= since and (job is None or job.id in (one.job_id, _job_of(one)))
            ]

    def answer_first(self, verb: str, *replies: Reply) -> None:
        left = list(replies)

        def override(call: Call) -> Reply | None:
            return left.pop(0) if call.verb == verb and left else None

        self._overrides.append(override)

    def answer_always(self, verb: str, reply: Reply) -> Callable[[], None]:
        """Until the function that comes back is called."""

        def override(call: Call) -> Reply | None:
            return reply if verb in (call.verb, "*") else None

        self._overrides.append(override)
        return lambda: self._overrides.remove(override)

    def shift_clock(self, shift: timedelta) -> None:
        """Its times are so far from ours from now on."""
        self._shift = shift

    def take_over(self, job: Job) -> None:
        """Somebody else has the job now."""
        with self._lock:
            job.attempt_no += 1
            job.lock_token = self._new_token()
            job.lease_ends = time.monotonic() + 3_600

    # What follows is the server.

    def _answer(self, request: Request) -> Reply:
        parts = request.path.removeprefix("/internal/runtime/").split("/")
        verb, job_id = parts[-1], parts[1] if len(parts) == 3 else None
        body = request.json()
        call = Call(verb, job_id, body, request.headers.get("Authorization", "").removeprefix("Bearer "), time.monotonic())
        with self._lock:
            self.calls.append(call)
            overridden = next((reply for override in list(self._overrides) if (reply := override(call))), None)
        if overridden:
            return overridden
        if call.token != self._token:
            return refusal(401, "token_invalid")
        if verb == "poll":
            return self._poll(body)
        if verb == "heartbeat" and job_id is None:
            with self._lock:
                rows = [self._beat(one["jobId"], one["lockToken"]) for one in body["jobs"]]
            return as_json(200, {"jobs": rows, "serverTime": self._now(), "nextHeartbeatSeconds": BEAT_SECONDS})
        with self._lock:
            return self._of_job(verb, job_id, body, request)

    def _now(self, seconds: float = 0.0) -> str:
        moment = datetime.now(UTC) + self._shift + timedelta(seconds=seconds)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _new_token(self) -> str:
        self.lock_tokens.append(uuid.uuid4().hex * 2)
        return self.lock_tokens[-1]

    def _poll(self, body: dict[str, Any]) -> Reply:
        deadline = time.monotonic() + min(20, body.get("waitSeconds") or 0)
        while True:
            with self._lock:
                offers = self._offers(body)
            if offers or time.monotonic() >= deadline:
                answer = {"jobs": offers, "serverTime": self._now(), "pollAfterSeconds": 0.2, "directive": "continue", "newIn11": {"a": 1}}
                return as_json(200, answer)
            time.sleep(0.02)

    def _offers(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        now, request = time.monotonic(), body.get("requestId")
        if body.get("autoLock"):
            held = [job for job in self.jobs.values() if job.requests.get(request or "") == job.attempt_no and job.status == "running"]
            if held:
                return [self._offer(job, lease=self._lease(job, body)) for job in held]
        free = [job for job in self.jobs.values() if self._is_free(job) and job.offered_until < now][: body.get("maxJobs") or 1]
        if not body.get("autoLock"):
            for job in free:
                job.offered_until = now + OFFER_SECONDS
            return [self._offer(job) for job in free]
        return [self._offer(job, lease=self._take(job, body)) for job in free]

    @staticmethod
    def _is_free(job: Job) -> bool:
        if job.status == "running" and job.lease_ends < time.monotonic():
            job.status, job.lapses = "retrying", job.lapses + 1
        return job.status in ("queued", "retrying")

    def _take(self, job: Job, body: dict[str, Any]) -> dict[str, Any]:
        job.status, job.attempt_no, job.lock_token = "running", job.attempt_no + 1, self._new_token()
        job.requests[body["requestId"]] = job.attempt_no
        job.lease_ends = time.monotonic() + LEASE_SECONDS
        return self._lease(job, body)

    def _lease(self, job: Job, body: dict[str, Any]) -> dict[str, Any]:
        left = max(0.1, job.lease_ends - time.monotonic())
        return {
            "jobId": job.id, "attemptNo": job.attempt_no, "lockToken": job.lock_token, "lockedBy": body["runtimeInstanceId"],
            "lockedAt": self._now(), "lockUntil": self._now(left), "leaseSeconds": left, "heartbeatIntervalSeconds": BEAT_SECONDS,
            "timeoutSeconds": 120, "deadlineAt": self._now(120), "snapshotId": job.id, "serverTime": self._now(), "newIn11": None,
        }  # fmt: skip

    def _offer(self, job: Job, lease: dict[str, Any] | None = None) -> dict[str, Any]:
        offer = {
            "jobId": job.id, "jobType": JOB_TYPE, "targetType": "document", "targetId": "1", "priority": 5, "inputSchemaVersion": "1",
            "attemptsMade": job.attempt_no - bool(lease), "outputSchemaVersion": "1", "promptVersion": "1", "modelProvider": "simulator",
            "modelName": "simulator-1", "apiKeyMode": "platform", "timeoutSeconds": 120, "snapshotId": job.id, "createdAt": self._now(),
            "offerSeconds": 0.0 if lease else OFFER_SECONDS, "newIn11": "?",
        }  # fmt: skip
        return {**offer, "lease": lease} if lease else offer

    def _beat(self, job_id: str, lock_token: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        row: dict[str, Any] = {"jobId": job_id, "directive": "continue", "cancelRequested": False, "late": False}
        if job.lock_token != lock_token or job.status not in ("running", "retrying"):
            return {**row, "directive": "stop", "reason": "job_lock_lost" if job.lock_token != lock_token else "job_already_finished"}
        job.status, job.lease_ends = "running", time.monotonic() + LEASE_SECONDS
        directive = self.directives.get(job_id, "continue")
        return {
            **row, "directive": directive, "cancelRequested": directive == "cancel", "lockUntil": self._now(LEASE_SECONDS),
            "leaseSeconds": LEASE_SECONDS, "nextHeartbeatSeconds": BEAT_SECONDS, "serverTime": self._now(),
        }  # fmt: skip

    def _of_job(self, verb: str, job_id: str | None, body: Any, request: Request) -> Reply:
        if verb == "invocation-logs":
            return as_json(200, {"accepted": len(body["logs"]), "duplicates": 0, "rejected": [], "sanitized": False})
        job = self.jobs.get(job_id or (body or {}).get("jobId", ""))
        if job is None:
            return refusal(404, "job_not_found")
        if verb == "lock":
            return self._lock_job(job, body)
        token = body["lockToken"] if body else request.headers.get("X-Lock-Token")
        if verb == "heartbeat":
            row = self._beat(job.id, str(token))
            return refusal(409, row["reason"]) if row["directive"] == "stop" else as_json(200, row)
        if verb in ("result", "fail", "release"):
            return self._terminal(job, verb, str(token), body)
        if job.lock_token != token or job.status != "running":
            return refusal(409, "job_lock_lost")
        if job.lease_ends < time.monotonic():
            return refusal(409, "job_lock_lost", retryable=True, details={"leaseExpired": True})
        if verb == "snapshot":
            answer = {"jobId": job.id, "snapshotId": job.id, "inputSchemaVersion": "1", "payload": PARAGRAPHS, "createdAt": self._now()}
            return as_json(200, {**answer, "contentHash": "0" * 64})
        if verb == "resolve":
            return as_json(200, {
                "jobId": job.id, "credentialId": job.id, "apiKeyMode": "platform", "modelProvider": "simulator", "modelName": "simulator-1",
                "baseUrl": self.provider_url, "apiKey": self._api_key, "expiresInSeconds": 100.0,
            })  # fmt: skip
        return refusal(404, "not_found")

    def _lock_job(self, job: Job, body: dict[str, Any]) -> Reply:
        if job.requests.get(body["requestId"]) == job.attempt_no and job.status == "running":
            return as_json(200, self._lease(job, body))
        if not self._is_free(job):
            return refusal(409, "job_lock_conflict")
        return as_json(200, self._take(job, body))

    def _terminal(self, job: Job, verb: str, token: str, body: dict[str, Any]) -> Reply:
        before = job.answers.get((token, verb))
        if before:
            if before[0] != body:
                return refusal(409, "result_conflict")
            job.duplicates += 1
            body = json.loads(before[1].body)
            return as_json(before[1].status, {**body, "duplicate": True})
        if token != job.lock_token:
            return refusal(409, "job_lock_lost")
        if job.status not in ("running", "retrying"):
            return refusal(409, "job_already_finished")
        if verb == "result" and sha(body["rawOutput"]) != body["outputHash"]:
            return refusal(422, "output_hash_mismatch")
        cancelled = self.directives.get(job.id) == "cancel"
        if verb == "result" and cancelled:
            return refusal(409, "job_cancelled")
        reply = self._ended(job, verb, body, cancelled=cancelled)
        job.answers[token, verb] = body, reply
        return reply

    def _ended(self, job: Job, verb: str, body: dict[str, Any], *, cancelled: bool) -> Reply:
        common = {"jobId": job.id, "attemptNo": job.attempt_no, "duplicate": False, "late": False, "sanitized": False}
        if verb == "result":
            job.status = "succeeded"
            return as_json(200, {**common, "resultId": job.id, "status": "succeeded", "jobStatus": job.status, "validationErrors": []})
        if verb == "fail":
            job.failures.append(body)
            job.status = "cancelled" if cancelled else "retrying" if body["retryable"] else "failed"
        else:
            job.releases += 1
            job.status = "cancelled" if cancelled else "retrying"
        job.lock_token = None
        return as_json(200, {**common, "jobStatus": job.status, "retryCount": len(job.failures), "maxRetryCount": 3, "truncated": False})


def refusal(status: int, code: str, *, retryable: bool = False, details: Any = None, retry_after: int | None = None) -> Reply:
    body = {"errorCode": code, "message": "Scripted.", "retryable": retryable, "requestId": "r"}
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return as_json(status, body if details is None else {**body, "details": details}, **headers)


def page(status: int) -> Reply:
    """What a proxy says when it has nothing to say."""
    return Reply(status, b"<html><h1>A proxy's page</h1></html>", {"Content-Type": "text/html"})


def _job_of(call: Call) -> str | None:
    return call.body.get("jobId") if isinstance(call.body, dict) else None
