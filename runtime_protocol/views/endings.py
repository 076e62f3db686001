"""The terminal calls: result, failure, release."""

from typing import Any
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs.services import submissions
from runtime_jobs.services.settlements import Fence, Settlement
from runtime_jobs.services.submissions import Failure, Submission
from runtime_jobs.states import JobStatus
from runtime_protocol import dto, limits, requests
from runtime_protocol.errors import ProtocolError
from runtime_protocol.openapi import JOB_ID, operation
from runtime_protocol.server import database
from runtime_protocol.views.base import HELD, ProtocolViewSet, on_behalf
from runtime_protocol.views.usage import take_usage


class EndingsViewSet(ProtocolViewSet):
    @operation(
        "submitResult", "Validates, stores, projects, succeeds", dto.RuntimeSubmitResultResponseDto,
        (
            "job_id_mismatch", *HELD, "result_conflict", "output_hash_mismatch", "invalid_model_output", "schema_validation_failed",
            "business_validation_failed", "reference_validation_failed",
        ),
        body=dto.RuntimeSubmitResultRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def result(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeSubmitResultRequestDto, "jobs")
        requests.same_job(jobId, values["job_id"])
        raw: str = values["raw_output"]
        if len(raw.encode(errors="surrogatepass")) > limits.MAX_OUTPUT_BYTES:
            raise ProtocolError("payload_too_large", "rawOutput is too large.", details={"maxBytes": limits.MAX_OUTPUT_BYTES})
        job_types = requests.caller_of(request).token.touchable()
        fence = requests.fence_of(requests.job_id_of(request, jobId), values)
        submission = Submission(
            raw_output=raw,
            output_hash=values["output_hash"],
            schema_version=values["schema_version"],
            validated_output=values.get("validated_output"),
            idempotency_key=values.get("result_idempotency_key"),
        )
        with database(), on_behalf(request):
            take_usage(fence, values, job_types)
            settled = submissions.submit_result(fence, submission, job_types)
        return _result_answer(fence, settled, sanitized=requests.is_sanitized(raw))

    @operation(
        "submitFailure", "Stores the failure; the job is retried or failed", dto.RuntimeSubmitFailureResponseDto,
        ("job_id_mismatch", *HELD), body=dto.RuntimeSubmitFailureRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def fail(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeSubmitFailureRequestDto, "jobs")
        requests.same_job(jobId, values["job_id"])
        job_types = requests.caller_of(request).token.touchable()
        fence = requests.fence_of(requests.job_id_of(request, jobId), values)
        failure = Failure(values["error_code"], values["message"], values["retryable"], values.get("retry_after_seconds"))
        with database(), on_behalf(request):
            take_usage(fence, values, job_types)
            settled, cut = submissions.submit_failure(fence, failure, job_types)
        return Response(
            dto.RuntimeSubmitFailureResponseDto.answer(
                job_id=fence.job_id,
                job_status=settled.job_status,
                attempt_no=settled.attempt_no,
                retry_count=settled.retry_count,
                max_retry_count=settled.max_retry_count,
                next_attempt_at=settled.next_attempt_at,
                duplicate=settled.duplicate,
                late=settled.late,
                sanitized=requests.is_sanitized(failure.message, failure.code),
                truncated=cut,
            )
        )

    @operation(
        "releaseJob", "Hands the job back; no budget is charged", dto.RuntimeReleaseJobResponseDto, HELD,
        body=dto.RuntimeReleaseJobRequestDto, parameters=[JOB_ID],
    )  # fmt: skip
    def release(self, request: Request, jobId: str) -> Response:
        values = requests.enter(request, dto.RuntimeReleaseJobRequestDto, "jobs")
        fence = requests.fence_of(requests.job_id_of(request, jobId), values)
        with database(), on_behalf(request):
            settled = submissions.release(fence, values.get("reason", ""), requests.caller_of(request).token.touchable())
        return Response(
            dto.RuntimeReleaseJobResponseDto.answer(
                job_id=fence.job_id, job_status=settled.job_status, attempt_no=settled.attempt_no, duplicate=settled.duplicate
            )
        )


def _result_answer(fence: Fence, settled: Settlement, *, sanitized: bool) -> Response:
    issues = [dto.RuntimeIssueDto.answer(**issue.as_json()) for issue in settled.issues]
    succeeded = settled.job_status == JobStatus.SUCCEEDED and settled.result_id is not None
    if not succeeded:
        # Checks or a projector of the definition that raised leave no result: the attempt is over all the same.
        code = settled.refused or "internal_error"
        details: dict[str, Any] = {
            "jobId": str(fence.job_id), "jobStatus": str(settled.job_status), "attemptNo": settled.attempt_no,
            "duplicate": settled.duplicate, "late": settled.late, "sanitized": sanitized, "validationErrors": issues,
        }  # fmt: skip
        if settled.result_id is not None:
            details["resultId"] = str(settled.result_id)
        raise ProtocolError(code, details=details, retryable=False)
    result_id: UUID | None = settled.result_id
    return Response(
        dto.RuntimeSubmitResultResponseDto.answer(
            job_id=fence.job_id,
            result_id=result_id,
            status="succeeded",
            job_status=settled.job_status,
            attempt_no=settled.attempt_no,
            duplicate=settled.duplicate,
            late=settled.late,
            sanitized=sanitized,
            validation_errors=issues,
        )
    )
