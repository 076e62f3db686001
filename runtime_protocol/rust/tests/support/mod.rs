//! A control plane as scripted as a test needs it, on a thread of its own: what it says can be wrong in every way that a network is.

// Each file of tests uses a part of it.
#![allow(dead_code, unused_imports, unreachable_pub, clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ai_runtime_client::{Failure, Handler, Job, Output, Stopper, TokenSource, Worker, WorkerBuilder};

mod server;

pub use server::{Call, Reply, Server};

pub const JOB_TYPE: &str = "synthetic.extract_facts_runtime";
pub const TOKEN: &str = "rt_test_service-token-canary";
pub const KEY: &str = "sk-key-canary-0123456789";
pub const LOCK: &str = "lock-token-canary";

/// A worker that runs until the test stops it.
pub struct Running {
    pub stopper: Stopper,
    task: tokio::task::JoinHandle<Result<(), ai_runtime_client::RunError>>,
}

impl Running {
    pub fn start(worker: WorkerBuilder, handler: impl Handler) -> Self {
        let worker = worker.build().unwrap();
        Self { stopper: worker.stopper(), task: tokio::spawn(worker.run(handler)) }
    }

    /// Stop it, and wait until it has.
    pub async fn stop(self) {
        self.stopper.stop();
        self.ended().await;
    }

    pub async fn ended(self) {
        tokio::time::timeout(Duration::from_secs(30), self.task).await.expect("it ends").unwrap().unwrap();
    }
}

pub fn worker(server: &Server) -> WorkerBuilder {
    Worker::builder(&server.url, TokenSource::fixed(TOKEN))
        .instance("rust-1")
        .job_type(JOB_TYPE)
        .wait(Duration::from_millis(500))
        .drain(Duration::from_secs(10))
}

pub fn spooling(server: &Server, folder: &Path) -> WorkerBuilder {
    worker(server).spool(folder)
}

/// A handler that answers at once.
pub async fn quick(_: Job) -> Result<Output, Failure> {
    Ok(Output::text("an answer"))
}

/// Says when the future that holds it is dropped.
pub struct Dropped(pub Arc<Mutex<Option<Instant>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(Instant::now());
    }
}

/// A handler that never answers, and when it was dropped.
pub fn endless() -> (impl Handler, Arc<Mutex<Option<Instant>>>) {
    let when = Arc::new(Mutex::new(None));
    let told = Arc::clone(&when);
    let handler = move |_: Job| {
        let dropped = Dropped(Arc::clone(&told));
        async move {
            std::future::pending::<()>().await;
            drop(dropped);
            Ok(Output::text(""))
        }
    };
    (handler, when)
}

/// The condition's first true value. Panics when it takes too long.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
