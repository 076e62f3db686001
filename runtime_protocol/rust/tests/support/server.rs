//! The scripted server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use super::{JOB_TYPE, KEY, LOCK};

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Call {
    pub path: String,
    pub body: Value,
    pub token: String,
    pub at: Instant,
}

impl Call {
    /// The last word of its path: `poll`, `lock`, `heartbeat`, `snapshot`, `resolve`, `result`, `fail`, `release`, `invocation-logs`.
    pub fn verb(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub enum Reply {
    Json(u16, Value),
    /// A failure of the server's own: status, code, retryable.
    Error(u16, &'static str, bool),
    /// The same with details.
    Detailed(u16, &'static str, Value),
    /// A proxy's page.
    Page(u16),
    /// The socket is cut without an answer; what the server did is done.
    Cut,
    /// Never.
    Silence,
}

type Script = Box<dyn FnMut(&Call) -> Option<Reply> + Send>;

struct State {
    calls: Vec<Call>,
    queue: VecDeque<Uuid>,
    attempts: u64,
    lease_seconds: f64,
    interval: f64,
    timeout: u64,
    script: Script,
}

#[derive(Clone)]
pub struct Server {
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// With leases of so many seconds, a heartbeat every quarter of it.
    pub fn start(lease_seconds: f64) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = State {
            calls: vec![],
            queue: VecDeque::new(),
            attempts: 0,
            lease_seconds,
            interval: lease_seconds / 4.0,
            timeout: 120,
            script: Box::new(|_| None),
        };
        let server = Self { url: format!("http://{}", listener.local_addr().unwrap()), state: Arc::new(Mutex::new(state)) };
        let serving = server.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((socket, _)) = listener.accept().await {
                    let serving = serving.clone();
                    tokio::spawn(async move { serving.serve(socket).await });
                }
            });
        });
        server
    }

    /// What is answered instead of the ordinary, where it gives something.
    pub fn script(&self, script: impl FnMut(&Call) -> Option<Reply> + Send + 'static) {
        self.state.lock().unwrap().script = Box::new(script);
    }

    pub fn timeout(&self, seconds: u64) {
        self.state.lock().unwrap().timeout = seconds;
    }

    pub fn add_job(&self) -> Uuid {
        let id = Uuid::new_v4();
        self.state.lock().unwrap().queue.push_back(id);
        id
    }

    pub fn calls(&self, verb: &str) -> Vec<Call> {
        let state = self.state.lock().unwrap();
        state.calls.iter().filter(|call| call.verb() == verb).cloned().collect()
    }

    pub fn count(&self, verb: &str) -> usize {
        self.calls(verb).len()
    }

    async fn serve(&self, socket: TcpStream) {
        let mut socket = BufReader::new(socket);
        while let Some(call) = read(&mut socket).await {
            let reply = self.answer(call).await;
            let (status, kind, body) = match reply {
                Reply::Json(status, body) => (status, "application/json", body.to_string()),
                Reply::Error(status, code, retryable) => {
                    let body = json!({"errorCode": code, "message": "no", "retryable": retryable, "requestId": "r"});
                    (status, "application/json", body.to_string())
                }
                Reply::Detailed(status, code, details) => {
                    let body = json!({"errorCode": code, "message": "no", "retryable": false, "requestId": "r", "details": details});
                    (status, "application/json", body.to_string())
                }
                Reply::Page(status) => (status, "text/html", "<html>a proxy</html>".to_owned()),
                Reply::Cut => return,
                Reply::Silence => std::future::pending().await,
            };
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
            if socket.get_mut().write_all((head + &body).as_bytes()).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, call: Call) -> Reply {
        let scripted = {
            let mut state = self.state.lock().unwrap();
            state.calls.push(call.clone());
            (state.script)(&call)
        };
        if let Some(reply) = scripted {
            return reply;
        }
        Reply::Json(200, self.ordinary(&call).await)
    }

    async fn ordinary(&self, call: &Call) -> Value {
        let time = "2026-11-29T12:00:00.000Z";
        let job_id = call.path.split('/').rev().nth(1).unwrap_or_default().to_owned();
        let beat = |job: &Value| {
            let state = self.state.lock().unwrap();
            json!({"jobId": job["jobId"], "directive": "continue", "cancelRequested": false, "lockUntil": time,
                   "leaseSeconds": state.lease_seconds, "nextHeartbeatSeconds": state.interval, "late": false, "serverTime": time})
        };
        match call.verb() {
            "poll" => self.poll(&call.body).await,
            "lock" => self.lease(job_id.parse().unwrap()),
            "heartbeat" => {
                let jobs: Vec<_> = call.body["jobs"].as_array().unwrap().iter().map(beat).collect();
                json!({"jobs": jobs, "serverTime": time, "nextHeartbeatSeconds": self.state.lock().unwrap().interval})
            }
            "snapshot" => json!({"jobId": job_id, "snapshotId": Uuid::nil(), "inputSchemaVersion": "1", "contentHash": "0".repeat(64),
                                 "payload": {"paragraphs": [{"id": "p1", "text": "A river is long."}]}, "createdAt": time}),
            "resolve" => json!({"jobId": call.body["jobId"], "credentialId": Uuid::nil(), "apiKeyMode": "platform", "apiKey": KEY,
                                "modelProvider": "simulator", "modelName": "simulator-1", "expiresInSeconds": 100.0}),
            "result" => json!({"jobId": job_id, "resultId": Uuid::nil(), "status": "succeeded", "jobStatus": "succeeded", "attemptNo": 1,
                               "duplicate": false, "late": false, "sanitized": false, "validationErrors": [], "newInOneDotOne": {}}),
            "fail" => json!({"jobId": job_id, "jobStatus": "failed", "attemptNo": 1, "retryCount": 0, "maxRetryCount": 3,
                             "duplicate": false, "late": false, "sanitized": false, "truncated": false}),
            "release" => json!({"jobId": job_id, "jobStatus": "retrying", "attemptNo": 1, "duplicate": false}),
            "invocation-logs" => json!({"accepted": call.body["logs"].as_array().unwrap().len(), "duplicates": 0, "rejected": [],
                                        "sanitized": false}),
            other => panic!("nothing is at {other}"),
        }
    }

    async fn poll(&self, request: &Value) -> Value {
        let until = Instant::now() + Duration::from_secs_f64(request["waitSeconds"].as_f64().unwrap_or(0.0));
        let most = usize::try_from(request["maxJobs"].as_u64().unwrap_or(1)).unwrap();
        let found = loop {
            let found: Vec<_> = {
                let queue = &mut self.state.lock().unwrap().queue;
                let count = most.min(queue.len());
                queue.drain(..count).collect()
            };
            if !found.is_empty() || Instant::now() >= until {
                break found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let lock = request["autoLock"] == true;
        let jobs: Vec<_> = found.into_iter().map(|id| self.offer(id, lock)).collect();
        json!({"jobs": jobs, "serverTime": "2026-11-29T12:00:00.000Z", "pollAfterSeconds": 0.0, "directive": "continue"})
    }

    pub fn offer(&self, id: Uuid, lock: bool) -> Value {
        let mut offer = json!({"jobId": id, "jobType": JOB_TYPE, "targetType": "document", "targetId": "1", "priority": 5, "attemptsMade": 0,
            "inputSchemaVersion": "1", "outputSchemaVersion": "1", "promptVersion": "1", "modelProvider": "simulator",
            "modelName": "simulator-1", "apiKeyMode": "platform", "timeoutSeconds": 120, "snapshotId": Uuid::nil(),
            "createdAt": "2026-11-29T12:00:00.000Z", "offerSeconds": if lock { 0.0 } else { 10.0 }});
        if lock {
            offer["lease"] = self.lease(id);
        }
        offer
    }

    pub fn lease(&self, id: Uuid) -> Value {
        let mut state = self.state.lock().unwrap();
        state.attempts += 1;
        // The server's clock is a day behind, and its deadlines lie in the past: only seconds count.
        let time = "1999-11-29T12:00:00.000Z";
        json!({"jobId": id, "attemptNo": 1, "lockToken": format!("{LOCK}-{}", state.attempts), "lockedBy": "r", "lockedAt": time,
               "lockUntil": time, "leaseSeconds": state.lease_seconds, "heartbeatIntervalSeconds": state.interval,
               "timeoutSeconds": state.timeout, "deadlineAt": time, "snapshotId": Uuid::nil(), "serverTime": time})
    }
}

async fn read(socket: &mut BufReader<TcpStream>) -> Option<Call> {
    let (mut path, mut length, mut token) = (String::new(), 0, String::new());
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if path.is_empty() {
            path = line.split(' ').nth(1)?.trim_start_matches("/internal/runtime/").to_owned();
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().ok()?,
                "authorization" => token = value.trim_start_matches("Bearer ").to_owned(),
                _ => {}
            }
        }
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some(Call { path, body, token, at: Instant::now() })
}
