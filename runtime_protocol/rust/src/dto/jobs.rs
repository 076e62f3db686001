//! Getting work: poll and lock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{RuntimeApiKeyMode, Timestamp};
use crate::LockToken;

wire_enum! {
    /// What a runtime that asks for work is told.
    RuntimePollDirective {
        /// Go on.
        Continue = "continue",
        /// Finish what runs, take nothing new.
        Drain = "drain",
    }
}

/// Body of `POST jobs/poll`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimePollJobsRequestDto {
    /// The process that asks: 1 to 128 of `A–Z a–z 0–9 . _ : -`.
    pub runtime_instance_id: String,
    /// Which types; empty or `None`: all that the token may touch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_types: Option<Vec<String>>,
    /// At most so many; the server's default is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// How long the server may wait for work; its default is 0, its limit 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<f64>,
    /// Lock at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_lock: Option<bool>,
    /// Needed with `auto_lock`: makes the poll repeatable. A new one for each poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Uuid>,
    /// Seconds; the server clamps them. `None`: its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
    /// For staff, at most 100 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_version: Option<String>,
    /// For staff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// Answer of `POST jobs/poll`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimePollJobsResponseDto {
    /// What there is to do; may be empty.
    pub jobs: Vec<RuntimeJobOfferDto>,
    /// By the server's clock.
    pub server_time: Timestamp,
    /// How long to wait before the next poll.
    pub poll_after_seconds: f64,
    /// Whether to take new jobs at all.
    pub directive: RuntimePollDirective,
}

/// One job that may be taken, or was.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeJobOfferDto {
    /// The job.
    pub job_id: Uuid,
    /// What kind of job.
    pub job_type: String,
    /// What kind of thing it is about.
    pub target_type: String,
    /// Which one.
    pub target_id: String,
    /// 0 to 9, higher is sooner.
    pub priority: u8,
    /// Executions before this one.
    pub attempts_made: u64,
    /// Of its snapshot.
    pub input_schema_version: String,
    /// Of its result.
    pub output_schema_version: String,
    /// Which prompt the definition means.
    pub prompt_version: String,
    /// Whose model.
    pub model_provider: String,
    /// Which model.
    pub model_name: String,
    /// Whose key.
    pub api_key_mode: RuntimeApiKeyMode,
    /// How long one attempt may take.
    pub timeout_seconds: u64,
    /// Its input.
    pub snapshot_id: Uuid,
    /// W3C Trace Context of who made the job.
    pub traceparent: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// For so long it is hidden from others; 0 when it comes with its lease.
    pub offer_seconds: f64,
    /// With `auto_lock`.
    pub lease: Option<RuntimeLockJobResponseDto>,
}

/// Body of `POST jobs/{jobId}/lock`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeLockJobRequestDto {
    /// The process that asks.
    pub runtime_instance_id: String,
    /// Makes the lock repeatable. A new one for each lock.
    pub request_id: Uuid,
    /// Seconds; the server clamps them. `None`: its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<f64>,
}

/// A lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeLockJobResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// Which attempt of it.
    pub attempt_no: u64,
    /// The secret of the attempt.
    pub lock_token: LockToken,
    /// Who holds it.
    pub locked_by: String,
    /// When it was taken.
    pub locked_at: Timestamp,
    /// Until when the lease lasts: information, count `lease_seconds`.
    pub lock_until: Timestamp,
    /// How long the lease lasts from now on.
    pub lease_seconds: f64,
    /// The pace of heartbeats.
    pub heartbeat_interval_seconds: f64,
    /// How long the attempt may take.
    pub timeout_seconds: u64,
    /// Its end: information, count `timeout_seconds`.
    pub deadline_at: Timestamp,
    /// Its input.
    pub snapshot_id: Uuid,
    /// The last one that an attempt of this job left.
    pub checkpoint: Option<serde_json::Value>,
    /// By the server's clock.
    pub server_time: Timestamp,
}
