"""Our side of the comparison: job definitions around a call that is answered at once, or after some seconds by the simulator."""

from typing import Any

from runtime_jobs.model_call import Message, ModelAnswer, ModelRequest
from runtime_jobs.registry import Execution, JobDefinition, JobInput, register
from runtime_jobs.states import Lane
from runtime_jobs.synthetic.ai_jobs import OUTPUT_SCHEMA
from tests.benchmarks.app.instant import INSTANT
from tests.benchmarks.app.work import stamp, write_rows

_INPUT = {
    "type": "object",
    "properties": {"key": {"type": "string", "maxLength": 60}, "seconds": {"type": "number"}},
    "additionalProperties": False,
}
_OUTPUT = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


class _Bench(JobDefinition):
    lane = Lane.INTERACTIVE
    input_schemas = {"1": _INPUT}
    output_schemas = {"1": _OUTPUT}
    model_provider = INSTANT
    model_name = "instant-1"

    def build_request(self, job: JobInput) -> ModelRequest:
        return ModelRequest((Message("user", "Say ok."),))


@register
class Noop(_Bench):
    job_type = "bench.noop"


@register
class Pulled(_Bench):
    """For runtimes: no projector, as `noop`."""

    job_type = "bench.pulled"
    lane = Lane.RUNTIME


@register
class Rows(_Bench):
    job_type = "bench.rows"

    def project(self, output: Any, job: JobInput) -> None:
        write_rows(str(job.job_id))


@register
class Stamp(_Bench):
    job_type = "bench.stamp"

    def execute(self, execution: Execution) -> ModelAnswer:
        stamp(execution.job.payload["key"])
        return super().execute(execution)


@register
class Slow(_Bench):
    """One paragraph with a directive to the simulator, which answers with facts after that time."""

    job_type = "bench.slow"
    output_schemas = {"1": OUTPUT_SCHEMA}
    model_provider = "simulator"
    model_name = "simulator-1"

    def build_request(self, job: JobInput) -> ModelRequest:
        text = f"[p1] The Danube is 2,850 kilometres long. [[simulate: delay={job.payload['seconds']}]]"
        return ModelRequest((Message("user", text),), response_schema=OUTPUT_SCHEMA)
