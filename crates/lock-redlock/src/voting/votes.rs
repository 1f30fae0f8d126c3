//! Counts the votes of one process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of votes of one [`Redlock`](crate::Redlock) since it connected, by outcome: see
/// [`Redlock::votes`](crate::Redlock::votes).
///
/// # Examples
///
/// ```no_run
/// use lock_redlock::{Redlock, RedlockConfig};
///
/// # async fn example() -> lock_core::Result<()> {
/// let redlock = Redlock::connect(RedlockConfig::from_url("redlock://h1,h2,h3")?).await?;
/// let votes = redlock.votes();
/// println!("{votes}");
/// if votes.at_once() < 0.9 {
///     println!("more than one lock in ten was acquired after a split vote");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Votes {
    /// All attempts to acquire a lock. An attempt that was refused, and then handed the lock over, is one.
    pub attempts: u64,
    /// Locks that were acquired.
    pub won: u64,
    /// Of those, locks without a split vote directly before.
    pub won_at_once: u64,
    /// Of the acquired locks, those that releases handed over to this client, without a further vote.
    pub handed_over: u64,
    /// Attempts that got votes, but no quorum: several clients asked for a free lock at once.
    pub split: u64,
    /// Attempts that got no vote: another client held the lock.
    pub refused: u64,
    /// Attempts that failed: masters did not answer in time, or do not vote.
    pub failed: u64,
}

impl Votes {
    /// The share of the acquired locks without a split vote directly before; 1 if none was acquired.
    #[must_use]
    pub fn at_once(&self) -> f64 {
        if self.won == 0 { 1.0 } else { self.won_at_once as f64 / self.won as f64 }
    }
}

impl fmt::Display for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, won, handed_over, split, refused, failed, .. } = self;
        let at_once = self.at_once() * 100.0;
        write!(
            f,
            "{attempts} attempts: {won} won ({at_once:.1} % at once, {handed_over} handed over), {split} split, {refused} refused, {failed} failed"
        )
    }
}

/// The counters behind [`Votes`].
#[derive(Debug, Default)]
pub(crate) struct VoteCounters {
    won: AtomicU64,
    won_at_once: AtomicU64,
    handed_over: AtomicU64,
    split: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl VoteCounters {
    pub(crate) fn won(&self, at_once: bool) {
        self.won.fetch_add(1, Ordering::Relaxed);
        self.won_at_once.fetch_add(u64::from(at_once), Ordering::Relaxed);
    }

    pub(crate) fn handed_over(&self, at_once: bool) {
        self.won(at_once);
        self.handed_over.fetch_add(1, Ordering::Relaxed);
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
        let (handed_over, won_at_once) = (read(&self.handed_over), read(&self.won_at_once));
        // Those had been refused before.
        let attempts = (won + split + refused + failed).saturating_sub(handed_over);
        Votes { attempts, won, won_at_once, handed_over, split, refused, failed }
    }
}
