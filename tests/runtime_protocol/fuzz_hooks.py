"""Loaded by schemathesis (test_fuzz.py): requests of the right form speak of jobs that there are, so that they come further than to 404."""

import hashlib
import json
import os
import random
from typing import Any

import schemathesis
from schemathesis import GenerationMode

LEASES: list[dict[str, Any]] = json.loads(os.environ.get("FUZZ_LEASES", "[]"))
INSTANCE = "runtime-1"
_chance = random.Random(1)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    positive = case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE
    if (positive or case.method.upper() != case.operation.method.upper()) and "X-Protocol-Version" in (case.headers or {}):
        # Its coverage phase (4.32) sends 0 as a text of the right form, whatever the header's pattern is.
        case.headers["X-Protocol-Version"] = "1.0"
    if not positive:
        return
    lease = _chance.choice(LEASES) if LEASES and _chance.random() < 0.7 else None
    if isinstance(case.body, dict):
        case.body = _within_64_bits(case.body)
        if case.body.get("waitSeconds"):
            case.body["waitSeconds"] = min(case.body["waitSeconds"], 0.1)  # how long it waits is tested elsewhere
        for held in (case.body, *_parts(case.body)):
            if lease is not None:
                _hold(held, lease)
        if lease is not None and "rawOutput" in case.body:
            case.body["outputHash"] = hashlib.sha256(case.body["rawOutput"].encode()).hexdigest()
        if "jobs" in case.body:
            # That a job stands but once in a heartbeat is no rule that a schema can tell.
            case.body["jobs"] = list({job["jobId"]: job for job in case.body["jobs"]}.values())
        if "jobId" in case.body and "jobId" in case.path_parameters:
            case.path_parameters["jobId"] = case.body["jobId"]
    if lease is not None and "jobId" in case.path_parameters:
        case.path_parameters["jobId"] = lease["jobId"]
        if "X-Lock-Token" in (case.headers or {}):
            case.headers.update({"X-Runtime-Instance-Id": INSTANCE, "X-Attempt-No": "1", "X-Lock-Token": lease["lockToken"]})


def _within_64_bits(value: Any) -> Any:
    """JSON that belongs to a job is any JSON, but for this, which no schema can say of all that is in it."""
    if isinstance(value, dict):
        return {name: _within_64_bits(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_within_64_bits(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(value, 2**63 - 1))
    return value


def _parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for name in ("jobs", "logs") for part in body.get(name) or [] if isinstance(part, dict)]


def _hold(values: dict[str, Any], lease: dict[str, Any]) -> None:
    for name in ("jobId", "attemptNo", "lockToken"):
        if name in values:
            values[name] = lease[name]
    if "runtimeInstanceId" in values:
        values["runtimeInstanceId"] = INSTANCE
