//! One attempt, from its lease to what is delivered of it.

use std::sync::Arc;
use std::time::Duration;

use ring::digest::{digest, SHA256};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use crate::dto::{AttemptErrorCode, RuntimeReleaseJobRequestDto, RuntimeSubmitFailureRequestDto, RuntimeSubmitResultRequestDto};

use super::attempt::{Attempt, End};
use super::control::Shared;
use super::delivery::{Delivery, Parcel};
use super::handler::{Failure, Handler, Output};
use super::job::{insist, Job};

/// How long a handler that is aborted may take to reach its next `.await`, before its job is handed back without it.
const ABORT: Duration = Duration::from_secs(1);

/// How long a release is tried.
const LAST_RELEASE: Duration = Duration::from_secs(5);

enum Outcome {
    Output(Output),
    Failed(Failure),
    Ended(End),
}

/// Lead the attempt, then deliver. The slot is free when the handler has ended and the delivery is done or has to wait.
pub(crate) async fn execute<H: Handler>(shared: Arc<Shared>, handler: Arc<H>, attempt: Arc<Attempt>, slot: OwnedSemaphorePermit) {
    let slot = Arc::new(slot);
    let outcome = lead(&shared, handler, &attempt, &slot).await;
    if let Some(parcel) = parcel_of(&attempt, outcome) {
        let is_release = matches!(parcel, Parcel::Release { .. });
        // A lease ends by itself: a release that cannot be delivered now is not worth keeping.
        let spool = shared.spool.as_ref().filter(|_| !is_release);
        let keep = if is_release { LAST_RELEASE } else { shared.keep };
        let waiting = shared.waiting_one(slot);
        let delivery = Delivery::new(parcel, spool, keep).await;
        delivery.run(&shared.client, spool, || waiting.begin()).await;
    }
    shared.heart.remove(&attempt);
}

async fn lead<H: Handler>(shared: &Shared, handler: Arc<H>, attempt: &Arc<Attempt>, slot: &Arc<OwnedSemaphorePermit>) -> Outcome {
    let snapshot = insist(attempt, &shared.heart, || shared.client.snapshot(attempt.job_id(), &attempt.holder));
    let snapshot = match snapshot.await {
        Ok(snapshot) => Arc::new(snapshot),
        Err(failure) => return ended_or(attempt, Outcome::Failed(failure)),
    };
    let job = Job {
        attempt: Arc::clone(attempt),
        snapshot,
        client: shared.for_handlers.clone(),
        heart: Arc::clone(&shared.heart),
        logs: shared.logs.clone(),
    };
    let mut task = shared.user.spawn(async move { handler.handle(job).await });
    let _aborting = AbortAtEnd(task.abort_handle());
    let joined = tokio::select! {
        biased;
        joined = &mut task => joined,
        end = attempt.until_end() => {
            tracing::warn!(job = %attempt.job_id(), "aborted: {end:?}");
            abort(task, Arc::clone(slot)).await;
            return Outcome::Ended(end);
        }
    };
    match joined {
        Ok(Ok(output)) => Outcome::Output(output),
        Ok(Err(failure)) => ended_or(attempt, Outcome::Failed(failure)),
        Err(error) => ended_or(attempt, after_join_error(error)),
    }
}

/// A handler does not outlive who leads it, however that ends.
struct AbortAtEnd(AbortHandle);

impl Drop for AbortAtEnd {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A failure because the attempt had ended is none of its own.
fn ended_or(attempt: &Attempt, outcome: Outcome) -> Outcome {
    attempt.ended().map_or(outcome, Outcome::Ended)
}

fn after_join_error(error: JoinError) -> Outcome {
    if error.is_panic() {
        // What it says may hold anything; the panic hook has printed it here.
        let message = "the handler panicked";
        return Outcome::Failed(Failure::new(AttemptErrorCode::InternalError, message));
    }
    // The tokio runtime of the handlers shuts down.
    Outcome::Ended(End::Shutdown)
}

/// A handler that does not come to an `.await` keeps its slot until it does; its job does not wait for it.
async fn abort(mut task: JoinHandle<Result<Output, Failure>>, slot: Arc<OwnedSemaphorePermit>) {
    task.abort();
    if tokio::time::timeout(ABORT, &mut task).await.is_err() {
        tracing::error!("a handler does not end: it burns the processor without looking at is_aborted()");
        tokio::spawn(async move {
            let _ = task.await;
            drop(slot);
        });
    }
}

/// What the server is told; None when nothing more is to be sent for the attempt.
fn parcel_of(attempt: &Attempt, outcome: Outcome) -> Option<Parcel> {
    let failure = match outcome {
        Outcome::Output(output) => return Some(result_of(attempt, output)),
        Outcome::Failed(failure) => failure,
        // A failure of a job that is being cancelled makes it cancelled; its usage rides along.
        Outcome::Ended(End::Cancelled) => Failure::new(AttemptErrorCode::Cancelled, "aborted by a cancel"),
        Outcome::Ended(End::TimedOut) => {
            Failure::new(AttemptErrorCode::ProviderTimeout, "the attempt's time was over before its handler had ended")
        }
        Outcome::Ended(End::Shutdown) => {
            let body = RuntimeReleaseJobRequestDto { holder: attempt.holder.clone(), reason: Some("shutdown".to_owned()) };
            return Some(Parcel::Release { job_id: attempt.job_id(), body });
        }
        Outcome::Ended(End::Lost(_) | End::RanOut) => return None,
    };
    Some(Parcel::Failure {
        body: Box::new(RuntimeSubmitFailureRequestDto {
            job_id: attempt.job_id(),
            holder: attempt.holder.clone(),
            error_code: failure.code.to_string(),
            message: attempt.masked(&failure.message),
            retryable: failure.retryable,
            retry_after_seconds: failure.retry_after.map(|wait| wait.as_secs_f64()),
            usage: attempt.usage(),
        }),
    })
}

fn result_of(attempt: &Attempt, output: Output) -> Parcel {
    Parcel::Result {
        body: Box::new(RuntimeSubmitResultRequestDto {
            job_id: attempt.job_id(),
            holder: attempt.holder.clone(),
            schema_version: output.schema_version.unwrap_or_else(|| attempt.offer.output_schema_version.clone()),
            output_hash: hash(&output.raw),
            raw_output: output.raw,
            validated_output: output.validated,
            result_idempotency_key: None,
            usage: attempt.usage(),
        }),
    }
}

/// Lower-case hex SHA-256 of the UTF-8 bytes.
fn hash(text: &str) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(64);
    for byte in digest(&SHA256, text.as_bytes()).as_ref() {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_is_that_of_the_bytes() {
        assert_eq!(super::hash("Größe"), "aedc3f80989a6546962705852b2f4a481dbd1e490760693525c3724bacab3f50");
    }
}
