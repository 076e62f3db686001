//! What users of comparable systems ran into, against the worker. Each test names its scenario.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ai_runtime_client::dto::{AttemptErrorCode, RuntimeApiKeyMode, RuntimeUsageDto};
use ai_runtime_client::{Claim, Failure, Job, Output, TokenSource, Worker};
use serde_json::{json, Value};
use support::{endless, eventually, quick, spooling, worker, Call, Reply, Running, Server, JOB_TYPE, KEY};

/// Nothing of this kind comes any more: as long as a few heartbeats take.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(600)).await;
}

/// A row of a batch's answer.
fn row(call: &Call, more: Value) -> Reply {
    let mut row = json!({"jobId": call.body["jobs"][0]["jobId"], "directive": "continue", "cancelRequested": false, "late": false,
                         "leaseSeconds": 2.0, "nextHeartbeatSeconds": 0.2});
    row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Reply::Json(200, json!({"jobs": [row], "serverTime": "2026-11-29T12:00:00.000Z", "nextHeartbeatSeconds": 0.2}))
}

/// Answers the first `times` calls of that verb with this.
fn at_first(verb: &'static str, times: usize, reply: Reply) -> impl FnMut(&Call) -> Option<Reply> {
    let mut seen = 0;
    move |call| {
        if call.verb() != verb || seen == times {
            return None;
        }
        seen += 1;
        Some(reply.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_done_from_poll_to_result() {
    let server = Server::start(2.0);
    let job = server.add_job();
    let running = Running::start(worker(&server), |job: Job| async move {
        let key = job.credential().await?;
        let mut call = RuntimeUsageDto::new(key.model_provider, key.model_name, RuntimeApiKeyMode::Platform);
        call.invocation_id = "call-1".to_owned();
        job.record_call(call);
        Output::validated("an answer", &json!({"facts": []}))
    });
    eventually("the result", || server.count("result") == 1).await;
    running.stop().await;
    let result = &server.calls("result")[0];
    assert_eq!(result.path, format!("jobs/{job}/result"));
    assert_eq!(result.body["outputHash"], "ee9555184346cf42bc9ef6619d764c88f4c193f8fabbbffc0cceacfa44a9dd35");
    assert_eq!(result.body["validatedOutput"], json!({"facts": []}));
    assert_eq!(result.body["schemaVersion"], "1");
    // The call's cost rides along, and is in the logs.
    assert_eq!(result.body["usage"][0]["invocationId"], "call-1");
    assert_eq!(server.calls("invocation-logs")[0].body["logs"][0]["invocationId"], "call-1");
    assert_eq!(server.count("fail") + server.count("release"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn s05_a_takeover_that_a_heartbeat_tells_of_aborts_the_handler_and_nothing_is_sent() {
    let server = Server::start(2.0);
    server.script(|call| {
        let gone = json!({"directive": "stop", "reason": "job_lock_lost"});
        (call.verb() == "heartbeat").then(|| row(call, gone))
    });
    server.add_job();
    let (handler, dropped) = endless();
    let running = Running::start(worker(&server), handler);
    eventually("the abort", || dropped.lock().unwrap().is_some()).await;
    let told = server.calls("heartbeat")[0].at;
    assert!(dropped.lock().unwrap().unwrap() - told < Duration::from_secs(1));
    a_while().await;
    assert_eq!(server.count("heartbeat"), 1);
    assert_eq!(server.count("result") + server.count("fail") + server.count("release"), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s14_a_poll_whose_answer_was_lost_is_repeated_and_its_job_runs_once() {
    let server = Server::start(2.0);
    let offer = server.offer(server.add_job(), true);
    let same = json!({"jobs": [offer, offer], "serverTime": "2026-11-29T12:00:00.000Z", "pollAfterSeconds": 0.0, "directive": "continue"});
    let mut polls = 0;
    server.script(move |call| {
        if call.verb() != "poll" {
            return None;
        }
        polls += 1;
        match polls {
            1 => Some(Reply::Cut),
            // The same lease, and again under each poll that follows while it runs.
            2..=4 => Some(Reply::Json(200, same.clone())),
            _ => Some(Reply::Silence),
        }
    });
    let started = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&started);
    let running = Running::start(worker(&server).slots(2).wait(Duration::ZERO), move |_: Job| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Output::text("an answer"))
        }
    });
    eventually("the result", || server.count("result") == 1).await;
    let ids: Vec<_> = server.calls("poll").iter().map(|call| call.body["requestId"].clone()).collect();
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[1], ids[2]);
    assert_eq!((started.load(Ordering::SeqCst), server.count("release")), (1, 0));
    drop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_cancelled_between_poll_and_lock_brings_it_back_to_polling_within_a_second() {
    let server = Server::start(2.0);
    server.script(at_first("lock", 1, Reply::Error(409, "job_cancelled", false)));
    server.add_job();
    server.add_job();
    let running = Running::start(worker(&server).claim(Claim::OfferThenLock), quick);
    eventually("the second job's result", || server.count("result") == 1).await;
    let refused = server.calls("lock")[0].at;
    let next = server.calls("poll").into_iter().find(|poll| poll.at > refused).unwrap();
    assert!(next.at - refused < Duration::from_secs(1));
    assert_eq!(server.count("lock"), 2);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s30_a_result_that_the_server_cannot_take_waits_on_disk_and_goes_out_when_it_can() {
    let server = Server::start(2.0);
    server.script(|call| (call.verb() == "result").then_some(Reply::Error(503, "unavailable", true)));
    let folder = tempfile::tempdir().unwrap();
    server.add_job();
    let running = Running::start(spooling(&server, folder.path()), quick);
    eventually("some tries", || server.count("result") >= 3).await;
    // The heart goes on for it, and its slot is free for other work.
    let beats = server.count("heartbeat");
    eventually("heartbeats", || server.count("heartbeat") > beats).await;
    server.add_job();
    eventually("the second job's result", || server.calls("result").iter().any(|call| call.path != server.calls("result")[0].path)).await;
    let waiting = || std::fs::read_dir(folder.path()).unwrap().flatten().count();
    assert_eq!(waiting(), 2);
    running.stop().await; // as a crash would, it leaves the files
    assert_eq!(waiting(), 2);
    let kept = std::fs::read_dir(folder.path()).unwrap().flatten().map(|one| std::fs::read_to_string(one.path()).unwrap());
    assert!(kept.into_iter().all(|text| !text.contains(KEY) && !text.contains(support::TOKEN)));
    let first = server.calls("result")[0].body.clone();
    server.script(|_| None);
    let again = Running::start(spooling(&server, folder.path()), quick);
    eventually("both are delivered", || waiting() == 0).await;
    // The same content, to the last field: the server knows a repeat by it.
    assert!(server.calls("result").iter().filter(|call| call.body == first).count() >= 4);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s33_too_large_is_one_failure_and_what_the_chain_rejects_is_none() {
    let server = Server::start(2.0);
    server.script(at_first("result", 1, Reply::Error(413, "payload_too_large", false)));
    server.add_job();
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(spooling(&server, folder.path()), quick);
    eventually("the failure", || server.count("fail") == 1).await;
    let failure = &server.calls("fail")[0].body;
    assert_eq!((&failure["errorCode"], &failure["retryable"]), (&json!("output_too_large"), &json!(false)));

    for code in ["schema_validation_failed", "invalid_model_output", "business_validation_failed", "reference_validation_failed"] {
        let before = server.count("result");
        server.script(at_first("result", 1, Reply::Detailed(422, code, json!({"jobStatus": "failed"}))));
        server.add_job();
        eventually("the result", || server.count("result") == before + 1).await;
    }
    a_while().await;
    assert_eq!((server.count("result"), server.count("fail"), server.count("release")), (5, 1, 0));
    running.stop().await;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn s36_a_proxys_page_is_no_answer_whatever_its_status() {
    let server = Server::start(4.0);
    let seen = Mutex::new(std::collections::HashMap::<String, usize>::new());
    server.script(move |call| {
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(call.verb().to_owned()).or_default();
        *times += 1;
        [200, 404, 502].get(*times - 1).map(|status| Reply::Page(*status))
    });
    let job = server.add_job();
    let running = Running::start(worker(&server), |job: Job| async move {
        job.credential().await?;
        tokio::time::sleep(Duration::from_secs(4)).await; // longer than its lease
        Ok(Output::text("an answer"))
    });
    eventually("the fourth try of the result", || server.count("result") == 4).await;
    running.stop().await;
    assert_eq!(server.count("resolve"), 4);
    assert!(server.count("heartbeat") > 4);
    assert!(server.calls("result").iter().all(|call| call.path == format!("jobs/{job}/result")));
    assert_eq!(server.count("fail") + server.count("release"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn s39_a_stop_hands_back_what_runs_within_a_second() {
    let server = Server::start(4.0);
    server.add_job();
    let (handler, dropped) = endless();
    let running = Running::start(worker(&server).drain(Duration::ZERO), handler);
    eventually("it runs", || server.count("snapshot") == 1).await;
    a_while().await;
    let asked = Instant::now();
    running.stopper.stop();
    eventually("the release", || server.count("release") == 1).await;
    assert!(server.calls("release")[0].at - asked < Duration::from_secs(1));
    running.ended().await;
    assert!(dropped.lock().unwrap().is_some());
    assert_eq!(server.count("result") + server.count("fail"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn s43_a_cancel_aborts_the_handler_and_is_answered_with_a_failure() {
    let server = Server::start(2.0);
    server.script(|call| {
        let cancelled = json!({"directive": "cancel", "cancelRequested": true});
        (call.verb() == "heartbeat").then(|| row(call, cancelled))
    });
    server.add_job();
    let (handler, dropped) = endless();
    let running = Running::start(worker(&server), handler);
    eventually("the failure", || server.count("fail") == 1).await;
    assert!(dropped.lock().unwrap().is_some());
    assert_eq!(server.calls("fail")[0].body["errorCode"], "cancelled");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s44_three_lost_heartbeats_do_no_harm() {
    let server = Server::start(4.0);
    server.script(at_first("heartbeat", 3, Reply::Cut));
    server.add_job();
    let running = Running::start(worker(&server), |_: Job| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(Output::text("an answer"))
    });
    eventually("the result", || server.count("result") == 1).await;
    assert!(server.count("heartbeat") > 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s44_a_lease_that_cannot_be_renewed_ends_its_handler_by_the_local_clock() {
    let server = Server::start(2.0);
    server.script(|call| (call.verb() == "heartbeat").then_some(Reply::Silence));
    server.add_job();
    let (handler, dropped) = endless();
    let running = Running::start(worker(&server), handler);
    eventually("it runs", || server.count("snapshot") == 1).await;
    let began = server.calls("snapshot")[0].at;
    eventually("the abort", || dropped.lock().unwrap().is_some()).await;
    let lasted = dropped.lock().unwrap().unwrap() - began;
    assert!(lasted > Duration::from_millis(1_500) && lasted < Duration::from_secs(3), "{lasted:?}");
    a_while().await;
    assert_eq!(server.count("result") + server.count("fail") + server.count("release"), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_whose_time_is_over_is_a_failure_that_says_so() {
    let server = Server::start(8.0);
    server.timeout(1);
    server.add_job();
    let (handler, dropped) = endless();
    let running = Running::start(worker(&server), handler);
    eventually("the failure", || server.count("fail") == 1).await;
    assert!(dropped.lock().unwrap().is_some());
    assert_eq!(server.calls("fail")[0].body["errorCode"], "provider_timeout");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s45_a_draining_worker_still_beats_and_its_result_is_taken() {
    let server = Server::start(1.0);
    server.script(|call| (call.verb() == "heartbeat").then(|| row(call, json!({"directive": "drain"}))));
    server.add_job();
    let running = Running::start(worker(&server), |_: Job| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(Output::text("an answer"))
    });
    eventually("it beats", || server.count("heartbeat") >= 1).await;
    running.stopper.stop();
    let stopped = Instant::now();
    running.ended().await;
    assert!(server.calls("heartbeat").iter().filter(|call| call.at > stopped).count() >= 3);
    assert_eq!(server.count("result"), 1);
    assert!(server.calls("poll").iter().all(|call| call.at < stopped));
}

#[tokio::test(flavor = "multi_thread")]
async fn s45_a_drain_that_ends_lets_it_take_jobs_again() {
    let server = Server::start(2.0);
    let drain = json!({"jobs": [], "serverTime": "2026-11-29T12:00:00.000Z", "pollAfterSeconds": 0.0, "directive": "drain"});
    server.script(at_first("poll", 1, Reply::Json(200, drain)));
    server.add_job();
    let running = Running::start(worker(&server), quick);
    eventually("the result", || server.count("result") == 1).await;
    let polls = server.calls("poll");
    assert!(polls[1].at - polls[0].at >= Duration::from_secs(5));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s47_what_a_poll_brings_that_was_open_at_the_stop_is_handed_back() {
    let server = Server::start(4.0);
    let running = Running::start(worker(&server).wait(Duration::from_secs(3)), quick);
    eventually("a poll is open", || server.count("poll") == 1).await;
    running.stopper.stop();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let job = server.add_job();
    running.ended().await;
    assert_eq!(server.calls("release")[0].path, format!("jobs/{job}/release"));
    assert_eq!((server.count("poll"), server.count("snapshot"), server.count("result")), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn s47_a_poll_that_is_cut_off_at_the_stop_is_asked_again_for_what_it_locked() {
    let server = Server::start(4.0);
    let offer = server.offer(server.add_job(), true);
    let leased = json!({"jobs": [offer], "serverTime": "2026-11-29T12:00:00.000Z", "pollAfterSeconds": 0.0, "directive": "continue"});
    let (told, tell) = std::sync::mpsc::channel::<()>();
    let mut polls = 0;
    server.script(move |call| {
        if call.verb() != "poll" {
            return None;
        }
        polls += 1;
        if polls == 1 {
            tell.recv().unwrap();
            return Some(Reply::Cut);
        }
        Some(Reply::Json(200, leased.clone()))
    });
    let running = Running::start(worker(&server), quick);
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.stopper.stop();
    tokio::time::sleep(Duration::from_millis(100)).await;
    told.send(()).unwrap();
    running.ended().await;
    let polls = server.calls("poll");
    assert_eq!(polls[0].body["requestId"], polls[1].body["requestId"]);
    assert_eq!((server.count("release"), server.count("result")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn s50_a_rotated_token_costs_no_call() {
    let server = Server::start(4.0);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "rt_old_1\n").unwrap();
    server.script(|call| (call.token == "rt_old_1" && call.verb() == "result").then_some(Reply::Error(401, "token_revoked", false)));
    server.add_job();
    let token = TokenSource::from_file(file.path()).unwrap();
    let path = file.path().to_owned();
    let running = Running::start(Worker::builder(&server.url, token).job_type(JOB_TYPE).wait(Duration::from_millis(300)), move |_: Job| {
        std::fs::write(&path, "rt_new_2").unwrap();
        async { Ok(Output::text("an answer")) }
    });
    eventually("the result", || server.count("result") == 2).await;
    let results = server.calls("result");
    assert_eq!((results[0].token.as_str(), results[1].token.as_str()), ("rt_old_1", "rt_new_2"));
    assert!(results[1].at - results[0].at < Duration::from_secs(1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s50_a_revoked_token_makes_it_back_off_and_a_new_one_is_found() {
    let server = Server::start(4.0);
    server.script(|_| Some(Reply::Error(401, "token_revoked", false)));
    let running = Running::start(worker(&server), quick);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(server.count("poll"), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_fails_with_is_reported_without_the_key() {
    let server = Server::start(4.0);
    server.add_job();
    server.add_job();
    let running = Running::start(worker(&server), |job: Job| async move {
        let key = job.credential().await?;
        if job.attempt_no() == 1 && job.offer().priority == 5 {
            let message = format!("401 with {}", key.api_key.expose());
            return Err(Failure::new(AttemptErrorCode::ProviderRateLimited, message).retry_after(Duration::from_secs(7)));
        }
        Ok(Output::text("an answer"))
    });
    eventually("two failures", || server.count("fail") == 2).await;
    let failure = &server.calls("fail")[0].body;
    assert_eq!(failure["errorCode"], "provider_rate_limited");
    assert_eq!((&failure["retryable"], &failure["retryAfterSeconds"]), (&json!(true), &json!(7.0)));
    assert_eq!(failure["message"], "401 with [secret]");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_fails_its_job_and_nothing_else() {
    let server = Server::start(4.0);
    server.add_job();
    let running = Running::start(worker(&server), |job: Job| async move {
        assert!(job.attempt_no() > 1, "on purpose");
        Ok(Output::text("an answer"))
    });
    eventually("the failure", || server.count("fail") == 1).await;
    let failure = &server.calls("fail")[0].body;
    assert_eq!((&failure["errorCode"], &failure["retryable"]), (&json!("internal_error"), &json!(true)));
    let polls = server.count("poll");
    eventually("it polls on", || server.count("poll") > polls).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s42_a_credential_that_cannot_be_had_is_one_failure_of_that_code() {
    let server = Server::start(4.0);
    server.script(|call| (call.verb() == "resolve").then_some(Reply::Error(424, "credential_unavailable", false)));
    server.add_job();
    let running = Running::start(worker(&server), |job: Job| async move {
        job.credential().await?;
        Ok(Output::text("an answer"))
    });
    eventually("the failure", || server.count("fail") == 1).await;
    a_while().await;
    let failure = &server.calls("fail")[0].body;
    assert_eq!((&failure["errorCode"], &failure["retryable"]), (&json!("credential_unavailable"), &json!(false)));
    assert_eq!((server.count("resolve"), server.count("fail")), (1, 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_and_checkpoint_ride_on_the_next_heartbeat() {
    let server = Server::start(2.0);
    server.add_job();
    let running = Running::start(worker(&server), |job: Job| async move {
        job.progress(40, &"x\0".repeat(200));
        job.save_checkpoint(json!({"paragraph": 3}))?;
        assert!(job.save_checkpoint(json!("x".repeat(20_000))).is_err());
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Ok(Output::text("an answer"))
    });
    eventually("the result", || server.count("result") == 1).await;
    let beats = server.calls("heartbeat");
    let first = &beats[0].body["jobs"][0];
    assert_eq!((&first["progress"], &first["checkpoint"]), (&json!(40), &json!({"paragraph": 3})));
    assert_eq!(first["progressMessage"].as_str().unwrap().chars().count(), 200);
    assert!(!first["progressMessage"].as_str().unwrap().contains('\0'));
    // Said once; a heartbeat without news has none.
    assert!(beats[1].body["jobs"][0].get("progress").is_none());
    running.stop().await;
}
