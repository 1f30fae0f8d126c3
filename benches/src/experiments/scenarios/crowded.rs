//! `crowded`: a hundred clients contend for one lock of a store that compares and swaps, in turn with two.
//!
//! All change one record. Where each change made the others fail, few swaps would succeed.

use crate::experiments::parts::contention::{Contention, HOLD};
use crate::experiments::parts::hand_over::contend_inside;
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "crowded",
    about: "a hundred clients contend for one lock that is one value of a store; in turn with two clients",
    fits: |backend| backend.swaps() && backend.bears_load(),
    settings,
    metrics: &[
        metric(RATE, "1/s", "grants")
            .meaning("more is better")
            .floor("two", "grants of two clients")
            .targets(&[no_livelock(ETCD), no_livelock(MYSQL), no_livelock(SQLITE)]),
        metric("handoff_p50", "us", "hand-off p50").floor("two", "hand-off p50 of two clients"),
        metric("longest_wait", "us", "longest wait")
            .floor("ideal", "ideal rotation, in which all take turns"),
        metric("jain", "", "Jain index").meaning("1 is fair"),
    ],
    takes: |plan| (plan.warm_up * 6 + plan.contended) * 2,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

/// A lock that many want is handed over at half the rate at least.
const fn no_livelock(by: &'static str) -> OurTarget {
    at_least(by, 0.5, "grants/s of a hundred clients against two")
}

fn settings(plan: &Plan) -> String {
    let [hold, span] = [HOLD, plan.contended].map(time);
    format!(
        "clients: {CROWD} tasks of one process, each with connections of its own; all of them find room in the queue
         hold: {hold}, as in contended
         duration: {span} each"
    )
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let two = contend(bench, target, 2).await?;
    let crowd = contend(bench, target, CROWD).await?;
    let p50 = |of: &Contention| of.handoff.quantile_us(0.5);
    let hand_off = Row::of("handoff_p50", p50(&crowd)).with_floor(p50(&two));
    let (two, mut measured) = (two.into_measured(target.name()), crowd.into_measured(target.name()));
    let rate_of_two = two.rows.iter().find(|row| row.metric == RATE).map_or(f64::NAN, |row| row.value);
    let rows = measured.rows.into_iter();
    let rows = rows.map(|row| if row.metric == RATE { row.with_floor(rate_of_two) } else { row });
    measured.rows = rows.chain([hand_off]).collect();
    measured.events.extend(two.events);
    Ok(vec![measured])
}

async fn contend(bench: &Bench, target: &Target, clients: u32) -> Outcome<Contention> {
    let (lock, plan) = (bench.lock(&format!("crowded-{clients}")), bench.plan);
    let names = (0..clients).map(|client| bench.lock_of(&lock, client));
    // It takes a hundred clients that long to come into the queue, or to see that it is full.
    let spans = [plan.contended, plan.warm_up * 6];
    let (events, window) = contend_inside(target.url(), &lock, names, spans).await?;
    Contention::of(events, window, clients)
}

const RATE: &str = "grants_per_s";
const CROWD: u32 = 100;
