//! `uncontended`: one client acquires and releases a free lock, in turn with the floor.

use polylock::{Guard, Locks};

use super::bench::{Bench, Measured, connect, time};
use super::experiment::{EXPERIMENT, Experiment, metric};
use super::parts::side_by_side::{CHALLENGE_EVERY, MeasuredClient, Measurement, side_by_side};
use super::target::{ETCD, MYSQL, POSTGRES, REDIS, REDLOCK, SQLITE, Target as OurTarget, ZK, ratio};
use crate::data::{BackendName, Outcome, Plan};
use crate::rig::floor::ZK_SESSIONS;
use crate::rig::{Bare, Floor, Target, url};

pub(super) static THIS: Experiment = Experiment {
    name: "uncontended",
    about: "acquire + release in a loop, one client, a free lock",
    in_quick: true,
    settings,
    metrics: &[
        metric("p50", "us", "p50").floor(FLOOR[0], FLOOR[1]).targets(&[
            ratio(REDIS, "p50 against the bare commands").at_most(1.15),
            ratio(REDLOCK, "acquire + release p50 against fan-outs to a quorum").at_most(1.3),
            ratio(ZK, "p50 against the bare requests").at_most(1.08),
            ratio(POSTGRES, "p50 against the bare statements").at_most(1.25),
            swaps(ETCD),
            swaps(MYSQL),
            swaps(SQLITE),
            swaps("s3"),
        ]),
        metric("p90", "us", "p90").floor(FLOOR[0], FLOOR[1]),
        metric("p99", "us", "p99").floor(FLOOR[0], FLOOR[1]).targets(&[ratio(
            REDIS,
            "p99 against the bare commands",
        )
        .at_most(1.5)]),
        metric("acquire_p50", "us", "acquire p50").floor(FLOOR[0], FLOOR[1]).targets(&[ratio(
            REDLOCK,
            "acquire p50 against a fan-out to a quorum",
        )
        .at_most(1.2)]),
        metric("p50_with_tokens", "us", "p50 against tokens").floor("with tokens", FLOOR[1]),
        metric("acquire_with_tokens", "us", "acquire p50 against tokens").floor("with tokens", FLOOR[1]),
        metric("p50_one_server", "us", "p50 against one server")
            .floor("one server", FLOOR[1])
            .targets(&[ratio(REDLOCK, "acquire + release p50 against one server").at_most(2.2)]),
        metric("ops", "1/s", "operations").meaning("more is better"),
    ],
    takes: |plan| plan.warm_up * 2 + plan.uncontended,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

const fn swaps(by: &'static str) -> OurTarget {
    ratio(by, "p50 against two bare swaps").at_most(1.15)
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
        let one = OneServer { locks: Locks::connect(&first).await?, lock: bench.lock("one"), guard: None };
        let turns = side_by_side(client, one, short).await?;
        client = turns.client;
        measured.rows.push(turns.times.row("p50_one_server", 0.5, |times| &times.both));
    }
    measured.events = client.into_events();
    rival.close().await?;
    locks.close().await?;
    Ok(vec![measured])
}

/// Our lock over one server as the floor.
struct OneServer {
    locks: Locks,
    lock: String,
    guard: Option<Guard>,
}

impl Floor for OneServer {
    async fn acquire(&mut self) -> Outcome<()> {
        self.guard = Some(self.locks.mutex(&self.lock).acquire().await?);
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        if let Some(guard) = self.guard.take() {
            guard.release().await?;
        }
        Ok(())
    }

    async fn clean(self) -> Outcome<()> {
        Ok(self.locks.close().await?)
    }
}

const FLOOR: [&str; 2] = ["floor", "floor, the bare commands"];
