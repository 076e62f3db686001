"""A runtime in Python that does what PROTOCOL.md says, for job type synthetic.extract_facts_runtime: end-to-end tests run it.

    python -m tests.support.reference_runtime --base-url http://127.0.0.1:8000 --token rt_…        # until SIGTERM or Ctrl-C

It knows the server by PROTOCOL.md alone and imports nothing of it, but for the instruction that its model gets.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx2

JOB_TYPE = "synthetic.extract_facts_runtime"
PROTOCOL_VERSION = "1.0"
VERSION = "reference-1"
# After these nothing more is sent for the attempt.
OVER = {
    "job_lock_lost", "job_cancelled", "job_already_finished", "result_conflict", "job_not_found", "invalid_model_output",
    "schema_validation_failed", "business_validation_failed", "reference_validation_failed",
}  # fmt: skip
TOKEN_TROUBLE = {
    "token_missing",
    "token_invalid",
    "token_expired",
    "token_revoked",
    "scope_denied",
    "instance_not_allowed",
    "upgrade_required",
}
KEEP_TRYING_SECONDS = 3_600
INSTRUCTION = (
    "You extract facts from numbered paragraphs. Answer with one JSON object: "
    '{"summary": "...", "facts": [{"text": "...", "paragraph": "the id of its paragraph"}]}.'
)

logger = logging.getLogger("reference_runtime")


class Refused(Exception):
    """The server answered with a failure that repeating does not mend."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status} {body['errorCode']}")
        self.status, self.code, self.body = status, str(body["errorCode"]), body


class Stopped(Exception):
    """The attempt is not ours any more, or is not wanted."""


