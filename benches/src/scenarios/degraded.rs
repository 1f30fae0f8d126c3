//! `degraded`: redlock while one of its masters is stopped by SIGSTOP: it takes connections and requests, and never
//! answers. rslock is measured beside it, on the same masters and in the same states.

use std::time::{Duration, Instant};

use lock_testkit::now_ns;

use super::uncontended::{Lane, side_by_side};
use super::{Bench, Measured, Plan, connect, time};
use crate::address;
use crate::backends::Target;
use crate::contender::Contender;
use crate::diary::{Diary, Tenure};
use crate::failure::{Failure, Outcome};
use crate::latency::Times;
use crate::peers::{Peer, Rslock};

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
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let victim = target.masters().last().ok_or_else(|| {
        Failure::new("servers that are not ours are not stopped: leave out --url redlock=...")
    })?;
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let plan = bench.plan;
    let lane = Lane::new(&locks, &rival, bench, &bench.lock("degraded"));
    let lane = side_by_side(lane, (), plan).await?.lane;
    let healthy = lane.times.clone();
    let theirs = Rslock::new(address::each(target.url()), &bench.lock("rslock"));
    let mut diary = Diary::new(0, 0, &bench.lock("rslock"));
    let healthy_theirs = alone(&theirs, plan.counted, &mut diary).await?;

    // Goes on when this is dropped, so that whatever is measured next finds all masters alive.
    let stopped = Stopped::stop(victim);
    let lane = side_by_side(lane, (), plan).await;
    let degraded_theirs = alone(&theirs, plan.counted, &mut diary).await;
    drop(stopped);
    let lane = lane?.lane;

    let rows = lane.times.rows("degraded", target.name(), &healthy);
    rival.close().await?;
    locks.close().await?;
    let mut ours =
        Measured { backend: target.name(), rows, events: lane.into_events(), ..Measured::default() };
    let name = Peer::Rslock.as_str();
    let theirs = match degraded_theirs {
        Ok(times) => times.rows("degraded", name, &healthy_theirs),
        Err(failure) => {
            ours.complaints.push(failure.during(name).to_string());
            Vec::new()
        }
    };
    Ok(vec![
        ours,
        Measured { backend: name, rows: theirs, events: diary.into_events(), ..Measured::default() },
    ])
}

/// One client that acquires and releases for this long.
async fn alone<C: Contender>(contender: &C, span: Duration, diary: &mut Diary) -> Outcome<Times> {
    let (end, mut times) = (Instant::now() + span, Times::new());
    while Instant::now() < end {
        let called_ns = now_ns();
        let held = contender.acquire().await?;
        let (acquired_ns, claim) = (now_ns(), C::claim(&held));
        let release_called_ns = now_ns();
        let released = contender.release(held).await?;
        let released_ns = now_ns();
        times.record(acquired_ns - called_ns, released_ns - release_called_ns);
        diary.tenure(&Tenure { called_ns, acquired_ns, claim, release_called_ns, released_ns, released });
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
