//! `herd`: many processes wait for one lock; the requests and notifications of a release. And claim 3, over their growth.
//!
//! The queue is compared with the recipe of one fixed node, which all waiters watch, so that each release wakes them all.

use std::time::{Duration, Instant};

use lock_testkit::now_ns;
use polylock::Locks;
use tokio::time::sleep;

use super::bench::{Bench, Measured, time};
use super::claim::{CLAIM, Claim, Draw, Judgement, Measuring};
use super::experiment::{EXPERIMENT, Experiment, metric};
use super::parts::contention::{jobs, let_contend};
use super::parts::request_count::{RequestsPerGrant, count_requests};
use super::target::{ZK, value};
use super::waiting_cost::{GRANT_NOTIFICATIONS, GRANT_REQUESTS, measure_crowds};
use crate::data::{BackendName, Failure, Figures, Growth, Mode, Outcome, Plan, Row, Verdict, Window};
use crate::rig::{Counts, Proxies, Target, WorkerHandle, url};

pub(super) static THIS: Experiment = Experiment {
    name: "herd",
    about: "many processes wait for one lock; the requests of each grant, the notifications of each release",
    fits: |backend| backend == BackendName::Zk,
    settings,
    metrics: &[
        metric("requests_per_grant", "", "requests/grant")
            .targets(&[value(ZK, "requests per grant").at_most(5.0)]),
        metric("notifications", "", "notifications/release").targets(&[value(
            ZK,
            "notifications per release",
        )
        .at_most(2.0)]),
    ],
    takes: |_| Duration::from_secs(10),
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 3,
        says: "Without sequential nodes there is a herd: each release wakes all waiters.",
        how: "As claim 2, with more waiters: the requests and notifications of each grant, over the number of waiters. \
              `zk` is the queue of sequential nodes, `zk recipe=ephemeral` one node that all waiters watch.",
        rule: "Holds when the requests and notifications of a grant grow at least like the 0.6th power of the number of \
               waiters with one node, and less with sequential nodes; otherwise it does not hold.",
        in_quick: true,
        pictures: &[
            Draw::Curve("Requests per grant", GRANT_REQUESTS, "waiters"),
            Draw::Curve("Notifications per grant", GRANT_NOTIFICATIONS, "waiters"),
        ],
        judge,
        ..CLAIM
    }),
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

async fn figures(run: &mut Measuring<'_>) {
    let waiters: &[u32] = match run.mode {
        Mode::Quick => &[8, 64],
        Mode::Full => &[8, 16, 32, 64, 128, 256, 512],
    };
    measure_crowds(run, "herd", &[HERD, QUEUE], waiters).await;
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (one_node, queue) = (messages(figures, HERD)?, messages(figures, QUEUE)?);
    let (herd, turns) = (growth(&one_node)?, growth(&queue)?);
    let verdict = match herd.is_linear_or_worse() && !turns.is_linear_or_worse() {
        true => Verdict::Holds,
        false => Verdict::DoesNotHold,
    };
    let at_most = |points: &[(f64, f64)]| points.last().map_or(f64::NAN, |(_, messages)| *messages);
    let waiters = one_node.last().map_or(f64::NAN, |(waiters, _)| *waiters);
    let because = format!(
        "with {waiters} waiters a grant takes {:.0} requests and notifications with one node and {:.1} with sequential \
         nodes; growth: {herd} and {turns}",
        at_most(&one_node),
        at_most(&queue)
    );
    Ok(Judgement::new(verdict, because))
}

/// The requests and notifications of a grant, over the number of waiters.
fn messages(figures: &Figures, subject: &str) -> Outcome<Vec<(f64, f64)>> {
    let requests = figures.curve(subject, GRANT_REQUESTS).into_iter();
    requests
        .map(|(waiters, requests)| {
            Ok((waiters, requests + figures.at(subject, GRANT_NOTIFICATIONS, waiters)?))
        })
        .collect()
}

fn growth(points: &[(f64, f64)]) -> Outcome<Growth> {
    Growth::of(points).ok_or_else(|| Failure::new("too few crowds were measured to see how a grant grows"))
}

const QUEUE: &str = "zk";
const HERD: &str = "zk recipe=ephemeral";
const PROCESSES: u32 = 64;
/// After so long without a request, no client is about to send one.
const QUIET: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Figure;

    #[test]
    fn a_herd_grows_with_the_waiters() {
        let verdict = |herd: fn(f64) -> f64, queue: fn(f64) -> f64| {
            let mut figures = Vec::new();
            for waiters in [8.0, 64.0, 512.0] {
                for (subject, of) in [(HERD, herd), (QUEUE, queue)] {
                    figures.push(Figure::new(subject, GRANT_REQUESTS, "", of(waiters)).at(waiters));
                    figures.push(Figure::new(subject, GRANT_NOTIFICATIONS, "", 1.0).at(waiters));
                }
            }
            judge(&Figures::from(figures)).unwrap().verdict
        };
        assert_eq!(verdict(|waiters| 2.0 * waiters, |_| 4.0), Verdict::Holds);
        assert_eq!(verdict(|_| 4.0, |_| 4.0), Verdict::DoesNotHold);
        assert_eq!(verdict(|waiters| waiters, |waiters| waiters), Verdict::DoesNotHold);
    }
}
