//! The CPU pressure of the machine: an outage on an overloaded machine says little about a lock.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_testkit::now_ns;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The share of time in which some process waited for a CPU, from `/proc/pressure/cpu`.
#[derive(Debug)]
pub(super) struct CpuPressure {
    samples: Arc<Mutex<Vec<Sample>>>,
    watching: JoinHandle<()>,
}

/// The total waiting time of processes at a point in time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    waited_us: u64,
}

impl CpuPressure {
    /// Starts to sample.
    pub(super) fn watch() -> Self {
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let watching = tokio::spawn({
            let samples = Arc::clone(&samples);
            async move {
                // Not every kernel has the file.
                while let Some(waited_us) = waited_us() {
                    let sample = Sample { at_ns: now_ns(), waited_us };
                    samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                    sleep(LOOK).await;
                }
            }
        });
        Self { samples, watching }
    }

    /// The pressure between these times in percent, if known.
    pub(super) fn between(&self, from_ns: u64, until_ns: u64) -> Option<f64> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        share(&samples, from_ns, until_ns)
    }
}

impl Drop for CpuPressure {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Uses the last sample before the span (or the first of all) and the first after it (or the last of all).
fn share(samples: &[Sample], from_ns: u64, until_ns: u64) -> Option<f64> {
    let first = samples.partition_point(|sample| sample.at_ns <= from_ns).saturating_sub(1);
    let last = samples.partition_point(|sample| sample.at_ns < until_ns).min(samples.len().checked_sub(1)?);
    let (first, last) = (samples[first], samples[last]);
    let span_us = last.at_ns.checked_sub(first.at_ns).filter(|span| *span > 0)? as f64 / 1e3;
    Some((last.waited_us.saturating_sub(first.waited_us) as f64 / span_us * 100.0).min(100.0))
}

fn waited_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    text.lines().find_map(|line| line.strip_prefix("some ")?.rsplit_once("total=")?.1.parse().ok())
}

const LOOK: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_in_percent() {
        let samples = [(0, 0), (1, 100_000), (2, 1_100_000)];
        let samples = samples.map(|(s, waited_us)| Sample { at_ns: s * 1_000_000_000, waited_us });
        let near = |from_ms: u64, until_ms: u64, percent: f64| {
            let seen = share(&samples, from_ms * 1_000_000, until_ms * 1_000_000).unwrap();
            assert!((seen - percent).abs() < 1e-6, "{seen}");
        };
        near(0, 1_000, 10.0);
        near(1_200, 1_300, 100.0);
        near(500, 9_000, 55.0);
        assert_eq!(share(&samples, 5_000_000_000, 6_000_000_000), None);
        assert_eq!(share(&[], 0, 1), None);
    }
}
