//! What model calls cost.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Holder, RuntimeApiKeyMode, RuntimeErrorCode, Timestamp};

/// One HTTP request to a provider, a failed or aborted one too: it is money.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeUsageDto {
    /// Unique within the job: a repeat is stored once.
    pub invocation_id: String,
    /// Whose model.
    pub provider: String,
    /// Which model.
    pub model: String,
    /// Whose key.
    pub credential_mode: RuntimeApiKeyMode,
    /// Cached ones included. What the provider did not report is `None`, never 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Reasoning included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Of the input, read from the provider's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Of the output, never shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// From the request to the whole answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Decimal text, US dollars, such as `0.00041`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<String>,
    /// As the provider says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// Of a call that failed: one of [`super::AttemptErrorCode`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// For questions to the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<String>,
    /// By this machine's clock: stored as information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

impl RuntimeUsageDto {
    /// A call with a new `invocation_id`; what is known of it is filled in afterwards.
    #[must_use]
    pub fn new(provider: impl Into<String>, model: impl Into<String>, credential_mode: RuntimeApiKeyMode) -> Self {
        Self {
            invocation_id: Uuid::new_v4().to_string(),
            provider: provider.into(),
            model: model.into(),
            credential_mode,
            input_tokens: None,
            output_tokens: None,
            cached_input_tokens: None,
            reasoning_tokens: None,
            latency_ms: None,
            cost_usd: None,
            finish_reason: None,
            error_code: None,
            provider_request_id: None,
            started_at: None,
        }
    }
}

/// A call and whose attempt it was made for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeInvocationLogDto {
    /// The job.
    pub job_id: Uuid,
    /// Who holds or held it.
    #[serde(flatten)]
    pub holder: Holder,
    /// The call.
    #[serde(flatten)]
    pub usage: RuntimeUsageDto,
}

/// Body of `POST invocation-logs`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeInvocationLogsRequestDto {
    /// 1 to 100 of them.
    pub logs: Vec<RuntimeInvocationLogDto>,
}

/// Answer of `POST invocation-logs`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeInvocationLogAckDto {
    /// Stored.
    pub accepted: u64,
    /// Stored before.
    pub duplicates: u64,
    /// Not stored.
    pub rejected: Vec<RuntimeInvocationLogRejectionDto>,
    /// NUL or lone surrogates were stored as U+FFFD.
    pub sanitized: bool,
}

/// An entry that was not stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeInvocationLogRejectionDto {
    /// In `logs`, from 0.
    pub index: u64,
    /// Which call.
    pub invocation_id: String,
    /// Why.
    pub error_code: RuntimeErrorCode,
}
