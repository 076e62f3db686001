"""The loops: delivering what is left over, polling, working, beating, shutting down."""

import contextlib
import hashlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.support.reference_runtime.attempt import UNRENEWED, Attempt, Stopped
from tests.support.reference_runtime.model import RETRYABLE, call_model
from tests.support.reference_runtime.server import TOKEN_TROUBLE, NoAnswer, Refused, Server
from tests.support.reference_runtime.spool import Entry, Spool

JOB_TYPE = "synthetic.extract_facts_runtime"
VERSION = "reference-1"
# After these nothing more is sent for the attempt.
OVER = {
    "job_lock_lost", "job_cancelled", "job_already_finished", "result_conflict", "job_not_found", "invalid_model_output",
    "schema_validation_failed", "business_validation_failed", "reference_validation_failed",
}  # fmt: skip
# The one failure that is reported after an answer that leaves the lease as it is.
REPORTED_AS = {"payload_too_large": ("output_too_large", False), "credential_unavailable": ("credential_unavailable", False)}
KEEP_TRYING_SECONDS = 3_600
# For what an earlier process left, before anything new is taken: else another attempt of the same job may overtake it.
LEFT_OVER_SECONDS = 30
LAST_WORDS_SECONDS = 5

logger = logging.getLogger("reference_runtime")


