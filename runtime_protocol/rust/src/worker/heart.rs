//! Heartbeats for all attempts, from a thread and a tokio runtime that nothing else uses, counted on the monotonic clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch, Notify};
use uuid::Uuid;

use crate::dto::{
    RuntimeBatchHeartbeatDirective as Directive, RuntimeBatchHeartbeatJobDto, RuntimeBatchHeartbeatJobResponseDto,
    RuntimeBatchHeartbeatRequestDto, RuntimeErrorCode,
};
use crate::Client;

use super::attempt::{seconds, Attempt, End, Report};

/// What one call takes.
const LARGEST_BATCH: usize = 256;
/// How soon after one that failed, at most, and how long one may take.
const AGAIN: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);
/// A server that asked for more would get a busy loop.
const SHORTEST_PACE: Duration = Duration::from_millis(50);

type Key = (Uuid, u64);

fn key(attempt: &Attempt) -> Key {
    (attempt.job_id(), attempt.lease.attempt_no)
}

/// The attempts that are held, and whether the server wants no more.
#[derive(Debug)]
pub(crate) struct Heart {
    instance: String,
    lease_seconds: Option<f64>,
    attempts: Mutex<HashMap<Key, Arc<Attempt>>>,
    changed: Notify,
    beat_now: Notify,
    draining: AtomicBool,
}

impl Heart {
    pub(crate) fn new(instance: String, lease_seconds: Option<f64>) -> Arc<Self> {
        Arc::new(Self {
            instance,
            lease_seconds,
            attempts: Mutex::default(),
            changed: Notify::new(),
            beat_now: Notify::new(),
            draining: AtomicBool::new(false),
        })
    }

    /// Whether this very attempt is held already.
    pub(crate) fn holds(&self, attempt: &Attempt) -> bool {
        self.attempts().contains_key(&key(attempt))
    }

    /// Begin to beat for it.
    pub(crate) fn add(&self, attempt: &Arc<Attempt>) {
        self.attempts().insert(key(attempt), Arc::clone(attempt));
        self.wake();
    }

    pub(crate) fn remove(&self, attempt: &Attempt) {
        self.attempts().remove(&key(attempt));
    }

    pub(crate) fn held(&self) -> Vec<Arc<Attempt>> {
        self.attempts().values().cloned().collect()
    }

    /// A beat out of turn, for a lease that the server calls expired.
    pub(crate) fn beat_soon(&self, attempt: &Attempt) {
        attempt.beat_again_in(Duration::ZERO);
        self.wake();
    }

