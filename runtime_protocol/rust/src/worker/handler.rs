//! What a runtime's author writes, and what comes of it.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use crate::dto::{AttemptErrorCode, Structured};

use super::Job;

/// Executes a job. Any `async fn(Job) -> Result<Output, Failure>` is one.
///
/// Its future is dropped at the next `.await` when the job is cancelled, overtaken or out of time; a loop that burns the processor should
/// look at [`Job::is_aborted`]. What it returns after that is thrown away.
pub trait Handler: Send + Sync + 'static {
    /// One attempt.
    fn handle(&self, job: Job) -> impl Future<Output = Result<Output, Failure>> + Send + 'static;
}

impl<F, R> Handler for F
where
    F: Fn(Job) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Output, Failure>> + Send + 'static,
{
    fn handle(&self, job: Job) -> impl Future<Output = Result<Output, Failure>> + Send + 'static {
        self(job)
    }
}

/// What the model answered.
#[derive(Debug, Clone)]
pub struct Output {
    pub(crate) raw: String,
    pub(crate) validated: Option<Structured>,
    pub(crate) schema_version: Option<String>,
}

impl Output {
    /// The model's text, as it came; the server reads and repairs it.
    #[must_use]
    pub fn text(raw: impl Into<String>) -> Self {
        Self { raw: raw.into(), validated: None, schema_version: None }
    }

    /// The model's text, and what the handler read in it: the server's checks begin at the output schema.
    ///
    /// # Errors
    /// `schema_validation_failed`, when it is neither an object nor an array.
    pub fn validated(raw: impl Into<String>, value: &impl Serialize) -> Result<Self, Failure> {
        let value = serde_json::to_value(value).ok().and_then(|value| Structured::try_from(value).ok());
        let message = "structured output is an object or an array";
        let validated = Some(value.ok_or_else(|| Failure::new(AttemptErrorCode::SchemaValidationFailed, message))?);
        Ok(Self { validated, ..Self::text(raw) })
    }

    /// Follow another version of the output schema than the one that the job asks for.
    #[must_use]
    pub fn schema_version(mut self, version: impl Into<String>) -> Self {
        self.schema_version = Some(version.into());
        self
    }
}

/// Why an attempt failed. Any error becomes one by `?`: `internal_error`, retryable.
#[derive(Debug, Clone)]
pub struct Failure {
    pub(crate) code: AttemptErrorCode,
    pub(crate) message: String,
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// A failure with a message for staff (16 KiB of it are kept), which must hold no key and no text of the input. Whether it may be
    /// retried is the code's, unless it is said.
    #[must_use]
    pub fn new(code: AttemptErrorCode, message: impl Into<String>) -> Self {
        Self { retryable: code.is_retryable(), code, message: message.into(), retry_after: None }
    }

    /// What a provider's HTTP status means.
    #[must_use]
    pub fn from_provider_status(status: u16, retry_after: Option<Duration>) -> Self {
        use AttemptErrorCode as Code;
        let code = match status {
            401 | 403 => Code::ProviderAuthFailed,
            402 => Code::ProviderQuotaExhausted,
            408 | 504 => Code::ProviderTimeout,
            413 => Code::ContextTooLong,
            429 => Code::ProviderRateLimited,
            500.. => Code::ProviderUnavailable,
            _ => Code::ProviderRejectedRequest,
        };
        let failure = Self::new(code, format!("the provider answered {status}"));
        Self { retry_after, ..failure }
    }

    /// What a provider's call that got no whole answer means.
    #[must_use]
    pub fn from_provider_error(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::new(AttemptErrorCode::ProviderTimeout, "no answer in time");
        }
        // Not its text: it may hold the address, and an address may hold a key.
        let what = if error.is_connect() { "it could not be reached" } else { "its answer broke off or could not be read" };
        Self::new(AttemptErrorCode::ProviderUnavailable, what)
    }

    /// Retry it or not, whatever the code says.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Not before then.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What it is.
    #[must_use]
    pub fn code(&self) -> &AttemptErrorCode {
        &self.code
    }
}

// As in other crates of errors: since this is no `Error` itself, every `Error` can become one.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(AttemptErrorCode::InternalError, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_providers_status_has_a_code_and_says_whether_to_retry() {
        use AttemptErrorCode as Code;
        for (status, code, retryable) in [
            (400, Code::ProviderRejectedRequest, false),
            (401, Code::ProviderAuthFailed, false),
            (402, Code::ProviderQuotaExhausted, false),
            (408, Code::ProviderTimeout, true),
            (413, Code::ContextTooLong, false),
            (429, Code::ProviderRateLimited, true),
            (500, Code::ProviderUnavailable, true),
            (504, Code::ProviderTimeout, true),
            (529, Code::ProviderUnavailable, true),
        ] {
            let failure = Failure::from_provider_status(status, None);
            assert_eq!((failure.code, failure.retryable), (code, retryable), "{status}");
        }
    }

    #[test]
    fn any_error_becomes_a_failure_and_structured_output_has_a_structure() {
        fn fails() -> Result<Output, Failure> {
            "x".parse::<u8>()?;
            Ok(Output::text(""))
        }
        let failure = fails().expect_err("it fails");
        assert_eq!((failure.code, failure.retryable), (AttemptErrorCode::InternalError, true));
        assert!(Output::validated("1", &1).is_err());
        assert!(Output::validated("[]", &[1]).is_ok());
    }
}
