"""The output chain: JSON, schema, business rules, references. Engine and protocol both end here, so that no output goes around it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from runtime_jobs.errors import AttemptError, ErrorCode, Issue
from runtime_jobs.model_call import FinishReason, ModelAnswer
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.schemas import MAX_ISSUES
from runtime_jobs.validation.repair import MAX_OUTPUT_BYTES, Reading, Reason, Unreadable, read_json

__all__ = ["MAX_OUTPUT_BYTES", "Reading", "Validated", "read_output", "validate"]


@dataclass(frozen=True)
class Validated:
    """An output that passed all four steps."""

    output: Any
    repairs: tuple[str, ...]


def validate(definition: JobDefinition, job: JobInput, answer: ModelAnswer | Reading, *, schema_version: str | None = None) -> Validated:
    """Take an output through the chain, the first failure ends it.

    A model's answer is text; a runtime's output was JSON already and comes as a Reading. The schema is the job's output schema unless the
    runtime names another version. Raises AttemptError with the step's code and its issues; what a definition's own check raises passes
    through, for the caller to log as an error of ours.
    """
    # 1. JSON: strict, then repaired
    reading = read_output(answer.text, answer.finish_reason) if isinstance(answer, ModelAnswer) else answer
    output = reading.value
    # 2. The output schema
    schema_issues = _schema_issues(definition, schema_version or job.output_schema_version, output)
    _refuse_if_any(ErrorCode.SCHEMA_VALIDATION_FAILED, schema_issues)
    # 3. The business's own rules
    _refuse_if_any(ErrorCode.BUSINESS_VALIDATION_FAILED, definition.validate_business(output, job))
    # 4. References into the input
    _refuse_if_any(ErrorCode.REFERENCE_VALIDATION_FAILED, definition.validate_references(output, job))
    return Validated(output, reading.repairs)


def read_output(text: str, finish_reason: FinishReason) -> Reading:
    """The JSON of a model's answer. Raises AttemptError; its internal detail is a reason, a position and a length, never text."""
    # Before any repair: what was cut off may happen to close, and what was filtered may happen to be JSON.
    if finish_reason is FinishReason.LENGTH:
        raise AttemptError(ErrorCode.OUTPUT_TRUNCATED, f"finish_reason length; {len(text)} characters")
    if finish_reason is FinishReason.CONTENT_FILTER:
        raise AttemptError(ErrorCode.CONTENT_FILTERED, f"finish_reason content_filter; {len(text)} characters")
    try:
        return read_json(text)
    except Unreadable as error:
        code = _UNREADABLE.get(error.reason, ErrorCode.SCHEMA_VALIDATION_FAILED)
        raise AttemptError(code, f"unreadable JSON: {error}; {len(text)} characters") from None


_UNREADABLE = {
    Reason.EMPTY: ErrorCode.INVALID_MODEL_OUTPUT,
    Reason.TOO_LARGE: ErrorCode.OUTPUT_TOO_LARGE,
}


def _schema_issues(definition: JobDefinition, version: str, output: Any) -> tuple[Issue, ...]:
    schema = definition.compiled_output.get(version)
    if schema is None:
        return (Issue("", "schemaVersion", "The output schema version is not one of this job type."),)
    return schema.issues(output)


def _refuse_if_any(code: ErrorCode, found: Iterable[Issue]) -> None:
    issues = tuple(islice(found, MAX_ISSUES))
    if issues:
        places = ", ".join(f"{issue.rule} at {issue.path or 'the root'}" for issue in issues[:3])
        raise AttemptError(code, f"{len(issues)} issues: {places}" if len(issues) > 1 else places, issues=issues)
