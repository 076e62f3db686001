//! What a worker can be told, with its defaults.

use std::path::PathBuf;
use std::time::Duration;

use crate::{Client, TokenSource};

use super::spool::Spool;
use super::Worker;

/// How a job becomes this worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Claim {
    /// Poll locks at once: one call less.
    #[default]
    AutoLock,
    /// Poll offers, and each offer is locked by a call of its own.
    OfferThenLock,
}

/// Makes a [`Worker`].
#[derive(Debug)]
#[must_use]
pub struct WorkerBuilder {
    base_url: String,
    token: TokenSource,
    instance: Option<String>,
    job_types: Vec<String>,
    slots: usize,
    lease: Option<Duration>,
    wait: Duration,
    drain: Duration,
    keep: Duration,
    spool: Option<PathBuf>,
    claim: Claim,
}

/// Why a worker cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The server would refuse the name.
    #[error("the instance's name {0:?} is not 1 to 128 of A–Z a–z 0–9 . _ : -")]
    Instance(String),
    /// The folder cannot be used.
    #[error("the spool folder {path} cannot be used: {source}")]
    Spool {
        /// Which folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("no HTTP client can be made: {0}")]
    Http(#[from] reqwest::Error),
}

/// All of it, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) instance: String,
    pub(crate) job_types: Vec<String>,
    pub(crate) slots: usize,
    pub(crate) lease_seconds: Option<f64>,
    pub(crate) wait: Duration,
    pub(crate) drain: Duration,
    pub(crate) claim: Claim,
    /// How long a delivery is tried.
    pub(crate) keep: Duration,
    pub(crate) spool: Option<Spool>,
    // Connections belong to the tokio runtime that opened them: one client for each.
    pub(crate) for_heart: Client,
    pub(crate) for_control: Client,
    pub(crate) for_handlers: Client,
}

impl WorkerBuilder {
    pub(crate) fn new(base_url: String, token: TokenSource) -> Self {
        Self {
            base_url,
            token,
            instance: None,
            job_types: vec![],
            slots: 1,
            lease: None,
            wait: Duration::from_secs(10),
            drain: Duration::from_secs(20),
            keep: Duration::from_secs(24 * 3_600),
            spool: None,
            claim: Claim::default(),
        }
    }

    /// The `runtimeInstanceId`: unique among all processes. Default: host name, process number and a random part.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// A type of job to take; say it once for each. Default: all that the token may touch.
    pub fn job_type(mut self, name: impl Into<String>) -> Self {
        self.job_types.push(name.into());
        self
    }

    /// How many handlers run at once, 1 to 256. Default 1.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots.clamp(1, 256);
        self
    }

    /// The lease to ask for, clamped by the server: what a job costs when this process dies. Default: the server's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long a poll waits on the server, at most 20 s; also what a stop may take while a poll is open. Default 10 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait.min(Duration::from_secs(20));
        self
    }

    /// How long running handlers may go on after a stop; what is left then is handed back. Default 20 s.
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// How long the delivery of a result is tried while the server is away. Default 24 h; the protocol asks for an hour at least.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// A folder on disk for what is not delivered yet: results, failures, usage. Without one they live in memory, and a crash or a stop
    /// while the server is away loses them. Several workers may share one. Files are readable by this user alone: they hold model output.
    pub fn spool(mut self, folder: impl Into<PathBuf>) -> Self {
        self.spool = Some(folder.into());
        self
    }

    /// How a job becomes this worker's. Default: [`Claim::AutoLock`].
    pub fn claim(mut self, claim: Claim) -> Self {
        self.claim = claim;
        self
    }

    /// The worker.
    ///
    /// # Errors
    /// [`BuildError`]
    pub fn build(self) -> Result<Worker, BuildError> {
        let instance = self.instance.unwrap_or_else(own_name);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if instance.is_empty() || instance.len() > 128 || !instance.bytes().all(allowed) {
            return Err(BuildError::Instance(instance));
        }
        let spool = match self.spool {
            None => None,
            Some(path) => Some(Spool::open(&path).map_err(|source| BuildError::Spool { path, source })?),
        };
        let client = || Client::new(&self.base_url, self.token.clone());
        Ok(Worker::new(Config {
            instance,
            job_types: self.job_types,
            slots: self.slots,
            lease_seconds: self.lease.map(|lease| lease.as_secs_f64()),
            wait: self.wait,
            drain: self.drain,
            claim: self.claim,
            keep: self.keep,
            spool,
            for_heart: client()?,
            for_control: client()?,
            for_handlers: client()?,
        }))
    }
}

fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default();
    let host: String = host.trim().chars().filter(|one| one.is_ascii_alphanumeric() || "._-".contains(*one)).take(80).collect();
    let host = if host.is_empty() { "runtime".to_owned() } else { host };
    // In containers host and process number come again after a restart.
    format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..))
}
