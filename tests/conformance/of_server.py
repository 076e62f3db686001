"""Scenarios that drive a server. Jobs are made by a command of the server's own, since the protocol makes none."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from tests.conformance.calls import JOB_TYPE, RAW, sha, usage
from tests.conformance.scenarios import Skip, Suite, check, wait_for
from tests.conformance.server import SLACK, Server, same

suite = Suite()
scenario = suite.scenario


@scenario("health", "it tells its version, its limits and its time")
def health(on: Server) -> None:
    answer = on.runtime.get("health")
    same(answer, 200, databaseOk=True)
    check({"protocolVersion", "minProtocolVersion", "limits", "serverTime", "status"} <= set(answer.body), "a field is missing")
    check("X-Protocol-Version" in answer.headers or "x-protocol-version" in answer.headers, "no X-Protocol-Version")


@scenario("auth", "no token, a wrong one: 401, and nothing is told")
def authentication(on: Server) -> None:
    same(on.runtime.with_token("").call("POST", "jobs/poll", {}, headers={"Authorization": ""}), 401, "token_missing")
    same(on.runtime.with_token("rt_none_none").poll(), 401, "token_invalid")


@scenario("life", "poll, lock, heartbeat, snapshot, credential, usage, result")
def life(on: Server) -> None:
    lease = on.lease()
    same(on.runtime.beat(lease, progress=50, checkpoint={"a": 1}), 200, directive="continue", late=False)
    snapshot = on.runtime.snapshot(lease)
    same(snapshot, 200)
    check(isinstance(snapshot["payload"], dict), "the payload is an object")
    same(on.runtime.log(lease, usage()), 200, accepted=1, duplicates=0)
    same(on.runtime.log(lease, usage()), 200, accepted=0, duplicates=1)
    same(on.runtime.result(lease), 200, status="succeeded", jobStatus="succeeded", duplicate=False)


@scenario("S01", "a result of an overtaken attempt is refused")
def stale_result(on: Server) -> None:
    first, lease, _, _ = on.overtaken
    same(first.result(lease), 409, "job_lock_lost", retryable=False)


@scenario("S02", "no call of an overtaken attempt hurts its successor")
def stale_calls(on: Server) -> None:
    first, lease, second, successor = on.overtaken
    for call in (first.beat, first.fail, first.release, first.resolve, first.snapshot):
        answer = call(lease)
        same(answer, 409, "job_lock_lost")
        check(second.instance not in str(answer.body), "the answer does not name the new holder")
    same(second.beat(successor, leaseSeconds=60), 200, directive="continue")
    check(successor["attemptNo"] == lease["attemptNo"] + 1, "the attempt's number rises by one")


@scenario("S05", "a batch heartbeat tells of a lost job in its row, not as an error")
def stale_in_a_batch(on: Server) -> None:
    first, lease, _, _ = on.overtaken
    mine = on.lease(first)
    answer = first.beat_all(lease, mine)
    same(answer, 200)
    rows = {row["jobId"]: row for row in answer["jobs"]}
    lost = rows[lease["jobId"]]
    check((lost["directive"], lost["reason"]) == ("stop", "job_lock_lost"), f"the row says {lost}")
    check(rows[mine["jobId"]]["directive"] == "continue", "the other job goes on")


@scenario("S28", "the successor's result is taken, and only that")
def successor_wins(on: Server) -> None:
    first, lease, second, successor = on.overtaken
    same(second.result(successor), 200, status="succeeded")
    same(first.result(lease), 409, "job_lock_lost")


@scenario("S04", "a lease that ran out fences nothing while nobody has taken the job")
def late(on: Server) -> None:
    lease = on.lease(leaseSeconds=on.limits["minLeaseSeconds"])
    expired = wait_for(lambda: (got := on.runtime.snapshot(lease)).status == 409 and got, lease["leaseSeconds"] + SLACK, "it runs out")
    same(expired, 409, "job_lock_lost", details={"leaseExpired": True}, retryable=True)
    # `late` is said once the server has noticed, which may be a moment after.
    same(on.runtime.result(lease), 200, jobStatus="succeeded")


@scenario("S08", "a heartbeat sent twice: 200 twice, and the lease never ends earlier")
def repeated_heartbeat(on: Server) -> None:
    lease = on.lease()
    one, two = on.runtime.beat(lease, leaseSeconds=100), on.runtime.beat(lease, leaseSeconds=on.limits["minLeaseSeconds"])
    same(one, 200)
    same(two, 200)
    check(two["lockUntil"] >= one["lockUntil"], "lockUntil moved backwards")


@scenario("S10", "heartbeats and logs never make a job visible to others")
def invisible(on: Server) -> None:
    lease = on.lease()
    other = on.another()
    for call in (lambda: on.runtime.beat(lease, progress=10), lambda: on.runtime.log(lease, usage("call-2"))):
        same(call(), 200)
        offered = [one["jobId"] for one in other.poll(jobTypes=[JOB_TYPE])["jobs"]]
        check(lease["jobId"] not in offered, "it was offered again")


@scenario("S12", "an offer hides its job from others, costs no attempt, and is locked once")
def offered(on: Server) -> None:
    on.make_job()
    offers = on.runtime.poll(jobTypes=[JOB_TYPE], waitSeconds=10)["jobs"]
    check(offers and "lease" not in offers[0], "an offer without a lease")
    job_id = offers[0]["jobId"]
    other = on.another()
    same(other.lock(job_id), 409, "job_lock_conflict")
    check(job_id not in [one["jobId"] for one in other.poll(jobTypes=[JOB_TYPE])["jobs"]], "it is hidden")
    lease = on.runtime.lock(job_id)
    same(lease, 200, attemptNo=offers[0]["attemptsMade"] + 1)
    on.ends(on.runtime, lease.body)


@scenario("S14", "a lock or a poll whose answer was lost: the same requestId, the same lease")
def repeated_claims(on: Server) -> None:
    on.make_job()
    request = str(uuid.uuid4())
    first = on.runtime.pull(request, jobTypes=[JOB_TYPE], waitSeconds=10)["jobs"]
    check(first, "a job")
    lease = on.ends(on.runtime, first[0]["lease"])
    again = on.runtime.pull(request, jobTypes=[JOB_TYPE])["jobs"]
    check([one["lease"]["lockToken"] for one in again] == [lease["lockToken"]], "the same lockToken")
    same(on.runtime.lock(lease["jobId"]), 409, "job_lock_conflict")
    same(on.runtime.release(lease), 200)
    request = str(uuid.uuid4())
    one = wait_for(lambda: (got := on.runtime.lock(lease["jobId"], request)).status == 200 and got, 10, "it can be locked again")
    on.ends(on.runtime, one.body)
    two = on.runtime.lock(lease["jobId"], request)
    same(two, 200, lockToken=one["lockToken"], attemptNo=one["attemptNo"])


@scenario("S15", "a storm of polls on one job: one of them gets it")
def storm(on: Server) -> None:
    on.make_job()
    with ThreadPoolExecutor(20) as pool:
        runtimes = [on.another() for _ in range(20)]
        answers = list(pool.map(lambda one: one.pull(jobTypes=[JOB_TYPE]), runtimes))
    got = [(one, offer["lease"]) for one, answer in zip(runtimes, answers, strict=True) for offer in answer["jobs"]]
    for runtime, lease in got:
        on.ends(runtime, lease)
    check({answer.status for answer in answers} == {200}, "each is answered 200")
    check(len(got) == 1, f"{len(got)} got a job")


@scenario("S20", "a long poll's wait is clamped, and its end is 200 and empty")
def long_poll(on: Server) -> None:
    began = time.monotonic()
    answer = on.runtime.poll(jobTypes=[JOB_TYPE], waitSeconds=600)
    same(answer, 200, jobs=[])
    check(time.monotonic() - began < 30, "no poll lasts over 30 s")


@scenario("S26", "a result sent again: the first answer, and duplicate")
def repeated_result(on: Server) -> None:
    lease = on.lease()
    first, second = on.runtime.result(lease), on.runtime.result(lease)
    same(first, 200)
    check((second.status, second.body) == (200, {**first.body, "duplicate": True}), "the same body, and duplicate: true")


@scenario("S27", "another result of the same attempt is a conflict")
def another_result(on: Server) -> None:
    lease = on.lease()
    same(on.runtime.result(lease), 200)
    same(on.runtime.result(lease, RAW.replace("A river", "A stream")), 409, "result_conflict")
    same(on.runtime.fail(lease), 409, "job_already_finished")


@scenario("S32", "too large: 413 with maxBytes, and the lease stays")
def too_large(on: Server) -> None:
    lease = on.lease()
    answer = on.runtime.result(lease, "x" * (on.limits["maxOutputBytes"] + 1))
    same(answer, 413, "payload_too_large", retryable=False)
    check(answer["details"]["maxBytes"] > 0, "maxBytes")
    same(on.runtime.fail(lease, "output_too_large", retryable=False), 200, jobStatus="failed")


@scenario("hash", "an outputHash that is not that of rawOutput: 422, and the lease stays")
def wrong_hash(on: Server) -> None:
    lease = on.lease()
    same(on.runtime.result(lease, outputHash=sha("something else")), 422, "output_hash_mismatch")
    same(on.runtime.beat(lease), 200, directive="continue")


@scenario("chain", "an output that breaks its schema: 422, and the attempt is over")
def rejected(on: Server) -> None:
    lease = on.lease()
    answer = on.runtime.result(lease, '{"nothing": "of this"}')
    same(answer, 422, "schema_validation_failed")
    check(answer["details"]["jobStatus"] == "failed" and answer["details"]["validationErrors"], "jobStatus and validationErrors")
    check(on.runtime.beat(lease).status == 409, "the attempt is over")


@scenario("S34", "text that cannot be stored is no 500")
def unstorable(on: Server) -> None:
    lease = on.lease()
    same(on.runtime.beat(lease, progressMessage="a\x00b"), 400, "validation_failed")
    same(on.runtime.beat(lease, checkpoint={"a": "\ud800"}), 400, "validation_failed")
    for body in (b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 10_000, b'{"a": 123456789012345678901234567890}', b"\xff"):
        same(on.runtime.call("POST", "jobs/poll", raw=body), 400, "malformed_json")
    same(on.runtime.fail(lease, "in\x00ternal", retryable=False), 200, sanitized=True)


@scenario("S36", "every failure is a JSON envelope with the request's id")
def envelope(on: Server) -> None:
    for method, path, body, status, code in [
        ("GET", "nothing", None, 404, "not_found"), ("POST", "jobs/poll/", b"{}", 404, "not_found"), ("DELETE", "health", None, 405,
         "method_not_allowed"), ("POST", "jobs/poll", b"{", 400, "malformed_json"), ("POST", "jobs/poll", b"{}", 400, "validation_failed"),
        ("POST", "jobs/poll", b" " * (on.limits["maxBodyBytes"] + 1), 413, "payload_too_large"),
    ]:  # fmt: skip
        answer = on.runtime.call(method, path, raw=body, headers={"X-Request-Id": "conformance-1"})
        same(answer, status, code)
        check({"errorCode", "message", "retryable", "requestId"} <= set(answer.body), "a field is missing")
    same(on.runtime.poll(brandNew=1), 400, "validation_failed")
    check("brandNew" in str(on.runtime.poll(brandNew=1).body), "an unknown field is named")


@scenario("S39", "what is released is offered elsewhere within a second, uncharged")
def released(on: Server) -> None:
    lease = on.lease()
    same(on.runtime.release(lease, reason="shutdown"), 200, jobStatus="retrying")
    began = time.monotonic()
    other = on.another()
    offers = other.pull(jobTypes=[JOB_TYPE], waitSeconds=10)["jobs"]
    check(offers and offers[0]["jobId"] == lease["jobId"], "it is offered")
    on.ends(other, offers[0]["lease"])
    check(time.monotonic() - began < 9, "before the poll's end")
    same(on.runtime.release(lease, reason="shutdown"), 200, duplicate=True)


@scenario("S43", "a cancel comes back with the heartbeat; a result is refused, a failure ends the job")
def cancelled(on: Server) -> None:
    lease = on.lease()
    on.cancel(lease)
    same(on.runtime.beat(lease), 200, directive="cancel", cancelRequested=True)
    same(on.runtime.resolve(lease), 409, "job_cancelled")
    same(on.runtime.fail(lease, "cancelled", retryable=False), 200, jobStatus="cancelled")
    same(on.runtime.result(lease), 409, "job_cancelled")


@scenario("S48", "neither a poll nor a snapshot holds a key")
def no_key(on: Server) -> None:
    lease = on.lease()
    resolved = on.runtime.resolve(lease)
    if resolved.status == 424:
        raise Skip("the server has no credential for the job")
    same(resolved, 200)
    check(resolved.headers.get("Cache-Control", resolved.headers.get("cache-control")) == "no-store", "Cache-Control: no-store")
    for answer in (on.runtime.snapshot(lease), on.runtime.poll(jobTypes=[JOB_TYPE])):
        check(resolved["apiKey"] not in str(answer.body), "the key stands in it")


@scenario("S49", "a credential follows the lease: not after the end, not for another job")
def credential_follows(on: Server) -> None:
    one, two = on.lease(), on.lease()
    same(on.runtime.resolve({**one, "lockToken": two["lockToken"]}), 409, "job_lock_lost")
    same(on.runtime.result(one), 200)
    check(on.runtime.resolve(one).status == 409, "not after the end")


@scenario("S51", "a job that there is not is 404")
def no_such_job(on: Server) -> None:
    lease = on.lease()
    same(on.runtime.beat({**lease, "jobId": str(uuid.uuid4())}), 404, "job_not_found")


@scenario("1.x", "a version that it does not speak is 426")
def version(on: Server) -> None:
    same(on.runtime.call("GET", "health", headers={"X-Protocol-Version": "0.9"}), 426, "upgrade_required")
    same(on.runtime.call("GET", "health", headers={"X-Protocol-Version": "2.0"}), 426, "upgrade_required")
