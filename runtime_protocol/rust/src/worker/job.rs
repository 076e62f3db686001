//! What a handler sees of its job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::dto::{
    AttemptErrorCode, RuntimeErrorCode, RuntimeJobOfferDto, RuntimeResolveCredentialRequestDto, RuntimeResolveCredentialResponseDto,
    RuntimeSnapshotResponseDto, RuntimeUsageDto,
};
use crate::{CallError, Client};

use super::attempt::{Attempt, End};
use super::heart::Heart;
use super::logs::Logs;
use super::Failure;

const LARGEST_CHECKPOINT: usize = 16 * 1024;
const LONGEST_MESSAGE: usize = 200;

/// The checkpoint has more than 16 KiB of JSON.
#[derive(Debug, thiserror::Error)]
#[error("a checkpoint has at most 16,384 bytes of JSON; this one has {0}")]
pub struct TooLarge(usize);

/// A job under its lease. Clones speak of the same attempt.
#[derive(Debug, Clone)]
pub struct Job {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) snapshot: Arc<RuntimeSnapshotResponseDto>,
    pub(crate) client: Client,
    pub(crate) heart: Arc<Heart>,
    pub(crate) logs: Logs,
}

impl Job {
    /// The job.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.attempt.job_id()
    }

    /// Which execution this is, from 1.
    #[must_use]
    pub fn attempt_no(&self) -> u64 {
        self.attempt.lease.attempt_no
    }

    /// Its type, model, versions and the rest of what the poll said.
    #[must_use]
    pub fn offer(&self) -> &RuntimeJobOfferDto {
        &self.attempt.offer
    }

    /// The input and its version. It is other people's text: do not log it.
    #[must_use]
    pub fn snapshot(&self) -> &RuntimeSnapshotResponseDto {
        &self.snapshot
    }

    /// The input, read as `T`.
    ///
    /// # Errors
    /// `unsupported_input_schema`, not retryable, when it is of another form.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        T::deserialize(&self.snapshot.payload).map_err(|_| {
            // The error's own text may repeat the input.
            let version = &self.snapshot.input_schema_version;
            Failure::new(AttemptErrorCode::UnsupportedInputSchema, format!("this runtime cannot read the input of version {version}"))
        })
    }

    /// What an earlier attempt left, see [`Job::save_checkpoint`].
    #[must_use]
    pub fn checkpoint(&self) -> Option<&Value> {
        self.attempt.lease.checkpoint.as_ref()
    }

    /// The key for the model call. Ask just before it: this is the last check that the job is still wanted.
    ///
    /// # Errors
    /// `credential_unavailable`, not retryable, or that the attempt is over: return it.
    pub async fn credential(&self) -> Result<RuntimeResolveCredentialResponseDto, Failure> {
        let request = RuntimeResolveCredentialRequestDto { job_id: self.id(), holder: self.attempt.holder.clone() };
        let answer = insist(&self.attempt, &self.heart, || self.client.resolve_credential(&request)).await?;
        self.attempt.lent(answer.api_key.clone());
        Ok(answer)
    }

    /// Percent done and a few words (cut at 200 characters): the next heartbeat takes them along.
    pub fn progress(&self, percent: u8, message: &str) {
        let message = message.chars().take(LONGEST_MESSAGE);
        // What PostgreSQL cannot store would be refused.
        let message = message.map(|one| if one == '\0' { '\u{fffd}' } else { one });
        let message = Some(message.collect()).filter(|text: &String| !text.is_empty());
        self.attempt.report(|report| {
            report.progress = Some(percent.min(100));
            report.message = message;
        });
    }

    /// What the next attempt should know if this one does not end: the next heartbeat takes it along.
    ///
    /// # Errors
    /// [`TooLarge`]
    pub fn save_checkpoint(&self, checkpoint: Value) -> Result<(), TooLarge> {
        let size = checkpoint.to_string().len();
        if size > LARGEST_CHECKPOINT {
            return Err(TooLarge(size));
        }
        self.attempt.report(|report| report.checkpoint = Some(checkpoint));
        Ok(())
    }

    /// Reports one model call, a failed or aborted one too: it is money. Calls are sent in batches, and with the result as well.
    pub fn record_call(&self, call: RuntimeUsageDto) {
        self.attempt.spent(call.clone());
        self.logs.add(&self.attempt, call);
    }

    /// Whether the work is for nothing: cancelled, overtaken, out of time, or this process stops.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.attempt.ended().is_some()
    }

    /// Waits until that is so.
    pub async fn aborted(&self) {
        self.attempt.until_end().await;
    }

    /// What is left of the attempt's own time.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.attempt.deadline.saturating_duration_since(Instant::now())
    }
}

/// Repeat a call of a running attempt until it is answered or the attempt is over. An attempt that the answer ends is marked as ended.
pub(crate) async fn insist<A, F>(attempt: &Attempt, heart: &Heart, call: impl Fn() -> F) -> Result<A, Failure>
where
    F: std::future::Future<Output = Result<A, CallError>>,
{
    let mut backoff = Backoff::default();
    loop {
        let answer = tokio::select! {
            answer = call() => answer,
            _ = attempt.until_end() => return Err(over()),
        };
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if let CallError::Refused(refusal) = &error {
            if refusal.lease_expired() {
                heart.beat_soon(attempt);
            } else if refusal.ends_attempt() {
                attempt.end(match refusal.error.error_code {
                    RuntimeErrorCode::JobCancelled => End::Cancelled,
                    ref code => End::Lost(code.clone()),
                });
                return Err(over());
            } else if !error.is_transient() {
                let code = match refusal.error.error_code {
                    RuntimeErrorCode::CredentialUnavailable => AttemptErrorCode::CredentialUnavailable,
                    _ => AttemptErrorCode::InternalError,
                };
                return Err(Failure::new(code, error.to_string()));
            }
        }
        let wait = backoff.after(&error);
        tracing::info!(job = %attempt.job_id(), "again in {wait:.1?}: {error}");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = attempt.until_end() => return Err(over()),
        }
    }
}

/// Nobody reports it: how the attempt ended is known already.
fn over() -> Failure {
    Failure::new(AttemptErrorCode::Cancelled, "the attempt is over")
}
