//! `peers`: as `contended`, with the locks of other libraries, in turn with ours on the same server; and each of them
//! alone.

use std::time::Duration;

use lock_testkit::history::Event;

use super::contention::{Contention, HOLD, jobs, let_contend, rounds};
use super::{Bench, Measured, time};
use crate::backends::Target;
use crate::failure::Outcome;
use crate::latency::Latency;
use crate::options::BackendName;
use crate::peers::Peer;
use crate::plan::Plan;
use crate::results::Row;
use crate::window::Window;
use crate::worker::handle::WorkerHandle;
use crate::worker::{Job, Task};

/// The settings, for the report.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("processes", format!("{}; zk: {}", plan.processes, processes(plan, BackendName::Zk))),
        ("hold", format!("{}, as in contended", time(HOLD))),
        (
            "to_a_waiter",
            "from a release until a process that waited at that time has the lock, as in contended".into(),
        ),
        (
            "alone",
            format!(
                "one process that releases it at once, from one acquisition to the next, for {}",
                time(plan.counted)
            ),
        ),
        ("duration", format!("{} each after {} of warm-up", time(plan.contended), time(plan.warm_up))),
        ("floor", "the mean of our times right before the peer and right after it".into()),
        ("options", "the defaults of each library; rslock has no default ttl: 10 s".into()),
    ];
    settings.extend(Peer::ALL.map(|peer| (peer.as_str(), peer.waiting().to_owned())));
    settings
}

/// Measures one backend and its peers. A peer that fails is reported and left out.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let ours = Library::measure(bench, target, None).await?;
    let (first, mut before) = (ours.floor(), ours.floor());
    let mut all = vec![ours.measured(target.name(), first)];
    for peer in Peer::of(target.backend()) {
        let theirs = match Library::measure(bench, target, Some(peer)).await {
            Ok(theirs) => theirs,
            Err(failure) => {
                all[0].complaints.push(failure.during(peer.as_str()).to_string());
                continue;
            }
        };
        // The noise of the machine changes from minute to minute.
        let ours = Library::measure(bench, target, None).await?;
        let after = ours.floor();
        all.push(theirs.measured(peer.as_str(), before.mean(after)));
        all[0].events.extend(ours.contention.into_measured("peers", target.name()).events);
        before = after;
    }
    Ok(all)
}

/// Our times, as the floor of a peer.
#[derive(Clone, Copy)]
struct OurTimes {
    waiter_us: f64,
    alone_us: f64,
}

impl OurTimes {
    fn mean(self, other: Self) -> Self {
        let mean = |one, other| f64::midpoint(one, other);
        Self {
            waiter_us: mean(self.waiter_us, other.waiter_us),
            alone_us: mean(self.alone_us, other.alone_us),
        }
    }
}

/// The measurements of one library.
struct Library {
    contention: Contention,
    waiter_us: f64,
    alone_us: f64,
}

impl Library {
    async fn measure(bench: &Bench, target: &Target, peer: Option<Peer>) -> Outcome<Self> {
        let plan = Plan { processes: processes(&bench.plan, target.backend()), ..bench.plan };
        let bench = Bench { plan, ..bench.clone() };
        let alone = Plan { processes: 1, contended: plan.counted, ..plan };
        let alone = Bench { plan: alone, ..bench.clone() };
        let (events, window) = contend_for(&alone, target, peer, Duration::ZERO).await?;
        let alone_us = rounds(&events, window).quantile_us(0.5);
        let (events, window) = contend_for(&bench, target, peer, HOLD).await?;
        let contention = Contention::of(events, window, plan.processes)?;
        Ok(Self { waiter_us: contention.to_waiter.quantile_us(0.5), contention, alone_us })
    }

    const fn floor(&self) -> OurTimes {
        OurTimes { waiter_us: self.waiter_us, alone_us: self.alone_us }
    }

    /// The rows, with our times as the floor.
    fn measured(self, name: &'static str, ours: OurTimes) -> Measured {
        let row = |metric, us| Row::new("peers", name, metric, "us", us);
        let p50 = |part: &Latency| part.quantile_us(0.5);
        let rows = [
            row("alone_p50", self.alone_us).with_floor(ours.alone_us),
            row("handoff_p50", p50(&self.contention.handoff)),
            row("waiter_p50", self.waiter_us).with_floor(ours.waiter_us),
        ];
        let mut measured = self.contention.into_measured("peers", name);
        measured.rows.splice(1..1, rows);
        measured
    }
}

async fn contend_for(
    bench: &Bench,
    target: &Target,
    peer: Option<Peer>,
    hold: Duration,
) -> Outcome<(Vec<Event>, Window)> {
    let plan = &bench.plan;
    let lock = bench.lock(peer.map_or("peers", Peer::as_str));
    let jobs = jobs(bench, target.url(), &lock).map(|job| Job { task: Task::Contend { hold, peer }, ..job });
    let workers = WorkerHandle::start_all(jobs).await?;
    let window = Window::after(plan.contended, plan.warm_up);
    Ok((let_contend(&workers, window).await?, window))
}

/// Fewer on ZooKeeper: two of its peers need a Java or Python runtime per process.
fn processes(plan: &Plan, backend: BackendName) -> u32 {
    if backend == BackendName::Zk { plan.processes.min(8) } else { plan.processes }
}
