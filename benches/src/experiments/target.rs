//! The targets of the backends, which every run checks.
//!
//! A missed target is reported but does not fail the run: machines are noisy, and small ones have no room for twenty
//! processes.

use std::fmt::Display;

use super::experiment::{Experiment, Metric};
use crate::data::{Bound, Mode, Part, Plan, Results, TargetResult};

/// What a metric of a backend has to reach.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The backend whose target it is.
    by: &'static str,
    what: &'static str,
    /// The backend of the row, which may be a peer, or a subject with its load.
    of: &'static str,
    part: Part,
    bound: Bound,
    limit: f64,
    size: Size,
}

/// The size of a run, if the target is about another one.
pub(crate) type Size = fn(&Plan) -> Option<String>;

pub(crate) fn unless(fits: bool, size: impl Display, of: &str) -> Option<String> {
    (!fits).then(|| format!("{size} {of}"))
}

/// The ratio of a row of this backend to its floor has to be at most this.
pub(crate) const fn at_most(by: &'static str, limit: f64, what: &'static str) -> Target {
    let (part, bound) = (Part::Ratio, Bound::AtMost);
    Target { by, what, of: by, part, bound, limit, size: |_| None }
}

pub(crate) const fn at_least(by: &'static str, limit: f64, what: &'static str) -> Target {
    Target { bound: Bound::AtLeast, ..at_most(by, limit, what) }
}

impl Target {
    /// The target is about the value of the row, not about its ratio.
    pub(crate) const fn value(self) -> Self {
        Self { part: Part::Value, ..self }
    }

    /// The target is about a row of this name, not about that of the backend.
    pub(crate) const fn of(self, row: &'static str) -> Self {
        Self { of: row, ..self }
    }

    pub(crate) const fn at(self, size: Size) -> Self {
        Self { size, ..self }
    }

    fn judge(&self, of: &Experiment, metric: &Metric, results: &Results, plan: &Plan) -> TargetResult {
        let row = results.row(of.name, self.of, metric.name);
        let is_ratio = self.part == Part::Ratio;
        let seen = row.and_then(|row| if is_ratio { row.ratio } else { Some(row.value) });
        let interval = row.and_then(|row| row.interval).filter(|_| is_ratio);
        // Counts are the same in a short run.
        let margin = if metric.unit.is_empty() { 1.0 } else { results.meta.mode.pick(1.25, 1.0) };
        let too_short = self.is_too_short(seen, interval, margin, results.meta.mode);
        let unit = if is_ratio { "x" } else { metric.unit };
        let [by, what, scenario, backend, metric, unit] =
            [self.by, self.what, of.name, self.of, metric.name, unit].map(str::to_owned);
        TargetResult {
            by,
            what,
            scenario,
            backend,
            metric,
            of: self.part,
            bound: self.bound,
            target: self.limit,
            unit,
            seen,
            met: seen.map(|seen| self.is_met_by(seen, 1.0)),
            smaller: (self.size)(plan),
            too_short,
            interval,
        }
    }

    /// Whether the run cannot tell that the target is missed: an end of the interval meets it. What a quick run measured may be off
    /// by this margin, whatever its few rounds agree on; one short reading of two times says nothing.
    fn is_too_short(&self, seen: Option<f64>, interval: Option<[f64; 2]>, margin: f64, mode: Mode) -> bool {
        match (interval, seen) {
            (Some(ends), _) => ends.into_iter().any(|end| self.is_met_by(end, margin)),
            (None, _) if self.part == Part::Ratio => mode == Mode::Quick,
            (None, Some(seen)) => mode == Mode::Quick && self.is_met_by(seen, margin),
            (None, None) => false,
        }
    }

    fn is_met_by(&self, seen: f64, margin: f64) -> bool {
        match self.bound {
            Bound::AtMost => seen <= self.limit * margin,
            Bound::AtLeast => seen >= self.limit / margin,
        }
    }
}

/// All targets of these experiments, with what the run measured of them.
pub(crate) fn judge(experiments: &[&Experiment], results: &Results, plan: &Plan) -> Vec<TargetResult> {
    let mut judged = Vec::new();
    for of in experiments {
        for metric in of.metrics {
            judged.extend(metric.targets.iter().map(|target| target.judge(of, metric, results, plan)));
        }
    }
    judged
}

