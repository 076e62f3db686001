//! Getting work: poll, lock, begin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::dto::{
    RuntimeJobOfferDto, RuntimeLockJobRequestDto, RuntimeLockJobResponseDto, RuntimePollDirective, RuntimePollJobsRequestDto,
    RuntimePollJobsResponseDto, RuntimeReleaseJobRequestDto,
};

use super::attempt::{seconds, Attempt};
use super::config::Claim;
use super::control::Shared;
use super::execution::execute;
use super::handler::Handler;

/// What one poll takes.
const MOST_JOBS: usize = 32;
/// Results that wait for the server, beyond which no new work is taken: it would only make more of them.
const MOST_WAITING: usize = 64;
/// Between polls that a server answers at once and empty although they were to wait.
const IDLE: Duration = Duration::from_millis(500);
/// A server that asks for more than that is misconfigured.
const LONGEST_PAUSE: Duration = Duration::from_secs(900);
/// While the server wants this runtime to take nothing new.
const DRAINING: Duration = Duration::from_secs(5);
/// How often a poll that was cut off is repeated while the worker stops: it may have locked a job.
const LAST_TRIES: u32 = 3;

/// Poll and begin what comes, until the worker stops.
pub(crate) async fn poll<H: Handler>(shared: &Arc<Shared>, handler: &Arc<H>) {
    let mut pause = Duration::ZERO;
    while !shared.stops_within(pause).await {
        let slots = tokio::select! {
            slots = shared.free_slots(MOST_JOBS) => slots,
            () = shared.stopped() => return,
        };
        if shared.waiting() >= MOST_WAITING {
            pause = IDLE;
            continue;
        }
        pause = round(shared, handler, slots).await;
    }
}

/// One poll and what comes of it; how long to wait before the next.
async fn round<H: Handler>(shared: &Arc<Shared>, handler: &Arc<H>, mut slots: Vec<OwnedSemaphorePermit>) -> Duration {
    let began = Instant::now();
    let Some(answer) = ask(shared, slots.len()).await else {
        return Duration::ZERO;
    };
    let received = Instant::now();
    let mut pause = seconds(answer.poll_after_seconds).min(LONGEST_PAUSE);
    shared.heart.set_draining(answer.directive == RuntimePollDirective::Drain);
    if shared.heart.is_draining() {
        pause = pause.max(DRAINING);
    }
    if answer.jobs.is_empty() && pause.is_zero() && began.elapsed() < IDLE {
        pause = IDLE;
    }
    for mut offer in answer.jobs {
        let taken = match offer.lease.take() {
            Some(lease) => Some((lease, received)),
            None => lock(shared, &offer).await,
        };
        let Some((lease, since)) = taken else { continue };
        let attempt = Arc::new(Attempt::new(offer, lease, &shared.instance, since));
        if shared.heart.holds(&attempt) {
            continue; // a repeated answer: it runs already
        }
        // None: more than was asked for.
        let slot = slots.pop().filter(|_| !shared.is_stopping());
        let Some(slot) = slot else {
            hand_back(shared, &attempt).await;
            continue;
        };
        shared.heart.add(&attempt);
        tracing::info!(job = %attempt.job_id(), attempt = attempt.lease.attempt_no, "begins");
        shared.spawn(execute(Arc::clone(shared), Arc::clone(handler), attempt, slot));
    }
    pause
}

/// A poll is repeated under its own `requestId` until it is answered: a lost answer is no lost job. None when the worker stops.
async fn ask(shared: &Shared, slots: usize) -> Option<RuntimePollJobsResponseDto> {
    let auto_lock = shared.claim == Claim::AutoLock;
    let mut request = RuntimePollJobsRequestDto {
        runtime_instance_id: shared.instance.clone(),
        job_types: Some(shared.job_types.clone()).filter(|types| !types.is_empty()),
        max_jobs: Some(slots as u64),
        wait_seconds: Some(if shared.heart.is_draining() { 0.0 } else { shared.wait.as_secs_f64() }),
        auto_lock: auto_lock.then_some(true),
        request_id: auto_lock.then(Uuid::new_v4),
        lease_seconds: shared.lease_seconds.filter(|_| auto_lock),
        runtime_version: Some(concat!("ai-runtime-client ", env!("CARGO_PKG_VERSION")).to_owned()),
        labels: None,
    };
    let mut backoff = Backoff::default();
    let mut last_tries = 0;
    loop {
        let answer = if auto_lock {
            // Not cut off by a stop: what it locks has to be handed back.
            shared.client.poll(&request).await
        } else {
            tokio::select! {
                answer = shared.client.poll(&request) => answer,
                () = shared.stopped() => return None,
            }
        };
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        let wait = backoff.after(&error);
        if error.is_transient() && !error.needs_operator() {
            tracing::warn!("poll: again in {wait:.1?}, {error}");
        } else {
            tracing::error!("poll: again in {wait:.1?}, {error}");
        }
        if shared.is_stopping() {
            // What was refused has locked nothing.
            if error.code().is_some() || last_tries == LAST_TRIES {
                return None;
            }
            last_tries += 1;
            request.wait_seconds = Some(0.0);
            tokio::time::sleep(wait.min(IDLE)).await;
        } else if shared.stops_within(wait).await && error.code().is_some() {
            return None;
        }
    }
}

/// The lease of an offer, counted from before the request, while the offer stands. None when the job cannot be had.
async fn lock(shared: &Shared, offer: &RuntimeJobOfferDto) -> Option<(RuntimeLockJobResponseDto, Instant)> {
    let request = RuntimeLockJobRequestDto {
        runtime_instance_id: shared.instance.clone(),
        request_id: Uuid::new_v4(),
        lease_seconds: shared.lease_seconds,
    };
    let until = Instant::now() + seconds(offer.offer_seconds);
    let mut backoff = Backoff::default();
    loop {
        let sent = Instant::now();
        let error = match shared.client.lock(offer.job_id, &request).await {
            Ok(lease) => return Some((lease, sent)),
            Err(error) => error,
        };
        let wait = backoff.after(&error);
        // Refused: cancelled, taken or not due any more. The next poll brings what can be had.
        let repeat = error.code().is_none() || error.retry_after().is_some();
        if !repeat || Instant::now() + wait > until {
            tracing::info!(job = %offer.job_id, "not taken: {error}");
            return None;
        }
        tokio::time::sleep(wait).await;
    }
}

/// What a poll brought that was open when the worker stopped.
async fn hand_back(shared: &Shared, attempt: &Attempt) {
    let request = RuntimeReleaseJobRequestDto { holder: attempt.holder.clone(), reason: Some("shutdown".to_owned()) };
    let mut backoff = Backoff::default();
    for _ in 0..=LAST_TRIES {
        match shared.client.release(attempt.job_id(), &request).await {
            Ok(_) => {
                tracing::info!(job = %attempt.job_id(), "handed back");
                return;
            }
            Err(error) if error.is_transient() => {
                tokio::time::sleep(backoff.after(&error).min(IDLE)).await;
            }
            Err(error) => {
                tracing::warn!(job = %attempt.job_id(), "not handed back: {error}");
                return;
            }
        }
    }
}
