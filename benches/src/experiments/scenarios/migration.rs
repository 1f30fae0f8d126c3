//! `migration`: what each rung of a migration from Redis to ZooKeeper costs, and what the moves cost.
//!
//! It has servers of its own: the record of a migration, its tombstones and thousands of moved names are no company for other
//! measurements.

use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::data::names::rung::{DUAL, MIGRATE, MOVE, NEW, OLD, SHADOW};
use crate::data::plan::PATIENCE_PER_LOCK;
use crate::experiments::parts::ladder::{
    CHALLENGE_EVERY, Ladder, MIXED_NAMES, Stores, climb, contend, move_and_return,
};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "migration",
    about: "acquire + release on each rung of the way from redis to zk, and the moves of many names",
    // It has a Redis server of its own.
    fits: |backend| backend == BackendName::Zk,
    settings,
    metrics: &[
        metric("p50", "us", "p50").floor("stores", STORES).targets(&[
            at_most(MIGRATE, 1.05, "p50 against redis").of(OLD),
            at_most(MIGRATE, 1.05, "p50 against old").of(SHADOW),
            at_most(MIGRATE, 1.15, "p50 against redis and zk together").of(DUAL),
            at_most(MIGRATE, 1.03, "p50 of a name that has moved against zk").of(MOVE),
            at_most(MIGRATE, 1.03, "p50 against zk").of(NEW),
        ]),
        metric("p90", "us", "p90").floor("stores", STORES),
        metric("p99", "us", "p99").floor("stores", STORES),
        metric("moving_p50", "us", "the move of a name p50"),
        metric("moving_p99", "us", "the move of a name p99"),
        metric("move_all", "s", "all names moved").targets(&[at_most(
            MIGRATE,
            60.0,
            "10,000 names moved one after the other",
        )
        .value()
        .at(NAMES)]),
        metric("clean_all", "s", "all tombstones removed").targets(&[at_most(
            MIGRATE,
            60.0,
            "10,000 tombstones removed",
        )
        .value()
        .at(NAMES)]),
        metric("left_at_interrupt", "", "left at interrupt"),
        metric("left_after_clean", "", "left after clean"),
        metric("token_errors", "", "token errors"),
    ],
    takes: |plan| plan.warm_up + plan.uncontended + START + PATIENCE_PER_LOCK * moved_names(plan) as u32,
    rows: Some(|bench, _| Box::pin(measure(bench))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let ([span, warm_up], names) = ([plan.uncontended, plan.warm_up].map(time), moved_names(plan));
    format!(
        "duration: {span} for all subjects together, after {warm_up} of warm-up
         servers: one Redis server and one ZooKeeper server of its own, without fsync
         interleaving: one operation of each subject in each round, in an order by chance
         sessions: all subjects share one ZooKeeper session; each has a connection of its own to Redis
         floors: old: redis; shadow: old; dual: redis and zk of the same round together; move and new: zk
         dual: in a fleet of which no name has moved; beside move: in one whose other names have moved, so that tokens of ZooKeeper are \
         ahead of those of Redis, and each acquisition raises these by one more request
         verdict: every {CHALLENGE_EVERY} rounds a client on another rung tries to acquire the lock while it is held; one client on each \
         rung contend for {MIXED_NAMES} names, which move meanwhile
         moves: {names} names, one after the other; then the way back, which is interrupted once when half of them are left"
    )
}

/// How many names move one after the other, and back: more than two batches of the way back.
fn moved_names(plan: &Plan) -> usize {
    plan.by_mode(1200, 10_000)
}

async fn measure(bench: &Bench) -> Outcome<Vec<Measured>> {
    let stores = Stores::start().await?;
    let Ladder { rungs, subjects } = Ladder::connect(bench, &stores).await?;
    // On a worker thread of the runtime, as the tasks of a service.
    let mut measured = AbortOnDropHandle::new(tokio::spawn(climb(bench.plan, subjects))).await??;
    let mut whole = Measured::of(MIGRATE, Vec::new());
    whole.events = contend(bench, &rungs).await?;
    for locks in rungs {
        locks.close().await?;
    }
    move_and_return(bench, moved_names(&bench.plan), &stores, &mut whole).await?;
    measured.push(whole);
    Ok(measured)
}

/// What the rungs are compared with.
const STORES: &str =
    "time of the stores: redis for old, old for shadow, redis and zk together for dual, zk for move and new";
const NAMES: Size = |plan| unless(plan.mode == Mode::Full, "1200", "names");
/// To start two servers, and connect to them.
const START: Duration = Duration::from_secs(5);
