//! `degraded`: Redlock while one of its masters is stopped by SIGSTOP: it accepts connections and requests, and never
//! answers. rslock is measured in the same states, on the same masters.

use std::time::{Duration, Instant};

use lock_testkit::now_ns;

use super::bench::{Bench, Measured, connect, time};
use super::side_by_side::{MeasuredClient, side_by_side};
use crate::data::events::{EventLog, TimedHold};
use crate::data::failure::{Failure, Outcome};
use crate::data::latency::Times;
use crate::data::names::Peer;
use crate::data::plan::Plan;
use crate::rig::backends::Target;
use crate::rig::measured_lock::MeasuredLock;
use crate::rig::peers::Rslock;
use crate::rig::url;

/// The settings, for the report.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("fault", "one of the masters is stopped by SIGSTOP".into()),
        ("floor", "the same lock with all masters healthy".into()),
        (
            "duration",
            format!("{} healthy, then {} with the fault", time(plan.uncontended), time(plan.uncontended)),
        ),
    ]
}

/// Measures one backend.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let victim = target
        .masters()
        .last()
        .ok_or_else(|| Failure::new("servers given by --url are not stopped: leave out --url redlock=..."))?;
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let plan = bench.plan;
    let client = MeasuredClient::new(&locks, &rival, bench, &bench.lock("degraded"));
    let client = side_by_side(client, (), plan).await?.client;
    let healthy = client.times.clone();
    let theirs = Rslock::new(url::each(target.url()), &bench.lock("rslock"));
    let mut log = EventLog::new(0, 0, &bench.lock("rslock"));
    let healthy_theirs = repeat(&theirs, plan.counted, &mut log).await?;

    // Continued on drop, so that the next scenario finds all masters alive.
    let stopped = Stopped::stop(victim);
    let client = side_by_side(client, (), plan).await;
    let degraded_theirs = repeat(&theirs, plan.counted, &mut log).await;
    drop(stopped);
    let client = client?.client;

    let rows = client.times.rows("degraded", target.name(), &healthy);
    rival.close().await?;
    locks.close().await?;
    let mut ours =
        Measured { backend: target.name(), rows, events: client.into_events(), ..Measured::default() };
    let name = Peer::Rslock.as_str();
    let theirs = match degraded_theirs {
        Ok(times) => times.rows("degraded", name, &healthy_theirs),
        Err(failure) => {
            ours.complaints.push(failure.during(name).to_string());
            Vec::new()
        }
    };
    Ok(vec![ours, Measured { backend: name, rows: theirs, events: log.into_events(), ..Measured::default() }])
}

/// Acquires and releases for this long.
async fn repeat<L: MeasuredLock>(lock: &L, span: Duration, log: &mut EventLog) -> Outcome<Times> {
    let (end, mut times) = (Instant::now() + span, Times::new());
    while Instant::now() < end {
        let called_ns = now_ns();
        let held = lock.acquire().await?;
        let (acquired_ns, grant) = (now_ns(), L::grant_info(&held));
        let release_called_ns = now_ns();
        let released = lock.release(held).await?;
        let released_ns = now_ns();
        times.record(acquired_ns - called_ns, released_ns - release_called_ns);
        log.hold(&TimedHold { called_ns, acquired_ns, grant, release_called_ns, released_ns, released });
    }
    Ok(times)
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
