//! One lease and what is known of it on this side.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

use crate::dto::{Holder, RuntimeErrorCode, RuntimeJobOfferDto, RuntimeLockJobResponseDto, RuntimeUsageDto};
use crate::Secret;

/// `usage[]` of a terminal call takes so many; the rest went through the logs.
const MOST_USAGE: usize = 100;

/// Why an attempt must end before its handler has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Somebody asked to cancel the job.
    Cancelled,
    /// The server says that the job is not ours any more.
    Lost(RuntimeErrorCode),
    /// The lease ended here unrenewed: somebody else may have the job already.
    RanOut,
    /// The attempt's own time is over.
    TimedOut,
    /// This process stops.
    Shutdown,
}

/// What the next heartbeat carries along.
#[derive(Debug, Default, Clone)]
pub(crate) struct Report {
    pub(crate) progress: Option<u8>,
    pub(crate) message: Option<String>,
    pub(crate) checkpoint: Option<Value>,
}

#[derive(Debug)]
struct Pulse {
    lease_ends: Instant,
    next_beat: Instant,
    report: Report,
    usage: Vec<RuntimeUsageDto>,
    /// Keys that were lent to this attempt: masked in what it says of its failure.
    keys: Vec<Secret>,
}

/// An attempt that this process holds. All times are on the monotonic clock.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) offer: RuntimeJobOfferDto,
    pub(crate) lease: RuntimeLockJobResponseDto,
    pub(crate) holder: Holder,
    /// When the attempt's own time is over.
    pub(crate) deadline: Instant,
    pulse: Mutex<Pulse>,
    end: watch::Sender<Option<End>>,
}

impl Attempt {
    /// `since`: when the request for the lease was sent. A poll may have been open for long before it was answered: there it is when the
    /// answer came, which is late by its way here, until the first heartbeat.
    pub(crate) fn new(offer: RuntimeJobOfferDto, lease: RuntimeLockJobResponseDto, instance: &str, since: Instant) -> Self {
        let holder =
            Holder { runtime_instance_id: instance.to_owned(), attempt_no: lease.attempt_no, lock_token: lease.lock_token.clone() };
        let timeout = Duration::from_secs(lease.timeout_seconds.min(366 * 86_400));
        // A little earlier than the server's: a failure that says why is worth more than a lapse.
        let margin = (timeout / 20).min(Duration::from_secs(2));
        Self {
            holder,
            deadline: since + timeout - margin,
            pulse: Mutex::new(Pulse {
                lease_ends: since + seconds(lease.lease_seconds),
                next_beat: since + seconds(lease.heartbeat_interval_seconds),
                report: Report::default(),
                usage: vec![],
                keys: vec![],
            }),
            end: watch::Sender::new(None),
            offer,
            lease,
        }
    }

    pub(crate) fn job_id(&self) -> Uuid {
        self.lease.job_id
    }

    fn pulse(&self) -> MutexGuard<'_, Pulse> {
        // Nobody panics while holding it; and if, its parts are whole.
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn renewed(&self, since: Instant, lease: Duration, next: Duration) {
        let mut pulse = self.pulse();
        pulse.lease_ends = since + lease;
        pulse.next_beat = since + next;
    }

    /// The last beat did not get through: again so soon.
    pub(crate) fn beat_again_in(&self, wait: Duration) {
        self.pulse().next_beat = Instant::now() + wait;
    }

    pub(crate) fn next_beat(&self) -> Instant {
        self.pulse().next_beat
    }

    pub(crate) fn lease_ends(&self) -> Instant {
        self.pulse().lease_ends
    }

    pub(crate) fn interval(&self) -> Duration {
        seconds(self.lease.heartbeat_interval_seconds)
    }

    /// The first reason stays.
    pub(crate) fn end(&self, why: End) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            if first {
                *end = Some(why);
            }
            first
        });
    }

    pub(crate) fn ended(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    pub(crate) async fn until_end(&self) -> End {
        let mut receiver = self.end.subscribe();
        let ended = receiver.wait_for(Option::is_some).await;
        match ended.as_deref() {
            Ok(Some(why)) => why.clone(),
            // The sender is ours.
            _ => End::Shutdown,
        }
    }

    pub(crate) fn report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.pulse().report);
    }

    /// What is to be reported; put back what did not get through.
    pub(crate) fn take_report(&self) -> Report {
        std::mem::take(&mut self.pulse().report)
    }

    pub(crate) fn put_back(&self, report: Report) {
        let mut pulse = self.pulse();
        let newer = std::mem::take(&mut pulse.report);
        pulse.report = Report {
            progress: newer.progress.or(report.progress),
            message: newer.message.or(report.message),
            checkpoint: newer.checkpoint.or(report.checkpoint),
        };
    }

    pub(crate) fn spent(&self, call: RuntimeUsageDto) {
        self.pulse().usage.push(call);
    }

    /// The latest calls, to ride on the terminal call: what the logs have brought already is stored once.
    pub(crate) fn usage(&self) -> Option<Vec<RuntimeUsageDto>> {
        let pulse = self.pulse();
        let skipped = pulse.usage.len().saturating_sub(MOST_USAGE);
        (!pulse.usage.is_empty()).then(|| pulse.usage[skipped..].to_vec())
    }

    pub(crate) fn lent(&self, key: Secret) {
        self.pulse().keys.push(key);
    }

    /// The text without the keys that this attempt was lent.
    pub(crate) fn masked(&self, text: &str) -> String {
        self.pulse().keys.iter().fold(text.to_owned(), |text, key| text.replace(key.expose(), "[secret]"))
    }
}

/// From a number of the wire: 0 for one that is no duration, a year at the most.
pub(crate) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number.min(366.0 * 86_400.0)).unwrap_or_default()
}
