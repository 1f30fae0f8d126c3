//! What a hand-over between processes is compared with: empty round trips, and the bare requests.

use std::time::Duration;

use lock_testkit::history::Event;
use polylock::Locks;
use tokio::task::JoinSet;

use super::contention::{Contention, HOLD, let_contend, ramp};
use crate::experiments::prelude::*;
use crate::rig::worker::contend::{GRACE, contend};
use crate::rig::worker::handle::unexpected;

/// Tasks instead of processes, each with its own connection to the servers, and the lock by one of these names. Returns their history, and
/// the window of this length that counts, after a warm-up.
pub(crate) async fn contend_inside(
    url: &str,
    lock: &str,
    names: impl Iterator<Item = String>,
    [span, warm_up]: [Duration; 2],
) -> Outcome<(Vec<Event>, Window)> {
    let (mut connected, mut mutexes) = (Vec::new(), Vec::new());
    for name in names {
        let locks = Locks::connect(url).await?;
        mutexes.push(locks.mutex(name));
        connected.push(locks);
    }
    let (window, mut tasks) = (Window::after(span, warm_up), JoinSet::new());
    for (process, mutex) in (0..).zip(mutexes) {
        let mut log = EventLog::new(process, 0, lock);
        tasks.spawn(async move { contend(&mutex, &mut log, window, HOLD).await.map(|()| log.into_events()) });
    }
    let mut events = Vec::new();
    while let Some(done) = tasks.join_next().await {
        events.append(&mut done??);
    }
    for locks in connected {
        locks.close().await?;
    }
    Ok((events, window))
}

/// How Redlock's votes ended.
pub(crate) async fn votes(workers: &[WorkerHandle]) -> Outcome<[Row; 2]> {
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
    let share = at_once as f64 / all as f64 * 100.0;
    Ok([Row::of("first_try", share), Row::of("split_votes", splits as f64)])
}

/// A process that measures empty round trips while others contend, and its times so far; it takes no further part after a failure.
pub(crate) struct Pinger(Outcome<(WorkerHandle, Vec<Latency>)>);

impl Pinger {
    pub(crate) async fn start(target: &Target, lock: &str, process: u32) -> Self {
        let worker = WorkerHandle::start_one(Job::new(target.url(), lock, process, Task::Ping)).await;
        Self(worker.map(|worker| (worker, Vec::new())))
    }

    pub(crate) async fn begin(&mut self, window: Window) {
        if let Ok((worker, _)) = &self.0
            && let Err(failure) = worker.send(Order::Contend(window)).await
        {
            self.0 = Err(failure);
        }
    }

    pub(crate) async fn end(&mut self) {
        if let Ok((worker, rounds)) = &mut self.0 {
            match pings_of(worker).await {
                Ok(round) => rounds.push(round),
                Err(failure) => self.0 = Err(failure),
            }
        }
    }

    /// The times of each round.
    pub(crate) fn pings(self) -> Outcome<Vec<Latency>> {
        self.0.map(|(_, rounds)| rounds)
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

/// As many processes that hand over by the bare requests, and their hand-offs in each round.
#[derive(Default)]
pub(crate) struct BareRing {
    workers: Vec<WorkerHandle>,
    pub(crate) handoffs: Vec<Latency>,
}

impl BareRing {
    /// Measures one more round; the first starts the processes.
    pub(crate) async fn turn(mut self, bench: &Bench, target: &Target) -> Outcome<Self> {
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

/// The hand-offs of each round, and those that they are compared with, where they were measured.
#[derive(Default)]
pub(crate) struct HandOffs {
    pub(crate) ours: Vec<Latency>,
    pub(crate) pings: Option<Vec<Latency>>,
    pub(crate) bare: Option<Vec<Latency>>,
}

impl HandOffs {
    /// The rows of `contended`.
    pub(crate) fn measured(&self, contention: Contention, backend: &str) -> Measured {
        let row = |metric, part| Row::of(metric, contention.handoff.quantile_us(part));
        // The same quantile of another latency, or always its median.
        let against = |metric, part, floor: &Option<Vec<Latency>>, of_floor| {
            let Some(floor) = floor else { return row(metric, part) };
            let both = self.ours.iter().zip(floor);
            let both = both.map(|(ours, floor)| (ours.quantile_us(part), floor.quantile_us(of_floor)));
            row(metric, part).with_floor(together(floor).quantile_us(of_floor)).with_rounds(both)
        };
        let mut rows = vec![
            against("handoff_p50", 0.5, &self.pings, 0.5),
            against("handoff_p95", 0.95, &self.pings, 0.5),
            row("handoff_p99", 0.99),
            Row::of("waiter_p50", contention.to_waiter.quantile_us(0.5)),
        ];
        if self.bare.is_some() {
            rows.push(against("handoff_p50_bare", 0.5, &self.bare, 0.5));
            rows.push(against("handoff_p95_bare", 0.95, &self.bare, 0.95));
        }
        let mut measured = contention.into_measured(backend);
        measured.rows.extend(rows);
        if let Some(pings) = self.pings.as_deref().map(together) {
            // The longest ping shows stalls that delay every waiter.
            let spread = [0.5, 0.95, 1.0].map(|part| format!("{:.0}", pings.quantile_us(part)));
            measured.notes.push(("ping_p50_p95_longest", format!("{} us", spread.join(", "))));
        }
        measured
    }
}

fn together(rounds: &[Latency]) -> Latency {
    let mut all = Latency::new();
    rounds.iter().for_each(|round| all.add(&round.counts()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::parts::contention::tests::held;

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
        let (ours, pings) = (vec![contention.handoff.clone()], Some(vec![pings]));
        let measured = HandOffs { ours, bare: pings.clone(), pings }.measured(contention, "redis");
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
}
