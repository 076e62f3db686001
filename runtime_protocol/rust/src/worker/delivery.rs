//! Bringing a terminal call to the server: until it has answered, for as long as it is worth it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::dto::{
    AttemptErrorCode, RuntimeErrorCode, RuntimeInvocationLogsRequestDto, RuntimeReleaseJobRequestDto, RuntimeSubmitFailureRequestDto,
    RuntimeSubmitResultRequestDto,
};
use crate::{CallError, Client};

use super::spool::{self, Spool};

/// A call that must reach the server, with all that it says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub(crate) enum Parcel {
    Result { body: Box<RuntimeSubmitResultRequestDto> },
    Failure { body: Box<RuntimeSubmitFailureRequestDto> },
    Release { job_id: Uuid, body: RuntimeReleaseJobRequestDto },
    Usage { body: RuntimeInvocationLogsRequestDto },
}

impl Parcel {
    async fn send(&self, client: &Client) -> Result<String, CallError> {
        match self {
            Self::Result { body } => {
                let answer = client.submit_result(body).await?;
                Ok(answer.job_status.to_string())
            }
            Self::Failure { body } => {
                let answer = client.submit_failure(body).await?;
                Ok(answer.job_status.to_string())
            }
            Self::Release { job_id, body } => {
                let answer = client.release(*job_id, body).await?;
                Ok(answer.job_status.to_string())
            }
            Self::Usage { body } => {
                let answer = client.log_invocations(body).await?;
                Ok(format!("{} taken", answer.accepted + answer.duplicates))
            }
        }
    }

    fn what(&self) -> String {
        match self {
            Self::Result { body } => format!("result of job {}", body.job_id),
            Self::Failure { body } => format!("failure of job {}: {}", body.job_id, body.error_code),
            Self::Release { job_id, .. } => format!("release of job {job_id}"),
            Self::Usage { body } => format!("{} usage entries", body.logs.len()),
        }
    }

    /// The one failure that is sent after a result that the server will never take and that left the lease as it is.
    fn after_refusal(&self, code: &RuntimeErrorCode) -> Option<Self> {
        let Self::Result { body } = self else {
            return None;
        };
        let error_code = match code {
            RuntimeErrorCode::PayloadTooLarge => AttemptErrorCode::OutputTooLarge,
            _ => AttemptErrorCode::InternalError,
        };
        Some(Self::Failure {
            body: Box::new(RuntimeSubmitFailureRequestDto {
                job_id: body.job_id,
                holder: body.holder.clone(),
                retryable: error_code.is_retryable(),
                error_code: error_code.to_string(),
                message: format!("the server refused the result: {code}"),
                retry_after_seconds: None,
                usage: body.usage.clone(),
            }),
        })
    }
}

/// What to do after an answer that is not 200.
#[derive(Debug)]
enum Verdict {
    Again,
    Over,
    Instead(Parcel),
}

fn judge(parcel: &Parcel, error: &CallError) -> Verdict {
    let CallError::Refused(refusal) = error else {
        return Verdict::Again;
    };
    if refusal.ends_attempt() {
        return Verdict::Over;
    }
    // There is nothing at the path, or not for this method: the request went to the wrong place, which somebody will mend.
    let astray = matches!(refusal.error.error_code, RuntimeErrorCode::NotFound | RuntimeErrorCode::MethodNotAllowed);
    if error.is_transient() || astray || refusal.lease_expired() {
        return Verdict::Again;
    }
    match parcel.after_refusal(&refusal.error.error_code) {
        Some(failure) => Verdict::Instead(failure),
        None => Verdict::Over,
    }
}

/// A parcel on its way.
#[derive(Debug)]
pub(crate) struct Delivery {
    parcel: Parcel,
    file: Option<PathBuf>,
    until: Instant,
}

impl Delivery {
    /// Saved first where there is a spool: from here on a crash loses nothing.
    pub(crate) async fn new(parcel: Parcel, spool: Option<&Spool>, keep: Duration) -> Self {
        let file = match spool {
            Some(spool) => save(spool.clone(), parcel.clone()).await,
            None => None,
        };
        Self { parcel, file, until: Instant::now() + keep }
    }

    /// One that an earlier run left.
    pub(crate) fn kept(kept: spool::Kept, keep: Duration) -> Self {
        Self {
            parcel: kept.parcel,
            file: Some(kept.file),
            // It gets one try at least.
            until: Instant::now() + keep.saturating_sub(kept.age),
        }
    }

    /// Until the server has answered, or the time is over. `waits` is called when it does not succeed at once.
    pub(crate) async fn run(mut self, client: &Client, spool: Option<&Spool>, waits: impl FnOnce()) {
        let mut backoff = Backoff::default();
        let mut waits = Some(waits);
        loop {
            let error = match self.parcel.send(client).await {
                Ok(answer) => {
                    tracing::info!("{}: {answer}", self.parcel.what());
                    break;
                }
                Err(error) => error,
            };
            match judge(&self.parcel, &error) {
                Verdict::Over => {
                    tracing::warn!("{}: {error}", self.parcel.what());
                    break;
                }
                Verdict::Instead(failure) => {
                    tracing::error!("{}: {error}", self.parcel.what());
                    let file = match spool {
                        Some(spool) => save(spool.clone(), failure.clone()).await,
                        None => None,
                    };
                    self.forget();
                    self.parcel = failure;
                    self.file = file;
                }
                Verdict::Again => {
                    let wait = backoff.after(&error);
                    if Instant::now() + wait > self.until {
                        tracing::error!("{}: given up, {error}", self.parcel.what());
                        break;
                    }
                    tracing::warn!("{}: again in {wait:.1?}, {error}", self.parcel.what());
                    if let Some(waits) = waits.take() {
                        waits();
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
        self.forget();
    }

    fn forget(&mut self) {
        if let Some(file) = self.file.take() {
            spool::remove(&file);
        }
    }
}

/// A spool that cannot be written costs the safety, not the result.
pub(crate) async fn save(spool: Spool, parcel: Parcel) -> Option<PathBuf> {
    let saved = tokio::task::spawn_blocking(move || spool.save(&parcel)).await;
    match saved {
        Ok(Ok(file)) => Some(file),
        Ok(Err(error)) => {
            tracing::error!("the spool cannot be written: {error}");
            None
        }
        Err(_) => None,
    }
}
