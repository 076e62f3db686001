//! One HTTP exchange: what is an answer of the server, and what is a proxy's page.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue, AUTHORIZATION, RETRY_AFTER};
use reqwest::RequestBuilder;
use serde::de::DeserializeOwned;

use crate::dto::RuntimeErrorDto;
use crate::{CallError, Refusal, Secret, PROTOCOL_VERSION};

const CONNECT: Duration = Duration::from_secs(5);
/// The server's own bound of `retryAfterSeconds`; a proxy's may be anything.
const LONGEST_WAIT: Duration = Duration::from_secs(900);
/// No answer of the protocol comes near it: a snapshot is at most a few MiB.
const LARGEST_ANSWER: usize = 64 << 20;

/// A client without a proxy of the environment and without redirects: a service token goes to the server and nowhere else.
pub(crate) fn build() -> reqwest::Result<reqwest::Client> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was quicker.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let mut headers = HeaderMap::new();
    headers.insert("X-Protocol-Version", HeaderValue::from_static(PROTOCOL_VERSION));
    reqwest::Client::builder()
        .default_headers(headers)
        .connect_timeout(CONNECT)
        .pool_idle_timeout(Duration::from_secs(20))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
}

/// Marks the request with the token; a token that is no header value is refused by the server as an empty one.
pub(crate) fn authorize(request: RequestBuilder, token: &Secret) -> RequestBuilder {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).unwrap_or_else(|_| HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    request.header(AUTHORIZATION, value)
}

/// Send it, and read what came back.
pub(crate) async fn exchange<A: DeserializeOwned>(request: RequestBuilder) -> Result<A, CallError> {
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status();
    let retry_after = seconds(response.headers());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > LARGEST_ANSWER {
            return Err(CallError::NoAnswer(format!("more than {LARGEST_ANSWER} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    if status == reqwest::StatusCode::OK {
        // Of what did not fit only the place is told, never the data.
        return serde_json::from_slice(&body).map_err(|error| {
            CallError::NoAnswer(format!(
                "status 200 with a body that is not of this protocol, at line {} column {}",
                error.line(),
                error.column()
            ))
        });
    }
    match serde_json::from_slice::<RuntimeErrorDto>(&body) {
        Ok(error) => Err(CallError::Refused(Box::new(Refusal { status: status.as_u16(), error, retry_after }))),
        Err(_) => Err(CallError::NoAnswer(format!("a page with status {status}, not the server's"))),
    }
}

fn seconds(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let wait = Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()?;
    Some(wait.min(LONGEST_WAIT))
}

/// The innermost cause says the most; the address is left out, since it may hold more than a reader of logs should see.
fn lost(error: reqwest::Error) -> CallError {
    if error.is_timeout() {
        return CallError::NoAnswer("timed out".to_owned());
    }
    let error = error.without_url();
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    CallError::NoAnswer(innermost.to_string())
}
