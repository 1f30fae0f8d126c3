//! `uncontended`: one client acquires and releases a free lock, in turn with the floor.

use polylock::{Guard, Locks};

use super::bench::{Bench, Measured, connect, time};
use super::side_by_side::{CHALLENGE_EVERY, MeasuredClient, Measurement, side_by_side};
use crate::data::{BackendName, Outcome, Plan, Row};
use crate::rig::floor::ZK_SESSIONS;
use crate::rig::{Bare, Floor, Target, url};

pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        (
            "duration",
            format!(
                "{} with the floor, or {} operations, after {} of warm-up",
                time(plan.uncontended),
                plan.most_operations,
                time(plan.warm_up)
            ),
        ),
        ("runtime", "multi_thread with 2 workers, for ours and the floor".into()),
        ("interleaving", "one operation of ours, one of the floor, in turn".into()),
        ("interval", format!("of the ratios of {} rounds, of at least 90 %", plan.rounds)),
        ("operations", "1 / mean latency, as the clock also runs for the floor".into()),
        (
            "verdict",
            format!(
                "every {CHALLENGE_EVERY} operations another client tries to acquire the lock while it is held"
            ),
        ),
        ("floor_memory", "tokio::sync::Mutex, which has no names, tokens or leases".into()),
        ("floor_redis", "SET NX PX + EVALSHA compare-and-delete on one multiplexed connection".into()),
        ("floor_redlock", "the same on every master in parallel, until a majority has answered".into()),
        (
            "floor_zk",
            format!(
                "create ephemeral sequential + get children at once, then delete; {ZK_SESSIONS} sessions take turns, as \
                 some send both in one packet and some do not"
            ),
        ),
        (
            "floor_postgres",
            "INSERT .. ON CONFLICT DO UPDATE WHERE expired, then DELETE, prepared, each commit on the disk"
                .into(),
        ),
        (
            "with_tokens",
            format!(
                "redis and redlock in turn with a floor that mints fencing tokens, as in throughput, for {}",
                time(plan.counted)
            ),
        ),
        (
            "one_server",
            format!(
                "redlock in turn with the same lock on the first of its masters, for {}",
                time(plan.counted)
            ),
        ),
    ]
}

pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let lock = bench.lock("uncontended");
    let client = MeasuredClient::new(&locks, &rival, bench, &lock);
    let floor = Bare::connect(target, locks.capabilities().lease, &format!("{lock}-floor")).await?;
    let Measurement { mut client, times, added_us } = side_by_side(client, floor, bench.plan).await?;
    // In one run cores may wake up slowly and quickly by turns. Then the ratio varies, but the difference does not.
    let notes = vec![("added_median", format!("{added_us:.2} us"))];
    let rows = times.rows(SCENARIO, target.name());
    let mut measured = Measured { backend: target.name(), rows, notes, ..Measured::default() };
    if matches!(target.backend(), BackendName::Redis | BackendName::Redlock) {
        let rows;
        (client, rows) = against_tokens(bench, target, &locks, client).await?;
        measured.rows.extend(rows);
    }
    if target.backend() == BackendName::Redlock {
        let row;
        (client, row) = against_one_server(bench, target, client).await?;
        measured.rows.push(row);
    }
    measured.events = client.into_events();
    rival.close().await?;
    locks.close().await?;
    Ok(measured)
}

/// Compares with a floor that has fencing tokens, too.
async fn against_tokens(
    bench: &Bench,
    target: &Target,
    locks: &Locks,
    client: MeasuredClient,
) -> Outcome<(MeasuredClient, [Row; 2])> {
    let floor = Bare::connect_minting(target, locks.capabilities().lease, &bench.lock("tokens")).await?;
    let plan = Plan { uncontended: bench.plan.counted, ..bench.plan };
    let Measurement { client, times, .. } = side_by_side(client, floor, plan).await?;
    let rows = [
        times.row(SCENARIO, target.name(), "p50_with_tokens", 0.5, |times| &times.both),
        times.row(SCENARIO, target.name(), "acquire_with_tokens", 0.5, |times| &times.acquire),
    ];
    Ok((client, rows))
}

/// Compares with the same lock on one of the masters: the cost of the quorum.
async fn against_one_server(
    bench: &Bench,
    target: &Target,
    client: MeasuredClient,
) -> Outcome<(MeasuredClient, Row)> {
    let first = url::each(target.url()).into_iter().next().unwrap_or_default();
    let one = OneServer { locks: Locks::connect(&first).await?, lock: bench.lock("one"), guard: None };
    let plan = Plan { uncontended: bench.plan.counted, ..bench.plan };
    let Measurement { client, times, .. } = side_by_side(client, one, plan).await?;
    Ok((client, times.row(SCENARIO, target.name(), "p50_one_server", 0.5, |times| &times.both)))
}

const SCENARIO: &str = "uncontended";

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
