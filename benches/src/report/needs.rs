//! What a user may need of a lock, and what a run measured of it for each backend.

use crate::results::labels::quantity;
use crate::results::{FaultVerdict, Results};

/// A need: a row of the table at the top of the page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Need {
    /// Work done twice is only waste.
    Speed,
    /// Work done twice corrupts data.
    Safety,
    /// No single server.
    NoSingleServer,
    /// Thousands of waiters.
    Waiters,
    /// A low latency of the hand-over.
    HandOver,
    /// Everyone has a turn.
    Fairness,
    /// Holders die.
    Crash,
    /// What is running already.
    Running,
    /// Clients in other languages.
    Languages,
}

/// What a backend offers for a need.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    /// What holds by design.
    pub(super) words: &'static str,
    /// What this run measured, with the section that has it.
    pub(super) figure: Option<(String, String)>,
    /// Whether a measurement could say something about it.
    pub(super) measurable: bool,
}

impl Offer {
    /// The figure, or that there is none.
    pub(super) fn measured(&self) -> &str {
        self.figure.as_ref().map_or(NO_FIGURE, |(text, _)| text)
    }
}

impl Need {
    /// All needs, from top to bottom.
    pub(super) const ALL: &[Self] = &[
        Self::Speed,
        Self::Safety,
        Self::NoSingleServer,
        Self::Waiters,
        Self::HandOver,
        Self::Fairness,
        Self::Crash,
        Self::Running,
        Self::Languages,
    ];

    /// The need, as a user says it.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Speed => "Work done twice is only waste: acquiring must be fast",
            Self::Safety => "Work done twice corrupts data",
            Self::NoSingleServer => "No single server may stop the work",
            Self::Waiters => "Hundreds or thousands wait for one lock",
            Self::HandOver => "The next waiter must have the lock soon",
            Self::Fairness => "Each client must have its turn",
            Self::Crash => "A holder may die with the lock",
            Self::Running => "What has to run",
            Self::Languages => "Clients in other languages share the locks",
        }
    }

    /// What this backend offers, with this run's figure.
    pub(super) fn offer(self, results: &Results, backend: &str) -> Offer {
        let (words, sources) = self.design(backend);
        let figure = sources.iter().find_map(|source| source.find(results, backend));
        Offer { words, figure, measurable: !sources.is_empty() }
    }

    fn design(self, backend: &str) -> (&'static str, &'static [Source]) {
        let by_backend = |redis, redlock, zk| match backend {
            "redis" => redis,
            "redlock" => redlock,
            _ => zk,
        };
        match self {
            Self::Speed => ("", SPEED),
            Self::Safety => (
                by_backend(
                    "needs fencing tokens; two holders after lost data",
                    "needs fencing tokens; two holders after a lost master or a clock step",
                    "needs fencing tokens against pauses; nothing is lost while a majority lives",
                ),
                SAFETY,
            ),
            Self::NoSingleServer => (
                by_backend(
                    "one server; a failover may lose the lock",
                    "any minority of the masters may fail",
                    "any minority of the ensemble may fail",
                ),
                OUTAGE,
            ),
            Self::Waiters => ("", WAITERS),
            Self::HandOver => ("", HAND_OVER),
            Self::Fairness => ("", FAIRNESS),
            Self::Crash => (
                by_backend("free after the ttl", "free after the ttl", "free after the session timeout"),
                CRASH,
            ),
            Self::Running => (
                by_backend(
                    "one Redis server",
                    "five independent Redis servers",
                    "a ZooKeeper ensemble of three",
                ),
                &[],
            ),
            Self::Languages => (
                by_backend(
                    "redis-py, Redisson, Symfony and others",
                    "node-redlock, pottery, redlock-rb",
                    "Curator, kazoo, .NET",
                ),
                &[],
            ),
        }
    }
}

/// Where a figure comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A row of a scenario, and what it is.
    Row(&'static str, &'static str, &'static str),
    /// The figure of a claim with the largest x, and what it is.
    Claim(u8, &'static str, &'static str),
    /// The faults in which two valid guards overlapped or a stale write was accepted.
    Breaks,
    /// The longest outage of all faults.
    LongestOutage,
}

