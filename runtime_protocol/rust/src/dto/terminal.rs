//! The calls that end an attempt: result, failure, release.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Holder, RuntimeIssueDto, RuntimeJobStatus, RuntimeUsageDto, Structured, Timestamp};

wire_enum! {
    /// What became of a result.
    RuntimeResultStatus {
        /// Stored and projected.
        Succeeded = "succeeded",
        /// Stored; it breaks a rule.
        Rejected = "rejected",
    }
}

/// Body of `POST jobs/{jobId}/result`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSubmitResultRequestDto {
    /// The job.
    pub job_id: Uuid,
    /// Who holds it.
    #[serde(flatten)]
    pub holder: Holder,
    /// Which version of the output schema it follows.
    pub schema_version: String,
    /// The model's text, as it came; at most 1 MiB.
    pub raw_output: String,
    /// The structured payload. `None`: the server reads and repairs `raw_output` itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated_output: Option<Structured>,
    /// Lower-case hex SHA-256 of the UTF-8 bytes of `raw_output`.
    pub output_hash: String,
    /// `None`: `jobId:attemptNo:outputHash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_idempotency_key: Option<String>,
    /// Model calls of this attempt, at most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Vec<RuntimeUsageDto>>,
}

/// Answer of `POST jobs/{jobId}/result`: all of it is committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSubmitResultResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// The stored result.
    pub result_id: Uuid,
    /// What became of it.
    pub status: RuntimeResultStatus,
    /// How the job goes on.
    pub job_status: RuntimeJobStatus,
    /// Which attempt this was.
    pub attempt_no: u64,
    /// This call was answered before; this is the first answer again.
    pub duplicate: bool,
    /// The lease was found to have run out, and nobody had taken the job.
    pub late: bool,
    /// NUL or lone surrogates were stored as U+FFFD.
    pub sanitized: bool,
    /// What is wrong with it.
    pub validation_errors: Vec<RuntimeIssueDto>,
}

/// Body of `POST jobs/{jobId}/fail`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSubmitFailureRequestDto {
    /// The job.
    pub job_id: Uuid,
    /// Who holds it.
    #[serde(flatten)]
    pub holder: Holder,
    /// One of [`super::AttemptErrorCode`].
    pub error_code: String,
    /// For staff; 16 KiB are kept. No key, no text of the input.
    pub message: String,
    /// Decides, within the job's budget.
    pub retryable: bool,
    /// Not before then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<f64>,
    /// Model calls of this attempt, at most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Vec<RuntimeUsageDto>>,
}

/// Answer of `POST jobs/{jobId}/fail`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSubmitFailureResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// How the job goes on.
    pub job_status: RuntimeJobStatus,
    /// Which attempt this was.
    pub attempt_no: u64,
    /// Retries so far.
    pub retry_count: u64,
    /// Retries at most.
    pub max_retry_count: u64,
    /// When the job is due again.
    pub next_attempt_at: Option<Timestamp>,
    /// This call was answered before; this is the first answer again.
    pub duplicate: bool,
    /// The lease was found to have run out, and nobody had taken the job.
    pub late: bool,
    /// NUL or lone surrogates were stored as U+FFFD.
    pub sanitized: bool,
    /// The message was cut.
    pub truncated: bool,
}

/// Body of `POST jobs/{jobId}/release`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeReleaseJobRequestDto {
    /// Who holds the job.
    #[serde(flatten)]
    pub holder: Holder,
    /// For staff; the first 200 characters are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer of `POST jobs/{jobId}/release`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeReleaseJobResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// How the job goes on.
    pub job_status: RuntimeJobStatus,
    /// Which attempt this was.
    pub attempt_no: u64,
    /// This call was answered before; this is the first answer again.
    pub duplicate: bool,
}
