"""Scenarios that drive a runtime."""

import signal
import time
from datetime import timedelta

from tests.conformance.plane import BEAT_SECONDS, LEASE_SECONDS, page, refusal
from tests.conformance.proxy import ALWAYS, cut, delay, double, instead, lose, refuse
from tests.conformance.scenarios import Skip, Suite, check, wait_for
from tests.conformance.stage import API_KEY, SOON, Stage

suite = Suite()
scenario = suite.scenario

VERBS = ("poll", "lock", "heartbeat", "snapshot", "resolve", "result")


@scenario("life", "a job is done: snapshot, credential, one model call, usage, result")
def life(on: Stage) -> None:
    job = on.plane.add_job()
    on.program.start()
    on.done(job)
    order = [call.verb for call in on.plane.seen("snapshot", "resolve", "result", job=job)]
    check(order == ["snapshot", "resolve", "result"], f"calls in the order {order}")
    check([call.key for call in on.provider.calls] == [API_KEY], "one model call, with the key that was resolved")
    [result] = on.plane.seen("result", job=job)

    def usage() -> list[object]:
        return [*(result.body.get("usage") or []), *(row for call in on.plane.seen("invocation-logs") for row in call.body["logs"])]

    wait_for(usage, 5, "the model call is reported")
    check(job.attempt_no == 1, "one attempt")


@scenario("S05", "taken over: a heartbeat says so, the model call is aborted, nothing more is sent")
def taken_over(on: Stage) -> None:
    job = on.plane.add_job()
    on.working(job)
    on.plane.take_over(job)
    on.aborted(4 * BEAT_SECONDS + 2)
    time.sleep(2)
    check(not on.sent(job), f"it sent {on.sent(job)}")


@scenario("S08", "three heartbeats in a row whose answers are lost do no harm")
def lost_heartbeats(on: Stage) -> None:
    job = on.plane.add_job()
    on.working(job)
    fault = on.proxy.fault("heartbeat", lose, 3)
    wait_for(lambda: fault.times == 0, SOON, "heartbeats go on")
    time.sleep(LEASE_SECONDS)
    on.provider.hold.clear()
    on.done(job)
    check(job.attempt_no == 1 and len(on.provider.calls) == 1, "one attempt, one model call")


@scenario("S12", "a poll or lock whose answer is lost: the same job, the same attempt")
def lost_claim(on: Stage) -> None:
    on.proxy.fault("poll", lose)
    on.proxy.fault("lock", lose)
    job = on.plane.add_job()
    on.program.start()
    on.done(job)
    check(job.attempt_no == 1 and job.lapses == 0, f"{job.attempt_no} attempts, {job.lapses} lapses")


@scenario("S14", "calls that arrive twice: one model call, one result")
def doubled(on: Stage) -> None:
    on.proxy.fault("*", double, ALWAYS)
    job = on.plane.add_job()
    on.program.start()
    on.done(job)
    time.sleep(1)
    check(len(on.provider.calls) == 1, f"{len(on.provider.calls)} model calls")
    check(job.attempt_no == 1, "one attempt")


@scenario("S26", "a result whose answer is lost is sent again, the same to the last field")
def lost_result(on: Stage) -> None:
    on.proxy.fault("result", lose)
    job = on.plane.add_job()
    on.program.start()
    wait_for(lambda: job.duplicates, SOON, "the same result comes again")
    check(len(on.provider.calls) == 1, "one model call")


@scenario("S30", "the server cannot take the result for a while: it is tried until it can")
def unavailable_at_the_end(on: Stage) -> None:
    available = on.plane.answer_always("result", refusal(503, "unavailable", retryable=True, retry_after=1))
    job = on.plane.add_job()
    on.program.start()
    wait_for(lambda: len(on.plane.seen("result", job=job)) >= 3, SOON, "it is tried again")
    available()
    on.done(job)
    bodies = [call.body for call in on.plane.seen("result", job=job)]
    check(all(body == bodies[0] for body in bodies), "the same result each time")
    check(job.attempt_no == 1 and len(on.provider.calls) == 1, "one attempt, one model call")


