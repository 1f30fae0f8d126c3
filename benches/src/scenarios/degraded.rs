//! `degraded`: redlock while one of its masters is stopped by SIGSTOP: it takes connections and requests, and never
//! answers.

use super::uncontended::{Lane, side_by_side};
use super::{Bench, Measured, Plan, connect, time};
use crate::backends::Target;
use crate::failure::{Failure, Outcome};
use crate::results::Row;

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("fault", "one of the masters is stopped by SIGSTOP".into()),
        ("floor", "the same lock on the same servers, all of them healthy".into()),
        (
            "duration",
            format!("{} healthy, then {} with the fault", time(plan.uncontended), time(plan.uncontended)),
        ),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let victim = target.masters().last().ok_or_else(|| {
        Failure::new("servers that are not ours are not stopped: leave out --url redlock=...")
    })?;
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let plan = bench.plan;
    let lane = Lane::new(&locks, &rival, bench, &bench.lock("degraded"));
    let lane = side_by_side(lane, (), plan).await?.lane;
    let healthy = lane.latency.clone();

    // Goes on when this is dropped, so that whatever is measured next finds all masters alive.
    let stopped = Stopped::stop(victim);
    let lane = side_by_side(lane, (), plan).await;
    drop(stopped);
    let lane = lane?.lane;

    let mut rows = lane.latency.rows("degraded", target.name(), &healthy);
    rows.push(Row::new("degraded", target.name(), "ops", "1/s", lane.latency.per_second()));
    rival.close().await?;
    locks.close().await?;
    Ok(Measured { backend: target.name(), rows, events: lane.into_events(), ..Measured::default() })
}

struct Stopped<'a>(&'a lock_testkit::RedisServer);

impl<'a> Stopped<'a> {
    fn stop(server: &'a lock_testkit::RedisServer) -> Self {
        server.stop();
        Self(server)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.cont();
    }
}
