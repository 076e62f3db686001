//! What can come of a call.

use std::time::Duration;

use crate::dto::{RuntimeErrorCode, RuntimeErrorDto};

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered with a failure of its own.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Nothing of the server's came back: no connection, a cut, a time-out, or a proxy's page, whatever its status. The call may have
    /// been carried out all the same; every call of the protocol can be repeated.
    #[error("no answer from the server: {0}")]
    NoAnswer(String),
}

/// The server's answer to a call that it refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The HTTP status; information, since [`RuntimeErrorDto::error_code`] decides.
    pub status: u16,
    /// The body.
    pub error: RuntimeErrorDto,
    /// The header `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {} (request {})", self.status, self.error.error_code, self.error.message, self.error.request_id)
    }
}

impl Refusal {
    /// The lease ran out and nobody has taken the job: a heartbeat, then the same call again.
    #[must_use]
    pub fn lease_expired(&self) -> bool {
        self.error.error_code == RuntimeErrorCode::JobLockLost && self.detail("leaseExpired") == Some(&serde_json::Value::Bool(true))
    }

    /// Whether this failure has ended the attempt: nothing more is to be sent for it.
    #[must_use]
    pub fn ends_attempt(&self) -> bool {
        use RuntimeErrorCode as Code;
        if self.lease_expired() {
            return false;
        }
        matches!(
            self.error.error_code,
            Code::JobLockLost
                | Code::JobCancelled
                | Code::JobAlreadyFinished
                | Code::ResultConflict
                | Code::JobNotFound
                | Code::InvalidModelOutput
                | Code::SchemaValidationFailed
                | Code::BusinessValidationFailed
                | Code::ReferenceValidationFailed
        ) || self.detail("jobStatus").is_some()
    }

    /// A member of `details`.
    #[must_use]
    pub fn detail(&self, name: &str) -> Option<&serde_json::Value> {
        self.error.details.as_ref()?.get(name)
    }
}

impl CallError {
    /// The server's code, when it answered.
    #[must_use]
    pub fn code(&self) -> Option<&RuntimeErrorCode> {
        match self {
            Self::Refused(refusal) => Some(&refusal.error.error_code),
            Self::NoAnswer(_) => None,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.error.retryable || self.needs_operator(),
            Self::NoAnswer(_) => true,
        }
    }

    /// Only an operator can mend it: the token is refused or may not do this, or the protocol version is not spoken any more. It can be
    /// tried again once in a minute, since a token may be replaced while the program runs.
    #[must_use]
    pub fn needs_operator(&self) -> bool {
        use RuntimeErrorCode as Code;
        matches!(
            self.code(),
            Some(
                Code::TokenMissing
                    | Code::TokenInvalid
                    | Code::TokenExpired
                    | Code::TokenRevoked
                    | Code::ScopeDenied
                    | Code::InstanceNotAllowed
                    | Code::UpgradeRequired
            )
        )
    }

    /// How long the server asks to wait before the call is repeated.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            Self::NoAnswer(_) => None,
        }
    }
}
