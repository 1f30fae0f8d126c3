//! What the backends promise, in numbers that every run can check.
//!
//! A promise that is not kept does not fail the run: machines are noisy, and small ones have no room for twenty
//! processes. It is told in the same breath as the numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::results::{Results, number};
use crate::scenarios::Plan;

/// Every promise, with what this run has seen of it.
pub(crate) fn judge(results: &Results, plan: &Plan) -> Vec<Judged> {
    PROMISES.iter().map(|promise| promise.judge(results, plan)).collect()
}

/// A promise, and what a run has seen of it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Judged {
    /// The backend whose promise it is.
    pub(crate) by: String,
    /// In words.
    pub(crate) promise: String,
    /// Where the number is: scenario, backend and metric of its row.
    pub(crate) scenario: String,
    /// The backend, or the peer that it is compared with.
    pub(crate) backend: String,
    /// The metric.
    pub(crate) metric: String,
    /// Which of the row's numbers.
    pub(crate) of: Part,
    /// On which side of the target.
    pub(crate) bound: Bound,
    /// The target.
    pub(crate) target: f64,
    /// The unit of both numbers; `x` for a ratio.
    pub(crate) unit: String,
    /// What was seen; nothing when it was not measured.
    pub(crate) seen: Option<f64>,
    /// Whether that is as promised.
    pub(crate) met: Option<bool>,
    /// In what the run was smaller than, or other than, what the promise is about, such as the number of processes.
    pub(crate) smaller: Option<String>,
}

impl Judged {
    /// In words, with the name of a peer that it is about.
    pub(crate) fn about(&self) -> String {
        if self.backend == self.by {
            self.promise.clone()
        } else {
            format!("{}: {}", self.backend, self.promise)
        }
    }

    /// Target with its bound, as people write it.
    pub(crate) fn target(&self) -> String {
        format!("{} {}", self.bound, self.quantity(self.target))
    }

    /// What was seen, as people write it.
    pub(crate) fn seen(&self) -> String {
        self.seen.map_or_else(|| "-".into(), |seen| self.quantity(seen))
    }

    /// Whether it is met, in a word or two.
    pub(crate) fn met(&self) -> String {
        let word = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        };
        match &self.smaller {
            Some(smaller) if self.met.is_some() => format!("{word} ({smaller})"),
            _ => word.into(),
        }
    }

    fn quantity(&self, value: f64) -> String {
        match self.unit.as_str() {
            "" => number(value),
            "x" => format!("{value:.2}x"),
            unit => format!("{} {unit}", number(value)),
        }
    }
}

/// One of the two numbers of a row.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// The measured one.
    Value,
    /// Its ratio to the floor.
    Ratio,
}

/// On which side of the target a number has to be.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    /// Not above.
    AtMost,
    /// Not below.
    AtLeast,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AtMost => "<=",
            Self::AtLeast => ">=",
        })
    }
}

struct Promise {
    by: &'static str,
    what: &'static str,
    scenario: &'static str,
    backend: &'static str,
    metric: &'static str,
    of: Part,
    bound: Bound,
    target: f64,
    unit: &'static str,
    size: Size,
}

/// How large a run the promise is about.
#[derive(Clone, Copy)]
enum Size {
    Any,
    /// So many that fight, or more.
    Processes,
    /// Just so many that fight, as each hand-off takes longer with more.
    FewProcesses,
    Tasks,
    Locks,
    /// The locks, and for how long.
    Watch,
}

impl Promise {
    const fn ratio(
        by: &'static str,
        scenario: &'static str,
        metric: &'static str,
        what: &'static str,
    ) -> Self {
        let (of, bound) = (Part::Ratio, Bound::AtMost);
        Self { by, what, scenario, backend: by, metric, of, bound, target: 1.0, unit: "x", size: Size::Any }
    }

    const fn value(
        by: &'static str,
        scenario: &'static str,
        metric: &'static str,
        unit: &'static str,
        what: &'static str,
    ) -> Self {
        Self { of: Part::Value, unit, ..Self::ratio(by, scenario, metric, what) }
    }

    /// About another library, against ours.
    const fn peer(by: &'static str, backend: &'static str, metric: &'static str, what: &'static str) -> Self {
        Self { backend, ..Self::ratio(by, "peers", metric, what) }
    }

    /// A Redis lock that polls.
    const fn polling(backend: &'static str) -> Self {
        // Not the hand-off to whoever comes: a releaser that takes the lock back at once is faster than any other.
        let what = "hand-off to a waiter p50 against ours";
        Self::peer(REDIS, backend, "waiter_p50", what).at_least(20.0).at(Size::Processes)
    }

