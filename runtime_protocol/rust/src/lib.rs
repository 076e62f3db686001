//! Write a runtime for the AI job control plane: a program that takes jobs over HTTP, calls a model, and hands the results in.
//!
//! [`Worker`] does everything but the model call: it polls and locks, sends heartbeats from a thread that no handler can hold up, aborts
//! a handler whose job was cancelled, overtaken or ran out of time, reports every model call, and delivers each result until the server
//! has answered, across restarts too. What is left to write is one function:
//!
//! ```no_run
//! use ai_runtime_client::{Failure, Job, Output, TokenSource, Worker};
//!
//! async fn handle(job: Job) -> Result<Output, Failure> {
//!     let input: serde_json::Value = job.payload()?;
//!     let key = job.credential().await?; // just before the call: the last check that the job is still wanted
//!     let answer = format!("what {} says about {input}", key.model_name); // your call of the model
//!     Ok(Output::text(answer))
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder("http://127.0.0.1:8000", TokenSource::from_env("RUNTIME_TOKEN")?)
//!     .job_type("synthetic.extract_facts_runtime")
//!     .spool("/var/lib/my-runtime")
//!     .build()?;
//! worker.run_until_signal(handle).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Beneath it lies [`Client`]: one method per call of the protocol, one try each. The types of the wire are in [`dto`], under the names
//! that `openapi.yaml` gives them.

mod backoff;
mod client;
#[cfg(test)]
mod contract;
pub mod dto;
mod error;
mod http;
mod secret;
mod token;
mod worker;

pub use client::Client;
pub use error::{CallError, Refusal};
pub use secret::{LockToken, Secret};
pub use token::{TokenError, TokenSource};
pub use worker::{BuildError, Claim, Failure, Handler, Job, Output, RunError, Stopper, TooLarge, Worker, WorkerBuilder};

/// The version of the protocol that this crate speaks, as sent in `X-Protocol-Version`.
pub const PROTOCOL_VERSION: &str = "1.0";

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct TheCodeOfTheReadme;
