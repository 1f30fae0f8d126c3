//! A measured number, its floor and their ratio.

use serde::{Deserialize, Serialize};

use crate::data::median::{interval, median};

/// A measured number, its floor and their ratio.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    pub(crate) backend: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) value: f64,
    pub(crate) floor: Option<f64>,
    pub(crate) ratio: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<[f64; 2]>,
    #[serde(default)]
    pub(crate) samples: Vec<f64>,
}

impl Row {
    pub(crate) fn new(scenario: &str, backend: &str, metric: &str, unit: &str, value: f64) -> Self {
        let [scenario, backend, metric, unit] = [scenario, backend, metric, unit].map(str::to_owned);
        let (floor, ratio, interval, samples) = (None, None, None, Vec::new());
        Self { scenario, backend, metric, unit, value, floor, ratio, interval, samples }
    }

    /// A number of an experiment, which knows the unit and its own name.
    pub(crate) fn of(metric: &str, value: f64) -> Self {
        Self::new("", "", metric, "", value)
    }

    /// The number of overlapping holds: the verdict of a scenario on a backend.
    pub(crate) fn overlaps(scenario: &str, backend: &str, overlaps: u64) -> Self {
        Self::new(scenario, backend, OVERLAPS, "", overlaps as f64)
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
        let ends = [median_of(|row| Some(row.interval?[0])), median_of(|row| Some(row.interval?[1]))];
        let interval = ends[0].zip(ends[1]).map(<[f64; 2]>::from);
        let row = Self { value, samples, floor: None, ratio: None, interval, ..row };
        Some(match median_of(|row| row.floor) {
            Some(floor) => row.with_floor(floor),
            None => row,
        })
    }

    pub(super) fn is_about_the_same(&self, other: &Self) -> bool {
        (&self.scenario, &self.backend, &self.metric) == (&other.scenario, &other.backend, &other.metric)
    }

    /// Sets the confidence interval of the ratio by the value and the floor of each round.
    pub(crate) fn with_rounds(self, rounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let ratios = rounds.into_iter().map(|(value, floor)| value / floor);
        let interval = interval(ratios.filter(|ratio| ratio.is_finite()).collect());
        Self { interval, ..self }.with_ratio_in_interval()
    }

    /// Sets the floor, in the same unit, and the ratio.
    pub(crate) fn with_floor(self, floor: f64) -> Self {
        // Four decimals are more than a run can resolve.
        let ratio = (self.value / floor * 1e4).round() / 1e4;
        let ratio = ratio.is_finite().then_some(ratio);
        Self { floor: Some(floor), ratio, ..self }.with_ratio_in_interval()
    }

    /// Widens the interval to the ratio: a high quantile of all rounds can be outside those of each.
    fn with_ratio_in_interval(self) -> Self {
        let interval = self.interval.map(|[least, most]| {
            let ratio = self.ratio.unwrap_or(least);
            [least.min(ratio), most.max(ratio)]
        });
        Self { interval, ..self }
    }
}

/// Whether this row is the verdict of a scenario.
pub(super) fn is_overlaps(row: &Row) -> bool {
    row.metric == OVERLAPS
}

/// The metric behind the verdict.
pub(super) const OVERLAPS: &str = "overlaps";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_contains_the_ratio() {
        let row = Row::new("uncontended", "redis", "p99", "us", 3.0);
        let rounds = [1.0, 1.2, 1.1, 1.3, 1.2].map(|value| (value, 1.0));
        let late = row.clone().with_rounds(rounds).with_floor(2.0);
        let row = row.with_floor(2.0).with_rounds(rounds);
        assert_eq!([late.interval, row.interval], [Some([1.0, 1.5]); 2]);
        assert_eq!(
            [row.ratio, row.with_floor(0.0).ratio],
            [Some(1.5), None],
            "a ratio needs a floor above zero"
        );
    }
}
