//! The worker: everything that a runtime does, but for the model call.
//!
//! Three parts run apart from each other, so that none can hold up another:
//!
//! - the **heart** (`heart.rs`), a thread with a tokio runtime of its own, sends heartbeats and counts what is left of each lease;
//! - the **control** (`control.rs`), another such thread, polls, leads each attempt from lease to answer, and delivers;
//! - **handlers** run on the tokio runtime that called [`Worker::run`].

mod attempt;
mod config;
mod control;
mod delivery;
mod execution;
mod handler;
mod heart;
mod job;
mod logs;
mod poller;
mod spool;

use std::sync::Arc;

use tokio::sync::watch;

pub use config::{BuildError, Claim, WorkerBuilder};
pub use handler::{Failure, Handler, Output};
pub use job::{Job, TooLarge};

use crate::TokenSource;
use config::Config;
use control::Stop;

/// A runtime: takes jobs, gives them to a [`Handler`], delivers what comes of them. See the crate's first page.
#[derive(Debug)]
pub struct Worker {
    config: Config,
    stop: Arc<watch::Sender<Stop>>,
}

/// Stops a [`Worker`] from anywhere.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<watch::Sender<Stop>>);

impl Stopper {
    /// Take nothing new; let what runs end within the drain time, hand back the rest, deliver what can be delivered. Saying it a second
    /// time does not wait for what runs.
    pub fn stop(&self) {
        self.0.send_modify(|stop| {
            *stop = match stop {
                Stop::Not => Stop::Drain,
                Stop::Drain | Stop::Now => Stop::Now,
            };
        });
    }
}

/// Why a worker did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system gives no thread, or no signal handler.
    #[error("the system gives no thread or no signal: {0}")]
    System(#[from] std::io::Error),
    /// A fault of this crate: one of its threads ended by a panic, which is in the log.
    #[error("the worker ended by a panic")]
    Panicked,
}

impl Worker {
    /// Begin with the server's address, such as `https://jobs.example`, and a service token.
    pub fn builder(base_url: impl Into<String>, token: TokenSource) -> WorkerBuilder {
        WorkerBuilder::new(base_url.into(), token)
    }

    pub(crate) fn new(config: Config) -> Self {
        Self { config, stop: Arc::new(watch::Sender::new(Stop::Not)) }
    }

    /// Something to stop it with.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Work until [`Stopper::stop`]. Handlers run on the current tokio runtime, which they may burn as they like: neither heartbeats nor
    /// deliveries run on it. Dropping the future stops the worker too.
    ///
    /// # Errors
    /// [`RunError`]; trouble with the server is no error, the worker goes on.
    pub async fn run<H: Handler>(self, handler: H) -> Result<(), RunError> {
        control::run(self.config, self.stop, handler, false).await
    }

    /// The same, until SIGTERM or Ctrl-C as well. A second signal does not wait for what runs.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn run_until_signal<H: Handler>(self, handler: H) -> Result<(), RunError> {
        control::run(self.config, self.stop, handler, true).await
    }
}
