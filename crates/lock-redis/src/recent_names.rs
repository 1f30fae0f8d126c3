//! The locks of which something was true a moment ago.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use lock_core::BootInstant;
use redis_link::keys::Keys;

/// The locks that were noted within a span.
///
/// A table of fixed size: a newer note may replace that of another lock, and very rarely two locks count as one. It serves
/// to choose the cheaper of two correct ways.
#[derive(Debug)]
pub(crate) struct RecentNames {
    hasher: RandomState,
    /// Each a part of a hash, and the time in ms.
    notes: Box<[AtomicU64]>,
    span: Duration,
}

impl RecentNames {
    pub(crate) fn new(span: Duration) -> Self {
        let notes = (0..SIZE).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: RandomState::default(), notes, span }
    }

    /// Notes a lock.
    pub(crate) fn note(&self, keys: &Keys, now: BootInstant) {
        let (note, hash) = self.of(keys);
        note.store(hash | millis(now), Ordering::Relaxed);
    }

    /// Whether a lock was noted within the span.
    pub(crate) fn has(&self, keys: &Keys, now: BootInstant) -> bool {
        let (note, hash) = self.of(keys);
        let noted = note.load(Ordering::Relaxed);
        noted & !TIME == hash && Duration::from_millis(millis(now).saturating_sub(noted & TIME)) < self.span
    }

    /// The place of a lock, and the part of its hash.
    fn of(&self, keys: &Keys) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(keys.lock());
        // Another part of the hash than the one that is stored. The lowest bit tells a note from none.
        (&self.notes[hash as usize % SIZE], hash & !TIME | 1 << TIME_BITS)
    }
}

fn millis(now: BootInstant) -> u64 {
    now.since_boot().as_millis() as u64 & TIME
}

const SIZE: usize = 4096;
/// Enough milliseconds for 34 years.
const TIME_BITS: u32 = 40;
const TIME: u64 = (1 << TIME_BITS) - 1;

#[cfg(test)]
mod tests {
    use lock_core::LockName;

    use super::*;

    #[test]
    fn a_lock_counts_for_the_span() {
        let keys = |name: &str| Keys::new("lock:", &LockName::new(name).unwrap());
        let span = Duration::from_millis(100);
        let (names, start) = (RecentNames::new(span), BootInstant::from_boot(Duration::ZERO));
        assert!(!names.has(&keys("a"), start));
        names.note(&keys("a"), start);
        assert!(names.has(&keys("a"), start + span / 2));
        assert!(!names.has(&keys("a"), start + span));
        let others = (0..1_000).filter(|at| names.has(&keys(&format!("b{at}")), start)).count();
        assert_eq!(others, 0);
    }

    #[test]
    fn many_locks_are_noted_at_once() {
        let keys = |at: usize| Keys::new("lock:", &LockName::new(format!("a{at}")).unwrap());
        let (names, start) =
            (RecentNames::new(Duration::from_secs(1)), BootInstant::from_boot(Duration::ZERO));
        (0..1_000).for_each(|at| names.note(&keys(at), start));
        let known = (0..1_000).filter(|&at| names.has(&keys(at), start)).count();
        assert!(known > 700, "{known}");
    }
}
