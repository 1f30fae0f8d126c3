//! A measured number, its floor and their ratio.

use serde::{Deserialize, Serialize};

use crate::data::median::median;

/// A measured number, its floor and their ratio.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    /// `uncontended`, `contended`, `crash` or any other.
    pub(crate) scenario: String,
    /// `memory`, `redis`, `redlock`, `zk` or any other.
    pub(crate) backend: String,
    /// The metric, such as `p50`.
    pub(crate) metric: String,
    /// The unit of `value` and `floor`, such as `us`; empty for a bare number.
    pub(crate) unit: String,
    /// The number. What could not be measured has no row.
    pub(crate) value: f64,
    /// The number to compare with, such as the time of the bare commands.
    pub(crate) floor: Option<f64>,
    /// `value / floor`.
    pub(crate) ratio: Option<f64>,
    /// The values of all repeats, whose median is `value`; empty when it was measured once.
    #[serde(default)]
    pub(crate) samples: Vec<f64>,
}

impl Row {
    /// A number without a floor.
    pub(crate) fn new(scenario: &str, backend: &str, metric: &str, unit: &str, value: f64) -> Self {
        let [scenario, backend, metric, unit] = [scenario, backend, metric, unit].map(str::to_owned);
        Self { scenario, backend, metric, unit, value, floor: None, ratio: None, samples: Vec::new() }
    }

    /// The number of overlapping holds: the verdict of a scenario on a backend.
    pub(crate) fn overlaps(scenario: &str, backend: &str, overlaps: u64) -> Self {
        Self::new(scenario, backend, OVERLAPS, "", overlaps as f64)
    }

    /// The values of all repeats.
    pub(crate) fn repeats(&self) -> Vec<f64> {
        if self.samples.is_empty() { vec![self.value] } else { self.samples.clone() }
    }

    /// The row of several repeats: medians of values and floors.
    pub(super) fn joined(repeats: &[Self]) -> Option<Self> {
        let median_of = |of: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = repeats.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| median(values))
        };
        let row = repeats.first()?.clone();
        let samples = repeats.iter().map(|row| row.value).collect();
        let value = median_of(|row| Some(row.value))?;
        let row = Self { value, samples, floor: None, ratio: None, ..row };
        Some(match median_of(|row| row.floor) {
            Some(floor) => row.with_floor(floor),
            None => row,
        })
    }

    pub(super) fn is_about_the_same(&self, other: &Self) -> bool {
        (&self.scenario, &self.backend, &self.metric) == (&other.scenario, &other.backend, &other.metric)
    }

    /// Sets the floor, in the same unit, and the ratio.
    pub(crate) fn with_floor(self, floor: f64) -> Self {
        // Four decimals are more than a run can resolve.
        let ratio = (self.value / floor * 1e4).round() / 1e4;
        Self { floor: Some(floor), ratio: ratio.is_finite().then_some(ratio), ..self }
    }
}

/// Whether this row is the verdict of a scenario.
pub(super) fn is_overlaps(row: &Row) -> bool {
    row.metric == OVERLAPS
}

/// The metric behind the verdict.
pub(super) const OVERLAPS: &str = "overlaps";
