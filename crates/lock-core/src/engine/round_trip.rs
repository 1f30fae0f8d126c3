//! How slowly a store answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The approximate round trip, in microseconds; slow answers count for a while.
#[derive(Debug, Default)]
pub(super) struct RoundTrip(AtomicU64);

impl RoundTrip {
    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// Notes that an answer took this long.
    pub(super) fn note(&self, took: Duration) {
        let before = self.0.load(Ordering::Relaxed);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.store(took.max(before - before / 8), Ordering::Relaxed);
    }
}
