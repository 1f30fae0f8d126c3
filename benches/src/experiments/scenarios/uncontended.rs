//! `uncontended`: one client acquires and releases a free lock, in turn with the floor.

use polylock::Locks;

use crate::experiments::parts::side_by_side::{CHALLENGE_EVERY, MeasuredClient, Measurement, side_by_side};
use crate::experiments::prelude::*;
use crate::rig::floor::ZK_SESSIONS;
use crate::rig::measured_lock::InTurn;

pub(crate) static THIS: Experiment = Experiment {
    name: "uncontended",
    about: "acquire + release in a loop, one client, a free lock",
    in_quick: true,
    settings,
    metrics: &[
        metric("p50", "us", "p50").floor(FLOOR[0], FLOOR[1]).targets(&[
            at_most(REDIS, 1.15, "p50 against the bare commands"),
            at_most(REDLOCK, 1.3, "acquire + release p50 against fan-outs to a quorum"),
            at_most(ZK, 1.08, "p50 against the bare requests"),
            at_most(POSTGRES, 1.25, "p50 against the bare statements"),
            swaps(ETCD),
            swaps(MYSQL),
            swaps(SQLITE),
            swaps("s3"),
        ]),
        metric("p90", "us", "p90").floor(FLOOR[0], FLOOR[1]),
        metric("p99", "us", "p99").floor(FLOOR[0], FLOOR[1]).targets(&[at_most(
            REDIS,
            1.5,
            "p99 against the bare commands",
        )]),
        metric("acquire_p50", "us", "acquire p50").floor(FLOOR[0], FLOOR[1]).targets(&[at_most(
            REDLOCK,
            1.2,
            "acquire p50 against a fan-out to a quorum",
        )]),
        metric("p50_with_tokens", "us", "p50 against tokens").floor("with tokens", FLOOR[1]),
        metric("acquire_with_tokens", "us", "acquire p50 against tokens").floor("with tokens", FLOOR[1]),
        metric("p50_one_server", "us", "p50 against one server")
            .floor("one server", FLOOR[1])
            .targets(&[at_most(REDLOCK, 2.2, "acquire + release p50 against one server")]),
        metric("ops", "1/s", "operations").meaning("more is better"),
    ],
    takes: |plan| plan.warm_up * 2 + plan.uncontended,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

const fn swaps(by: &'static str) -> OurTarget {
    at_most(by, 1.15, "p50 against two bare swaps")
}

fn settings(plan: &Plan) -> String {
    let (span, warm_up, counted) = (time(plan.uncontended), time(plan.warm_up), time(plan.counted));
    let Plan { most_operations, rounds, .. } = plan;
    format!(
        "duration: {span} with the floor, or {most_operations} operations, after {warm_up} of warm-up
         runtime: multi_thread with 2 workers, for ours and the floor
         interleaving: one operation of ours, one of the floor, in turn
         interval: of the ratios of {rounds} rounds, of at least 90 %
         operations: 1 / mean latency, as the clock also runs for the floor
         verdict: every {CHALLENGE_EVERY} operations another client tries to acquire the lock while it is held
         floor_memory: tokio::sync::Mutex, which has no names, tokens or leases
         floor_redis: SET NX PX + EVALSHA compare-and-delete on one multiplexed connection
         floor_redlock: the same on every master in parallel, until a majority has answered
         floor_zk: create ephemeral sequential + get children at once, then delete; {ZK_SESSIONS} sessions take turns, as some send \
         both in one packet and some do not
         floor_postgres: INSERT .. ON CONFLICT DO UPDATE WHERE expired, then DELETE, prepared, each commit on the disk
         floor_etcd: two transactions that compare and put; mysql, sqlite: INSERT or UPDATE .. WHERE version, twice, on the disk; s3: two \
         conditional puts to moto, whose time it is
         with_tokens: redis and redlock in turn with a floor that mints fencing tokens, as in throughput, for {counted}
         one_server: redlock in turn with the same lock on the first of its masters, for {counted}"
    )
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let (lock, lease) = (bench.lock("uncontended"), locks.capabilities().lease);
    let client = MeasuredClient::new(&locks, &rival, bench, &lock);
    let floor = Bare::connect(target, lease, &format!("{lock}-floor")).await?;
    let Measurement { mut client, times, added_us } = side_by_side(client, floor, bench.plan).await?;
    let mut measured = Measured::of(target.name(), times.rows());
    // In one run cores may wake up slowly and quickly by turns. Then the ratio varies, but the difference does not.
    measured.notes.push(("added_median", format!("{added_us:.2} us")));
    let short = Plan { uncontended: bench.plan.counted, ..bench.plan };
    if matches!(target.backend(), BackendName::Redis | BackendName::Redlock) {
        let floor = Bare::connect_minting(target, lease, &bench.lock("tokens")).await?;
        let turns = side_by_side(client, floor, short).await?;
        client = turns.client;
        measured.rows.push(turns.times.row("p50_with_tokens", 0.5, |times| &times.both));
        measured.rows.push(turns.times.row("acquire_with_tokens", 0.5, |times| &times.acquire));
    }
    if target.backend() == BackendName::Redlock {
        // The same lock on one of the masters: the cost of the quorum.
        let first = url::each(target.url()).into_iter().next().unwrap_or_default();
        let one = Locks::connect(&first).await?;
        let turns = side_by_side(client, InTurn::new(one.mutex(bench.lock("one"))), short).await?;
        client = turns.client;
        one.close().await?;
        measured.rows.push(turns.times.row("p50_one_server", 0.5, |times| &times.both));
    }
    measured.events = client.into_events();
    rival.close().await?;
    locks.close().await?;
    Ok(vec![measured])
}

const FLOOR: [&str; 2] = ["floor", "floor, the bare commands"];
