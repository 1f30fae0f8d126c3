//! `contended`: processes contend for one lock, each holds it for a moment.
//!
//! Every process records its events on a clock that all processes share. One more process measures empty round trips to
//! the server at the same time, on a connection of its own. A short second pass counts requests through a proxy, so that
//! the counting does not disturb the timing.

use std::time::Duration;

use lock_testkit::history::Event;
use polylock::Locks;
use tokio::task::JoinSet;

use super::bench::{Bench, Measured, time};
use super::contention::{Contention, HOLD, jobs, let_contend};
use super::request_count::count_requests;
use crate::data::{BackendName, EventLog, Failure, Latency, Outcome, Plan, Row, Window};
use crate::rig::worker::contend::{GRACE, contend};
use crate::rig::worker::handle::unexpected;
use crate::rig::{Job, Order, Target, Task, WorkerHandle, WorkerReport};

pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("processes", format!("{}; memory: as many tasks of one process", plan.processes)),
        ("hold", format!("{}, a sleep on tokio's timer, which rounds up to the next millisecond", time(HOLD))),
        (
            "duration",
            format!(
                "{} in {} rounds, each in turn with the bare hand-over, after {} of warm-up",
                time(plan.contended),
                plan.rounds,
                time(plan.warm_up)
            ),
        ),
        ("interval", "of the ratios of the rounds, of at least 90 %".into()),
        ("runtime", "current_thread in every process; memory: multi_thread with 2 workers".into()),
        ("hand-off", "from the call of release to the return of the next acquire, in whatever process".into()),
        ("to_a_waiter", "the same, until a process that waited at the time of the release has the lock".into()),
        (
            "bare",
            format!(
                "the same processes hand over by the bare requests, for {}: SET to wait, SET + PUBLISH, SET; zk: create, \
                 delete, a watch; postgres: INSERT to wait, UPDATE + NOTIFY, UPDATE",
                time(plan.counted)
            ),
        ),
        (
            "ping",
            "the median of empty round trips (PING; zk: exists; postgres: three empty queries, and two commits of the floor) in a \
             process of their own, at the same time, every 2 to 5 ms"
                .into(),
        ),
        ("ideal", "the number of processes x (median hold + median hand-off)".into()),
        (
            "requests",
            format!("commands that arrive at the servers, counted by a proxy in a pass of {}", time(plan.counted)),
        ),
    ]
}

pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let lock = bench.lock("contended");
    if target.backend() == BackendName::Memory {
        let window = Window::after(plan.contended, plan.warm_up);
        let events = contend_inside(bench, target, &lock, window).await?;
        let contention = Contention::of(events, window, plan.processes)?;
        let mut measured = measured(contention, target.name(), &[], None, None);
        // The memory backend sends no requests.
        measured.rows.push(Row::new("contended", target.name(), "requests_per_grant", "", 0.0));
        return Ok(measured);
    }
    let pinger = Job::new(target.url(), &lock, plan.processes, Task::Ping);
    let mut workers = WorkerHandle::start_all(jobs(bench, target.url(), &lock).chain([pinger])).await?;
    let pinger = workers.pop().ok_or_else(|| Failure::new("no worker was started"))?;
    let mut contention = Contention::new(plan.processes);
    let (mut handoffs, mut pings, mut bare) = (Vec::new(), Ok(Vec::new()), Ok(BareRing::default()));
    for round in 0..plan.rounds {
        let span = plan.contended / plan.rounds;
        let window = Window::after(span, if round == 0 { plan.warm_up } else { ramp(span) });
        pinger.send(Order::Contend(window)).await?;
        let events = let_contend(&workers, window).await.map_err(|failure| failure.during("contention"))?;
        handoffs.push(contention.add(events, window)?);
        // A failure of what it is compared with costs no other number.
        pings = add(pings, pings_of(&pinger).await);
        // No message of a single master can hand over a quorum.
        if target.backend() != BackendName::Redlock {
            bare = match bare {
                Ok(ring) => ring.turn(bench, target).await,
                failed => failed,
            };
        }
    }
    let mut complaints = Vec::new();
    let mut passes = Passes(&mut complaints);
    let pings = passes.result("pings", pings);
    let votes = match target.backend() {
        BackendName::Redlock => passes.result("votes", votes(&workers).await),
        _ => None,
    };
    let bare = passes.result("the bare hand-over", bare).filter(|ring| !ring.handoffs.is_empty());
    drop((workers, pinger));
    let counted = count_requests(bench, target.backend(), target.url(), &bench.lock("counted")).await;
    let counted = passes.result("counting requests", counted);

    let bare = bare.map(|ring| ring.handoffs);
    let mut measured = measured(contention, target.name(), &handoffs, pings.as_deref(), bare.as_deref());
    measured.rows.extend(votes.into_iter().flatten());
    if let Some(mut counted) = counted {
        measured.rows.push(Row::new("contended", target.name(), "requests_per_grant", "", counted.requests));
        measured.events.append(&mut counted.events);
    }
    measured.complaints = complaints;
    Ok(measured)
}