impl Source {
    /// The figure in words, and the section that has it.
    fn find(self, results: &Results, backend: &str) -> Option<(String, String)> {
        match self {
            Self::Row(scenario, metric, what) => {
                let found = results.scenarios().into_iter().find(|found| found.name == scenario)?;
                let row = found.row(backend, metric)?;
                Some((join(&quantity(row.value, &row.unit), what), format!("scenario-{scenario}")))
            }
            Self::Claim(id, metric, what) => {
                let claim = results.claims.iter().find(|claim| claim.id == id)?;
                let figures = claim.figures.iter();
                let figures = figures.filter(|figure| figure.subject == backend && figure.metric == metric);
                let last =
                    figures.max_by(|one, other| one.x.unwrap_or(0.0).total_cmp(&other.x.unwrap_or(0.0)))?;
                let place = last.x.map_or_else(String::new, |x| format!(" at {x} {}", claim.x_name()));
                Some((join(&quantity(last.value, &last.unit), what) + &place, format!("claim-{id}")))
            }
            Self::Breaks => {
                let of_backend = faults(results, backend);
                let broken = of_backend.iter().filter(|fault| fault.l2 + fault.l3 > 0);
                let broken = broken.count();
                let differ = of_backend.iter().filter(|fault| fault.verdict == FaultVerdict::Differs).count();
                let differ = if differ > 0 { format!(", {differ} NOT as documented") } else { String::new() };
                let text = format!(
                    "two valid guards or a stale write in {broken} of {} faults{differ}",
                    of_backend.len()
                );
                (!of_backend.is_empty()).then(|| (text, "faults".into()))
            }
            Self::LongestOutage => {
                let of_backend = faults(results, backend);
                let longest =
                    of_backend.into_iter().max_by(|one, other| one.outage_ms.total_cmp(&other.outage_ms))?;
                let text =
                    format!("at most {} unavailable ({})", quantity(longest.outage_ms, "ms"), longest.fault);
                Some((text, "faults".into()))
            }
        }
    }
}

fn faults<'a>(results: &'a Results, backend: &str) -> Vec<&'a crate::results::FaultResult> {
    let same = |name: &str| name.split_whitespace().next() == Some(backend);
    let ran = |verdict| !matches!(verdict, FaultVerdict::NoMeaning | FaultVerdict::NotRun);
    results.faults.iter().filter(|fault| same(&fault.backend) && ran(fault.verdict)).collect()
}

fn join(value: &str, what: &str) -> String {
    format!("{value} {what}")
}

const NO_FIGURE: &str = "no figure in this run";
const SPEED: &[Source] = &[Source::Row("uncontended", "p50", "to acquire and release")];
const SAFETY: &[Source] = &[Source::Breaks];
const OUTAGE: &[Source] =
    &[Source::LongestOutage, Source::Row("degraded", "p50", "to acquire and release with one server hung")];
const WAITERS: &[Source] = &[
    Source::Claim(3, "grant_requests", "requests per grant"),
    Source::Claim(2, "grant_requests", "requests per grant"),
    Source::Row("contended", "requests_per_grant", "requests per grant"),
];
const HAND_OVER: &[Source] = &[Source::Row("contended", "handoff_p50", "to hand over")];
const FAIRNESS: &[Source] = &[Source::Row("contended", "jain", "of 1 (Jain's index)")];
const CRASH: &[Source] = &[Source::Row("crash", "takeover", "until a waiter had it")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Results, sample};

    #[test]
    fn figures_come_from_this_run() {
        let results = sample();
        let redis = Need::Speed.offer(&results, "redis");
        assert_eq!(
            redis.figure,
            Some(("88.2 µs to acquire and release".into(), "scenario-uncontended".into()))
        );
        let zk = Need::Waiters.offer(&results, "zk");
        assert_eq!(zk.measured(), "4 requests per grant at 64 waiters");
        let safety = Need::Safety.offer(&results, "redis");
        assert_eq!(safety.measured(), "two valid guards or a stale write in 1 of 2 faults");
    }

    #[test]
    fn what_was_not_measured_says_so() {
        let results = Results::new(sample().meta);
        for need in Need::ALL {
            for backend in ["redis", "redlock", "zk"] {
                let offer = need.offer(&results, backend);
                assert_eq!((offer.figure.is_none(), offer.measured()), (true, NO_FIGURE));
                assert!(offer.measurable || !offer.words.is_empty(), "{need:?} on {backend}");
            }
        }
    }
}
