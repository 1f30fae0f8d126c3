//! What shadow locks have measured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the shadow locks of one process have measured.
///
/// # Examples
///
/// ```
/// # fn example(migration: &lock_migrate::Migration) {
/// let shadow = migration.shadow();
/// println!("{} of {} locks granted, each in {:?}", shadow.granted, shadow.tried, shadow.mean());
/// assert_eq!(shadow.double_grants, 0);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowReport {
    /// The number of locks that were tried on the new store.
    pub tried: u64,
    /// The number of those that were granted.
    pub granted: u64,
    /// How often the old store granted a lock of this process to another holder as well, while its guard was valid. Permits are
    /// not compared: a busy one may be that of a holder that crashed.
    pub double_grants: u64,
    /// The number of those that failed.
    pub failed: u64,
    /// The time that all grants took together.
    pub total: Duration,
    /// The longest time that a grant took.
    pub longest: Duration,
}

impl ShadowReport {
    /// The mean time of a grant.
    #[must_use]
    pub fn mean(&self) -> Duration {
        self.total.checked_div(u32::try_from(self.granted).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

/// The counters behind a [`ShadowReport`].
#[derive(Debug, Default)]
pub(crate) struct ShadowCounts {
    pub(crate) tried: AtomicU64,
    granted: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// In us.
    total: AtomicU64,
    longest: AtomicU64,
}

impl ShadowCounts {
    pub(crate) fn report(&self, double_grants: u64) -> ShadowReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShadowReport {
            tried: read(&self.tried),
            granted: read(&self.granted),
            double_grants,
            failed: read(&self.failed),
            total: Duration::from_micros(read(&self.total)),
            longest: Duration::from_micros(read(&self.longest)),
        }
    }

    pub(crate) fn granted(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.granted.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(micros, Ordering::Relaxed);
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }
}