    /// A client of ZooKeeper's recipe: ours takes at most 0.7 of its time.
    const fn slower_hand_off(backend: &'static str) -> Self {
        Self::peer(ZK, backend, "waiter_p50", "hand-off p50 against ours").at_least(1.0 / 0.7)
    }

    const fn not_faster(backend: &'static str) -> Self {
        Self::peer(ZK, backend, "alone_p50", "acquire + release p50 against ours").at_least(1.0)
    }

    const fn at_most(self, target: f64) -> Self {
        Self { bound: Bound::AtMost, target, ..self }
    }

    const fn at_least(self, target: f64) -> Self {
        Self { bound: Bound::AtLeast, target, ..self }
    }

    const fn at(self, size: Size) -> Self {
        Self { size, ..self }
    }

    fn judge(&self, results: &Results, plan: &Plan) -> Judged {
        let scenarios = results.scenarios();
        let scenario = scenarios.iter().find(|scenario| scenario.name == self.scenario);
        let row = scenario.and_then(|scenario| scenario.row(self.backend, self.metric));
        let seen = row.and_then(|row| match self.of {
            Part::Value => Some(row.value),
            Part::Ratio => row.ratio,
        });
        let met = seen.map(|seen| match self.bound {
            Bound::AtMost => seen <= self.target,
            Bound::AtLeast => seen >= self.target,
        });
        let [by, promise, scenario, backend, metric, unit] =
            [self.by, self.what, self.scenario, self.backend, self.metric, self.unit].map(str::to_owned);
        let (of, bound, target, smaller) = (self.of, self.bound, self.target, self.size.missing_in(plan));
        Judged { by, promise, scenario, backend, metric, of, bound, target, unit, seen, met, smaller }
    }
}

impl Size {
    /// What the plan has instead, if that is less, or something else.
    fn missing_in(self, plan: &Plan) -> Option<String> {
        let locks = (plan.held_locks < LOCKS).then(|| format!("{} locks", plan.held_locks));
        match self {
            Self::Any => None,
            Self::Processes if plan.processes >= PROCESSES => None,
            Self::FewProcesses if plan.processes == FEW_PROCESSES => None,
            Self::Processes | Self::FewProcesses => Some(format!("{} processes", plan.processes)),
            Self::Tasks if plan.tasks >= TASKS => None,
            Self::Tasks => Some(format!("{} tasks", plan.tasks)),
            Self::Locks => locks,
            Self::Watch if plan.held.as_secs() >= WATCH_S && locks.is_none() => None,
            Self::Watch => Some(format!("{} locks, {} s", plan.held_locks, plan.held.as_secs())),
        }
    }
}

const REDIS: &str = "redis";
const REDLOCK: &str = "redlock";
const ZK: &str = "zk";
const PROCESSES: u32 = 20;
const FEW_PROCESSES: u32 = 8;
const TASKS: u32 = 1000;
const LOCKS: usize = 100_000;
const WATCH_S: u64 = 300;

