//! `degraded`: Redlock while one of its masters is stopped by SIGSTOP: it accepts connections and requests, and never answers.
//! rslock is measured in the same states, on the same masters.

use std::time::{Duration, Instant};

use lock_testkit::RedisServer;

use crate::experiments::parts::side_by_side::{MeasuredClient, side_by_side};
use crate::experiments::prelude::*;
use crate::rig::measured_lock::hold_once;

pub(crate) static THIS: Experiment = Experiment {
    name: "degraded",
    about: "acquire + release in a loop while one of the masters does not answer",
    stops_servers: true,
    fits: |backend| backend == BackendName::Redlock,
    settings,
    metrics: &[
        metric("p50", "us", "p50").floor("healthy", HEALTHY),
        metric("p90", "us", "p90").floor("healthy", HEALTHY),
        metric("p99", "us", "p99").floor("healthy", HEALTHY),
        metric("acquire_p50", "us", "acquire p50").floor("healthy", HEALTHY).targets(&[at_most(
            REDLOCK,
            1.1,
            "acquire p50 with one master stopped",
        )]),
        metric("ops", "1/s", "operations").meaning("more is better"),
    ],
    takes: |plan| (plan.warm_up + plan.uncontended) * 2,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let span = time(plan.uncontended);
    format!(
        "fault: one of the masters is stopped by SIGSTOP
         floor: the same lock with all masters healthy
         duration: {span} healthy, then {span} with the fault"
    )
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let victim = target
        .masters()
        .last()
        .ok_or_else(|| Failure::new("servers given by --url are not stopped: leave out --url redlock=..."))?;
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let plan = bench.plan;
    let client = MeasuredClient::new(&locks, &rival, bench, &bench.lock("degraded"));
    let healthy = side_by_side(client, (), plan).await?;
    let theirs = Rslock::new(url::each(target.url()), &bench.lock("rslock"));
    let mut log = EventLog::new(0, 0, &bench.lock("rslock"));
    let healthy_theirs = repeat(&theirs, plan.counted, &mut log).await?;

    // Continued on drop, so that the next scenario finds all masters alive.
    let stopped = Stopped::stop(victim);
    let degraded = side_by_side(healthy.client, (), plan).await;
    let degraded_theirs = repeat(&theirs, plan.counted, &mut log).await;
    drop(stopped);
    let degraded = degraded?;

    let rows = Compared::with(degraded.times.ours, healthy.times.ours).rows();
    rival.close().await?;
    locks.close().await?;
    let mut ours = Measured { events: degraded.client.into_events(), ..Measured::of(target.name(), rows) };
    let name = Peer::Rslock.as_str();
    let theirs = match degraded_theirs {
        Ok(times) => Compared::with(times, healthy_theirs).rows(),
        Err(failure) => {
            ours.complaints.push(failure.during(name).to_string());
            Vec::new()
        }
    };
    Ok(vec![ours, Measured { events: log.into_events(), ..Measured::of(name, theirs) }])
}

/// Acquires and releases for this long.
async fn repeat<L: MeasuredLock>(lock: &L, span: Duration, log: &mut EventLog) -> Outcome<Times> {
    let (end, mut times) = (Instant::now() + span, Times::new());
    while Instant::now() < end {
        let hold = hold_once(lock).await?;
        times.record(hold.acquire_ns(), hold.release_ns());
        log.hold(&hold);
    }
    Ok(times)
}

struct Stopped<'a>(&'a RedisServer);

impl<'a> Stopped<'a> {
    fn stop(server: &'a RedisServer) -> Self {
        server.stop();
        Self(server)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.cont();
    }
}

const HEALTHY: &str = "same lock with all masters healthy";
