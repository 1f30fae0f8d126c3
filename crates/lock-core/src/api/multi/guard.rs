//! Several locks that are held together.

use std::mem;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{BootInstant, Guard, GuardState, LossReason, Released, Result, RunError, Validity};

/// Several locks that are held together, until they are [released](Self::release) or dropped, or one of them is lost.
///
/// It is valid as long as all of them are. Each of the [guards](Self::guards) has a fencing token of its own: send it with the
/// writes to what that lock protects.
///
/// # Examples
///
/// ```
/// # use lock_core::Multi;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let both = Multi::new([locks.mutex("a"), locks.mutex("b")])?.acquire().await?;
/// locks.break_lock("a").await?;
/// assert!(!both.is_valid() && both.guards()[1].is_valid());
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping it releases the locks in the background, as dropping each [`Guard`] does.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// One that has no lock yet.
    pub(super) const fn empty() -> Self {
        Self { guards: Vec::new() }
    }

    pub(super) fn push(&mut self, guard: Guard) {
        self.guards.push(guard);
    }

    /// Has the servers confirm how long the locks are to be held at least, and returns until when that is.
    pub(super) async fn confirm_holds(&self) -> Result<Vec<Option<Instant>>> {
        let mut until = Vec::new();
        for guard in &self.guards {
            until.push(guard.confirm_hold().await?);
        }
        Ok(until)
    }

    /// From now on, the ends of these guards leave their locks held until then.
    pub(super) fn keep_until(&mut self, holds: &[Option<Instant>]) {
        self.guards.iter_mut().zip(holds).for_each(|(guard, until)| guard.keep_until(*until));
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn from_guards(guards: Vec<Guard>) -> Self {
        Self { guards }
    }

    /// The guards, each for itself.
    #[cfg(feature = "blocking")]
    pub(crate) fn into_guards(mut self) -> Vec<Guard> {
        mem::take(&mut self.guards)
    }

    /// The guards, in the order of their acquisition.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The validity of all, which lasts as long as the shortest; see [`Guard::validity`].
    #[must_use]
    pub fn validity(&self) -> Validity {
        let Some(all) = self.guards.iter().map(Guard::validity).reduce(Validity::and) else {
            unreachable!("it has a guard")
        };
        all
    }

    /// Whether all locks are held, and whether the servers still answer. Costs nothing.
    #[must_use]
    pub fn state(&self) -> GuardState {
        self.validity().state()
    }

    /// Whether all locks are valid. Costs nothing.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// The earliest deadline; see [`Guard::valid_until`]. Costs nothing.
    #[must_use]
    pub fn valid_until(&self) -> BootInstant {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or(BootInstant::NEVER)
    }

    /// The time left until the earliest deadline, zero when a lock is lost. Costs nothing.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or(Duration::ZERO)
    }

    /// Waits until one of the locks is lost, and returns the reason.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn lost(&self) -> LossReason {
        self.validity().lost().await
    }

    /// Runs `body` while all locks are held, and drops it when one of them is lost.
    ///
    /// # Errors
    ///
    /// As [`Guard::run`]; the error names the lock that was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `body` with it; the guard stays.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, RunError<F::Output>> {
        let output = tokio::select! {
            biased;
            reason = self.lost() => return Err(self.lost_error(reason, None)),
            output = body => output,
        };
        match self.state() {
            GuardState::Lost(reason) => Err(self.lost_error(reason, Some(output))),
            _ => Ok(output),
        }
    }

    /// Releases the locks, all at once, and returns whether all were held until then.
    ///
    /// # Errors
    ///
    /// The first error of a [`Guard::release`]. The other locks are released all the same.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the release goes on in the background.
    pub async fn release(mut self) -> Result<Released> {
        // A store that does not answer keeps the locks of no other one.
        let guards = mem::take(&mut self.guards);
        let mut all = Ok(Released::Released);
        for released in join_all(guards.into_iter().rev().map(Guard::release)).await {
            match (released, &all) {
                (Err(error), Ok(_)) => all = Err(error),
                (Ok(Released::AlreadyLost), Ok(_)) => all = Ok(Released::AlreadyLost),
                _ => {}
            }
        }
        all
    }

    fn lost_error<T>(&self, reason: LossReason, output: Option<T>) -> RunError<T> {
        let lost = self.guards.iter().find(|guard| !guard.is_valid());
        let Some(guard) = lost.or_else(|| self.guards.first()) else { unreachable!("it has a guard") };
        RunError { error: guard.lost_error(reason), output }
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}