const PROMISES: &[Promise] = &[
    Promise::ratio(REDIS, "uncontended", "p50", "p50 against the bare commands").at_most(1.15),
    Promise::ratio(REDIS, "uncontended", "p99", "p99 against the bare commands").at_most(1.5),
    Promise::value(REDIS, "contended", "requests_per_grant", "", "requests per grant")
        .at_most(4.2)
        .at(Size::Processes),
    Promise::ratio(REDIS, "contended", "handoff_p50", "hand-off p50 against PING p50")
        .at_most(3.0)
        .at(Size::Processes),
    Promise::ratio(REDIS, "contended", "handoff_p95", "hand-off p95 against PING p50")
        .at_most(6.0)
        .at(Size::Processes),
    Promise::ratio(REDIS, "contended", "longest_wait", "longest wait against the ideal rotation")
        .at_most(2.0)
        .at(Size::Processes),
    Promise::value(REDIS, "contended", "jain", "", "Jain index").at_least(0.99).at(Size::Processes),
    Promise::ratio(REDIS, "tasks", "pairs_per_s", "pairs/s against one after the other")
        .at_least(1.7)
        .at(Size::Tasks),
    Promise::polling("rslock"),
    Promise::polling("rlock"),
    Promise::polling("async-redis-lock"),
    Promise::polling("distkit"),
    Promise::value(REDIS, "held", "bytes_per_lock", "B", "client memory per lock")
        .at_most(2048.0)
        .at(Size::Locks),
    Promise::value(REDIS, "held", "both_cpu_percent", "%", "renewal, client and server, of one core")
        .at_most(25.0)
        .at(Size::Locks),
    Promise::value(REDIS, "held", "lost", "", "locks lost").at_most(0.0).at(Size::Watch),
    Promise::ratio(REDLOCK, "uncontended", "acquire_p50", "acquire p50 against a fan-out to a quorum")
        .at_most(1.2),
    Promise::ratio(REDLOCK, "uncontended", "p50", "acquire + release p50 against fan-outs to a quorum")
        .at_most(1.3),
    Promise::ratio(REDLOCK, "uncontended", "p50_one_server", "acquire + release p50 against one server")
        .at_most(2.2),
    Promise::ratio(REDLOCK, "degraded", "acquire_p50", "acquire p50 with one master stopped").at_most(1.1),
    Promise::value(REDLOCK, "contended", "handoff_p50", "us", "hand-off p50 of 8 processes")
        .at_most(3_000.0)
        .at(Size::FewProcesses),
    Promise::value(REDLOCK, "contended", "first_try", "%", "a free lock is taken at the first try")
        .at_least(95.0)
        .at(Size::Processes),
    Promise::ratio(ZK, "uncontended", "p50", "p50 against the bare requests").at_most(1.08),
    Promise::ratio(ZK, "contended", "handoff_p50_bare", "hand-off p50 against the bare watch").at_most(1.15),
    Promise::not_faster("lock-client"),
    Promise::not_faster("curator"),
    Promise::not_faster("kazoo"),
    Promise::slower_hand_off("lock-client"),
    Promise::slower_hand_off("curator"),
    Promise::slower_hand_off("kazoo"),
    Promise::value(ZK, "herd", "requests_per_grant", "", "requests per grant").at_most(5.0),
    Promise::value(ZK, "herd", "notifications", "", "notifications per release").at_most(2.0),
    Promise::value(ZK, "held", "bytes_per_lock", "B", "client memory per lock").at_most(3072.0),
    Promise::value(ZK, "held", "renew_cpu_percent", "%", "at rest, of one core").at_most(5.0),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::peers::Peer;
    use crate::results::{Mode, Row, sample};

    fn find<'a>(judged: &'a [Judged], scenario: &str, metric: &str) -> &'a Judged {
        judged.iter().find(|one| one.by == REDIS && one.scenario == scenario && one.metric == metric).unwrap()
    }

    #[test]
    fn what_was_measured_is_judged() {
        let judged = judge(&sample(), &Plan::new(Mode::Full));
        let p50 = find(&judged, "uncontended", "p50");
        assert_eq!(
            [p50.target(), p50.seen(), p50.met()],
            ["<= 1.15x".to_owned(), "1.13x".into(), "yes".into()]
        );
        let jain = find(&judged, "contended", "jain");
        assert_eq!([jain.target(), jain.seen(), jain.met()], [">= 0.990", "0.993", "yes"].map(String::from));
        assert_eq!(find(&judged, "tasks", "pairs_per_s").met(), "not measured");
    }

    #[test]
    fn a_promise_that_is_not_kept_is_told() {
        let mut results = sample();
        results.push(Row::new("contended", "redis", "requests_per_grant", "", 9.0));
        results.push(Row::new("peers", "rslock", "waiter_p50", "us", 3000.0).with_floor(200.0));
        let judged = judge(&results, &Plan { processes: 8, ..Plan::new(Mode::Quick) });
        assert_eq!(find(&judged, "contended", "requests_per_grant").met(), "NO (8 processes)");
        let rslock = find(&judged, "peers", "waiter_p50");
        assert_eq!((rslock.seen(), rslock.met), ("15.00x".into(), Some(false)));
    }

    #[test]
    fn a_run_that_is_too_small_says_so() {
        let plan = Plan { held_locks: 100_000, ..Plan::new(Mode::Full) };
        assert_eq!(Size::Locks.missing_in(&plan), None);
        assert_eq!(Size::Watch.missing_in(&plan).as_deref(), Some("100000 locks, 30 s"));
        let plan = Plan { held: Duration::from_secs(300), ..plan };
        assert_eq!(Size::Watch.missing_in(&plan), None);
        assert_eq!(Size::Processes.missing_in(&plan), None);
        assert_eq!(Size::FewProcesses.missing_in(&plan).as_deref(), Some("20 processes"));
        assert_eq!(Size::Tasks.missing_in(&plan), None);
        assert_eq!(Size::FewProcesses.missing_in(&Plan { processes: 8, ..plan }), None);
    }

    #[test]
    fn every_peer_is_in_a_promise() {
        for peer in Peer::ALL {
            assert!(PROMISES.iter().any(|promise| promise.backend == peer.as_str()), "{peer:?}");
        }
    }
}
