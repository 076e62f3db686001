//! The worker's own thread: from the first poll to the last delivery.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::Client;

use super::attempt::End;
use super::config::{Claim, Config};
use super::delivery::{save, Delivery, Parcel};
use super::handler::Handler;
use super::heart::Heart;
use super::logs::Logs;
use super::poller;
use super::spool::Spool;
use super::RunError;

/// What deliveries get at the end. What is in the spool by then goes out with the next start.
const LAST_DELIVERIES: Duration = Duration::from_secs(5);
const LAST_LOGS: Duration = Duration::from_secs(3);

/// How far a stop has been asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Not,
    /// Let what runs end.
    Drain,
    /// Hand back what runs.
    Now,
}

/// What the parts of the control share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) instance: String,
    pub(crate) job_types: Vec<String>,
    pub(crate) lease_seconds: Option<f64>,
    pub(crate) wait: Duration,
    pub(crate) keep: Duration,
    pub(crate) claim: Claim,
    pub(crate) spool: Option<Spool>,
    pub(crate) client: Client,
    pub(crate) for_handlers: Client,
    /// Where handlers run.
    pub(crate) user: Handle,
    pub(crate) heart: Arc<Heart>,
    pub(crate) logs: Logs,
    drain: Duration,
    slots: Arc<Semaphore>,
    all_slots: usize,
    waiting: Arc<AtomicUsize>,
    stop: watch::Receiver<Stop>,
    tasks: Mutex<JoinSet<()>>,
}

/// A delivery; once it has to wait, it counts as waiting and its slot is free.
#[derive(Debug)]
pub(crate) struct Waiting {
    count: Arc<AtomicUsize>,
    counted: std::sync::atomic::AtomicBool,
    slot: Mutex<Option<Arc<OwnedSemaphorePermit>>>,
}

impl Waiting {
    pub(crate) fn begin(&self) {
        if !self.counted.swap(true, Ordering::Relaxed) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if *self.counted.get_mut() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow() != Stop::Not
    }

    pub(crate) async fn stopped(&self) {
        self.until(|stop| *stop != Stop::Not).await;
    }

    async fn until(&self, reached: impl FnMut(&Stop) -> bool) {
        // An error means that the worker itself is gone: a stop, too.
        let _ = self.stop.clone().wait_for(reached).await;
    }

    /// Wait so long; true when the worker stops.
    pub(crate) async fn stops_within(&self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stopped() => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    /// At least one slot, as soon as there is one, and at most so many.
    pub(crate) async fn free_slots(&self, most: usize) -> Vec<OwnedSemaphorePermit> {
        let mut slots = vec![];
        // The semaphore is never closed.
        if let Ok(first) = Arc::clone(&self.slots).acquire_owned().await {
            slots.push(first);
        }
        while slots.len() < most {
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => slots.push(slot),
                Err(_) => break,
            }
        }
        slots
    }

    /// Deliveries that have to wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting_one(&self, slot: Arc<OwnedSemaphorePermit>) -> Waiting {
        Waiting { count: Arc::clone(&self.waiting), counted: false.into(), slot: Mutex::new(Some(slot)) }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn take_tasks(&self) -> JoinSet<()> {
        std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Run the worker on threads of its own, until it is stopped.
pub(crate) async fn run<H: Handler>(config: Config, stop: Arc<watch::Sender<Stop>>, handler: H, signals: bool) -> Result<(), RunError> {
    // Dropping this future stops the worker.
    let _stopping = StopAtEnd(Arc::clone(&stop));
    let user = Handle::current();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ended, end) = oneshot::channel();
    std::thread::Builder::new().name("ai-runtime-control".to_owned()).spawn(move || {
        let outcome = runtime.block_on(lead(config, &stop, handler, user, signals));
        let _ = ended.send(outcome);
    })?;
    end.await.map_err(|_| RunError::Panicked)?
}

struct StopAtEnd(Arc<watch::Sender<Stop>>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.send_replace(Stop::Now);
    }
}

