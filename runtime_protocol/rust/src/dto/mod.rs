//! The types of the wire, under the names of `openapi.yaml`. A test holds each field, its type and whether it is required against it.
//!
//! Fields that an answer has and these types do not are ignored, and every enumeration has an `Unknown`: within protocol 1.x a newer
//! server may add both. Optional fields of a request are left out when they are `None`.

#[macro_use]
mod wire_enum;
mod codes;
mod common;
mod credential;
mod error;
mod health;
mod heartbeat;
mod jobs;
mod snapshot;
mod terminal;
mod usage;

pub use codes::{AttemptErrorCode, RuntimeErrorCode};
pub use common::{Holder, RuntimeApiKeyMode, RuntimeJobStatus, Structured, Timestamp};
pub use credential::{RuntimeResolveCredentialRequestDto, RuntimeResolveCredentialResponseDto};
pub use error::{RuntimeErrorDto, RuntimeIssueDto};
pub use health::{RuntimeHealthResponseDto, RuntimeHealthStatus, RuntimeLimitsDto};
pub use heartbeat::{
    RuntimeBatchHeartbeatDirective, RuntimeBatchHeartbeatJobDto, RuntimeBatchHeartbeatJobResponseDto, RuntimeBatchHeartbeatRequestDto,
    RuntimeBatchHeartbeatResponseDto, RuntimeHeartbeatDirective, RuntimeHeartbeatRequestDto, RuntimeHeartbeatResponseDto,
};
pub use jobs::{
    RuntimeJobOfferDto, RuntimeLockJobRequestDto, RuntimeLockJobResponseDto, RuntimePollDirective, RuntimePollJobsRequestDto,
    RuntimePollJobsResponseDto,
};
pub use snapshot::RuntimeSnapshotResponseDto;
pub use terminal::{
    RuntimeReleaseJobRequestDto, RuntimeReleaseJobResponseDto, RuntimeResultStatus, RuntimeSubmitFailureRequestDto,
    RuntimeSubmitFailureResponseDto, RuntimeSubmitResultRequestDto, RuntimeSubmitResultResponseDto,
};
pub use usage::{
    RuntimeInvocationLogAckDto, RuntimeInvocationLogDto, RuntimeInvocationLogRejectionDto, RuntimeInvocationLogsRequestDto, RuntimeUsageDto,
};
