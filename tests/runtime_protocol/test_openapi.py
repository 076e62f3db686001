"""The published contract is the one that the code gives; every example in it is true to its form; it is served to runtimes."""

import jsonschema_rs
import pytest
import yaml
from django.core.management import call_command
from rest_framework.exceptions import ValidationError

from runtime_protocol import dto
from runtime_protocol.errors import CODES
from runtime_protocol.files import CONTRACT
from runtime_protocol.openapi import UPDATE
from runtime_protocol.wire.forms import Dto

# The customer's names, and those of the other endpoints.
ENDPOINT_DTOS = {
    ("post", "/jobs/poll"): ("RuntimePollJobsRequestDto", "RuntimePollJobsResponseDto"),
    ("post", "/jobs/{jobId}/lock"): ("RuntimeLockJobRequestDto", "RuntimeLockJobResponseDto"),
    ("post", "/jobs/{jobId}/heartbeat"): ("RuntimeHeartbeatRequestDto", "RuntimeHeartbeatResponseDto"),
    ("post", "/jobs/heartbeat"): ("RuntimeBatchHeartbeatRequestDto", "RuntimeBatchHeartbeatResponseDto"),
    ("get", "/jobs/{jobId}/snapshot"): (None, "RuntimeSnapshotResponseDto"),
    ("post", "/model-credentials/resolve"): ("RuntimeResolveCredentialRequestDto", "RuntimeResolveCredentialResponseDto"),
    ("post", "/jobs/{jobId}/result"): ("RuntimeSubmitResultRequestDto", "RuntimeSubmitResultResponseDto"),
    ("post", "/jobs/{jobId}/fail"): ("RuntimeSubmitFailureRequestDto", "RuntimeSubmitFailureResponseDto"),
    ("post", "/jobs/{jobId}/release"): ("RuntimeReleaseJobRequestDto", "RuntimeReleaseJobResponseDto"),
    ("post", "/invocation-logs"): ("RuntimeInvocationLogsRequestDto", "RuntimeInvocationLogAckDto"),
    ("get", "/health"): (None, "RuntimeHealthResponseDto"),
}


@pytest.fixture(scope="module")
def contract():
    return yaml.safe_load(CONTRACT.read_text())


@pytest.fixture(scope="module")
def validator(contract):
    """Checks a value against a component."""

    def check(name, value):
        schema = {"$ref": f"#/components/schemas/{name}", "components": contract["components"]}
        jsonschema_rs.validate(schema, value)

    return check


def test_the_contract_in_the_repository_is_up_to_date_and_valid(tmp_path):
    file = tmp_path / "openapi.yaml"
    call_command(
        "spectacular", urlconf="runtime_protocol.openapi_urls", custom_settings="runtime_protocol.openapi.SETTINGS", file=str(file),
        validate=True, fail_on_warn=True,
    )  # fmt: skip
    assert file.read_text() == CONTRACT.read_text(), f"The protocol has changed. Look at what that does to runtimes, then run: {UPDATE}"


def test_acceptance_2_and_8_every_endpoint_has_its_path_and_its_dtos(contract):
    assert contract["openapi"].startswith("3.1")
    for (method, path), (request, answer) in ENDPOINT_DTOS.items():
        operation = contract["paths"][f"/internal/runtime{path}"][method]
        if request:
            assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{request}"}
        assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{answer}"}
    assert set(contract["paths"]) == {f"/internal/runtime{path}" for _, path in ENDPOINT_DTOS} | {"/internal/runtime/schema"}
    assert "RuntimeInvocationLogDto" in contract["components"]["schemas"]


def test_acceptance_3_every_endpoint_says_that_it_needs_the_token(contract):
    for path in contract["paths"].values():
        for operation in path.values():
            assert operation["security"] == [{"serviceToken": []}]


def test_acceptance_4_every_failure_is_the_envelope_with_its_codes(contract):
    assert contract["components"]["schemas"]["RuntimeErrorCode"]["enum"] == sorted(CODES, key=list(CODES).index)
    assert {"errorCode", "message", "retryable", "requestId"} == set(contract["components"]["schemas"]["RuntimeErrorDto"]["required"])
    shown = set()
    for path in contract["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                if int(status) < 400:
                    continue
                media = response["content"]["application/json"]
                assert media["schema"] == {"$ref": "#/components/schemas/RuntimeErrorDto"}
                for code, example in media["examples"].items():
                    shown.add(example["value"]["errorCode"])
                    assert CODES[example["value"]["errorCode"]].status == int(status), code
    # These three are no endpoint's own: unknown paths and wrong methods.
    assert set(CODES) - shown == {"not_found", "method_not_allowed"}


def dtos():
    return [made for made in vars(dto).values() if isinstance(made, type) and issubclass(made, Dto) and made.example]


@pytest.mark.parametrize("made", dtos(), ids=lambda made: made.__name__)
def test_every_dto_has_an_example_that_is_true_to_it(made, validator):
    validator(made.__name__, dict(made.example))
    if made.__name__.endswith("RequestDto"):
        assert made.parse(dict(made.example))


def test_requests_take_no_other_fields_and_answers_may_grow(contract):
    for name, schema in contract["components"]["schemas"].items():
        if name.endswith("RequestDto"):
            assert schema["additionalProperties"] is False, name
        elif name.endswith("ResponseDto"):
            assert "additionalProperties" not in schema, name


@pytest.mark.django_db
def test_runtimes_can_fetch_the_contract(runtime):
    answer = runtime.get("schema")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/yaml")
    assert answer.body == CONTRACT.read_text()
    assert runtime.get("schema", headers={"Accept": "application/yaml"}).status == 200


@pytest.mark.django_db
def test_every_answer_is_what_the_contract_says(runtime, job, validator):
    polled = runtime.pull()
    validator("RuntimePollJobsResponseDto", polled.body)
    lease = polled["jobs"][0]["lease"]
    validator("RuntimeSnapshotResponseDto", runtime.snapshot(lease).body)
    validator("RuntimeResolveCredentialResponseDto", runtime.resolve(lease).body)
    validator("RuntimeHeartbeatResponseDto", runtime.beat(lease).body)
    validator("RuntimeBatchHeartbeatResponseDto", runtime.beat_all(lease, {**lease, "jobId": str(job.snapshot_id)}).body)
    validator("RuntimeSubmitFailureResponseDto", runtime.fail(lease).body)
    validator("RuntimeHealthResponseDto", runtime.get("health").body)
    validator("RuntimeErrorDto", runtime.beat(lease).body)
    validator("RuntimeErrorDto", runtime.poll(x=1).body)


def test_the_contract_tells_the_bounds_of_labels(validator):
    poll = dict(dto.RuntimePollJobsRequestDto.example)
    for labels in (None, {}, {"n" * 100: "v" * 200}, {str(number): "" for number in range(32)}):
        validator("RuntimePollJobsRequestDto", {**poll, "labels": labels})
        assert dto.RuntimePollJobsRequestDto.parse({**poll, "labels": labels})
    for labels in ({"": "x"}, {"n" * 101: "x"}, {"n": "v" * 201}, {str(number): "" for number in range(33)}):
        with pytest.raises(jsonschema_rs.ValidationError):
            validator("RuntimePollJobsRequestDto", {**poll, "labels": labels})
        with pytest.raises(ValidationError):
            dto.RuntimePollJobsRequestDto.parse({**poll, "labels": labels})