/// What each round measured, until one failed.
fn add(rounds: Outcome<Vec<Latency>>, round: Outcome<Latency>) -> Outcome<Vec<Latency>> {
    let mut rounds = rounds?;
    rounds.push(round?);
    Ok(rounds)
}

/// Collects the failures of single passes.
struct Passes<'a>(&'a mut Vec<String>);

impl Passes<'_> {
    /// The result of a pass, unless it failed.
    fn result<T>(&mut self, pass: &str, outcome: Outcome<T>) -> Option<T> {
        outcome.map_err(|failure| self.0.push(failure.during(pass).to_string())).ok()
    }
}

/// Tasks instead of processes, each with its own connection to the same locks.
async fn contend_inside(bench: &Bench, target: &Target, lock: &str, window: Window) -> Outcome<Vec<Event>> {
    let mut tasks = JoinSet::new();
    for process in 0..bench.plan.processes {
        let mutex = Locks::connect(target.url()).await?.mutex(bench.lock_of(lock, process));
        let mut log = EventLog::new(process, 0, lock);
        tasks.spawn(async move { contend(&mutex, &mut log, window, HOLD).await.map(|()| log.into_events()) });
    }
    let mut events = Vec::new();
    while let Some(done) = tasks.join_next().await {
        events.append(&mut done??);
    }
    Ok(events)
}

async fn votes(workers: &[WorkerHandle]) -> Outcome<[Row; 2]> {
    let (mut all, mut at_once, mut splits) = (0, 0, 0);
    for worker in workers {
        worker.send(Order::Go).await?;
        match worker.receive(2 * GRACE).await? {
            WorkerReport::Votes { won, won_at_once, split } => {
                (all, at_once, splits) = (all + won, at_once + won_at_once, splits + split);
            }
            other => return Err(unexpected(&other)),
        }
    }
    let row = |metric, unit, value| Row::new("contended", BackendName::Redlock.as_str(), metric, unit, value);
    let share = at_once as f64 / all as f64 * 100.0;
    Ok([row("first_try", "%", share), row("split_votes", "", splits as f64)])
}

/// As many processes that hand over by the bare requests, and their hand-offs in each round.
#[derive(Default)]
struct BareRing {
    workers: Vec<WorkerHandle>,
    handoffs: Vec<Latency>,
}

impl BareRing {
    /// Measures one more round; the first starts the processes.
    async fn turn(mut self, bench: &Bench, target: &Target) -> Outcome<Self> {
        let (lock, of) = (bench.lock("bare"), bench.plan.processes);
        if self.workers.is_empty() {
            let job = |process| Job::new(target.url(), &lock, process, Task::BareHandOver { hold: HOLD, of });
            self.workers = WorkerHandle::start_all((0..of).map(job)).await?;
        }
        let span = bench.plan.counted / bench.plan.rounds;
        let warm_up = if self.handoffs.is_empty() { bench.plan.warm_up } else { ramp(span) };
        let window = Window::after(span, warm_up);
        let events = let_contend(&self.workers, window).await?;
        self.handoffs.push(Contention::of(events, window, of)?.handoff);
        Ok(self)
    }
}

async fn pings_of(pinger: &WorkerHandle) -> Outcome<Latency> {
    let pings = match pinger.receive(2 * GRACE).await? {
        WorkerReport::Pings(pings) => pings,
        other => return Err(unexpected(&other)),
    };
    let mut latency = Latency::new();
    pings.into_iter().for_each(|ns| latency.record(ns));
    if latency.len() == 0 {
        return Err(Failure::new("no ping was measured: the server did not answer"));
    }
    Ok(latency)
}

