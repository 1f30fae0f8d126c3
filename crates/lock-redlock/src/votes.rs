//! How the votes of one process went.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the votes on locks went since the connection was made: see [`Redlock::votes`](crate::Redlock::votes).
///
/// # Examples
///
/// ```no_run
/// # fn report(redlock: &lock_redlock::Redlock) {
/// let votes = redlock.votes();
/// println!("{} of {} attempts won, {:.0} % of them at once", votes.won, votes.attempts, 100.0 * votes.at_once());
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Votes {
    /// How often the masters were asked for a lock.
    pub attempts: u64,
    /// Attempts that won it.
    pub won: u64,
    /// Of those, the attempts that were the first one after the lock was free, as far as was seen: no split vote came
    /// before.
    pub won_at_once: u64,
    /// Attempts that got some votes, but no quorum: several asked for a free lock at once.
    pub split: u64,
    /// Attempts that got no vote, as somebody else held the lock or was called before us.
    pub refused: u64,
    /// Attempts that failed, as masters did not answer in time or do not vote.
    pub failed: u64,
}

impl Votes {
    /// The share of the locks that were won at the first try; 1 when none was.
    #[must_use]
    pub fn at_once(&self) -> f64 {
        if self.won == 0 { 1.0 } else { self.won_at_once as f64 / self.won as f64 }
    }
}

impl fmt::Display for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, won, split, refused, failed, .. } = self;
        let at_once = self.at_once() * 100.0;
        write!(
            f,
            "{attempts} attempts: {won} won ({at_once:.1} % at once), {split} split, {refused} refused, {failed} failed"
        )
    }
}

/// Counts them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    won: AtomicU64,
    won_at_once: AtomicU64,
    split: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Tally {
    pub(crate) fn won(&self, at_once: bool) {
        self.won.fetch_add(1, Ordering::Relaxed);
        self.won_at_once.fetch_add(u64::from(at_once), Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, is_split: bool) {
        let counter = if is_split { &self.split } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn votes(&self) -> Votes {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (won, split, refused, failed) =
            (read(&self.won), read(&self.split), read(&self.refused), read(&self.failed));
        let attempts = won + split + refused + failed;
        Votes { attempts, won, won_at_once: read(&self.won_at_once), split, refused, failed }
    }
}
