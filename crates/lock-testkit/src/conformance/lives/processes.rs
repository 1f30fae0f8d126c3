//! Several processes, some of which are killed or stopped.

use std::time::Duration;

use lock_core::{GuardState, Token};
use tokio::time::{Instant, sleep};

use crate::conformance::Harness;
use crate::conformance::helpers::{
    LEASE_SLACK, LONG, NOISE, PATIENCE, SOON, client, fresh, give_back, must_be_busy, nothing_left,
    take_within, within,
};
use crate::conformance::lives::worker::{Answer, Order, Resource};
use crate::history::History;
use crate::worker::Worker;

const PROCESSES: u32 = 8;
const TIMES: u32 = 25;
const PERMITS: u32 = 3;
/// Longer than a short lease, and than round trips on a noisy machine.
const HOLD: Duration = Duration::from_secs(4);
/// What clocks of several servers, and roundings, may take away.
const ROUNDING: Duration = Duration::from_millis(50);

pub(crate) async fn eight_processes_lose_no_update(harness: &dyn Harness) {
    let (name, dir) = (fresh(), tempfile::tempdir().unwrap());
    let file = dir.path().join("counter");
    let history = |number: u32| dir.path().join(format!("history-{number}"));
    let workers = all_ready(harness).await;
    for (number, worker) in (0..).zip(&workers) {
        let (name, handle, file, history) = (name.clone(), harness.handle(), file.clone(), history(number));
        tell(worker, &Order::Count { name, handle, file, history, times: TIMES }).await;
    }
    for worker in &workers {
        hear(worker, |answer| matches!(answer, Answer::Counted)).await;
    }
    let (number, _) = Resource::open(&file).unwrap().read().unwrap();
    assert_eq!(number, u64::from(PROCESSES * TIMES), "updates were lost: two held the lock");
    let report = crate::checker::check(&History::load((0..PROCESSES).map(history)).unwrap());
    assert_eq!(report.holds, (PROCESSES * TIMES) as usize);
    assert_eq!(report.accepted_writes, (PROCESSES * TIMES) as usize, "{report}");
    report.assert_holds();
    drop(workers);
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_killed_holder_is_followed(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let holder = ready(harness, harness.short_lease()).await;
    let token = acquire(harness, &holder, &name).await;
    // Renewed as long as the process lives.
    sleep(2 * harness.short_lease()).await;
    must_be_busy(&locks, &name).await;
    holder.kill();
    let next = take_within(harness.short_lease() + LEASE_SLACK, &locks, &name).await;
    assert!(next.token() > token, "token {} came after {token}", next.token());
    give_back(next).await;
    nothing_left(harness, &name).await;
}

/// How a holder gets its lock, and what it does before it is killed.
#[derive(Clone, Copy, Debug)]
struct Crash {
    is_handed_over: bool,
    releases: bool,
}

pub(crate) async fn a_killed_holder_holds_at_least_as_long(harness: &dyn Harness) {
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let crash = |(is_handed_over, releases)| held_at_least(harness, Crash { is_handed_over, releases });
    let [one, two, three, four] = ways.map(crash);
    tokio::join!(one, two, three, four);
}

async fn held_at_least(harness: &dyn Harness, crash: Crash) {
    let (locks, name) = (client(harness).await, fresh());
    // Its leases end long before.
    let holder = ready(harness, harness.short_lease()).await;
    let before = take_within(SOON, &locks, &name).await;
    let order = Order::HoldAtLeast { name: name.clone(), hold: HOLD };
    let start = if crash.is_handed_over {
        tell(&holder, &order).await;
        sleep(NOISE).await;
        let start = Instant::now();
        give_back(before).await;
        start
    } else {
        give_back(before).await;
        let start = Instant::now();
        tell(&holder, &order).await;
        start
    };
    let Answer::Held { token } = hear(&holder, |answer| matches!(answer, Answer::Held { .. })).await else {
        unreachable!("heard what was asked for")
    };
    if crash.releases {
        tell(&holder, &Order::Release).await;
        hear(&holder, |answer| matches!(answer, Answer::Released { was_ours: true })).await;
    }
    holder.kill();
    let next = take_within(HOLD + LEASE_SLACK + PATIENCE, &locks, &name).await;
    let held = start.elapsed();
    assert!(held + ROUNDING >= HOLD, "{crash:?}: the next holder has the lock after {held:?}");
    assert!(next.token().get() > token, "token {} came after {token}", next.token());
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_killed_reader_is_followed(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let alive = within(SOON, "the lock", one.rw(&name).read()).await.unwrap();
    let reader = ready(harness, harness.short_lease()).await;
    let token = hold(&reader, Order::Read { name: name.clone() }).await;
    sleep(2 * harness.short_lease()).await;
    reader.kill();
    // Not before both holds have ended, one by its lease, the other by its release.
    let writer = two.rw(&name);
    let writer = tokio::spawn(async move { writer.write().await });
    sleep(harness.short_lease() + LEASE_SLACK / 2).await;
    assert!(!writer.is_finished(), "a reader holds the lock, and a writer got it");
    assert!(alive.is_valid());
    give_back(alive).await;
    let next = within(LEASE_SLACK, "the writer to get the lock", writer).await.unwrap().unwrap();
    assert!(next.token() > token, "token {} came after {token}", next.token());
    give_back(next).await;

    // And alone, while it lives.
    let reader = ready(harness, harness.short_lease()).await;
    let token = hold(&reader, Order::Read { name: name.clone() }).await;
    sleep(2 * harness.short_lease()).await;
    must_be_busy(&one, &name).await;
    reader.kill();
    let next = take_within(harness.short_lease() + LEASE_SLACK, &one, &name).await;
    assert!(next.token() > token, "token {} came after {token}", next.token());
    give_back(next).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn processes_never_exceed_the_permits(harness: &dyn Harness) {
    let (name, dir) = (fresh(), tempfile::tempdir().unwrap());
    let file = dir.path().join("room");
    let history = |number: u32| dir.path().join(format!("history-{number}"));
    let workers = all_ready(harness).await;
    for (number, worker) in (0..).zip(&workers) {
        let (name, file, history) = (name.clone(), file.clone(), history(number));
        tell(worker, &Order::Visit { name, permits: PERMITS, file, history, times: TIMES }).await;
    }
    for worker in &workers {
        hear(worker, |answer| matches!(answer, Answer::Visited)).await;
    }
    let (inside, most) = Resource::open(&file).unwrap().read().unwrap();
    assert_eq!(inside, 0, "all visitors have left");
    // A busy machine may not run as many at once as there are permits.
    assert!((2..=u64::from(PERMITS)).contains(&most), "at most {most} visitors at once");
    let report = crate::checker::check(&History::load((0..PROCESSES).map(history)).unwrap());
    assert_eq!(report.holds, (PROCESSES * TIMES) as usize);
    report.assert_holds();
    drop(workers);
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_killed_waiter_is_no_obstacle(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take_within(SOON, &one, &name).await;
    let waiter = ready(harness, harness.short_lease()).await;
    tell(&waiter, &Order::Acquire { name: name.clone(), handle: harness.handle() }).await;
    sleep(NOISE).await;
    waiter.kill();
    give_back(guard).await;
    // Its queue entry lasts as long as its lease.
    give_back(take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_stopped_holder_knows_that_it_lost(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    let holder = ready(harness, harness.short_lease()).await;
    let token = acquire(harness, &holder, &name).await;
    tell(&holder, &Order::Report).await;
    hear(&holder, |answer| matches!(answer, Answer::Reported { valid: true, .. })).await;

    holder.stop();
    let next = take_within(harness.short_lease() + LEASE_SLACK, &locks, &name).await;
    assert!(next.token() > token, "token {} came after {token}", next.token());
    // It checks its guard as soon as it continues.
    tell(&holder, &Order::Report).await;
    sleep(harness.short_lease()).await;
    holder.cont();
    let Answer::Reported { valid, state } =
        hear(&holder, |answer| matches!(answer, Answer::Reported { .. })).await
    else {
        unreachable!("the answer that was waited for")
    };
    assert!(!valid, "the next client has the lock, and the guard of the stopped one is valid: {state}");
    tell(&holder, &Order::Release).await;
    hear(&holder, |answer| matches!(answer, Answer::Released { was_ours: false })).await;
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "the late release freed the next holder");
    give_back(next).await;
    // The process can acquire again.
    acquire(harness, &holder, &name).await;
    tell(&holder, &Order::Release).await;
    hear(&holder, |answer| matches!(answer, Answer::Released { was_ours: true })).await;
    nothing_left(harness, &name).await;
}

async fn started(harness: &dyn Harness, lease: Duration) -> Worker {
    Worker::spawn(&harness.worker(lease).await).unwrap_or_else(|error| panic!("no worker: {error}"))
}

/// As many workers as there are `PROCESSES`, which connect at the same time.
async fn all_ready(harness: &dyn Harness) -> Vec<Worker> {
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(started(harness, LONG).await);
    }
    for worker in &workers {
        hear(worker, |answer| matches!(answer, Answer::Ready)).await;
    }
    workers
}

async fn ready(harness: &dyn Harness, lease: Duration) -> Worker {
    let worker = started(harness, lease).await;
    hear(&worker, |answer| matches!(answer, Answer::Ready)).await;
    worker
}

async fn acquire(harness: &dyn Harness, worker: &Worker, name: &str) -> Token {
    hold(worker, Order::Acquire { name: name.to_owned(), handle: harness.handle() }).await
}

async fn hold(worker: &Worker, order: Order) -> Token {
    tell(worker, &order).await;
    match hear(worker, |answer| matches!(answer, Answer::Held { .. })).await {
        Answer::Held { token } => Token::new(token),
        _ => unreachable!("heard what was asked for"),
    }
}

async fn tell(worker: &Worker, order: &Order) {
    let order = serde_json::to_value(order).expect("an order is plain data");
    within(SOON, "the worker to listen", worker.send(&order)).await.unwrap_or_else(|error| panic!("{error}"));
}

async fn hear(worker: &Worker, expected: impl Fn(&Answer) -> bool + Send) -> Answer {
    let answer = worker.recv_deadline(2 * PATIENCE).await.unwrap_or_else(|error| panic!("{error}"));
    let answer: Answer = serde_json::from_value(answer).expect("a worker speaks the language of this module");
    assert!(expected(&answer), "{worker} answered {answer:?}");
    answer
}
