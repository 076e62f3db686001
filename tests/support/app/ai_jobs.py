"""Definitions for tests over real processes. What they do is said in their payload, since the engine is another process."""

import time
from collections.abc import Sequence
from typing import Any

from runtime_jobs.errors import Issue
from runtime_jobs.model_call import Message, ModelAnswer, ModelRequest
from runtime_jobs.registry import Execution, JobDefinition, JobInput, register
from runtime_jobs.states import Lane

SCRIPT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["prompt"],
    "properties": {
        "prompt": {"type": "string", "maxLength": 10_000},
        "before_call": {"type": "number", "maximum": 60},  # seconds that the executor waits, watching its signal
        "in_validation": {"type": "number", "maximum": 60},  # seconds that the business validation takes
        "calls": {"type": "integer", "maximum": 10},
        "raise": {"enum": ["execute", "validate", "project"]},
    },
}
ANSWER = {"type": "object", "additionalProperties": False, "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}


@register
class Scripted(JobDefinition):
    """Executes what its payload says."""

    job_type = "test.scripted"
    lane = Lane.INTERACTIVE
    input_schemas = {"1": SCRIPT}
    output_schemas = {"1": ANSWER}
    timeout_seconds = 30
    max_retry_count = 2

    def build_request(self, job: JobInput) -> ModelRequest:
        return ModelRequest(messages=(Message("user", job.payload["prompt"]),), response_schema=ANSWER)

    def execute(self, execution: Execution) -> ModelAnswer:
        script = execution.job.payload
        self._raise(script, "execute")
        until = time.monotonic() + script.get("before_call", 0)
        while time.monotonic() < until:
            execution.signal.check()
            time.sleep(0.02)
        for _ in range(script.get("calls", 1)):
            answer = super().execute(execution)
        return answer

    def validate_business(self, output: Any, job: JobInput) -> Sequence[Issue]:
        self._raise(job.payload, "validate")
        time.sleep(job.payload.get("in_validation", 0))
        return () if output["ok"] else [Issue("/ok", "is_true", "It is not ok.")]

    def project(self, output: Any, job: JobInput) -> None:
        self._raise(job.payload, "project")

    @staticmethod
    def _raise(script: Any, where: str) -> None:
        if script.get("raise") == where:
            raise RuntimeError(f"a fault in {where} that quotes its input: {script['prompt']}")


@register
class PaidOnce(Scripted):
    """A lapse is for a person to decide: the call may have been billed."""

    job_type = "test.paid_once"
    on_lapse = "fail"


@register
class Background(Scripted):
    job_type = "test.background"
    lane = Lane.BACKGROUND


TEXT = {"type": "string", "maxLength": 20_000}
ODDITIES = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "apiKey": TEXT,
        "nested": {
            "type": "array",
            "maxItems": 10,
            "items": {"type": "object", "additionalProperties": False, "properties": {"Authorization": TEXT, "text": TEXT}},
        },
        "big": {"type": "integer"},
        "exact": {"type": "number"},
        "many": {"type": "array", "maxItems": 10_000, "items": TEXT},
        "<b>name</b>": TEXT,
    },
}


@register
class Odd(JobDefinition):
    """What a page may stumble over; no rule of its own for what may be shown."""

    job_type = "test.odd"
    lane = Lane.INTERACTIVE
    input_schemas = {"1": ODDITIES}
    output_schemas = {"1": ODDITIES}