/// The rows of `contended`; the hand-off against pings and the bare hand-over, where they were measured, round by round.
fn measured(
    contention: Contention,
    backend: &'static str,
    rounds: &[Latency],
    pings: Option<&[Latency]>,
    bare: Option<&[Latency]>,
) -> Measured {
    let row =
        |metric, part| Row::new("contended", backend, metric, "us", contention.handoff.quantile_us(part));
    // The same quantile of another latency, or always its median.
    let against = |metric, part, floor: Option<&[Latency]>, of_floor| {
        let Some(floor) = floor else { return row(metric, part) };
        let both = rounds.iter().zip(floor);
        let both = both.map(|(ours, floor)| (ours.quantile_us(part), floor.quantile_us(of_floor)));
        row(metric, part).with_floor(together(floor).quantile_us(of_floor)).with_rounds(both)
    };
    let mut rows = vec![
        against("handoff_p50", 0.5, pings, 0.5),
        against("handoff_p95", 0.95, pings, 0.5),
        // The rarest hand-offs have no target.
        row("handoff_p99", 0.99),
    ];
    if bare.is_some() {
        rows.push(against("handoff_p50_bare", 0.5, bare, 0.5));
        rows.push(against("handoff_p95_bare", 0.95, bare, 0.95));
    }
    let waiter_us = contention.to_waiter.quantile_us(0.5);
    rows.push(Row::new("contended", backend, "waiter_p50", "us", waiter_us));
    let mut measured = contention.into_measured("contended", backend);
    measured.rows.splice(1..1, rows);
    if let Some(pings) = pings.map(together) {
        // The longest ping shows stalls that delay every waiter.
        let spread = [0.5, 0.95, 1.0].map(|part| format!("{:.0}", pings.quantile_us(part)));
        measured.notes.push(("ping_p50_p95_longest", format!("{} us", spread.join(", "))));
    }
    measured
}

fn together(rounds: &[Latency]) -> Latency {
    let mut all = Latency::new();
    rounds.iter().for_each(|round| all.add(&round.counts()));
    all
}

/// Until all processes contend again.
fn ramp(span: Duration) -> Duration {
    span / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::contention::tests::held;

    #[test]
    fn numbers_are_those_of_the_window() {
        let events = [
            held(0, 0, 50, 99),
            held(1, 0, 100, 110),
            held(0, 100, 112, 120),
            held(1, 111, 124, 130),
            held(0, 121, 300, 310),
        ];
        let window = Window { from_ns: 100_000_000, until_ns: 200_000_000 };
        let mut pings = Latency::new();
        [400_000, 500_000, 900_000].into_iter().for_each(|ns| pings.record(ns));
        let contention = Contention::of(events.concat(), window, 2).unwrap();
        let (rounds, pings) = ([contention.handoff.clone()], [pings]);
        let measured = measured(contention, "redis", &rounds, Some(&pings), Some(&pings));
        let row = |metric: &str| measured.rows.iter().find(|row| row.metric == metric).unwrap();
        let value = |metric: &str| row(metric).value;
        assert!((value("grants_per_s") - 30.0).abs() < 1e-9);
        assert!((value("handoff_p50") - 2_000.0).abs() < 2.0, "{}", value("handoff_p50"));
        assert!((value("handoff_p99") - 4_000.0).abs() < 4.0);
        assert!((row("handoff_p50").ratio.unwrap() - 4.0).abs() < 0.01, "{:?}", row("handoff_p50"));
        assert!((row("handoff_p95").ratio.unwrap() - 8.0).abs() < 0.02);
        assert!((value("waiter_p50") - 4_000.0).abs() < 4.0, "{}", value("waiter_p50"));
        // Two processes, a median hold of 8 ms and a median hand-off of 2 ms.
        assert!((row("longest_wait").floor.unwrap() - 20_000.0).abs() < 20.0, "{:?}", row("longest_wait"));
        assert!((value("longest_wait") - 79_000.0).abs() < 1e-6, "{}", value("longest_wait"));
        assert!((value("jain") - 9.0 / (2.0 * 5.0)).abs() < 1e-9);
    }

    #[test]
    fn a_failed_pass_is_reported_and_the_others_count() {
        let mut complaints = Vec::new();
        let mut passes = Passes(&mut complaints);
        assert_eq!(passes.result("pings", Ok(7)), Some(7));
        assert_eq!(passes.result::<()>("the bare hand-over", Err(Failure::new("it is stuck"))), None);
        assert_eq!(complaints, ["the bare hand-over: it is stuck"]);
    }
}
