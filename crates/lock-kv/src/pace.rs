//! How long a store takes, by which clients of one lock keep out of each other's way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::random;
use rand::Rng;

/// The average time that a kind of request takes, in microseconds; zero before the first one.
#[derive(Debug, Default)]
struct Average(AtomicU64);

/// How long a read takes, and a swap.
#[derive(Debug)]
pub(crate) struct Pace {
    /// What takes longer was a pause of this process.
    timeout: Duration,
    reads: Average,
    swaps: Average,
}

/// The pauses of a change that came too late.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    others: Duration,
}

impl Average {
    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn note(&self, took: Duration) {
        let before = self.0.load(Ordering::Relaxed);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let average = if before == 0 { took } else { before - before / 8 + took / 8 };
        self.0.store(average, Ordering::Relaxed);
    }
}

impl Pace {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, reads: Average::default(), swaps: Average::default() }
    }

    pub(crate) fn note_read(&self, took: Duration) {
        self.note(&self.reads, took);
    }

    pub(crate) fn note_swap(&self, took: Duration) {
        self.note(&self.swaps, took);
    }

    fn note(&self, of: &Average, took: Duration) {
        if took <= self.timeout {
            of.note(took);
        }
    }

    /// How long a change takes that reads and swaps.
    pub(crate) fn round_trip(&self) -> Duration {
        (self.reads.get() + self.swaps.get()).max(Duration::from_millis(1))
    }

    /// Of what somebody depends on, such as a renewal: none after the first time. They do not grow: of those that try at the same
    /// time, one succeeds each time.
    pub(crate) fn urgent(&self) -> Pauses {
        Pauses { next: Duration::ZERO, others: self.round_trip() / 2 }
    }

    /// While another client, which comes first, swaps.
    pub(crate) fn give_way(&self) -> Duration {
        self.round_trip().mul_f64(random::rng().random_range(0.5..=1.0))
    }

    /// The pause of what is only told to others, and gives way to all else: longer, as it came too late so often before.
    pub(crate) fn patient(&self, before: u32) -> Duration {
        (self.round_trip() * (1 << before.min(6))).mul_f64(random::rng().random_range(0.0..=1.0))
    }
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let pause = std::mem::replace(&mut self.next, self.others);
        pause.mul_f64(random::rng().random_range(0.0..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_process_is_no_slowness_of_the_store() {
        let pace = Pace::new(Duration::from_secs(5));
        pace.note_read(Duration::from_millis(2));
        let before = pace.round_trip();
        pace.note_read(Duration::from_secs(600));
        assert_eq!(pace.round_trip(), before);
    }
}