pub(crate) const REDIS: &str = "redis";
pub(crate) const REDLOCK: &str = "redlock";
pub(crate) const ZK: &str = "zk";
pub(crate) const POSTGRES: &str = "postgres";
pub(crate) const ETCD: &str = "etcd";
pub(crate) const MYSQL: &str = "mysql";
pub(crate) const SQLITE: &str = "sqlite";

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::data::names::rung;
    use crate::data::{BackendName, Meta, Peer, Row};
    use crate::experiments::list::EXPERIMENTS;
    use crate::experiments::scenarios::throughput;

    fn judged(mode: Mode, row: Row) -> TargetResult {
        let mut results = Results::new(Meta::of_this_run(mode));
        let [scenario, backend, metric] = [&row.scenario, &row.backend, &row.metric].map(Clone::clone);
        results.push(row);
        let all = judge(EXPERIMENTS, &results, &Plan::new(mode));
        let is_it =
            |one: &TargetResult| [&one.scenario, &one.backend, &one.metric] == [&scenario, &backend, &metric];
        all.into_iter().find(is_it).unwrap()
    }

    #[test]
    fn what_was_measured_is_judged() {
        let of = |backend, value: f64| Row::new("uncontended", backend, "p50", "us", value).with_floor(100.0);
        let met = |value| judged(Mode::Full, of("redis", value)).met();
        assert_eq!([met(113.0), met(116.0)], ["yes", "NO"]);
        let jain = Row::new("contended", "redis", "jain", "", 0.993);
        let jain = judged(Mode::Full, jain);
        assert_eq!([jain.target(), jain.seen(), jain.met()], [">= 0.990", "0.993", "yes"].map(String::from));
        let nothing =
            judge(EXPERIMENTS, &Results::new(Meta::of_this_run(Mode::Full)), &Plan::new(Mode::Full));
        assert_eq!(nothing.len(), 74);
        assert!(nothing.iter().all(|one| one.met() == "not measured" && !one.is_missed()));
    }

    #[test]
    fn a_target_is_about_a_row_that_a_full_run_has() {
        for experiment in EXPERIMENTS {
            for target in experiment.metrics.iter().flat_map(|metric| metric.targets) {
                let (subject, load) = target.of.split_once(' ').unwrap_or((target.of, ""));
                let has_loads = experiment.name == throughput::THIS.name;
                let is_known = if has_loads {
                    BackendName::from_str(subject, false).is_ok_and(|backend| {
                        let loads = throughput::loads(&Plan::new(Mode::Full), backend);
                        loads.iter().any(|one| one.to_string() == load)
                    })
                } else if subject == rung::MIGRATE {
                    rung::ALL.contains(&target.of)
                } else {
                    BackendName::from_str(target.of, false).is_ok() || Peer::named(target.of).is_some()
                };
                assert!(is_known, "{}: {}", experiment.name, target.of);
            }
        }
    }

    #[test]
    fn a_run_that_is_too_small_says_so() {
        let few = judged(Mode::Quick, Row::new("contended", "redis", "requests_per_grant", "", 9.0));
        assert_eq!((few.met(), few.is_missed()), ("too small to tell".into(), false));
        assert_eq!(few.smaller.as_deref(), Some("8 processes"));
        let lost = judged(Mode::Full, Row::new("held", "redis", "lost", "", 1.0));
        assert_eq!(lost.smaller.as_deref(), Some("10000 locks, 11 s"));
        assert_eq!(unless(true, 20, "processes"), None);
    }

    #[test]
    fn a_target_is_missed_where_all_of_the_interval_misses_it() {
        let met = |mode, rounds: [f64; 5]| {
            let row = Row::new("throughput", "redis 256 tasks", "pairs_per_s_rslock", "1/s", 0.7);
            judged(mode, row.with_floor(1.0).with_rounds(rounds.map(|rate| (rate, 1.0)))).met()
        };
        let noisy = [0.6, 0.7, 0.9, 1.0, 1.1];
        assert_eq!([met(Mode::Quick, noisy), met(Mode::Full, noisy)], ["too short to tell"; 2]);
        // A longer run may find otherwise, unless it is far away.
        let near = [0.7, 0.9, 0.9, 0.95, 0.98];
        assert_eq!([met(Mode::Quick, near), met(Mode::Full, near)], ["too short to tell", "NO"]);
        assert_eq!(met(Mode::Quick, [0.5, 0.5, 0.6, 0.6, 0.7]), "NO");
        // Too few rounds for an interval.
        let few = [f64::NAN, f64::NAN, 0.9, 0.9, 0.9];
        assert_eq!([met(Mode::Quick, few), met(Mode::Full, few)], ["too short to tell", "NO"]);
    }
}