    /// The server's latest word on whether it wants more to be taken, from a heartbeat or a poll.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<Key, Arc<Attempt>>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.changed.notify_one();
        self.beat_now.notify_one();
    }

    /// Beat until `done`. What comes back resolves when the thread has ended, for whatever reason.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(self: &Arc<Self>, client: Client, mut done: watch::Receiver<bool>) -> std::io::Result<oneshot::Receiver<()>> {
        let heart = Arc::clone(self);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (alive, ended) = oneshot::channel();
        std::thread::Builder::new().name("ai-runtime-heart".to_owned()).spawn(move || {
            let _alive = alive;
            runtime.block_on(async {
                tokio::select! {
                    () = heart.beat(&client) => {}
                    () = heart.watch_time() => {}
                    _ = done.wait_for(|done| *done) => {}
                }
            });
        })?;
        Ok(ended)
    }

    async fn beat(&self, client: &Client) {
        loop {
            let held = self.held();
            let Some(next) = held.iter().map(|attempt| attempt.next_beat()).min() else {
                self.beat_now.notified().await;
                continue;
            };
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = self.beat_now.notified() => continue,
            }
            for batch in self.held().chunks(LARGEST_BATCH) {
                self.beat_batch(client, batch).await;
            }
        }
    }

    async fn beat_batch(&self, client: &Client, batch: &[Arc<Attempt>]) {
        let reports: Vec<Report> = batch.iter().map(|attempt| attempt.take_report()).collect();
        let jobs = batch.iter().zip(&reports);
        let request = RuntimeBatchHeartbeatRequestDto {
            runtime_instance_id: self.instance.clone(),
            jobs: jobs.map(|(attempt, report)| self.row(attempt, report)).collect(),
        };
        let pace = batch.iter().map(|one| one.interval()).min().unwrap_or(AGAIN);
        // Several tries fit into what is left of a lease, also of a short one.
        let again = AGAIN.min(pace / 4).max(SHORTEST_PACE);
        // The lease counts from before the request: the server cannot have counted it earlier.
        let sent = Instant::now();
        let patience = PATIENCE.min((pace * 2).max(AGAIN / 2));
        match client.heartbeat_all(&request, patience).await {
            Ok(answer) => {
                let next = seconds(answer.next_heartbeat_seconds);
                let mut rows: Vec<Option<_>> = answer.jobs.into_iter().map(Some).collect();
                for attempt in batch {
                    // A job can be there twice: an attempt whose result waits, and the next one. The rows keep the order.
                    let row =
                        rows.iter_mut().find(|row| row.as_ref().is_some_and(|row| row.job_id == attempt.job_id())).and_then(Option::take);
                    match row {
                        Some(row) => self.told(attempt, &row, sent, next),
                        None => attempt.beat_again_in(again),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(jobs = batch.len(), "heartbeat: {error}");
                // What a server refuses as a whole may be what rides along: it is left out the next time.
                let keep = error.code() != Some(&RuntimeErrorCode::ValidationFailed);
                for (attempt, report) in batch.iter().zip(reports) {
                    if keep {
                        attempt.put_back(report);
                    }
                    // As long as the server asks for, while that is not longer than it takes until the lease is in danger.
                    attempt.beat_again_in(error.retry_after().unwrap_or(again).clamp(again, pace.max(again)));
                }
            }
        }
    }

    fn row(&self, attempt: &Attempt, report: &Report) -> RuntimeBatchHeartbeatJobDto {
        RuntimeBatchHeartbeatJobDto {
            job_id: attempt.job_id(),
            attempt_no: attempt.holder.attempt_no,
            lock_token: attempt.holder.lock_token.clone(),
            lease_seconds: self.lease_seconds,
            progress: report.progress,
            progress_message: report.message.clone(),
            checkpoint: report.checkpoint.clone(),
        }
    }

    fn told(&self, attempt: &Attempt, row: &RuntimeBatchHeartbeatJobResponseDto, sent: Instant, next: Duration) {
        let next = row.next_heartbeat_seconds.map_or(next, seconds).max(SHORTEST_PACE);
        match &row.directive {
            Directive::Stop => {
                let unknown = RuntimeErrorCode::Unknown("stop".to_owned());
                attempt.end(End::Lost(row.reason.clone().unwrap_or(unknown)));
                self.remove(attempt);
            }
            other => {
                attempt.renewed(sent, row.lease_seconds.map_or(next * 2, seconds), next);
                if *other == Directive::Cancel || row.cancel_requested {
                    attempt.end(End::Cancelled);
                } else {
                    self.set_draining(*other == Directive::Drain);
                }
            }
        }
    }

    /// Ends what has run out of time, whether the server can be reached or not.
    async fn watch_time(&self) {
        loop {
            let mut next: Option<Instant> = None;
            for attempt in self.held() {
                if attempt.ended().is_some() {
                    continue;
                }
                let (deadline, lease_ends) = (attempt.deadline, attempt.lease_ends());
                let now = Instant::now();
                if now >= deadline {
                    attempt.end(End::TimedOut);
                } else if now >= lease_ends {
                    attempt.end(End::RanOut);
                } else {
                    let first = deadline.min(lease_ends);
                    next = Some(next.map_or(first, |next| next.min(first)));
                }
            }
            match next {
                // A lease that was renewed meanwhile is looked at again.
                Some(next) => tokio::select! {
                    () = tokio::time::sleep_until(next.into()) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}
