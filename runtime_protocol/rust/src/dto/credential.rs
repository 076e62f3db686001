//! The key for a job's model call.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Holder, RuntimeApiKeyMode};
use crate::Secret;

/// Body of `POST model-credentials/resolve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeResolveCredentialRequestDto {
    /// The job.
    pub job_id: Uuid,
    /// Who holds it.
    #[serde(flatten)]
    pub holder: Holder,
}

/// The key and where it is used. It cannot be serialized: the key belongs into one request and nowhere else.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuntimeResolveCredentialResponseDto {
    /// The job.
    pub job_id: Uuid,
    /// Which credential this is.
    pub credential_id: Uuid,
    /// Whose it is.
    pub api_key_mode: RuntimeApiKeyMode,
    /// Such as `openai`.
    pub model_provider: String,
    /// The model to call.
    pub model_name: String,
    /// Where the provider's API is; `None`: where it always is.
    pub base_url: Option<String>,
    /// The key.
    pub api_key: Secret,
    /// Seconds until the attempt's deadline: then drop the key.
    pub expires_in_seconds: f64,
}
