//! What a refused call is answered with.

use serde::{Deserialize, Serialize};

use super::RuntimeErrorCode;

/// Every failure of every path.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeErrorDto {
    /// What to decide by.
    pub error_code: RuntimeErrorCode,
    /// For people.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// For the server's log.
    pub request_id: String,
    /// What the code says more.
    pub details: Option<serde_json::Value>,
}

/// One thing that is wrong with what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeIssueDto {
    /// A JSON pointer into it.
    pub path: String,
    /// Which rule.
    pub rule: String,
    /// A sentence for people.
    pub message: String,
}
