//! `peers`: the fight of `contended` with the locks of other libraries, in turn with ours on the same server; and each of
//! them alone.

use std::time::Duration;

use super::contended::{Fight, HOLD, Window, fight, jobs, rounds};
use super::{Bench, Measured, Plan, time};
use crate::backends::Target;
use crate::crew::Hand;
use crate::failure::Outcome;
use crate::latency::Latency;
use crate::options::BackendName;
use crate::peers::Peer;
use crate::results::Row;
use crate::worker::{Job, Task};

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("processes", format!("{}; zk: {}", plan.processes, processes(plan, BackendName::Zk))),
        ("hold", format!("{}, as in contended", time(HOLD))),
        (
            "to_a_waiter",
            "from a release until somebody has the lock who waited for it then, as in contended".into(),
        ),
        (
            "alone",
            format!(
                "one process that does not hold it, from one acquisition to the next, for {}",
                time(plan.counted)
            ),
        ),
        ("duration", format!("{} each after {} of warm-up", time(plan.contended), time(plan.warm_up))),
        ("floor", "the mean of what ours took right before a peer, and right after it".into()),
        ("options", "the defaults of each library; rslock has no default ttl: 10 s".into()),
    ];
    settings.extend(Peer::ALL.map(|peer| (peer.as_str(), peer.waiting().to_owned())));
    settings
}

/// Runs it. A peer that fails is told and left out.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let ours = Seen::of(bench, target, None).await?;
    let (first, mut before) = (ours.floor(), ours.floor());
    let mut all = vec![ours.measured(target.name(), first)];
    for peer in Peer::of(target.backend()) {
        let theirs = match Seen::of(bench, target, Some(peer)).await {
            Ok(theirs) => theirs,
            Err(failure) => {
                all[0].complaints.push(failure.during(peer.as_str()).to_string());
                continue;
            }
        };
        // What the machine does meanwhile changes from minute to minute.
        let ours = Seen::of(bench, target, None).await?;
        let after = ours.floor();
        all.push(theirs.measured(peer.as_str(), before.mean(after)));
        all[0].events.extend(ours.fight.into_measured("peers", target.name()).events);
        before = after;
    }
    Ok(all)
}

/// What ours took, beside a peer.
#[derive(Clone, Copy)]
struct Ours {
    waiter_us: f64,
    alone_us: f64,
}

impl Ours {
    fn mean(self, other: Self) -> Self {
        let mean = |one, other| f64::midpoint(one, other);
        Self {
            waiter_us: mean(self.waiter_us, other.waiter_us),
            alone_us: mean(self.alone_us, other.alone_us),
        }
    }
}

/// What was seen of one library.
struct Seen {
    fight: Fight,
    waiter_us: f64,
    alone_us: f64,
}

impl Seen {
    async fn of(bench: &Bench, target: &Target, peer: Option<Peer>) -> Outcome<Self> {
        let plan = Plan { processes: processes(&bench.plan, target.backend()), ..bench.plan };
        let bench = Bench { plan, ..bench.clone() };
        let alone = Plan { processes: 1, contended: plan.counted, ..plan };
        let alone = Bench { plan: alone, ..bench.clone() };
        let (events, window) = fought(&alone, target, peer, Duration::ZERO).await?;
        let alone_us = rounds(&events, window).quantile_us(0.5);
        let (events, window) = fought(&bench, target, peer, HOLD).await?;
        let fight = Fight::of(events, window, plan.processes)?;
        Ok(Self { waiter_us: fight.to_waiter.quantile_us(0.5), fight, alone_us })
    }

    const fn floor(&self) -> Ours {
        Ours { waiter_us: self.waiter_us, alone_us: self.alone_us }
    }

    /// Against what ours took.
    fn measured(self, name: &'static str, ours: Ours) -> Measured {
        let row = |metric, us| Row::new("peers", name, metric, "us", us);
        let p50 = |part: &Latency| part.quantile_us(0.5);
        let rows = [
            row("alone_p50", self.alone_us).with_floor(ours.alone_us),
            row("handoff_p50", p50(&self.fight.handoff)),
            row("waiter_p50", self.waiter_us).with_floor(ours.waiter_us),
        ];
        let mut measured = self.fight.into_measured("peers", name);
        measured.rows.splice(1..1, rows);
        measured
    }
}

async fn fought(
    bench: &Bench,
    target: &Target,
    peer: Option<Peer>,
    hold: Duration,
) -> Outcome<(Vec<lock_testkit::Event>, Window)> {
    let plan = &bench.plan;
    let lock = bench.lock(peer.map_or("peers", Peer::as_str));
    let jobs = jobs(bench, target.url(), &lock).map(|job| Job { task: Task::Contend { hold, peer }, ..job });
    let crew = Hand::hire(jobs).await?;
    let window = Window::after(plan.contended, plan.warm_up);
    Ok((fight(&crew, window).await?, window))
}

/// Two of the peers of ZooKeeper bring a whole runtime with each process.
fn processes(plan: &Plan, backend: BackendName) -> u32 {
    if backend == BackendName::Zk { plan.processes.min(8) } else { plan.processes }
}