class ProviderFailed(Exception):
    def __init__(self, code: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(code)
        self.code, self.retryable, self.retry_after = code, retryable, retry_after


class Server:
    """The protocol over HTTP: what may be repeated is repeated, with jitter, for as long as `patience` lasts."""

    def __init__(self, base_url: str, token: str) -> None:
        self._client = httpx2.Client(
            base_url=f"{base_url}/internal/runtime/",
            headers={"Authorization": f"Bearer {token}", "X-Protocol-Version": PROTOCOL_VERSION},
            timeout=httpx2.Timeout(35, connect=5),
            trust_env=False,
        )

    def close(self) -> None:
        self._client.close()

    def post(self, path: str, body: dict[str, Any], *, patience: float = 30) -> dict[str, Any]:
        return self._call("POST", path, patience, json=body)

    def get(self, path: str, headers: dict[str, str], *, patience: float = 30) -> dict[str, Any]:
        return self._call("GET", path, patience, headers=headers)

    def _call(self, method: str, path: str, patience: float, **more: Any) -> dict[str, Any]:
        deadline, tries = time.monotonic() + patience, 0
        while True:
            tries += 1
            wait, reason = min(30.0, 0.2 * 2**tries) * random.uniform(0.5, 1), "network"  # the jitter spreads a herd
            try:
                response = self._client.request(method, path, **more)
                # A proxy's page is no answer of the server, whatever its status says.
                body = response.json() if "json" in response.headers.get("content-type", "") else None
                if isinstance(body, dict) and response.status_code == 200:
                    return body
                if isinstance(body, dict) and "errorCode" in body:
                    if not body["retryable"]:
                        raise Refused(response.status_code, body)
                    wait = max(wait, float(response.headers.get("Retry-After", 0)))
                    reason = body["errorCode"]
            except (httpx2.TransportError, json.JSONDecodeError) as error:
                reason = type(error).__name__
            if time.monotonic() + wait > deadline:
                raise TimeoutError(f"{path.split('/')[-1]}: no answer within {patience:g} s ({reason})")
            logger.info("again in %.1f s: %s", wait, reason)
            time.sleep(wait)


@dataclass
class Attempt:
    """One lease. `stop` is set when the work must end; the local deadline does not trust that the server can be reached."""

    lease: dict[str, Any]
    offer: dict[str, Any]
    instance: str
    stop: threading.Event = field(default_factory=threading.Event)
    why: str = ""
    lease_ends: float = 0.0

    def __post_init__(self) -> None:
        self.renewed(self.lease["leaseSeconds"])

    def renewed(self, seconds: float) -> None:
        self.lease_ends = time.monotonic() + seconds

    def end(self, why: str) -> None:
        self.why = self.why or why
        self.stop.set()

    def check(self) -> None:
        if self.stop.is_set():
            raise Stopped(self.why)

    @property
    def job_id(self) -> str:
        return str(self.lease["jobId"])

    @property
    def holder(self) -> dict[str, Any]:
        return {"runtimeInstanceId": self.instance, "attemptNo": self.lease["attemptNo"], "lockToken": self.lease["lockToken"]}


@dataclass(frozen=True)
class ModelCall:
    """The model's text, what the call cost, and why it failed."""

    raw: str
    usage: dict[str, Any]
    code: str
    retry_after: float | None


class ReferenceRuntime:
    """Polls, runs up to `slots` jobs at once, beats for all of them from one thread that nothing else can hold up."""

    def __init__(self, base_url: str, token: str, *, instance: str | None = None, slots: int = 2, lease_seconds: float = 30) -> None:
        self.instance = instance or f"reference-{socket.gethostname()}-{os.getpid()}"[:128]
        self.stopping = threading.Event()
        self.server = Server(base_url, token)
        self._beats = Server(base_url, token)
        self._slots, self._lease_seconds = slots, lease_seconds
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._draining = False

    def run(self) -> None:
        """Until `stopping` is set; then everything that still runs is handed back."""
        beating = threading.Thread(target=self._beat, name="beat", daemon=True)
        beating.start()
        pause = 0.0
        while not self.stopping.wait(pause):
            pause = self._poll_once()
        self._shut_down()
        beating.join(5)
        self.server.close()
        self._beats.close()

    def _poll_once(self) -> float:
        """Poll for as many jobs as there are free slots; seconds until the next poll."""
        with self._lock:
            free = self._slots - len(self._attempts)
        if free <= 0 or self._draining:
            return 0.1
        request = {
            "runtimeInstanceId": self.instance, "jobTypes": [JOB_TYPE], "maxJobs": free, "waitSeconds": 5, "autoLock": True,
            "requestId": str(uuid.uuid4()), "leaseSeconds": self._lease_seconds, "runtimeVersion": VERSION,
        }  # fmt: skip
        try:
            # Repeated under the same requestId: a lost answer is no lost job.
            polled = self.server.post("jobs/poll", request, patience=60)
        except Refused as refused:
            logger.error("poll refused: %s", refused.code)
            return 60.0 if refused.code in TOKEN_TROUBLE else 5.0
        except TimeoutError as error:
            logger.warning("%s", error)
            return 1.0
        for offer in polled["jobs"]:
            self._start(offer)
        self._draining = polled["directive"] == "drain"
        return float(polled["pollAfterSeconds"])

    def _start(self, offer: dict[str, Any]) -> None:
        attempt = Attempt(offer["lease"], offer, self.instance)
        with self._lock:
            if attempt.job_id in self._attempts:
                return  # a repeated answer: it runs already
            self._attempts[attempt.job_id] = attempt
        threading.Thread(target=self._work, args=(attempt,), name=f"job-{attempt.job_id}", daemon=True).start()

    def _work(self, attempt: Attempt) -> None:
        outcome = "done"
        try:
            self._attempt(attempt)
        except Stopped as stopped:
            outcome = f"stopped: {stopped}"
            if str(stopped) == "cancel":
                with contextlib.suppress(Refused, TimeoutError):
                    self.server.post(f"jobs/{attempt.job_id}/release", {**attempt.holder, "reason": "cancelled"})
        except Refused as refused:
            outcome = refused.code
            if refused.code not in OVER and "jobStatus" not in refused.body.get("details", {}):
                self._fail(attempt, *self._after_refusal(refused))
        except ProviderFailed as failed:
            outcome = failed.code
            self._fail(attempt, failed.code, failed.retryable, failed.retry_after)
        except TimeoutError as error:
            outcome = str(error)
        except Exception as error:  # whatever it is, the job must not wait for the end of its lease
            outcome = type(error).__name__
            self._fail(attempt, "internal_error", True)
        finally:
            with self._lock:
                self._attempts.pop(attempt.job_id, None)
            logger.info("job %s attempt %s: %s", attempt.job_id, attempt.lease["attemptNo"], outcome)

    @staticmethod
    def _after_refusal(refused: Refused) -> tuple[str, bool]:
        """Which one failure is reported after an answer that leaves the lease as it is."""
        return {"payload_too_large": ("output_too_large", False), "credential_unavailable": ("credential_unavailable", False)}.get(
            refused.code, ("internal_error", True)
        )

    def _fail(self, attempt: Attempt, code: str, retryable: bool, retry_after: float | None = None) -> None:
        body = {
            "jobId": attempt.job_id,
            **attempt.holder,
            "errorCode": code,
            "message": f"reference runtime: {code}",
            "retryable": retryable,
        }
        if retry_after is not None:
            body["retryAfterSeconds"] = retry_after
        with contextlib.suppress(Refused, TimeoutError):
            self.server.post(f"jobs/{attempt.job_id}/fail", body, patience=KEEP_TRYING_SECONDS)

    def _attempt(self, attempt: Attempt) -> None:
        """The life of a job, step by step."""
        headers = {
            "X-Runtime-Instance-Id": self.instance, "X-Attempt-No": str(attempt.lease["attemptNo"]),
            "X-Lock-Token": attempt.lease["lockToken"],
        }  # fmt: skip
        payload = self.server.get(f"jobs/{attempt.job_id}/snapshot", headers)["payload"]
        attempt.check()
        key = self.server.post("model-credentials/resolve", {"jobId": attempt.job_id, **attempt.holder})
        attempt.check()
        call = self._call_model(attempt, payload, key)
        log = {"jobId": attempt.job_id, **attempt.holder, **call.usage}
        with contextlib.suppress(Refused, TimeoutError):
            self.server.post("invocation-logs", {"logs": [log]})
        attempt.check()
        if call.code:
            raise ProviderFailed(call.code, retryable=call.code in RETRYABLE, retry_after=call.retry_after)
        body = {
            "jobId": attempt.job_id, **attempt.holder, "schemaVersion": attempt.offer["outputSchemaVersion"], "rawOutput": call.raw,
            "outputHash": hashlib.sha256(call.raw.encode()).hexdigest(),
        }  # fmt: skip
        self.server.post(f"jobs/{attempt.job_id}/result", body, patience=KEEP_TRYING_SECONDS)

    @staticmethod
    def _call_model(attempt: Attempt, payload: Any, key: dict[str, Any]) -> ModelCall:
        """Exactly one HTTP request, aborted when the attempt must end."""
        text = "\n\n".join(f"[{part['id']}] {part['text']}" for part in payload["paragraphs"])
        request = {
            "model": key["modelName"], "max_tokens": 4_000, "response_format": {"type": "json_object"},
            "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}],
        }  # fmt: skip
        usage: dict[str, Any] = {
            "invocationId": str(uuid.uuid4()), "provider": key["modelProvider"], "model": key["modelName"],
            "credentialMode": key["apiKeyMode"],
        }  # fmt: skip
        started = time.monotonic()
        retry_after = None
        try:
            response = asyncio.run(_post(attempt, f"{key['baseUrl']}/chat/completions", request, key["apiKey"]))
            answer = response.json() if response.status_code == 200 else {}
            raw = answer["choices"][0]["message"]["content"] if answer else ""
            code = "" if answer else _code_of(response.status_code)
            retry_after = float(response.headers.get("Retry-After", 0)) or None
        except httpx2.TimeoutException:
            answer, raw, code = {}, "", "provider_timeout"
        except asyncio.CancelledError:
            answer, raw, code = {}, "", "cancelled" if attempt.why == "cancel" else "internal_error"
        except (httpx2.TransportError, ValueError, LookupError, TypeError):
            answer, raw, code = {}, "", "provider_unavailable"
        usage["latencyMs"] = round((time.monotonic() - started) * 1000)
        tokens = answer.get("usage") or {}
        usage |= {name: tokens[theirs] for name, theirs in _TOKENS.items() if theirs in tokens}
        usage |= {"errorCode": code} if code else {"finishReason": answer["choices"][0]["finish_reason"]}
        return ModelCall(raw, usage, code, retry_after)

    def _beat(self) -> None:
        """One call for all jobs, at the pace the server asks for. Network errors do not end it; a lease that ended here ends its work."""
        pace = 1.0
        while True:
            time.sleep(min(pace, 1.0) if not self._attempts else pace)
            with self._lock:
                attempts = dict(self._attempts)
            if not attempts:
                if self.stopping.is_set():
                    return
                continue
            for attempt in attempts.values():
                if time.monotonic() > attempt.lease_ends:
                    attempt.end("the lease ended unrenewed")
            try:
                pace = self._beat_once(attempts)
            except (Refused, TimeoutError) as error:
                logger.warning("heartbeat: %s", error)
                pace = 1.0

    def _beat_once(self, attempts: dict[str, Attempt]) -> float:
        jobs = [
            {
                "jobId": one.job_id,
                "attemptNo": one.lease["attemptNo"],
                "lockToken": one.lease["lockToken"],
                "leaseSeconds": self._lease_seconds,
            }
            for one in attempts.values()
        ]
        answer = self._beats.post("jobs/heartbeat", {"runtimeInstanceId": self.instance, "jobs": jobs}, patience=2)
        for row in answer["jobs"]:
            attempt = attempts[row["jobId"]]
            if row["directive"] == "stop":
                attempt.end(row["reason"])
            elif row["directive"] == "cancel":
                attempt.end("cancel")
            else:
                attempt.renewed(row["leaseSeconds"])
                self._draining = row["directive"] == "drain"
        return float(answer["nextHeartbeatSeconds"])

    def _shut_down(self) -> None:
        """Nothing new; what runs is aborted and handed back, so that it goes on elsewhere at once."""
        with self._lock:
            attempts = list(self._attempts.values())
        for attempt in attempts:
            with contextlib.suppress(Refused, TimeoutError):
                self.server.post(f"jobs/{attempt.job_id}/release", {**attempt.holder, "reason": "shutdown"}, patience=5)
            attempt.end("shutdown")


RETRYABLE = {"provider_timeout", "provider_rate_limited", "provider_unavailable", "internal_error"}
_TOKENS = {"inputTokens": "prompt_tokens", "outputTokens": "completion_tokens"}


def _code_of(status: int) -> str:
    if status in (401, 403):
        return "provider_auth_failed"
    if status == 402:
        return "provider_quota_exhausted"
    if status == 429:
        return "provider_rate_limited"
    if status in (408, 504):
        return "provider_timeout"
    return "provider_unavailable" if status >= 500 else "provider_rejected_request"


async def _post(attempt: Attempt, url: str, request: dict[str, Any], key: str) -> httpx2.Response:
    """Cancelling the task closes the socket at once, which a call in another thread would not notice."""
    timeout = httpx2.Timeout(attempt.lease["timeoutSeconds"], connect=5)
    async with httpx2.AsyncClient(timeout=timeout, trust_env=False) as provider:
        call = asyncio.create_task(provider.post(url, json=request, headers={"Authorization": f"Bearer {key}"}))
        while not call.done():
            await asyncio.wait({call}, timeout=0.1)
            if attempt.stop.is_set():
                call.cancel()
        return await call


def main() -> int:
    parser = argparse.ArgumentParser(prog="reference_runtime", description="A runtime for synthetic.extract_facts_runtime.")
    parser.add_argument("--base-url", required=True, help="such as http://127.0.0.1:8000")
    parser.add_argument("--token", default=os.environ.get("RUNTIME_TOKEN", ""), help="a service token; default: RUNTIME_TOKEN")
    parser.add_argument("--instance", help="its runtimeInstanceId; default: from host and process")
    parser.add_argument("--slots", type=int, default=2, help="jobs at once (default: %(default)s)")
    parser.add_argument("--lease", type=float, default=30, help="seconds (default: %(default)s)")
    chosen = parser.parse_args()
    if not chosen.token:
        parser.error("A token is needed: --token, or RUNTIME_TOKEN in the environment. Make one: python manage.py issue_service_token NAME")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    runtime = ReferenceRuntime(
        chosen.base_url.rstrip("/"), chosen.token, instance=chosen.instance, slots=chosen.slots, lease_seconds=chosen.lease
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: runtime.stopping.set())
    runtime.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
