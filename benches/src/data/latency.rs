//! Latency distributions.

use hdrhistogram::Histogram;

use crate::data::results::Row;

/// A histogram of times in nanoseconds, with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    histogram: Histogram<u64>,
    total_ns: u128,
}

impl Latency {
    /// An empty histogram.
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_max(LONGEST_NS, DIGITS).expect("valid constants");
        Self { histogram, total_ns: 0 }
    }

    /// Adds one time.
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.total_ns += u128::from(ns);
    }

    /// Adds times of another histogram, as [`counts`](Self::counts) has them.
    pub(crate) fn add(&mut self, counts: &[(u64, u64)]) {
        for &(ns, count) in counts {
            self.histogram.saturating_record_n(ns, count);
            self.total_ns += u128::from(ns) * u128::from(count);
        }
    }

    /// How often each time was recorded, within the precision of the histogram.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let recorded = self.histogram.iter_recorded();
        recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }

    /// The number of recorded times.
    pub(crate) fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// The quantile in microseconds; 0.5 is the median.
    pub(crate) fn quantile_us(&self, part: f64) -> f64 {
        self.histogram.value_at_quantile(part) as f64 / 1e3
    }

    /// The operations per second of one client.
    pub(crate) fn per_second(&self) -> f64 {
        if self.total_ns == 0 { 0.0 } else { self.len() as f64 * 1e9 / self.total_ns as f64 }
    }

    /// The rows `p50`, `p90` and `p99`, each with its floor.
    pub(crate) fn rows(&self, scenario: &str, backend: &str, floor: &Self) -> Vec<Row> {
        let row = |(metric, part)| {
            Row::new(scenario, backend, metric, "us", self.quantile_us(part))
                .with_floor(floor.quantile_us(part))
        };
        [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].into_iter().map(row).collect()
    }
}

/// The latencies of acquisitions and releases.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    /// Acquisitions alone.
    pub(crate) acquire: Latency,
    /// Acquisition plus release.
    pub(crate) both: Latency,
}

impl Times {
    /// Empty histograms.
    pub(crate) fn new() -> Self {
        Self { acquire: Latency::new(), both: Latency::new() }
    }

    /// Adds an acquisition and its release.
    pub(crate) fn record(&mut self, acquire_ns: u64, release_ns: u64) {
        self.acquire.record(acquire_ns);
        self.both.record(acquire_ns + release_ns);
    }

    /// The rows of acquisition plus release, and `acquire_p50`, each with its floor.
    pub(crate) fn rows(&self, scenario: &str, backend: &str, floor: &Self) -> Vec<Row> {
        let mut rows = self.both.rows(scenario, backend, &floor.both);
        let acquire_us = self.acquire.quantile_us(0.5);
        rows.push(
            Row::new(scenario, backend, "acquire_p50", "us", acquire_us)
                .with_floor(floor.acquire.quantile_us(0.5)),
        );
        rows.push(Row::new(scenario, backend, "ops", "1/s", self.both.per_second()));
        rows
    }
}

const LONGEST_NS: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_rate() {
        let mut latency = Latency::new();
        (1..=100).for_each(|index| latency.record(index * 1000));
        assert!((latency.quantile_us(0.5) - 50.0).abs() < 0.1);
        assert!((latency.quantile_us(0.99) - 99.0).abs() < 0.1);
        assert!((latency.per_second() - 1e6 / 50.5).abs() < 1.0);
        let mut twice = latency.clone();
        twice.add(&latency.counts());
        assert_eq!(twice.len(), 200);
        assert!((twice.quantile_us(0.99) - 99.0).abs() < 0.2, "{}", twice.quantile_us(0.99));
        let rows = latency.rows("uncontended", "redis", &latency);
        assert_eq!(rows.iter().map(|row| row.metric.as_str()).collect::<Vec<_>>(), ["p50", "p90", "p99"]);
        assert!(rows.iter().all(|row| row.ratio == Some(1.0)));
    }
}
