//! The performance targets of the backends, which every run checks.
//!
//! A missed target is reported but does not fail the run: machines are noisy, and small ones have no room for twenty
//! processes.

use crate::data::names::rung::{DUAL, MIGRATE, MOVE, NEW, OLD, SHADOW};
use crate::data::plan::Plan;
use crate::data::results::{Bound, Mode, Part, PromiseResult, Results};

/// All promises, with what this run measured of them.
pub(crate) fn judge(results: &Results, plan: &Plan) -> Vec<PromiseResult> {
    PROMISES.iter().map(|promise| promise.judge(results, plan)).collect()
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

/// The size of the run that a promise is about.
#[derive(Clone, Copy)]
enum Size {
    Any,
    /// At least `PROCESSES` contend.
    Processes,
    /// Exactly `FEW_PROCESSES` contend, as hand-offs take longer with more.
    FewProcesses,
    Tasks,
    Locks,
    /// Exactly `FEW_LOCKS` are held.
    FewLocks,
    /// Locks, and how long their renewal is measured.
    Watch,
    Names,
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

    const fn peer(by: &'static str, backend: &'static str, metric: &'static str, what: &'static str) -> Self {
        Self { backend, ..Self::ratio(by, "peers", metric, what) }
    }

    /// The latency of a rung of a migration, against what its stores take.
    const fn rung(backend: &'static str, what: &'static str) -> Self {
        Self { backend, ..Self::ratio(MIGRATE, "migration", "p50", what) }
    }

    /// Locks with names of their own, by so many tasks.
    const fn load(by: &'static str, tasks: &'static str, metric: &'static str, what: &'static str) -> Self {
        Self { backend: tasks, ..Self::ratio(by, "throughput", metric, what) }
    }

    /// Many tasks of a process on one lock: far fewer round trips than pairs.
    const fn tasks(by: &'static str) -> Self {
        Self::ratio(by, "tasks", "pairs_per_s", "pairs/s against one after the other")
            .at_least(10.0)
            .at(Size::Tasks)
    }

    /// A Redis lock that polls.
    const fn polling(backend: &'static str) -> Self {
        // Not the hand-off to any process: a releaser that acquires the lock again at once is faster than any waiter.
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

    fn judge(&self, results: &Results, plan: &Plan) -> PromiseResult {
        let scenarios = results.scenarios();
        let scenario = scenarios.iter().find(|scenario| scenario.name == self.scenario);
        let row = scenario.and_then(|scenario| scenario.row(self.backend, self.metric));
        let seen = row.and_then(|row| match self.of {
            Part::Value => Some(row.value),
            Part::Ratio => row.ratio,
        });
        let met = seen.map(|seen| self.is_met_by(seen));
        let is_ratio = self.of == Part::Ratio;
        let interval = row.and_then(|row| row.interval).filter(|_| is_ratio);
        let too_short = match interval {
            Some(ends) => ends.into_iter().any(|end| self.is_met_by(end)),
            // One short reading of two times says little.
            None => results.meta.mode == Mode::Quick && is_ratio,
        };
        let [by, promise, scenario, backend, metric, unit] =
            [self.by, self.what, self.scenario, self.backend, self.metric, self.unit].map(str::to_owned);
        let (of, bound, target, smaller) = (self.of, self.bound, self.target, self.size.missing_in(plan));
        PromiseResult {
            by,
            promise,
            scenario,
            backend,
            metric,
            of,
            bound,
            target,
            unit,
            seen,
            met,
            smaller,
            too_short,
            interval,
        }
    }

    fn is_met_by(&self, seen: f64) -> bool {
        match self.bound {
            Bound::AtMost => seen <= self.target,
            Bound::AtLeast => seen >= self.target,
        }
    }
}

impl Size {
    /// The size of the plan, if it differs.
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
            Self::FewLocks if plan.held_locks == FEW_LOCKS => None,
            Self::FewLocks => Some(format!("{} locks", plan.held_locks)),
            Self::Watch if plan.held.as_secs() >= WATCH_S && locks.is_none() => None,
            Self::Watch => Some(format!("{} locks, {} s", plan.held_locks, plan.held.as_secs())),
            Self::Names => (plan.moved_names < NAMES).then(|| format!("{} names", plan.moved_names)),
        }
    }
}

