//! The input of a job.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Timestamp;

/// Answer of `GET jobs/{jobId}/snapshot`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSnapshotResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// Which input.
    pub snapshot_id: Uuid,
    /// Which version of the definition's input.
    pub input_schema_version: String,
    /// The input. It never changes.
    pub payload: serde_json::Value,
    /// Equal for equal inputs; also the ETag.
    pub content_hash: String,
    /// When it was stored.
    pub created_at: Timestamp,
}