class ProviderFailed(Exception):
    def __init__(self, code: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(code)
        self.code, self.retryable, self.retry_after = code, retryable, retry_after


class ReferenceRuntime:
    """Polls, runs up to `slots` jobs at once, beats for all of them from one thread that nothing else can hold up."""

    def __init__(
        self,
        base_url: str,
        token: Callable[[], str],
        spool: Spool,
        *,
        instance: str | None = None,
        slots: int = 2,
        lease_seconds: float = 30,
    ) -> None:
        self.instance = instance or f"reference-{socket.gethostname()}-{os.getpid()}"[:128]
        self._stopping = threading.Event()
        self._server = Server(base_url, token, timeout=35)  # no poll lasts longer
        self._beats = Server(base_url, token, timeout=5)
        self._spool = spool
        self._slots, self._lease_seconds = slots, lease_seconds
        self._attempts: dict[str, Attempt] = {}
        self._lock = threading.Lock()
        self._draining = False

    def stop(self) -> None:
        """Take nothing new, hand back what runs, end."""
        self._stopping.set()
        self._server.hurry(LAST_WORDS_SECONDS)

    def run(self) -> None:
        """Until `stop`."""
        self._deliver_left_over()
        beating = threading.Thread(target=self._beat, name="beat", daemon=True)
        beating.start()
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = self._poll_once()
        self._shut_down()
        beating.join(5)
        self._server.close()
        self._beats.close()

    # --- the end of an attempt ----------------------------------------------------------------------------------------------------

    def _deliver_left_over(self) -> None:
        for entry in self._spool.left_over():
            with contextlib.suppress(NoAnswer):  # it stays, for the next start
                try:
                    self._deliver(entry, patience=LEFT_OVER_SECONDS)
                    outcome = "delivered"
                except Refused as refused:
                    outcome = refused.code
                logger.info("left over %s: %s", entry.file.name, outcome)

    def _deliver(self, entry: Entry, *, patience: float = KEEP_TRYING_SECONDS) -> None:
        """Raises Refused, NoAnswer. Any answer is the end of it: a refused call would be refused again."""
        try:
            self._server.post(entry.path, entry.body, patience=patience, keep_asking=True)
        except Refused:
            entry.done()
            raise
        entry.done()

    def _finish(self, attempt: Attempt, verb: str, **fields: Any) -> None:
        body = {"jobId": attempt.job_id, **attempt.holder, **fields}
        self._deliver(self._spool.keep(f"jobs/{attempt.job_id}/{verb}", body))

    def _fail(self, attempt: Attempt, code: str, retryable: bool, retry_after: float | None = None) -> None:
        wait = {} if retry_after is None else {"retryAfterSeconds": retry_after}
        with contextlib.suppress(Refused, NoAnswer):
            self._finish(attempt, "fail", errorCode=code, message=f"reference runtime: {code}", retryable=retryable, **wait)

    def _release(self, attempt: Attempt, reason: str) -> None:
        with contextlib.suppress(Refused, NoAnswer):
            self._server.post(f"jobs/{attempt.job_id}/release", {**attempt.holder, "reason": reason}, patience=LAST_WORDS_SECONDS)

    # --- polling ------------------------------------------------------------------------------------------------------------------

    def _poll_once(self) -> float:
        """Poll for as many jobs as there are free slots; seconds until the next poll."""
        with self._lock:
            free = self._slots - len(self._attempts)
        if free <= 0 or (self._draining and self._attempts):
            return 0.1
        request = {
            "runtimeInstanceId": self.instance, "jobTypes": [JOB_TYPE], "maxJobs": free, "waitSeconds": 5, "autoLock": True,
            "requestId": str(uuid.uuid4()), "leaseSeconds": self._lease_seconds, "runtimeVersion": VERSION,
        }  # fmt: skip
        try:
            # Repeated under the same requestId: a lost answer is no lost job.
            polled = self._server.post("jobs/poll", request, patience=60)
        except Refused as refused:
            logger.error("poll refused: %s", refused.code)
            return 60.0 if refused.code in TOKEN_TROUBLE | {"upgrade_required"} else 5.0
        except NoAnswer as error:
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
        threading.Thread(target=self._work, args=(attempt,), name=attempt.name, daemon=True).start()

    # --- working ------------------------------------------------------------------------------------------------------------------

    def _work(self, attempt: Attempt) -> None:
        outcome = "done"
        try:
            self._attempt(attempt)
        except Stopped as stopped:
            outcome = f"stopped: {stopped}"
            if attempt.why == "cancel":
                self._release(attempt, "cancelled")
        except Refused as refused:
            outcome = refused.code
            if refused.code not in OVER and "jobStatus" not in refused.body.get("details", {}):
                self._fail(attempt, *REPORTED_AS.get(refused.code, ("internal_error", True)))
        except ProviderFailed as failed:
            outcome = failed.code
            self._fail(attempt, failed.code, failed.retryable, failed.retry_after)
        except NoAnswer as error:
            outcome = str(error)
        except Exception as error:  # whatever it is, the job must not wait for the end of its lease
            outcome = type(error).__name__
            self._fail(attempt, "internal_error", True)
        finally:
            with self._lock:
                self._attempts.pop(attempt.job_id, None)
            logger.info("%s: %s", attempt.name, outcome)

    def _attempt(self, attempt: Attempt) -> None:
        """The life of a job, step by step."""
        payload = self._server.get(f"jobs/{attempt.job_id}/snapshot", attempt.headers)["payload"]
        attempt.check()
        key = self._server.post("model-credentials/resolve", {"jobId": attempt.job_id, **attempt.holder})
        attempt.check()
        call = call_model(attempt, payload, key)
        with contextlib.suppress(Refused, NoAnswer):
            self._server.post("invocation-logs", {"logs": [{"jobId": attempt.job_id, **attempt.holder, **call.usage}]})
        if attempt.must_end and (call.code or attempt.why != UNRENEWED):
            raise Stopped(attempt.why)  # an answer that is only late is paid, and may still be taken
        if call.code:
            raise ProviderFailed(call.code, retryable=call.code in RETRYABLE, retry_after=call.retry_after)
        self._finish(
            attempt,
            "result",
            schemaVersion=attempt.offer["outputSchemaVersion"],
            rawOutput=call.raw,
            outputHash=hashlib.sha256(call.raw.encode()).hexdigest(),
            usage=[call.usage],  # once more, in case that the log did not arrive: it is stored once
        )

    # --- heartbeats ---------------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """One call for all jobs, at the pace the server asks for. Nothing that goes wrong ends it."""
        pace = 1.0
        while True:
            time.sleep(min(pace, 1.0) if not self._attempts else pace)
            with self._lock:
                attempts = dict(self._attempts)
            if not attempts:
                if self._stopping.is_set():
                    return
                continue
            try:
                pace = self._beat_once(attempts)
            except (Refused, NoAnswer) as error:
                logger.warning("heartbeat: %s", error)
                pace = 0.5

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
        answer = self._beats.post("jobs/heartbeat", {"runtimeInstanceId": self.instance, "jobs": jobs}, patience=0)
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

    # --- the end ------------------------------------------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        """Nothing new; what runs is aborted and handed back, so that it goes on elsewhere at once."""
        with self._lock:
            attempts = list(self._attempts.values())
        for attempt in attempts:
            self._release(attempt, "shutdown")
            attempt.end("shutdown")