@scenario("S30", "killed while its result waits: the next start delivers it")
def killed_with_a_result(on: Stage) -> None:
    if not on.program.has_spool:
        raise Skip("the command has no {spool}")
    available = on.plane.answer_always("result", refusal(503, "unavailable", retryable=True))
    job = on.plane.add_job()
    process = on.program.start()
    wait_for(lambda: on.plane.seen("result", job=job), SOON, "the result comes")
    process.kill()
    process.wait(10)
    on.plane.answer_always("poll", refusal(503, "unavailable", retryable=True))  # it must not be the next attempt that delivers
    available()
    on.program.start()
    on.done(job)
    check(len(on.provider.calls) == 1 and job.attempt_no == 1, "one attempt, one model call")


@scenario("S33", "too large: one failure output_too_large, not retryable")
def too_large(on: Stage) -> None:
    on.plane.answer_always("result", refusal(413, "payload_too_large", details={"maxBytes": 10}))
    job = on.plane.add_job()
    on.program.start()
    wait_for(lambda: job.failures, SOON, "the failure comes")
    time.sleep(2)
    check(on.sent(job) == ["result", "fail"], f"it sent {on.sent(job)}")
    check((job.failures[0]["errorCode"], job.failures[0]["retryable"]) == ("output_too_large", False), "output_too_large, not retryable")


@scenario("S33", "rejected by the output chain: nothing more is sent")
def rejected(on: Stage) -> None:
    on.plane.answer_always("result", refusal(422, "schema_validation_failed", details={"jobStatus": "failed"}))
    job = on.plane.add_job()
    on.program.start()
    wait_for(lambda: on.plane.seen("result", job=job), SOON, "the result comes")
    job.status = "failed"
    time.sleep(2)
    check(on.sent(job) == ["result"], f"it sent {on.sent(job)}")


@scenario("S36", "a proxy's page, with 200, 404 or 502, is no answer")
def pages(on: Stage) -> None:
    for verb in VERBS:
        for status in (200, 404, 502):
            on.proxy.fault(verb, instead(page(status)))
    job = on.plane.add_job()
    on.program.start()
    on.done(job, 60)
    check(job.attempt_no == 1 and not job.failures, f"{job.attempt_no} attempts, {len(job.failures)} failures")


@scenario("cuts", "connections that break before, and in the middle of, every answer")
def cuts(on: Stage) -> None:
    for verb in VERBS:
        on.proxy.fault(verb, refuse)
        on.proxy.fault(verb, cut)
    job = on.plane.add_job()
    on.program.start()
    on.done(job, 60)
    check(job.attempt_no == 1 and len(on.provider.calls) == 1, "one attempt, one model call")


@scenario("delays", "every answer comes a second late")
def delays(on: Stage) -> None:
    on.proxy.fault("*", delay(1.0), ALWAYS)
    job = on.plane.add_job()
    on.program.start()
    on.done(job, 60)
    check(job.attempt_no == 1 and job.lapses == 0, "one attempt, no lapse")


@scenario("S37", "killed at work: the next one does the job with the next attempt")
def killed(on: Stage) -> None:
    job = on.plane.add_job()
    on.provider.hold.set()
    process = on.program.start()
    wait_for(lambda: on.provider.calls, SOON, "the model is called")
    process.kill()
    process.wait(10)
    on.provider.hold.clear()
    on.program.start()
    on.done(job)
    # A poll of the killed process that is still open may take the job once more, and lapse as well.
    check(job.attempt_no == job.lapses + 1 >= 2, f"{job.attempt_no} attempts, {job.lapses} lapses")
    check(len(on.plane.seen("result", job=job)) == 1, "one result")


@scenario("S39", "SIGTERM at work: the job is handed back, uncharged, and the process ends with 0")
def terminated(on: Stage) -> None:
    job = on.plane.add_job()
    on.provider.hold.set()
    process = on.program.start()
    wait_for(lambda: on.provider.calls, SOON, "the model is called")
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: job.releases, 25, "the job is released")
    check(process.wait(25) == 0, f"exit code {process.returncode}")
    check(job.status == "retrying" and not job.failures and not job.lapses, f"the job is {job.status}")


@scenario("S42", "no credential: one failure of that code, no hot loop")
def no_credential(on: Stage) -> None:
    on.plane.answer_always("resolve", refusal(424, "credential_unavailable"))
    job = on.plane.add_job()
    on.program.start()
    wait_for(lambda: job.failures, SOON, "the failure comes")
    time.sleep(1)
    check([one["errorCode"] for one in job.failures] == ["credential_unavailable"], f"{job.failures}")
    check(job.failures[0]["retryable"] is False and len(on.plane.seen("resolve")) == 1, "not retryable, asked once")
    check(not on.provider.calls, "no model call")


