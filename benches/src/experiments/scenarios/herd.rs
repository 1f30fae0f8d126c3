//! `herd`: many processes wait for one lock; the requests and notifications of a release.
//!
//! The queue is compared with the recipe of one fixed node, which all waiters watch, so that each release wakes them all.

use std::time::{Duration, Instant};

use lock_testkit::now_ns;
use polylock::Locks;
use tokio::time::sleep;

use crate::experiments::parts::contention::{jobs, let_contend};
use crate::experiments::parts::request_count::{RequestsPerGrant, count_requests};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "herd",
    about: "many processes wait for one lock; the requests of each grant, the notifications of each release",
    fits: |backend| backend == BackendName::Zk,
    settings,
    metrics: &[
        metric("requests_per_grant", "", "requests/grant")
            .targets(&[at_most(ZK, 5.0, "requests per grant").value()]),
        metric("notifications", "", "notifications/release").targets(&[at_most(
            ZK,
            2.0,
            "notifications per release",
        )
        .value()]),
    ],
    takes: |_| Duration::from_secs(10),
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let [span, warm_up] = [plan.counted, plan.warm_up].map(time);
    format!(
        "processes: {PROCESSES}, each with a session of its own
         duration: {span} after {warm_up} of warm-up
         counted: requests that arrive at the servers, heartbeats included, and watch events that they send; zk: between two moments in \
         which all others wait and send nothing, so that no hand-over is counted in part
         zk-ephemeral: recipe=ephemeral: one node that all waiters watch"
    )
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let plan = Plan { processes: PROCESSES, ..bench.plan };
    let bench = Bench { plan, ..bench.clone() };
    let (name, herd) = ("zk-ephemeral", url::with_option(target.url(), "recipe", "ephemeral"));
    let queue = count_between_rests(&bench, target.url(), &bench.lock(target.name())).await?;
    let herd = count_requests(&bench, target.backend(), &herd, &bench.lock(name)).await?;
    let measured = |name, counted: RequestsPerGrant| {
        let rows = [("requests_per_grant", counted.requests), ("notifications", counted.notifications)];
        let rows = rows.map(|(metric, value)| Row::of(metric, value)).to_vec();
        Measured { events: counted.events, ..Measured::of(name, rows) }
    };
    Ok(vec![measured(target.name(), queue), measured(name, herd)])
}

async fn count_between_rests(bench: &Bench, url: &str, lock: &str) -> Outcome<RequestsPerGrant> {
    let counters = Proxies::start(BackendName::Zk, url).await?;
    let workers = WorkerHandle::start_all(jobs(bench, &counters.url(url), lock)).await?;
    let window = Window::after(bench.plan.counted + 2 * LONGEST_REST, bench.plan.warm_up);
    let counting = async {
        let locks = Locks::connect(url).await?;
        window.begins().await;
        let first = Rest::take(&locks, lock, &counters).await?;
        sleep(bench.plan.counted).await;
        let last = Rest::take(&locks, lock, &counters).await?;
        locks.close().await?;
        Ok::<_, Failure>((first, last))
    };
    let (counting, events) = tokio::join!(counting, let_contend(&workers, window));
    let (first, last) = counting?;
    if last.until_ns > window.until_ns {
        return Err(Failure::new(
            "the lock was handed over too slowly: some processes had ended when the count did",
        ));
    }
    let span = Window { from_ns: first.until_ns, until_ns: last.from_ns };
    RequestsPerGrant::of(last.counts.since(first.counts), events?, span)
}

/// A hold of the lock in which all others wait and send nothing.
struct Rest {
    from_ns: u64,
    until_ns: u64,
    /// The totals until then.
    counts: Counts,
}

impl Rest {
    /// Holds the lock until all others wait for it and have sent all requests that this takes.
    async fn take(locks: &Locks, lock: &str, counters: &Proxies) -> Outcome<Self> {
        let guard = locks.mutex(lock).acquire().await?;
        let (from_ns, start) = (now_ns(), Instant::now());
        let mut counts = counters.counts();
        loop {
            sleep(QUIET).await;
            let (before, all) = (counts, locks.inspect(lock).await?.waiters == PROCESSES as usize);
            counts = counters.counts();
            if all && counts == before {
                break;
            }
            if start.elapsed() > LONGEST_REST {
                return Err(Failure::new("not all processes were in the wait queue in time"));
            }
        }
        let until_ns = now_ns();
        guard.release().await?;
        Ok(Self { from_ns, until_ns, counts })
    }
}

const PROCESSES: u32 = 64;
/// After so long without a request, no client is about to send one.
const QUIET: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(3);
