//! Many clients on one lock: who is next, and how many requests that takes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{Locks, Token};
use lock_redlock::{Redlock, Votes};
use lock_testkit::RedisFive;
use tokio::time::{Instant, sleep, timeout};

use crate::common::backend;

const PATIENCE: Duration = Duration::from_secs(60);

/// A client of its own, as another process would be one, and its votes.
async fn client(five: &RedisFive) -> (Arc<Redlock>, Locks) {
    // A master that a busy machine makes slow is not given up: what is counted are votes.
    let url = format!("{}?ttl=10s&master_timeout=10s&connect_timeout=20s", five.url());
    backend(&url).await
}

/// What the holders saw: when the lock was last released, how long the next one took to get it, and the last token.
#[derive(Default)]
struct Seen {
    given_back: Option<Instant>,
    gaps: Vec<Duration>,
    last: Option<Token>,
    holders: Vec<usize>,
}

/// So many clients take the lock so often each.
async fn contend(clients: usize, rounds: usize) -> (Seen, Votes, f64) {
    let five = RedisFive::start().await.unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (mut tasks, mut backends, mut all_locks) = (Vec::new(), Vec::new(), Vec::new());
    // All of them before the first lock: who comes to a new fleet when some of its masters have keys takes the others for
    // restarted.
    for _ in 0..clients {
        let (backend, locks) = client(&five).await;
        backends.push(backend);
        all_locks.push(locks);
    }
    let before = scripts_run(&five).await;
    for (number, locks) in all_locks.into_iter().enumerate() {
        let seen = Arc::clone(&seen);
        tasks.push(tokio::spawn(async move {
            let mutex = locks.mutex("a");
            for _ in 0..rounds {
                let guard = mutex.acquire().await.unwrap();
                {
                    let mut seen = seen.lock().unwrap();
                    assert!(seen.last.is_none_or(|last| guard.token() > last), "a token that is not larger");
                    let gap = seen.given_back.take().map(|at| at.elapsed());
                    seen.gaps.extend(gap);
                    seen.last = Some(guard.token());
                    seen.holders.push(number);
                }
                sleep(Duration::from_millis(2)).await;
                seen.lock().unwrap().given_back = Some(Instant::now());
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    let mut votes = Votes::default();
    for backend in backends {
        let one = backend.votes();
        votes.attempts += one.attempts;
        votes.won += one.won;
        votes.won_at_once += one.won_at_once;
        votes.handed_over += one.handed_over;
        votes.split += one.split;
        votes.refused += one.refused;
        votes.failed += one.failed;
    }
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.gaps.sort_unstable();
    let (half, most) = (seen.gaps[seen.gaps.len() / 2], seen.gaps[seen.gaps.len() - 1]);
    let scripts = (scripts_run(&five).await - before) as f64 / votes.won as f64 / 5.0;
    println!(
        "{clients} clients: {votes}; the next has it after {half:?}, at most {most:?}; {scripts:.2} scripts"
    );
    (seen, votes, scripts)
}

async fn scripts_run(masters: &RedisFive) -> u64 {
    let mut sum = 0;
    for master in masters.servers() {
        sum += master.calls_of("evalsha").await;
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_clients_seldom_split_the_vote() {
    let (seen, votes, _) = contend(20, 10).await;
    assert_eq!(seen.holders.len(), 200);
    assert!(votes.at_once() >= 0.95 && votes.split <= votes.won, "{votes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_waiter_has_it_at_once_and_is_not_overtaken() {
    let (seen, votes, scripts) = contend(8, 20).await;
    assert!(seen.gaps[seen.gaps.len() / 2] < Duration::from_millis(100));
    assert!(votes.handed_over * 10 >= votes.won * 9, "{votes}");
    // A claim that joins the queue, the confirmation and the release, at each master.
    assert!(scripts < 4.0, "{scripts} scripts per lock and master");
    // A client that releases the lock and asks again at once comes after the waiters.
    let again = seen.holders.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(again <= seen.holders.len() / 10, "{again} times in a row: {:?}", seen.holders);
}
