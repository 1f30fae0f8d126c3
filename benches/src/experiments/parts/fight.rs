//! The processes of a library that contend for its lock, and one of them alone.

use std::time::Duration;

use lock_testkit::history::Event;

use super::contention::{Contention, HOLD, jobs, let_contend, rounds};
use crate::experiments::prelude::*;

/// The times of one library; ours are the floor of the others.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) processes: u32,
    waiter_us: f64,
    /// Of one process without rivals.
    alone_us: f64,
}

impl Times {
    pub(crate) fn mean(self, other: Self) -> Self {
        Self {
            waiter_us: f64::midpoint(self.waiter_us, other.waiter_us),
            alone_us: f64::midpoint(self.alone_us, other.alone_us),
            ..self
        }
    }
}

pub(crate) struct Fight {
    pub(crate) times: Times,
    pub(crate) contention: Contention,
}

impl Fight {
    pub(crate) async fn watch(bench: &Bench, url: &str, peer: Option<Peer>, processes: u32) -> Outcome<Self> {
        let of = |processes, contended| Bench {
            plan: Plan { processes, contended, ..bench.plan },
            ..bench.clone()
        };
        let (events, window) = contend_for(&of(1, alone(&bench.plan)), url, peer, Duration::ZERO).await?;
        let alone_us = rounds(&events, window).quantile_us(0.5);
        let (events, window) = contend_for(&of(processes, contended(&bench.plan)), url, peer, HOLD).await?;
        let mut contention = Contention::new(processes);
        contention.add_any(events, window);
        let waiter_us = contention.to_waiter.quantile_us(0.5);
        Ok(Self { times: Times { processes, waiter_us, alone_us }, contention })
    }

    /// The rows, with our times as the floor. Processes that kept each other from the lock are a finding about a peer, not a failure
    /// of the run.
    pub(crate) fn measured(self, name: &str, ours: Times) -> Measured {
        let Self { times, contention } = self;
        if contention.is_starved() {
            let why = format!("({} processes kept each other from the lock)", times.processes);
            let (rows, notes) = (vec![Row::of("grants_per_s", 0.0)], vec![("starved", why)]);
            return Measured { notes, events: contention.events, ..Measured::of(name, rows) };
        }
        let rows = [
            Row::of("alone_p50", times.alone_us).with_floor(ours.alone_us),
            Row::of("handoff_p50", contention.handoff.quantile_us(0.5)),
            Row::of("waiter_p50", times.waiter_us).with_floor(ours.waiter_us),
        ];
        let mut measured = contention.into_measured(name);
        measured.rows.extend(rows);
        measured
    }
}

async fn contend_for(
    bench: &Bench,
    url: &str,
    peer: Option<Peer>,
    hold: Duration,
) -> Outcome<(Vec<Event>, Window)> {
    let plan = &bench.plan;
    let lock = bench.lock(peer.map_or("peers", Peer::as_str));
    let jobs = jobs(bench, url, &lock).map(|job| Job { task: Task::Contend { hold, peer }, ..job });
    let workers = WorkerHandle::start_all(jobs).await?;
    let window = Window::after(plan.contended, plan.warm_up);
    Ok((let_contend(&workers, window).await?, window))
}

/// Shorter than in `contended`, as there are many peers.
pub(crate) fn contended(plan: &Plan) -> Duration {
    plan.contended.min(LONGEST)
}

pub(crate) fn alone(plan: &Plan) -> Duration {
    plan.counted.min(LONGEST_ALONE)
}

const LONGEST: Duration = Duration::from_secs(2);
const LONGEST_ALONE: Duration = Duration::from_secs(1);
