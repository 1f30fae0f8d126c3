//! The rows of one scenario, and the order of names.

use clap::ValueEnum;

use super::exclusion_verdict::ExclusionVerdict;
use super::row::{OVERLAPS, Row};
use crate::data::names::{BackendName, ScenarioName, rung};

#[derive(Clone, Debug)]
pub(crate) struct Scenario<'a> {
    pub(crate) name: &'a str,
    pub(super) rows: Vec<&'a Row>,
}

impl<'a> Scenario<'a> {
    /// The scenarios of these rows: the known ones first, then any other in the order of their first row.
    pub(crate) fn all_in(rows: &'a [Row]) -> Vec<Self> {
        let known: Vec<_> = ScenarioName::value_variants().iter().map(ScenarioName::to_string).collect();
        let names = ordered(rows.iter().map(|row| row.scenario.as_str()), &known);
        let of = |name| Self { name, rows: rows.iter().filter(|row| row.scenario == name).collect() };
        names.into_iter().map(of).collect()
    }

    /// The backends: the known ones first.
    pub(crate) fn backends(&self) -> Vec<&'a str> {
        ordered(self.rows.iter().map(|row| row.backend.as_str()), &backends())
    }

    /// The metrics, the known ones first, without the overlaps, which are the verdict.
    pub(crate) fn metrics(&self) -> Vec<&'a str> {
        let measured = self.rows.iter().map(|row| row.metric.as_str()).filter(|name| *name != OVERLAPS);
        ordered(measured, &METRICS.split(' ').collect::<Vec<_>>())
    }

    /// The row of a metric; the last one when it was measured more than once.
    pub(crate) fn row(&self, backend: &str, metric: &str) -> Option<&'a Row> {
        self.rows.iter().rev().find(|row| row.backend == backend && row.metric == metric).copied()
    }

    pub(crate) fn unit(&self, metric: &str) -> &'a str {
        self.rows.iter().find(|row| row.metric == metric).map_or("", |row| &row.unit)
    }

    /// Whether clients want the same lock, so that there is a verdict.
    pub(crate) fn has_rivals(&self) -> bool {
        has_rivals(self.name)
    }

    pub(crate) fn verdict(&self, backend: &str) -> ExclusionVerdict {
        let counts = self.rows.iter().filter(|row| row.backend == backend && row.metric == OVERLAPS);
        ExclusionVerdict::of_all(counts.map(|row| match row.value {
            0.0 => ExclusionVerdict::Held,
            some if some > 0.0 => ExclusionVerdict::Broken(some as u64),
            _ => ExclusionVerdict::Unchecked,
        }))
    }
}

/// Whether clients want the same lock in this scenario.
pub(crate) fn has_rivals(scenario: &str) -> bool {
    !["throughput", "command"].contains(&scenario)
}

/// The distinct `names`: first those of `known`, in its order, then the others in theirs.
pub(super) fn ordered<'a>(names: impl Iterator<Item = &'a str>, known: &[impl AsRef<str>]) -> Vec<&'a str> {
    let mut distinct = distinct(names);
    distinct
        .sort_by_key(|name| known.iter().position(|other| other.as_ref() == *name).unwrap_or(known.len()));
    distinct
}

/// The distinct ones, each where it comes first.
pub(crate) fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The known backends, in the order of the results.
pub(super) fn backends() -> Vec<&'static str> {
    BackendName::value_variants().iter().map(|backend| backend.as_str()).chain(rung::ALL).collect()
}

/// The known metrics, in the order of the results.
const METRICS: &str = "p50 p90 p99 acquire_p50 p50_with_tokens acquire_with_tokens p50_one_server alone_p50 ops \
                       grants_per_s pairs_per_s pairs_per_s_minting pairs_per_s_rslock pairs_per_s_sqlx client_cpu server_cpu \
                       handoff_p50 handoff_p95 handoff_p99 handoff_p50_bare handoff_p95_bare waiter_p50 \
                       longest_wait jain inversions requests_per_grant notifications first_try split_votes takeover \
                       bytes_per_lock renew_cpu_percent server_cpu_percent both_cpu_percent sessions lost acquire_all";