const REDIS: &str = "redis";
const REDLOCK: &str = "redlock";
const ZK: &str = "zk";
const POSTGRES: &str = "postgres";
const PROCESSES: u32 = 20;
const FEW_PROCESSES: u32 = 8;
const TASKS: u32 = 1000;
const LOCKS: usize = 100_000;
const FEW_LOCKS: usize = 10_000;
const WATCH_S: u64 = 300;
const NAMES: usize = 10_000;
const KB: f64 = 1024.0;

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
    Promise::tasks(REDIS),
    Promise::load(REDIS, "redis 1 task", "p50", "p50 against the bare commands").at_most(1.08),
    Promise::load(
        REDIS,
        "redis 256 tasks",
        "pairs_per_s_minting",
        "pairs/s against bare commands with tokens",
    )
    .at_least(0.95),
    Promise::load(REDIS, "redis 256 tasks", "pairs_per_s_rslock", "pairs/s against rslock").at_least(1.0),
    Promise::load(REDIS, "redis 256 tasks", "client_cpu", "client CPU/pair against the bare commands")
        .at_most(1.6),
    Promise::load(REDIS, "redis 256 tasks", "server_cpu", "server CPU/pair against the bare commands")
        .at_most(1.6),
    Promise::polling("rslock"),
    Promise::polling("rlock"),
    Promise::polling("async-redis-lock"),
    Promise::polling("distkit"),
    Promise::value(REDIS, "held", "bytes_per_lock", "B", "client memory per lock")
        .at_most(1.2 * KB)
        .at(Size::Locks),
    Promise::value(REDIS, "held", "both_cpu_percent", "%", "renewal, client and server, of one core")
        .at_most(25.0)
        .at(Size::Locks),
    Promise::value(REDIS, "held", "lost", "", "locks lost").at_most(0.0).at(Size::Watch),
    Promise::value(REDIS, "command", "added", "ms", "`polylock run` against the command alone").at_most(25.0),
    Promise::value(REDIS, "command", "binary", "MB", "the command `polylock`").at_most(15.0),
    Promise::ratio(REDLOCK, "uncontended", "acquire_p50", "acquire p50 against a fan-out to a quorum")
        .at_most(1.2),
    Promise::ratio(REDLOCK, "uncontended", "p50", "acquire + release p50 against fan-outs to a quorum")
        .at_most(1.3),
    Promise::ratio(REDLOCK, "uncontended", "p50_one_server", "acquire + release p50 against one server")
        .at_most(2.2),
    Promise::ratio(REDLOCK, "degraded", "acquire_p50", "acquire p50 with one master stopped").at_most(1.1),
    Promise::tasks(REDLOCK),
    Promise::load(REDLOCK, "redlock 256 tasks", "pairs_per_s", "pairs/s against fan-outs to a quorum")
        .at_least(0.7),
    Promise::load(REDLOCK, "redlock 256 tasks", "pairs_per_s_rslock", "pairs/s against rslock").at_least(1.0),
    Promise::ratio(REDLOCK, "contended", "handoff_p50", "hand-off p50 of 8 processes against PING p50")
        .at_most(6.0)
        .at(Size::FewProcesses),
    Promise::value(REDLOCK, "contended", "first_try", "%", "a free lock is acquired at first try")
        .at_least(95.0)
        .at(Size::Processes),
    Promise::ratio(ZK, "uncontended", "p50", "p50 against the bare requests").at_most(1.08),
    Promise::ratio(ZK, "contended", "handoff_p50_bare", "hand-off p50 against the bare watch").at_most(1.15),
    Promise::tasks(ZK),
    Promise::load(ZK, "zk 256 tasks", "pairs_per_s", "pairs/s against the bare requests").at_least(1.0),
    Promise::load(ZK, "zk 256 tasks", "client_cpu", "client CPU/pair against the bare requests").at_most(1.3),
    Promise::not_faster("lock-client"),
    Promise::not_faster("curator"),
    Promise::not_faster("kazoo"),
    Promise::slower_hand_off("lock-client"),
    Promise::slower_hand_off("curator"),
    Promise::slower_hand_off("kazoo"),
    Promise::value(ZK, "herd", "requests_per_grant", "", "requests per grant").at_most(5.0),
    Promise::value(ZK, "herd", "notifications", "", "notifications per release").at_most(2.0),
    Promise::value(ZK, "held", "bytes_per_lock", "B", "client memory per lock")
        .at_most(2.0 * KB)
        .at(Size::Locks),
    Promise::value(ZK, "held", "renew_cpu_percent", "%", "at rest, of one core").at_most(5.0),
    Promise::ratio(POSTGRES, "uncontended", "p50", "p50 against the bare statements").at_most(1.25),
    Promise::ratio(
        POSTGRES,
        "contended",
        "handoff_p50_bare",
        "hand-off p50 of 8 processes against the bare hand-over",
    )
    .at_most(1.25)
    .at(Size::FewProcesses),
    Promise::load(POSTGRES, "postgres 256 tasks", "pairs_per_s", "pairs/s against the bare statements")
        .at_least(0.7),
    Promise::value(POSTGRES, "held", "both_cpu_percent", "%", "renewal, client and server, of one core")
        .at_most(5.0)
        .at(Size::FewLocks),
    Promise::value(POSTGRES, "held", "sessions", "", "sessions").at_most(5.0).at(Size::FewLocks),
    Promise::value(POSTGRES, "held", "lost", "", "locks lost").at_most(0.0).at(Size::FewLocks),
    Promise::rung(OLD, "p50 against redis").at_most(1.05),
    Promise::rung(SHADOW, "p50 against old").at_most(1.05),
    Promise::rung(DUAL, "p50 against redis and zk together").at_most(1.15),
    Promise::rung(MOVE, "p50 of a name that has moved against zk").at_most(1.03),
    Promise::rung(NEW, "p50 against zk").at_most(1.03),
    Promise::value(MIGRATE, "migration", "move_all", "s", "10,000 names moved one after the other")
        .at_most(60.0)
        .at(Size::Names),
    Promise::value(MIGRATE, "migration", "clean_all", "s", "10,000 tombstones removed")
        .at_most(60.0)
        .at(Size::Names),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::data::names::Peer;
    use crate::data::results::{Row, sample};

    fn find<'a>(result: &'a [PromiseResult], scenario: &str, metric: &str) -> &'a PromiseResult {
        result.iter().find(|one| one.by == REDIS && one.scenario == scenario && one.metric == metric).unwrap()
    }

    #[test]
    fn what_was_measured_is_judged() {
        let result = judge(&sample(), &Plan::new(Mode::Full));
        let p50 = find(&result, "uncontended", "p50");
        assert_eq!(
            [p50.target(), p50.seen(), p50.met()],
            ["<= 1.15x".to_owned(), "1.13x".into(), "yes".into()]
        );
        let jain = find(&result, "contended", "jain");
        assert_eq!([jain.target(), jain.seen(), jain.met()], [">= 0.990", "0.993", "yes"].map(String::from));
        assert_eq!(find(&result, "tasks", "pairs_per_s").met(), "not measured");
    }

    #[test]
    fn a_broken_promise_is_reported() {
        let mut results = sample();
        results.push(Row::new("contended", "redis", "requests_per_grant", "", 9.0));
        results.push(Row::new("peers", "rslock", "waiter_p50", "us", 3000.0).with_floor(200.0));
        let result = judge(&results, &Plan { processes: 8, ..Plan::new(Mode::Quick) });
        assert_eq!(find(&result, "contended", "requests_per_grant").met(), "too small to tell");
        let rslock = find(&result, "peers", "waiter_p50");
        assert_eq!((rslock.seen(), rslock.met), ("15.00x".into(), Some(false)));
    }

    #[test]
    fn a_run_that_is_too_small_says_so() {
        let plan = Plan { held_locks: 100_000, ..Plan::new(Mode::Full) };
        assert_eq!(Size::Locks.missing_in(&plan), None);
        assert_eq!(Size::Watch.missing_in(&plan).as_deref(), Some("100000 locks, 11 s"));
        let plan = Plan { held: Duration::from_secs(300), ..plan };
        assert_eq!(Size::Watch.missing_in(&plan), None);
        assert_eq!(Size::Processes.missing_in(&plan), None);
        assert_eq!(Size::FewProcesses.missing_in(&plan).as_deref(), Some("20 processes"));
        assert_eq!(Size::Tasks.missing_in(&plan), None);
        assert_eq!(Size::Names.missing_in(&plan), None);
        assert_eq!(Size::Names.missing_in(&Plan::new(Mode::Quick)).as_deref(), Some("1200 names"));
        assert_eq!(Size::FewProcesses.missing_in(&Plan { processes: 8, ..plan }), None);
    }

    #[test]
    fn promises_under_load_have_floors_of_their_own() {
        let mut results = sample();
        for (metric, value, floor) in
            [("pairs_per_s_minting", 96.0, 100.0), ("pairs_per_s_rslock", 90.0, 91.0)]
        {
            let row = Row::new("throughput", "redis 256 tasks", metric, "1/s", value);
            results.push(row.with_floor(floor));
        }
        let result = judge(&results, &Plan::new(Mode::Full));
        assert_eq!(find(&result, "throughput", "pairs_per_s_minting").met(), "yes");
        let rslock = find(&result, "throughput", "pairs_per_s_rslock");
        assert_eq!(rslock.about(), "redis 256 tasks: pairs/s against rslock");
        assert_eq!(find(&result, "throughput", "client_cpu").met(), "not measured");
    }

    #[test]
    fn a_promise_is_broken_where_all_of_the_interval_misses_it() {
        let met = |mode, rounds: [f64; 5]| {
            let row = Row::new("throughput", "redis 256 tasks", "pairs_per_s_rslock", "1/s", 0.9);
            let mut results = sample();
            results.meta.mode = mode;
            results.push(row.with_floor(1.0).with_rounds(rounds.map(|rate| (rate, 1.0))));
            find(&judge(&results, &Plan::new(mode)), "throughput", "pairs_per_s_rslock").met()
        };
        let noisy = [0.8, 0.9, 0.9, 1.0, 1.1];
        assert_eq!([met(Mode::Quick, noisy), met(Mode::Full, noisy)], ["too short to tell"; 2]);
        assert_eq!(met(Mode::Quick, [0.8, 0.9, 0.9, 0.95, 0.98]), "NO");
        // Too few rounds for an interval.
        let few = [f64::NAN, f64::NAN, 0.9, 0.9, 0.9];
        assert_eq!([met(Mode::Quick, few), met(Mode::Full, few)], ["too short to tell", "NO"]);
    }

    #[test]
    fn promises_about_peers_name_peers() {
        let peers = PROMISES.iter().filter(|promise| promise.scenario == "peers");
        for promise in peers {
            assert!(Peer::named(promise.backend).is_some(), "{}", promise.backend);
        }
    }
}
