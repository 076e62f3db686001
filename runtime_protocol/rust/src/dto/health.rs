//! What the server says of itself.

use serde::{Deserialize, Serialize};

use super::Timestamp;

wire_enum! {
    /// How the server is.
    RuntimeHealthStatus {
        /// All of it works.
        Ok = "ok",
        /// Its database cannot be reached.
        Degraded = "degraded",
    }
}

/// Answer of `GET health`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeHealthResponseDto {
    /// How it is.
    pub status: RuntimeHealthStatus,
    /// By its database's clock.
    pub server_time: Timestamp,
    /// What it speaks.
    pub protocol_version: String,
    /// The oldest that it takes.
    pub min_protocol_version: String,
    /// What it takes at most.
    pub limits: RuntimeLimitsDto,
    /// Whether its database answers.
    pub database_ok: bool,
}

/// What the server takes at most.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeLimitsDto {
    /// Bytes of a request.
    pub max_body_bytes: u64,
    /// Bytes of a rawOutput.
    pub max_output_bytes: u64,
    /// Seconds of a long poll.
    pub max_wait_seconds: f64,
    /// Jobs in one poll.
    pub max_jobs_per_poll: u64,
    /// Seconds of the shortest lease.
    pub min_lease_seconds: f64,
    /// Seconds of the longest lease.
    pub max_lease_seconds: f64,
}
