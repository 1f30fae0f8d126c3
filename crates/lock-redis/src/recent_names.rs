//! The locks of which something was true a moment ago.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use lock_core::BootInstant;
use redis_link::keys::Keys;

/// The locks that were noted within a span.
///
/// A table of fixed size: a newer note may replace the older one of two other locks, and very rarely two locks count as one. It
/// serves to choose the cheaper of two correct ways.
#[derive(Debug)]
pub(crate) struct RecentNames {
    hasher: RandomState,
    /// Each a part of a hash, and the time in ms; two for the locks of each place.
    notes: Box<[[AtomicU64; 2]]>,
    span: Duration,
}

impl RecentNames {
    pub(crate) fn new(span: Duration) -> Self {
        let notes = (0..SIZE).map(|_| Default::default()).collect();
        Self { hasher: RandomState::default(), notes, span }
    }

    /// Notes a lock.
    pub(crate) fn note(&self, keys: &Keys, now: BootInstant) {
        let (place, hash) = self.of(keys);
        let [first, second] = place;
        let (one, other) = (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
        let is_first = one & !TIME == hash || other & !TIME != hash && one & TIME <= other & TIME;
        let note = if is_first { first } else { second };
        note.store(hash | millis(now), Ordering::Relaxed);
    }

    /// Whether a lock was noted within the span.
    pub(crate) fn has(&self, keys: &Keys, now: BootInstant) -> bool {
        let (place, hash) = self.of(keys);
        place.iter().map(|note| note.load(Ordering::Relaxed)).any(|noted| {
            let age = millis(now).saturating_sub(noted & TIME);
            noted & !TIME == hash && Duration::from_millis(age) < self.span
        })
    }

    /// The place of a lock, and the part of its hash.
    fn of(&self, keys: &Keys) -> (&[AtomicU64; 2], u64) {
        let hash = self.hasher.hash_one(keys.lock());
        // Another part of the hash than the one that is stored. The lowest bit tells a note from none.
        (&self.notes[hash as usize % SIZE], hash & !TIME | 1 << TIME_BITS)
    }
}

fn millis(now: BootInstant) -> u64 {
    now.since_boot().as_millis() as u64 & TIME
}

const SIZE: usize = 2048;
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
        // After the boot: a note at its first moment looks as old as none.
        let (names, start) =
            (RecentNames::new(Duration::from_secs(1)), BootInstant::from_boot(Duration::from_secs(60)));
        (0..1_000).for_each(|at| names.note(&keys(at), start));
        let known = (0..1_000).filter(|&at| names.has(&keys(at), start)).count();
        assert!(known > 900, "{known}");
        (0..256).for_each(|at| names.note(&keys(at), start));
        let known = (0..256).filter(|&at| names.has(&keys(at), start)).count();
        assert!(known > 245, "of as many as a busy process has, nearly all: {known}");
    }
}
