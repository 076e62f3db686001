"""The bodies of the protocol, field by field, under the names that the runtime project uses (C: the customer's list)."""

from runtime_protocol.dto.endings import (
    RuntimeIssueDto,
    RuntimeReleaseJobRequestDto,
    RuntimeReleaseJobResponseDto,
    RuntimeSubmitFailureRequestDto,
    RuntimeSubmitFailureResponseDto,
    RuntimeSubmitResultRequestDto,
    RuntimeSubmitResultResponseDto,
)
from runtime_protocol.dto.heartbeats import (
    RuntimeBatchHeartbeatJobDto,
    RuntimeBatchHeartbeatJobResponseDto,
    RuntimeBatchHeartbeatRequestDto,
    RuntimeBatchHeartbeatResponseDto,
    RuntimeHeartbeatRequestDto,
    RuntimeHeartbeatResponseDto,
)
from runtime_protocol.dto.holder import HolderDto
from runtime_protocol.dto.holding import RuntimeResolveCredentialRequestDto, RuntimeResolveCredentialResponseDto, RuntimeSnapshotResponseDto
from runtime_protocol.dto.leasing import (
    RuntimeJobOfferDto,
    RuntimeLockJobRequestDto,
    RuntimeLockJobResponseDto,
    RuntimePollJobsRequestDto,
    RuntimePollJobsResponseDto,
)
from runtime_protocol.dto.server import RuntimeErrorDto, RuntimeHealthResponseDto, RuntimeLimitsDto
from runtime_protocol.dto.usage import (
    RuntimeInvocationLogAckDto,
    RuntimeInvocationLogDto,
    RuntimeInvocationLogRejectionDto,
    RuntimeInvocationLogsRequestDto,
    RuntimeUsageDto,
)

__all__ = [
    "HolderDto",
    "RuntimeBatchHeartbeatJobDto",
    "RuntimeBatchHeartbeatJobResponseDto",
    "RuntimeBatchHeartbeatRequestDto",
    "RuntimeBatchHeartbeatResponseDto",
    "RuntimeErrorDto",
    "RuntimeHealthResponseDto",
    "RuntimeHeartbeatRequestDto",
    "RuntimeHeartbeatResponseDto",
    "RuntimeInvocationLogAckDto",
    "RuntimeInvocationLogDto",
    "RuntimeInvocationLogRejectionDto",
    "RuntimeInvocationLogsRequestDto",
    "RuntimeIssueDto",
    "RuntimeJobOfferDto",
    "RuntimeLimitsDto",
    "RuntimeLockJobRequestDto",
    "RuntimeLockJobResponseDto",
    "RuntimePollJobsRequestDto",
    "RuntimePollJobsResponseDto",
    "RuntimeReleaseJobRequestDto",
    "RuntimeReleaseJobResponseDto",
    "RuntimeResolveCredentialRequestDto",
    "RuntimeResolveCredentialResponseDto",
    "RuntimeSnapshotResponseDto",
    "RuntimeSubmitFailureRequestDto",
    "RuntimeSubmitFailureResponseDto",
    "RuntimeSubmitResultRequestDto",
    "RuntimeSubmitResultResponseDto",
    "RuntimeUsageDto",
]
