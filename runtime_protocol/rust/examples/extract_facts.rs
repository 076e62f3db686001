//! A whole runtime for the synthetic job type of the control plane: facts from numbered paragraphs.
//!
//! ```sh
//! make run RUNTIME=own                                            # the control plane, in another terminal
//! export RUNTIME_TOKEN=$(.venv/bin/python manage.py issue_service_token demo)
//! cargo run --example extract_facts -- http://127.0.0.1:8000      # until Ctrl-C
//! .venv/bin/python manage.py create_job synthetic.extract_facts_runtime --file README.md --wait
//! ```

use std::error::Error;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use ai_runtime_client::dto::{AttemptErrorCode, RuntimeResolveCredentialResponseDto, RuntimeUsageDto};
use ai_runtime_client::{Claim, Failure, Job, Output, TokenSource, Worker};
use serde::Deserialize;
use serde_json::{json, Value};

const USAGE: &str = "\
Usage: extract_facts BASE_URL [--name value …]
  --token-file FILE   the service token, read again when it is refused   (default: RUNTIME_TOKEN in the environment)
  --instance NAME     the runtimeInstanceId                              (default: from host and process)
  --spool FOLDER      where results wait that cannot be delivered now    (default: none)
  --slots N           jobs at once                                       (default: 2)
  --lease SECONDS     the lease to ask for                               (default: the server's)
  --drain SECONDS     what running jobs get at a stop                    (default: 0)
  --wait SECONDS      how long a poll waits                              (default: 5)
  --claim auto|offer  lock with the poll, or by a call of its own        (default: auto)";

const INSTRUCTION: &str = "You extract facts from numbered paragraphs. Answer with one JSON object: \
    {\"summary\": \"...\", \"facts\": [{\"text\": \"...\", \"paragraph\": \"the id of its paragraph\"}]}.";

#[derive(Deserialize)]
struct Input {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    id: String,
    text: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let mut arguments = std::env::args().skip(1);
    let base_url = arguments.next().filter(|first| !first.starts_with('-')).unwrap_or_else(|| usage());
    let mut options = Vec::new();
    while let Some(name) = arguments.next() {
        options.push((name, arguments.next().unwrap_or_else(|| usage())));
    }
    let token = match options.iter().find(|(name, _)| name == "--token-file") {
        Some((_, file)) => TokenSource::from_file(file)?,
        None => TokenSource::from_env("RUNTIME_TOKEN")?,
    };
    let mut worker = Worker::builder(base_url, token).job_type("synthetic.extract_facts_runtime").slots(2);
    worker = worker.drain(Duration::ZERO).wait(Duration::from_secs(5));
    for (name, value) in options {
        worker = match name.as_str() {
            "--token-file" => worker,
            "--instance" => worker.instance(value),
            "--spool" => worker.spool(value),
            "--slots" => worker.slots(value.parse()?),
            "--lease" => worker.lease(Duration::try_from_secs_f64(value.parse()?)?),
            "--drain" => worker.drain(Duration::try_from_secs_f64(value.parse()?)?),
            "--wait" => worker.wait(Duration::try_from_secs_f64(value.parse()?)?),
            "--claim" => worker.claim(if value == "offer" { Claim::OfferThenLock } else { Claim::AutoLock }),
            _ => usage(),
        };
    }
    worker.build()?.run_until_signal(extract_facts).await?;
    Ok(())
}

#[allow(clippy::print_stderr)]
fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2)
}

async fn extract_facts(job: Job) -> Result<Output, Failure> {
    let input: Input = job.payload()?;
    job.progress(10, "asking the model");
    let key = job.credential().await?;
    let started = Instant::now();
    let answer = call_model(&job, &key, &input).await;
    // Every call is money, also one that failed.
    let mut usage = RuntimeUsageDto::new(&key.model_provider, &key.model_name, key.api_key_mode.clone());
    usage.latency_ms = Some(started.elapsed().as_millis() as u64);
    match &answer {
        Ok(answer) => {
            usage.input_tokens = answer["usage"]["prompt_tokens"].as_u64();
            usage.output_tokens = answer["usage"]["completion_tokens"].as_u64();
            usage.finish_reason = answer["choices"][0]["finish_reason"].as_str().map(str::to_owned);
        }
        Err(failure) => usage.error_code = Some(failure.code().to_string()),
    }
    job.record_call(usage);
    match answer?["choices"][0]["message"]["content"].as_str() {
        Some(text) => Ok(Output::text(text)),
        None => Err(Failure::new(AttemptErrorCode::InvalidModelOutput, "the answer holds no text")),
    }
}

/// One request to a provider that speaks OpenAI's chat completions.
async fn call_model(job: &Job, key: &RuntimeResolveCredentialResponseDto, input: &Input) -> Result<Value, Failure> {
    static HTTP: LazyLock<reqwest::Client> = LazyLock::new(reqwest::Client::new);
    let base_url = key.base_url.as_deref().unwrap_or("https://api.openai.com/v1");
    let numbered: Vec<_> = input.paragraphs.iter().map(|one| format!("[{}] {}", one.id, one.text)).collect();
    let response = HTTP
        .post(format!("{base_url}/chat/completions"))
        .bearer_auth(key.api_key.expose())
        .timeout(job.time_left())
        .json(&json!({
            "model": key.model_name,
            "max_tokens": 4_000,
            "response_format": {"type": "json_object"},
            "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": numbered.join("\n\n")}],
        }))
        .send()
        .await
        .map_err(|error| Failure::from_provider_error(&error))?;
    if !response.status().is_success() {
        let wait = response.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse().ok());
        return Err(Failure::from_provider_status(response.status().as_u16(), wait.map(Duration::from_secs)));
    }
    response.json().await.map_err(|error| Failure::from_provider_error(&error))
}
