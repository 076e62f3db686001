"""The output chain: which step refuses with which code, and that no step is passed over."""

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

import pytest

from runtime_jobs.errors import AttemptError, ErrorCode, Issue
from runtime_jobs.model_call import FinishReason, ModelAnswer, TokenUsage
from runtime_jobs.registry import JobDefinition, JobInput
from runtime_jobs.schemas import MAX_ISSUES
from runtime_jobs.states import Lane
from runtime_jobs.validation.chain import MAX_OUTPUT_BYTES, Reading, Validated, read_output, validate


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Facts(JobDefinition):
    job_type = "tests.facts"
    lane = Lane.BACKGROUND
    input_schemas: ClassVar = {"1": schema()}
    output_schemas: ClassVar = {
        "1": schema(total={"type": "integer"}),
        "2": schema(total={"type": "integer"}, paragraph={"type": "string", "maxLength": 9}),
    }

    def __init__(self) -> None:
        self.steps: list[str] = []

    def validate_business(self, output: Any, job: JobInput) -> Sequence[Issue]:
        self.steps.append("business")
        if output["total"] == 500:
            raise RuntimeError("a bug in the definition")
        return [Issue("/total", "total", "The total is negative.")] * 30 if output["total"] < 0 else []

    def validate_references(self, output: Any, job: JobInput) -> Sequence[Issue]:
        self.steps.append("reference")
        known = output.get("paragraph") in (None, *job.payload["paragraphs"])
        return [] if known else [Issue("/paragraph", "reference", "Names a paragraph that is not in the input.")]


JOB = JobInput(UUID(int=1), 1, "tests.facts", "text", "1", "1", "2", {"paragraphs": ["p1"]})


def answer(text: str, finish_reason: FinishReason = FinishReason.STOP) -> ModelAnswer:
    return ModelAnswer(text, finish_reason, "model", TokenUsage())


def refusal(text: str, finish_reason: FinishReason = FinishReason.STOP) -> AttemptError:
    with pytest.raises(AttemptError) as refused:
        read_output(text, finish_reason)
    return refused.value


def test_a_good_answer_passes_all_steps_in_order():
    definition = Facts()
    assert validate(definition, JOB, answer('```json\n{"total": 1, "paragraph": "p1",}\n```')) == Validated(
        {"total": 1, "paragraph": "p1"}, ("unwrapped", "trailing_comma")
    )
    assert definition.steps == ["business", "reference"]


def test_the_output_of_a_runtime_enters_behind_the_first_step():
    assert validate(Facts(), JOB, Reading({"total": 1, "paragraph": "p1"})).repairs == ()


@pytest.mark.parametrize(
    ("output", "code", "paths", "steps"),
    [
        ({"total": "1", "paragraph": "p1"}, ErrorCode.SCHEMA_VALIDATION_FAILED, ["/total"], []),
        ({"total": -1, "paragraph": "p9"}, ErrorCode.BUSINESS_VALIDATION_FAILED, ["/total"] * MAX_ISSUES, ["business"]),
        ({"total": 1, "paragraph": "P1"}, ErrorCode.REFERENCE_VALIDATION_FAILED, ["/paragraph"], ["business", "reference"]),
    ],
)
def test_the_first_step_that_refuses_ends_the_chain(output: Any, code: ErrorCode, paths: list[str], steps: list[str]):
    definition = Facts()
    with pytest.raises(AttemptError) as refused:
        validate(definition, JOB, Reading(output))
    assert refused.value.code is code
    assert not refused.value.retryable
    assert [issue.path for issue in refused.value.issues] == paths
    assert definition.steps == steps


def test_the_schema_version_may_be_named():
    assert validate(Facts(), JOB, Reading({"total": 1}), schema_version="1").output == {"total": 1}


def test_an_unknown_schema_version_is_refused():
    with pytest.raises(AttemptError) as refused:
        validate(Facts(), JOB, Reading({"total": 1}), schema_version="CANARY")
    assert refused.value.code is ErrorCode.SCHEMA_VALIDATION_FAILED
    assert [issue.rule for issue in refused.value.issues] == ["schemaVersion"]
    assert "CANARY" not in str(refused.value)


def test_a_tool_call_around_the_output_is_refused_by_the_schema():
    """provider_calls 30."""
    with pytest.raises(AttemptError) as refused:
        validate(Facts(), JOB, answer('{"name":"submit","arguments":"{\\"total\\":1}"}'))
    assert refused.value.code is ErrorCode.SCHEMA_VALIDATION_FAILED


def test_a_bug_in_a_definition_passes_through():
    with pytest.raises(RuntimeError):
        validate(Facts(), JOB, Reading({"total": 500, "paragraph": "p1"}))


def test_a_cut_off_answer_is_truncated_even_if_it_happens_to_close():
    """provider_calls 10."""
    error = refusal('{"total": 1, "paragraph": "p1"}', FinishReason.LENGTH)
    assert (error.code, error.retryable) == (ErrorCode.OUTPUT_TRUNCATED, False)


def test_an_empty_answer_that_was_cut_off_is_truncated():
    """provider_calls 12: reasoning used up all tokens."""
    assert refusal("", FinishReason.LENGTH).code is ErrorCode.OUTPUT_TRUNCATED


def test_a_filtered_answer_is_filtered_even_if_it_is_json():
    assert refusal("{}", FinishReason.CONTENT_FILTER).code is ErrorCode.CONTENT_FILTERED


@pytest.mark.parametrize("text", ["", " \n\t", "\ufeff", "\u200b\u00a0"])
def test_an_empty_answer_may_be_tried_once_more(text: str):
    error = refusal(text)
    assert (error.code, error.retryable) == (ErrorCode.INVALID_MODEL_OUTPUT, True)


@pytest.mark.parametrize("character", ["a", "é", "漢", "🙂"])
def test_the_size_cap_counts_bytes(character: str):
    size = len(character.encode())
    most = (MAX_OUTPUT_BYTES - len('{"a":""}')) // size
    assert read_output('{"a":"' + character * most + '"}', FinishReason.STOP).value == {"a": character * most}
    assert refusal('{"a":"' + character * (most + 1) + '"}').code is ErrorCode.OUTPUT_TOO_LARGE


@pytest.mark.parametrize("text", ["CANARY", '{"CANARY": CANARY}', '{"a": "CANARY', '{"CANARY":1,"CANARY":2}', '"CANARY"'])
def test_unreadable_json_is_permanent_and_its_text_is_not_repeated(text: str):
    error = refusal(text, FinishReason.OTHER)
    assert (error.code, error.retryable) == (ErrorCode.SCHEMA_VALIDATION_FAILED, False)
    assert "CANARY" not in str(error)
    assert error.__cause__ is None
    assert f"{len(text)} characters" in error.internal
