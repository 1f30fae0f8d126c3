//! `peers`: the fight of `contended` with the Redis locks of other crates, ours first, one after the other on the same
//! server.

use super::contended::{Fight, HOLD, Window, fight, jobs};
use super::{Bench, Measured, Plan, time};
use crate::backends::Target;
use crate::crew::Hand;
use crate::failure::Outcome;
use crate::latency::Latency;
use crate::peers::Peer;
use crate::results::Row;
use crate::worker::{Job, Task};

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("processes", plan.processes.to_string()),
        ("hold", format!("{}, as in contended", time(HOLD))),
        (
            "to_a_waiter",
            "from a release until somebody has the lock who waited for it then, as in contended".into(),
        ),
        ("duration", format!("{} each after {} of warm-up", time(plan.contended), time(plan.warm_up))),
        ("options", "the defaults of each crate; rslock has no default ttl: 10 s".into()),
    ];
    settings.extend(Peer::ALL.map(|peer| (peer.as_str(), peer.waiting().to_owned())));
    settings
}

/// Runs it. A peer that fails is told and left out.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let ours = fought(bench, target, None).await?;
    let ours_us = ours.to_waiter.quantile_us(0.5);
    let mut ours = measured(ours, target.name(), ours_us);
    let mut theirs = Vec::new();
    for peer in Peer::ALL {
        match fought(bench, target, Some(peer)).await {
            Ok(fight) => theirs.push(measured(fight, peer.as_str(), ours_us)),
            Err(failure) => ours.complaints.push(failure.during(peer.as_str()).to_string()),
        }
    }
    Ok([ours].into_iter().chain(theirs).collect())
}

async fn fought(bench: &Bench, target: &Target, peer: Option<Peer>) -> Outcome<Fight> {
    let plan = &bench.plan;
    let lock = bench.lock(peer.map_or("peers", Peer::as_str));
    let jobs =
        jobs(bench, target.url(), &lock).map(|job| Job { task: Task::Contend { hold: HOLD, peer }, ..job });
    let crew = Hand::hire(jobs).await?;
    let window = Window::after(plan.contended, plan.warm_up);
    Fight::of(fight(&crew, window).await?, window, plan.processes)
}

fn measured(fight: Fight, name: &'static str, ours_us: f64) -> Measured {
    let row = |metric, part: &Latency| Row::new("peers", name, metric, "us", part.quantile_us(0.5));
    let handoffs =
        [row("handoff_p50", &fight.handoff), row("waiter_p50", &fight.to_waiter).with_floor(ours_us)];
    let mut measured = fight.into_measured("peers", name);
    measured.rows.splice(1..1, handoffs);
    measured
}