@scenario("S43", "a cancel reaches the model call within a heartbeat; a failure or release answers it")
def cancelled(on: Stage) -> None:
    job = on.plane.add_job()
    on.working(job)
    on.plane.directives[job.id] = "cancel"
    on.aborted(4 * BEAT_SECONDS + 2)
    wait_for(lambda: job.status == "cancelled", SOON, "the job is cancelled")
    check("result" not in on.sent(job), "no result")


@scenario("S44", "the server cannot be reached for longer than the lease: the work is aborted by the local clock")
def unreachable(on: Stage) -> None:
    job = on.plane.add_job()
    on.working(job)
    on.proxy.fault("heartbeat", refuse, ALWAYS)
    left = time.monotonic()
    gone = on.aborted(LEASE_SECONDS + BEAT_SECONDS + 5)
    check(gone - left > LEASE_SECONDS / 2, "not before the lease ends")
    check("result" not in on.sent(job), "no result")


@scenario("S45", "drain: heartbeats go on and the job is finished")
def draining(on: Stage) -> None:
    job = on.plane.add_job()
    on.plane.directives[job.id] = "drain"
    on.working(job)
    began = time.monotonic()
    wait_for(lambda: len(on.plane.seen("heartbeat", since=began)) >= 4, SOON, "heartbeats go on")
    on.provider.hold.clear()
    on.done(job)
    check(job.attempt_no == 1, "one attempt")


@scenario("S47", "SIGTERM while a poll is open: what it brings is done or handed back")
def terminated_in_a_poll(on: Stage) -> None:
    process = on.program.start()
    wait_for(lambda: on.plane.seen("poll"), SOON, "it polls")
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    job = on.plane.add_job()
    check(process.wait(40) == 0, f"exit code {process.returncode}")
    free = job.status == "queued" or (job.status == "retrying" and job.releases == 1)
    check(free or job.status == "succeeded", f"the job is {job.status}, {job.releases} releases")


@scenario("S50", "a token that is refused: no hot loop")
def token_refused(on: Stage) -> None:
    on.plane.answer_always("*", refusal(401, "token_revoked"))
    on.program.start()
    wait_for(lambda: on.plane.calls, SOON, "it asks")
    time.sleep(4)
    check(len(on.plane.calls) <= 4, f"{len(on.plane.calls)} calls in 4 s")


@scenario("429", "Retry-After is heeded")
def rate_limited(on: Stage) -> None:
    on.plane.answer_first("poll", refusal(429, "rate_limited", retryable=True, retry_after=3))
    job = on.plane.add_job()
    on.program.start()
    on.done(job)
    first, second = on.plane.seen("poll")[:2]
    check(second.at - first.at >= 2.9, f"again after {second.at - first.at:.1f} s")


@scenario("clock", "the server's clock is a day ahead: seconds count, not times")
def clock_ahead(on: Stage) -> None:
    _under_another_clock(on, timedelta(days=1))


@scenario("clock", "the server's clock is a day behind")
def clock_behind(on: Stage) -> None:
    _under_another_clock(on, timedelta(days=-1))


def _under_another_clock(on: Stage, shift: timedelta) -> None:
    on.plane.shift_clock(shift)
    job = on.plane.add_job()
    on.working(job)
    time.sleep(LEASE_SECONDS + 1)
    on.provider.hold.clear()
    on.done(job)
    check(job.attempt_no == 1 and len(on.provider.calls) == 1, "one attempt, one model call")
    beats = on.plane.seen("heartbeat")
    check(3 <= len(beats) <= 12, f"{len(beats)} heartbeats in some {LEASE_SECONDS + 1:g} s")


@scenario("1.x", "a code that it does not know is judged by `retryable`")
def unknown_code(on: Stage) -> None:
    for verb in ("poll", "snapshot", "resolve", "result"):
        on.plane.answer_first(verb, refusal(503, "brand_new_code", retryable=True))
    job = on.plane.add_job()
    on.program.start()
    on.done(job)
    check(job.attempt_no == 1 and not job.failures, "one attempt")
