//! `herd`: many processes wait for one lock; what a release costs the servers, and whom it wakes.
//!
//! The recipe with one fixed node stands beside the queue: all who wait watch that node, and all of them wake up.

use std::time::{Duration, Instant};

use lock_testkit::now_ns;
use polylock::Locks;
use tokio::time::sleep;

use super::contended::{Counted, Counters, Counts, Window, counted, fight, jobs};
use super::{Bench, Measured, Plan, time};
use crate::address;
use crate::backends::Target;
use crate::crew::Hand;
use crate::failure::{Failure, Outcome};
use crate::options::BackendName;
use crate::results::Row;

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("processes", format!("{PROCESSES}, each with a session of its own")),
        ("duration", format!("{} after {} of warm-up", time(plan.counted), time(plan.warm_up))),
        (
            "counted",
            "requests that arrive at the servers, heartbeats too, and watch events that they send; zk: between two \
             moments in which all others stand in the queue and are quiet, so that nothing is half done"
                .into(),
        ),
        ("zk-ephemeral", "recipe=ephemeral: one node for all".into()),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let plan = Plan { processes: PROCESSES, ..bench.plan };
    let bench = Bench { plan, ..bench.clone() };
    let (name, herd) = ("zk-ephemeral", address::with_option(target.url(), "recipe", "ephemeral"));
    let queue = counted_in_rest(&bench, target.url(), &bench.lock(target.name())).await?;
    let herd = counted(&bench, target.backend(), &herd, &bench.lock(name)).await?;
    let measured = |name, counted: Counted| {
        let row = |metric, value| Row::new("herd", name, metric, "", value);
        let rows =
            vec![row("requests_per_grant", counted.requests), row("notifications", counted.notifications)];
        Measured { backend: name, rows, events: counted.events, ..Measured::default() }
    };
    Ok(vec![measured(target.name(), queue), measured(name, herd)])
}

/// Counts in a fight, from one rest to another.
async fn counted_in_rest(bench: &Bench, url: &str, lock: &str) -> Outcome<Counted> {
    let counters = Counters::start(BackendName::Zk, url).await?;
    let crew = Hand::hire(jobs(bench, &counters.address(url), lock)).await?;
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
    let (counting, events) = tokio::join!(counting, fight(&crew, window));
    let (first, last) = counting?;
    if last.until_ns > window.until_ns() {
        return Err(Failure::new(
            "the lock went round too slowly: some had left the queue when all were counted",
        ));
    }
    let span = Window::between(first.until_ns, last.from_ns);
    Counted::of(last.counts.since(first.counts), events?, span)
}

/// A hold of the lock during which nothing happens.
struct Rest {
    from_ns: u64,
    until_ns: u64,
    /// What was counted until then.
    counts: Counts,
}

impl Rest {
    /// Holds the lock until all others wait for it, and have asked for all that they need for that.
    async fn take(locks: &Locks, lock: &str, counters: &Counters) -> Outcome<Self> {
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
                return Err(Failure::new("it took too long until all others stood in the queue"));
            }
        }
        let until_ns = now_ns();
        guard.release().await?;
        Ok(Self { from_ns, until_ns, counts })
    }
}

const PROCESSES: u32 = 64;
/// Without a request for so long, nobody is about to send another.
const QUIET: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(3);
