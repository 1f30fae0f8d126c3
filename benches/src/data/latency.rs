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
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_max(LONGEST_NS, DIGITS).expect("valid constants");
        Self { histogram, total_ns: 0 }
    }

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

    pub(crate) fn per_second(&self) -> f64 {
        if self.total_ns == 0 { 0.0 } else { self.len() as f64 * 1e9 / self.total_ns as f64 }
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
    pub(crate) fn new() -> Self {
        Self { acquire: Latency::new(), both: Latency::new() }
    }

    pub(crate) fn record(&mut self, acquire_ns: u64, release_ns: u64) {
        self.acquire.record(acquire_ns);
        self.both.record(acquire_ns + release_ns);
    }

    fn add(&mut self, other: &Self) {
        self.acquire.add(&other.acquire.counts());
        self.both.add(&other.both.counts());
    }
}

/// The times of a lock, and of what it is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub(crate) ours: Times,
    pub(crate) floor: Times,
    /// The same, by round, when they were measured in turn.
    rounds: Vec<[Times; 2]>,
}

impl Compared {
    /// Times that were not measured in turn.
    pub(crate) const fn with(ours: Times, floor: Times) -> Self {
        Self { ours, floor, rounds: Vec::new() }
    }

    /// Times that were measured in turn, round by round.
    pub(crate) fn of(rounds: Vec<[Times; 2]>) -> Self {
        let (mut ours, mut floor) = (Times::new(), Times::new());
        for [round, of_floor] in &rounds {
            ours.add(round);
            floor.add(of_floor);
        }
        Self { ours, floor, rounds }
    }

    /// The rows of acquisition plus release, and `acquire_p50`, each with its floor.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let both = |(metric, part)| self.row(metric, part, |times| &times.both);
        let mut rows: Vec<Row> = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].into_iter().map(both).collect();
        rows.push(self.row("acquire_p50", 0.5, |times| &times.acquire));
        rows.push(Row::of("ops", self.ours.both.per_second()));
        rows
    }

    pub(crate) fn row(&self, metric: &str, part: f64, of: fn(&Times) -> &Latency) -> Row {
        let us = |times| of(times).quantile_us(part);
        let rounds = self.rounds.iter().map(|[ours, floor]| (us(ours), us(floor)));
        Row::of(metric, us(&self.ours)).with_floor(us(&self.floor)).with_rounds(rounds)
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
    }

    #[test]
    fn rows_have_floors_and_an_interval_of_the_rounds() {
        let times = |us: u64| {
            let mut times = Times::new();
            times.record(us * 1000, 0);
            times
        };
        let rounds = [90, 95, 100, 105, 120].map(|ours| [times(ours), times(100)]);
        let rows = Compared::of(rounds.to_vec()).rows();
        let names: Vec<_> = rows.iter().map(|row| row.metric.as_str()).collect();
        assert_eq!(names, ["p50", "p90", "p99", "acquire_p50", "ops"]);
        let [least, most] = rows[0].interval.unwrap();
        assert!((least - 0.9).abs() < 0.01 && (most - 1.2).abs() < 0.01, "{rows:?}");
        assert!((rows[0].ratio.unwrap() - 1.0).abs() < 0.01, "{rows:?}");
        assert_eq!(Compared::with(times(90), times(100)).rows()[0].interval, None);
    }
}
