//! S44: the heart is steady while a handler burns every processor. In a file of its own, so that no other test burns with it.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use ai_runtime_client::{Job, Output};
use support::{eventually, worker, Running, Server};

const BURN: Duration = Duration::from_secs(30);
const LEASE: f64 = 10.0;

#[tokio::test(flavor = "multi_thread")]
async fn s44_no_heartbeat_is_late_by_more_than_its_interval_while_all_processors_burn() {
    let server = Server::start(LEASE);
    server.add_job();
    let began = Instant::now();
    let running = Running::start(worker(&server), |_: Job| async {
        // Every thread of this tokio runtime spins, and twice as many beside it; nothing of them comes to an await.
        let until = Instant::now() + BURN;
        let spin = move || {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        };
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        for _ in 0..processors {
            tokio::spawn(async move { spin() });
        }
        let beside: Vec<_> = (0..2 * processors).map(|_| std::thread::spawn(spin)).collect();
        spin();
        beside.into_iter().for_each(|one| one.join().unwrap());
        Ok(Output::text("an answer"))
    });
    // Not by a wait of this runtime, which burns as well.
    let waiting = server.clone();
    std::thread::spawn(move || {
        while waiting.count("result") == 0 && began.elapsed() < BURN * 4 {
            std::thread::sleep(Duration::from_millis(50));
        }
    })
    .join()
    .unwrap();
    eventually("the result", || server.count("result") == 1).await;
    let result = server.calls("result")[0].at;
    let mut times: Vec<_> = server.calls("heartbeat").iter().map(|call| call.at).filter(|at| *at < result).collect();
    assert!(result - began >= BURN);
    times.insert(0, server.calls("snapshot")[0].at);
    times.push(result);
    let interval = Duration::from_secs_f64(LEASE / 4.0);
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let worst = gaps.iter().max().unwrap();
    println!("{} heartbeats, every {interval:?}; the latest came {:?} late", gaps.len() - 1, worst.saturating_sub(interval));
    assert!(*worst <= interval * 2, "{gaps:?}");
    assert_eq!(server.count("fail") + server.count("release"), 0);
    running.stop().await;
}
