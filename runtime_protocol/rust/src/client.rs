//! The calls of the protocol, a method each. One try each, too: who calls decides about repeating, with [`CallError::is_transient`].

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde::de::DeserializeOwned;
use serde::Serialize;
use uuid::Uuid;

use crate::dto::*;
use crate::http;
use crate::{CallError, TokenSource};

/// How long an ordinary call may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a long poll gets beyond the wait that it asked for.
const POLL_MARGIN: Duration = Duration::from_secs(10);

/// The protocol over HTTP. Clones share their connections, which belong to the tokio runtime that opened them.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: TokenSource,
}

impl Client {
    /// A client of the server at `base_url`, such as `https://jobs.example`, to which `/internal/runtime/…` is added. It uses no proxy of
    /// the environment and follows no redirect.
    ///
    /// # Errors
    /// When TLS cannot be set up, such as on a machine without root certificates.
    pub fn new(base_url: &str, token: TokenSource) -> Result<Self, reqwest::Error> {
        Ok(Self { http: http::build()?, base: format!("{}/internal/runtime/", base_url.trim_end_matches('/')), token })
    }

    /// Asks for work; waits on the server for `wait_seconds`.
    ///
    /// # Errors
    /// Repeat under the same `request_id` when the answer was lost.
    pub async fn poll(&self, request: &RuntimePollJobsRequestDto) -> Result<RuntimePollJobsResponseDto, CallError> {
        let wait = Duration::try_from_secs_f64(request.wait_seconds.unwrap_or(0.0)).unwrap_or_default().min(Duration::from_secs(20));
        self.post("jobs/poll", request, wait + POLL_MARGIN).await
    }

    /// Takes the lease of a job.
    ///
    /// # Errors
    /// Repeat under the same `request_id` when the answer was lost.
    pub async fn lock(&self, job_id: Uuid, request: &RuntimeLockJobRequestDto) -> Result<RuntimeLockJobResponseDto, CallError> {
        self.post(&format!("jobs/{job_id}/lock"), request, PATIENCE).await
    }

    /// Extends one lease, reports progress, and brings back what to do.
    ///
    /// # Errors
    /// Repeating does no harm.
    pub async fn heartbeat(&self, job_id: Uuid, request: &RuntimeHeartbeatRequestDto) -> Result<RuntimeHeartbeatResponseDto, CallError> {
        self.post(&format!("jobs/{job_id}/heartbeat"), request, PATIENCE).await
    }

    /// The same for up to 256 jobs of one instance; `patience` bounds the call, since a late heartbeat is worth nothing.
    ///
    /// # Errors
    /// Repeating does no harm. A job that was lost is a row of the answer, not an error.
    pub async fn heartbeat_all(
        &self,
        request: &RuntimeBatchHeartbeatRequestDto,
        patience: Duration,
    ) -> Result<RuntimeBatchHeartbeatResponseDto, CallError> {
        self.post("jobs/heartbeat", request, patience).await
    }

    /// The immutable input of a job.
    ///
    /// # Errors
    /// With [`crate::Refusal::lease_expired`] a heartbeat has to go first.
    pub async fn snapshot(&self, job_id: Uuid, holder: &Holder) -> Result<RuntimeSnapshotResponseDto, CallError> {
        let mut lock_token = reqwest::header::HeaderValue::from_str(holder.lock_token.expose())
            .unwrap_or_else(|_| reqwest::header::HeaderValue::from_static(""));
        lock_token.set_sensitive(true);
        self.call(Method::GET, &format!("jobs/{job_id}/snapshot"), PATIENCE, |request| {
            request
                .header("X-Runtime-Instance-Id", &holder.runtime_instance_id)
                .header("X-Attempt-No", holder.attempt_no)
                .header("X-Lock-Token", lock_token.clone())
        })
        .await
    }

    /// The key for a job's model call: the last check that the job is still wanted.
    ///
    /// # Errors
    /// `job_cancelled` when a cancel was requested; with [`crate::Refusal::lease_expired`] a heartbeat has to go first.
    pub async fn resolve_credential(
        &self,
        request: &RuntimeResolveCredentialRequestDto,
    ) -> Result<RuntimeResolveCredentialResponseDto, CallError> {
        self.post("model-credentials/resolve", request, PATIENCE).await
    }

    /// Hands a result in.
    ///
    /// # Errors
    /// Repeating the same content gives the first answer again.
    pub async fn submit_result(&self, request: &RuntimeSubmitResultRequestDto) -> Result<RuntimeSubmitResultResponseDto, CallError> {
        // The server's own chain and projection run within this call.
        let patience = PATIENCE * 3;
        self.post(&format!("jobs/{}/result", request.job_id), request, patience).await
    }

    /// Reports that an attempt failed.
    ///
    /// # Errors
    /// Repeating the same content gives the first answer again.
    pub async fn submit_failure(&self, request: &RuntimeSubmitFailureRequestDto) -> Result<RuntimeSubmitFailureResponseDto, CallError> {
        self.post(&format!("jobs/{}/fail", request.job_id), request, PATIENCE).await
    }

    /// Hands a job back without charge.
    ///
    /// # Errors
    /// Repeating gives the first answer again.
    pub async fn release(&self, job_id: Uuid, request: &RuntimeReleaseJobRequestDto) -> Result<RuntimeReleaseJobResponseDto, CallError> {
        self.post(&format!("jobs/{job_id}/release"), request, PATIENCE).await
    }

    /// Reports up to 100 model calls.
    ///
    /// # Errors
    /// Repeating does no harm: an `invocation_id` is stored once.
    pub async fn log_invocations(&self, request: &RuntimeInvocationLogsRequestDto) -> Result<RuntimeInvocationLogAckDto, CallError> {
        self.post("invocation-logs", request, PATIENCE).await
    }

    /// Server time, versions and limits.
    ///
    /// # Errors
    /// As for every call.
    pub async fn health(&self) -> Result<RuntimeHealthResponseDto, CallError> {
        self.call(Method::GET, "health", PATIENCE, |request| request).await
    }

    async fn post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize, patience: Duration) -> Result<A, CallError> {
        self.call(Method::POST, path, patience, |request| request.json(body)).await
    }

    /// A token that was refused is looked up again, and the call repeated at once with the new one.
    async fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        patience: Duration,
        fill: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<A, CallError> {
        let address = format!("{}{path}", self.base);
        loop {
            let token = self.token.current();
            let request = self.http.request(method.clone(), &address).timeout(patience).header("X-Request-Id", Uuid::new_v4().to_string());
            let answer = http::exchange(fill(http::authorize(request, &token))).await;
            match &answer {
                Err(CallError::Refused(refusal)) if refusal.status == 401 && self.token.replaced(&token) => {}
                _ => return answer,
            }
        }
    }
}
