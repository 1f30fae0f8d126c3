//! `herd`: many processes wait for one lock; what a release costs the servers, and whom it wakes.
//!
//! The recipe with one fixed node stands beside the queue: all who wait watch that node, and all of them wake up.

use super::contended::counted;
use super::{Bench, Measured, Plan, time};
use crate::address;
use crate::backends::Target;
use crate::failure::Outcome;
use crate::results::Row;

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("processes", format!("{PROCESSES}, each with a session of its own")),
        ("duration", format!("{} after {} of warm-up", time(plan.counted), time(plan.warm_up))),
        ("counted", "requests that arrive at the servers, and watch events that they send".into()),
        ("zk-ephemeral", "recipe=ephemeral: one node for all".into()),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let plan = Plan { processes: PROCESSES, ..bench.plan };
    let bench = Bench { plan, ..bench.clone() };
    let herd = address::with_option(target.url(), "recipe", "ephemeral");
    let mut all = Vec::new();
    for (name, url) in [(target.name(), target.url()), ("zk-ephemeral", &herd)] {
        let counted = counted(&bench, target.backend(), url, &bench.lock(name)).await?;
        let row = |metric, value| Row::new("herd", name, metric, "", value);
        let rows =
            vec![row("requests_per_grant", counted.requests), row("notifications", counted.notifications)];
        all.push(Measured { backend: name, rows, events: counted.events, ..Measured::default() });
    }
    Ok(all)
}

const PROCESSES: u32 = 64;
