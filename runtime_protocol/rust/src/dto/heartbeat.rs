//! Keeping leases.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Holder, RuntimeErrorCode, Timestamp};
use crate::LockToken;

wire_enum! {
    /// What a runtime is told about a job that it holds.
    RuntimeHeartbeatDirective {
        /// Go on.
        Continue = "continue",
        /// Abort the model call, report its usage, then fail or release.
        Cancel = "cancel",
        /// Go on with this job, take no new one.
        Drain = "drain",
    }
}

wire_enum! {
    /// The same for a row of a batch.
    RuntimeBatchHeartbeatDirective {
        /// Go on.
        Continue = "continue",
        /// Abort the model call, report its usage, then fail or release.
        Cancel = "cancel",
        /// Go on with this job, take no new one.
        Drain = "drain",
        /// The job is not yours any more: abort, send nothing more for this attempt.
        Stop = "stop",
    }
}

/// Body of `POST jobs/{jobId}/heartbeat`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeHeartbeatRequestDto {
    /// Who holds the job.
    #[serde(flatten)]
    pub holder: Holder,
    /// Seconds; the server clamps them. `None`: its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
    /// Percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<u8>,
    /// At most 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_message: Option<String>,
    /// At most 16 KiB of JSON; the next attempt gets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<serde_json::Value>,
}

/// Answer of `POST jobs/{jobId}/heartbeat`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeHeartbeatResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// What to do.
    pub directive: RuntimeHeartbeatDirective,
    /// Whether somebody asked to cancel the job.
    pub cancel_requested: bool,
    /// Until when the lease lasts: information, count `lease_seconds`.
    pub lock_until: Timestamp,
    /// How long the lease lasts from now on.
    pub lease_seconds: f64,
    /// When the next heartbeat is expected.
    pub next_heartbeat_seconds: f64,
    /// The lease was found to have run out; nobody had taken the job, and the attempt goes on.
    pub late: bool,
    /// By the server's clock.
    pub server_time: Timestamp,
}

/// Body of `POST jobs/heartbeat`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeBatchHeartbeatRequestDto {
    /// Who holds the jobs.
    pub runtime_instance_id: String,
    /// 1 to 256 of them.
    pub jobs: Vec<RuntimeBatchHeartbeatJobDto>,
}

/// One job of a batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeBatchHeartbeatJobDto {
    /// The job.
    pub job_id: Uuid,
    /// Which attempt of it.
    pub attempt_no: u64,
    /// The secret of the attempt.
    pub lock_token: LockToken,
    /// Seconds; the server clamps them. `None`: its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
    /// Percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<u8>,
    /// At most 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_message: Option<String>,
    /// At most 16 KiB of JSON; the next attempt gets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<serde_json::Value>,
}

/// Answer of `POST jobs/heartbeat`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeBatchHeartbeatResponseDto {
    /// A row for each job of the request.
    pub jobs: Vec<RuntimeBatchHeartbeatJobResponseDto>,
    /// By the server's clock.
    pub server_time: Timestamp,
    /// When the next heartbeat is expected.
    pub next_heartbeat_seconds: f64,
}

/// What became of one job of a batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeBatchHeartbeatJobResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// What to do.
    pub directive: RuntimeBatchHeartbeatDirective,
    /// Why, with `stop`.
    pub reason: Option<RuntimeErrorCode>,
    /// Whether somebody asked to cancel the job.
    pub cancel_requested: bool,
    /// Until when the lease lasts: information, count `lease_seconds`.
    pub lock_until: Option<Timestamp>,
    /// How long the lease lasts from now on.
    pub lease_seconds: Option<f64>,
    /// When the next heartbeat of this job is expected.
    pub next_heartbeat_seconds: Option<f64>,
    /// The lease was found to have run out; nobody had taken the job, and the attempt goes on.
    pub late: bool,
    /// By the server's clock.
    pub server_time: Option<Timestamp>,
}