async fn lead<H: Handler>(
    config: Config,
    stop: &Arc<watch::Sender<Stop>>,
    handler: H,
    user: Handle,
    signals: bool,
) -> Result<(), RunError> {
    let heart = Heart::new(config.instance.clone(), config.lease_seconds);
    let (beats, done) = watch::channel(false);
    let mut heart_ended = heart.start(config.for_heart, done)?;
    if signals {
        stop_on_signals(Arc::clone(stop))?;
    }
    let shared = Arc::new(Shared {
        instance: config.instance,
        job_types: config.job_types,
        lease_seconds: config.lease_seconds,
        wait: config.wait,
        keep: config.keep,
        claim: config.claim,
        spool: config.spool,
        client: config.for_control,
        for_handlers: config.for_handlers,
        user,
        heart,
        logs: Logs::default(),
        drain: config.drain,
        slots: Arc::new(Semaphore::new(config.slots)),
        all_slots: config.slots,
        waiting: Arc::default(),
        stop: stop.subscribe(),
        tasks: Mutex::default(),
    });
    tracing::info!(instance = shared.instance, "ready");
    deliver_kept(&shared);
    let logs = tokio::spawn({
        let shared = Arc::clone(&shared);
        async move { shared.logs.send(&shared.client).await }
    });

    let handler = Arc::new(handler);
    tokio::select! {
        // A poll that is open at the stop is waited for while what runs goes on.
        _ = async { tokio::join!(poller::poll(&shared, &handler), drain(&shared)) } => {}
        // Without a heart nothing may run: no lease would be renewed, and none would be seen to end.
        _ = &mut heart_ended => return Err(RunError::Panicked),
    }
    finish_deliveries(&shared).await;
    logs.abort();
    let _ = logs.await;
    finish_logs(&shared).await;

    beats.send_replace(true);
    let _ = heart_ended.await;
    tracing::info!(instance = shared.instance, "stopped");
    Ok(())
}

/// What an earlier run left in the spool.
fn deliver_kept(shared: &Arc<Shared>) {
    let Some(spool) = &shared.spool else { return };
    for kept in spool.load() {
        let shared = Arc::clone(shared);
        let delivery = Delivery::kept(kept, shared.keep);
        Arc::clone(&shared).spawn(async move {
            delivery.run(&shared.client, shared.spool.as_ref(), || ()).await;
        });
    }
}

/// From the stop on: let handlers end, then hand back what still runs. Heartbeats go on meanwhile.
async fn drain(shared: &Shared) {
    shared.stopped().await;
    tracing::info!(instance = shared.instance, "stopping");
    tokio::select! {
        _ = shared.slots.acquire_many(u32::try_from(shared.all_slots).unwrap_or(u32::MAX)) => {}
        () = tokio::time::sleep(shared.drain) => {}
        () = shared.until(|stop| *stop == Stop::Now) => {}
    }
    for attempt in shared.heart.held() {
        attempt.end(End::Shutdown);
    }
}

async fn finish_deliveries(shared: &Shared) {
    let mut tasks = shared.take_tasks();
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_DELIVERIES, all).await.is_err() {
        tracing::warn!("{} deliveries are left for the next start", tasks.len());
    }
}

async fn finish_logs(shared: &Shared) {
    let flush = shared.logs.flush(&shared.client);
    if let Ok(Ok(())) = tokio::time::timeout(LAST_LOGS, flush).await {
        return;
    }
    let Some(spool) = &shared.spool else { return };
    loop {
        let logs = shared.logs.take();
        if logs.is_empty() {
            return;
        }
        let body = crate::dto::RuntimeInvocationLogsRequestDto { logs };
        save(spool.clone(), Parcel::Usage { body }).await;
    }
}

/// The first SIGTERM or Ctrl-C drains, the second does not wait.
fn stop_on_signals(stop: Arc<watch::Sender<Stop>>) -> std::io::Result<()> {
    let stopper = super::Stopper(stop);
    #[cfg(unix)]
    {
        use tokio::signal::unix::{signal, SignalKind};
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = interrupt.recv() => {}
                }
                stopper.stop();
            }
        });
    }
    #[cfg(not(unix))]
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            stopper.stop();
        }
    });
    Ok(())
}
