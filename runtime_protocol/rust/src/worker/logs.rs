//! Model calls, reported in batches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::dto::{RuntimeInvocationLogDto, RuntimeInvocationLogsRequestDto, RuntimeUsageDto};
use crate::Client;

use super::attempt::Attempt;

/// What one call takes.
const LARGEST_BATCH: usize = 100;
/// How long a batch is collected.
const PAUSE: Duration = Duration::from_millis(500);
/// Beyond it the oldest are dropped, said in the log: each rides on its attempt's terminal call as well.
const MOST_WAITING: usize = 10_000;

/// What has not been reported yet. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<RuntimeInvocationLogDto>>>);

impl Logs {
    pub(crate) fn add(&self, attempt: &Attempt, usage: RuntimeUsageDto) {
        let entry = RuntimeInvocationLogDto { job_id: attempt.job_id(), holder: attempt.holder.clone(), usage };
        self.put(vec![entry], false);
    }

    fn put(&self, mut entries: Vec<RuntimeInvocationLogDto>, in_front: bool) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if in_front {
            std::mem::swap(&mut *waiting, &mut entries);
        }
        waiting.extend(entries);
        let surplus = waiting.len().saturating_sub(MOST_WAITING);
        if surplus > 0 {
            waiting.drain(..surplus);
            tracing::error!("{surplus} usage entries were dropped: the server has not taken any for too long");
        }
    }

    /// Up to a batch of what waits.
    pub(crate) fn take(&self) -> Vec<RuntimeInvocationLogDto> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(LARGEST_BATCH);
        waiting.drain(..count).collect()
    }

    /// Report what comes, for ever.
    pub(crate) async fn send(&self, client: &Client) {
        let mut backoff = Backoff::default();
        let mut pause = PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.flush(client).await {
                Ok(()) => {
                    backoff.reset();
                    PAUSE
                }
                Err(error) => backoff.after(&error).max(PAUSE),
            };
        }
    }

    /// Report what waits now. What cannot be reported now waits on; what the server never takes is dropped and said.
    pub(crate) async fn flush(&self, client: &Client) -> Result<(), crate::CallError> {
        loop {
            let logs = self.take();
            if logs.is_empty() {
                return Ok(());
            }
            let mut request = Unsent { logs: self, request: RuntimeInvocationLogsRequestDto { logs } };
            match client.log_invocations(&request.request).await {
                Ok(answer) => {
                    request.request.logs.clear();
                    for one in &answer.rejected {
                        tracing::warn!(invocation = one.invocation_id, "usage was not taken: {}", one.error_code);
                    }
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(entries = request.request.logs.len(), "usage waits: {error}");
                    return Err(error);
                }
                Err(error) => {
                    let count = request.request.logs.len();
                    request.request.logs.clear();
                    tracing::error!("{count} usage entries were not taken: {error}");
                }
            }
        }
    }
}

/// Goes back to the others when the call did not succeed, or was dropped half-way.
struct Unsent<'a> {
    logs: &'a Logs,
    request: RuntimeInvocationLogsRequestDto,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut self.request.logs);
        if !entries.is_empty() {
            self.logs.put(entries, true);
        }
    }
}
