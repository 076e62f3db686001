//! What several DTOs are made of.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::LockToken;

wire_enum! {
    /// Whose key a job's model call uses.
    RuntimeApiKeyMode {
        /// The platform's.
        Platform = "platform",
        /// The user's own.
        User = "user",
    }
}

wire_enum! {
    /// The state of a job.
    RuntimeJobStatus {
        /// Waiting for its first attempt.
        Queued = "queued",
        /// An attempt holds its lease.
        Running = "running",
        /// Waiting for another attempt.
        Retrying = "retrying",
        /// An attempt holds its lease and has been asked to stop.
        CancelRequested = "cancel_requested",
        /// Ended with a result.
        Succeeded = "succeeded",
        /// Ended without one.
        Failed = "failed",
        /// Ended by a cancel.
        Cancelled = "cancelled",
    }
}

/// A moment by the server's clock, RFC 3339. It is text, since nothing may be decided by it: every deadline comes in seconds as well, to be
/// counted by a monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("format" = "date-time")))]
#[serde(transparent)]
pub struct Timestamp(pub String);

/// Who speaks: every call of an attempt carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The process that holds the lease: 1 to 128 of `A–Z a–z 0–9 . _ : -`.
    pub runtime_instance_id: String,
    /// Which attempt of the job.
    pub attempt_no: u64,
    /// The secret of the attempt.
    pub lock_token: LockToken,
}

/// Structured output: a JSON object or array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Structured {
    /// `{…}`
    Object(Map<String, Value>),
    /// `[…]`
    Array(Vec<Value>),
}

impl TryFrom<Value> for Structured {
    type Error = Value;

    /// The value itself comes back when it is neither.
    fn try_from(value: Value) -> Result<Self, Value> {
        match value {
            Value::Object(members) => Ok(Self::Object(members)),
            Value::Array(items) => Ok(Self::Array(items)),
            other => Err(other),
        }
    }
}
