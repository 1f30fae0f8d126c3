//! The rows of one experiment, and the order of names.

use clap::ValueEnum;

use super::exclusion_verdict::ExclusionVerdict;
use super::experiment::{ExperimentResult, MetricResult};
use super::row::{OVERLAPS, Row};
use crate::data::names::{BackendName, rung};

/// The rows of one experiment.
#[derive(Clone, Debug)]
pub(crate) struct Scenario<'a> {
    pub(crate) name: &'a str,
    described: Option<&'a ExperimentResult>,
    rows: Vec<&'a Row>,
}

impl<'a> Scenario<'a> {
    /// The scenarios of these rows: those that are described first, then any other in the order of their first row.
    pub(super) fn all_in(described: &'a [ExperimentResult], rows: &'a [Row]) -> Vec<Self> {
        let known: Vec<_> = described.iter().map(|one| &one.name).collect();
        let names = ordered(rows.iter().map(|row| row.scenario.as_str()), &known);
        let of = |name| Self {
            name,
            described: described.iter().find(|one| one.name == name),
            rows: rows.iter().filter(|row| row.scenario == name).collect(),
        };
        names.into_iter().map(of).collect()
    }

    /// One line about the scenario; empty when it is not described.
    pub(crate) fn about(&self) -> &'a str {
        self.described.map_or("", |one| &one.about)
    }

    /// The backends: the known ones first.
    pub(crate) fn backends(&self) -> Vec<&'a str> {
        ordered(self.rows.iter().map(|row| row.backend.as_str()), &backends())
    }

    /// The metrics, those that are described first, without the overlaps, which are the verdict.
    pub(crate) fn metrics(&self) -> Vec<&'a str> {
        let measured = self.rows.iter().map(|row| row.metric.as_str()).filter(|name| *name != OVERLAPS);
        let known = self.described.map_or(&[][..], |one| &one.metrics);
        ordered(measured, &known.iter().map(|metric| &metric.name).collect::<Vec<_>>())
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
        self.described.is_none_or(|one| one.has_rivals)
    }

    /// The name of a metric for people.
    pub(crate) fn title(&self, metric: &str) -> String {
        self.metric(metric).map_or_else(|| metric.replace('_', " "), |metric| metric.title.clone())
    }

    pub(crate) fn floor_name(&self, metric: &str) -> &'a str {
        self.metric(metric).map_or("floor", |metric| &metric.floor_name)
    }

    fn metric(&self, name: &str) -> Option<&'a MetricResult> {
        self.described?.metrics.iter().find(|metric| metric.name == name)
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
