//! How long a holder may rely on its lock.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use smallvec::{SmallVec, smallvec};
use tokio::sync::Notify;

use crate::{BootInstant, Clock};

/// Whether a guard still holds its lock.
///
/// # Examples
///
/// ```
/// # use lock_core::{GuardState, LossReason, MemoryConfig};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// assert_eq!(guard.state(), GuardState::Valid);
/// locks.break_lock("orders/42").await?;
/// assert_eq!(guard.state(), GuardState::Lost(LossReason::Removed));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GuardState {
    /// The server confirmed the lock, and the deadline is ahead.
    Valid,
    /// The server does not answer, and the deadline is still ahead.
    Suspect,
    /// The lock is lost for good.
    Lost(LossReason),
}

/// Why a lock was lost.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::{LockOptions, LossReason, MemoryConfig};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let options = LockOptions::new().max_hold(Duration::from_millis(50));
/// let guard = locks.mutex_with("report", options)?.acquire().await?;
/// let reason = guard.lost().await;
/// assert_eq!(reason, LossReason::MaxHold);
/// assert_eq!(reason.to_string(), "the guard held the lock for as long as max_hold allows");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed before the server confirmed the lock again.
    DeadlinePassed,
    /// The key or node was removed or replaced.
    Removed,
    /// The session that kept the lock ended.
    SessionEnded,
    /// The guard held the lock for as long as `max_hold` allows.
    MaxHold,
    /// The lock was released.
    Released,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "the deadline passed before the server confirmed the lock again",
            Self::Removed => "the lock was removed on the server",
            Self::SessionEnded => "the session that kept the lock ended",
            Self::MaxHold => "the guard held the lock for as long as max_hold allows",
            Self::Released => "the lock was released",
        })
    }
}

/// How long a holder may rely on its lock.
///
/// Reading it is local: no round trip. Several validities can be joined into one that lasts as long as all of them do.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let (from, to) = (locks.mutex("account/1").acquire().await?, locks.mutex("account/2").acquire().await?);
/// let both = from.validity().and(to.validity());
/// assert!(both.is_valid());
/// to.release().await?;
/// assert!(!both.is_valid() && from.is_valid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Validity {
    /// One, or that of a session and that of a lock: two take no more room than one.
    cells: SmallVec<[ValidityCell; 2]>,
}

impl Validity {
    /// The validity that lasts as long as both do.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.cells.extend(other.cells);
        self
    }

    /// Whether the lock is held; lost once the deadline has passed.
    #[must_use]
    pub fn state(&self) -> GuardState {
        let mut state = GuardState::Valid;
        for cell in &self.cells {
            match cell.read().guard {
                GuardState::Lost(reason) => return GuardState::Lost(reason),
                GuardState::Suspect => state = GuardState::Suspect,
                GuardState::Valid => {}
            }
        }
        state
    }

    /// Whether the deadline is ahead and the lock is not known to be lost.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !matches!(self.state(), GuardState::Lost(_))
    }

    /// The deadline: the server keeps the lock at least until then.
    #[must_use]
    pub fn until(&self) -> BootInstant {
        self.cells.iter().map(|cell| cell.read().until).min().unwrap_or(BootInstant::NEVER)
    }

    /// The time left until the deadline, zero when the lock is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        let left =
            self.cells.iter().map(|cell| cell.read().until.saturating_duration_since(cell.0.clock.now()));
        left.min().unwrap_or(Duration::MAX)
    }

    /// Waits until the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn lost(&self) -> LossReason {
        let lost = |state| if let GuardState::Lost(reason) = state { Some(reason) } else { None };
        self.wait_for(|| lost(self.state())).await
    }

    /// Waits until the state or the deadline is another one than was seen.
    pub(crate) async fn changed(&self, seen: (GuardState, BootInstant)) -> (GuardState, BootInstant) {
        self.wait_for(|| Some((self.state(), self.until())).filter(|now| *now != seen)).await
    }

    async fn wait_for<T>(&self, found: impl Fn() -> Option<T>) -> T {
        loop {
            // Registered before the state is read, so that no change is missed.
            let changed: Vec<_> = self.cells.iter().map(|cell| cell.0.changed.notified().boxed()).collect();
            if let Some(found) = found() {
                return found;
            }
            let passed = self.cells.iter().map(|cell| cell.0.clock.sleep_until(cell.read().until).boxed());
            tokio::select! {
                _ = select_all(changed) => {}
                _ = select_all(passed) => {}
            }
        }
    }
}

/// The writing side of a [`Validity`]: what a backend knows about one lease or session.
///
/// It changes between valid and suspect, and once to lost. Lost is latched: no later reply of the server revives it, not
/// even one that was in flight when the deadline passed.
#[derive(Clone, Debug)]
pub struct ValidityCell(Arc<Cell>);

/// One per lock that is held, and a quarter of the size of a tokio channel.
#[derive(Debug)]
struct Cell {
    state: Mutex<State>,
    changed: Notify,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
struct State {
    until: BootInstant,
    guard: GuardState,
    /// The reason for which the deadline will be a loss.
    end: LossReason,
}

impl ValidityCell {
    /// A cell that is valid until `until`.
    #[must_use]
    pub fn new(clock: Clock, until: BootInstant) -> Self {
        let state = State { until, guard: GuardState::Valid, end: LossReason::DeadlinePassed };
        Self(Arc::new(Cell { state: Mutex::new(state), changed: Notify::new(), clock }))
    }

    /// Sets a new deadline, later or earlier, and returns whether the cell is still valid.
    pub fn set_until(&self, until: BootInstant) -> bool {
        self.change(|state| (state.until, state.guard) = (until, GuardState::Valid))
    }

    /// Moves the deadline to `until` if that is later, and returns whether the cell is still valid.
    pub fn extend_to(&self, until: BootInstant) -> bool {
        self.change(|state| (state.until, state.guard) = (state.until.max(until), GuardState::Valid))
    }

    /// Moves the deadline to `until` if that is earlier.
    pub fn shorten_to(&self, until: BootInstant) {
        self.change(|state| state.until = state.until.min(until));
    }

    /// Sets the reason with which the lock will be lost at its deadline.
    pub fn end_with(&self, reason: LossReason) {
        self.change(|state| state.end = reason);
    }

    /// Notes that the server did not answer.
    pub fn suspect(&self) {
        self.change(|state| state.guard = GuardState::Suspect);
    }

    /// Notes that the lock is lost. The first reason stays.
    pub fn lose(&self, reason: LossReason) {
        self.change(|state| state.guard = GuardState::Lost(reason));
    }

    /// The reading side.
    #[must_use]
    pub fn validity(&self) -> Validity {
        Validity { cells: smallvec![self.clone()] }
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let (mut valid, mut changed) = (false, false);
        {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            changed |= state.latch(&self.0.clock);
            if !state.is_lost() {
                change(&mut state);
                // The new deadline may have passed already.
                state.latch(&self.0.clock);
                valid = !state.is_lost();
                changed = true;
            }
        }
        if changed {
            self.0.changed.notify_waiters();
        }
        valid
    }

    fn read(&self) -> State {
        let state = self.0.state();
        if state.is_lost() || self.0.clock.now() < state.until {
            return state;
        }
        // Latches the loss.
        self.change(|_| {});
        self.0.state()
    }
}

impl Cell {
    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_lost(&self) -> bool {
        matches!(self.guard, GuardState::Lost(_))
    }

    fn latch(&mut self, clock: &Clock) -> bool {
        let passed = !self.is_lost() && clock.now() >= self.until;
        if passed {
            self.guard = GuardState::Lost(self.end);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ttl: Duration) -> (Clock, ValidityCell) {
        let clock = Clock::tokio();
        let until = clock.now() + ttl;
        (clock.clone(), ValidityCell::new(clock, until))
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_does_not_revive_a_lost_lease() {
        let (clock, cell) = cell(Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!cell.extend_to(clock.now() + Duration::from_secs(60)));
        assert_eq!(cell.validity().state(), GuardState::Lost(LossReason::DeadlinePassed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_has_passed_is_a_loss_at_once() {
        for set in [ValidityCell::set_until, |cell: &ValidityCell, until| {
            cell.shorten_to(until);
            cell.extend_to(until)
        }] {
            let (clock, cell) = cell(Duration::from_secs(60));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!set(&cell, clock.now()));
            assert!(!cell.set_until(clock.now() + Duration::from_secs(60)), "it came back");
            assert_eq!(cell.validity().state(), GuardState::Lost(LossReason::DeadlinePassed));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn suspect_still_counts_until_the_deadline() {
        let (_, cell) = cell(Duration::from_secs(1));
        let validity = cell.validity();
        cell.suspect();
        assert_eq!(validity.state(), GuardState::Suspect);
        assert!(validity.is_valid());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!validity.is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn lost_resolves_at_the_deadline_and_at_once_when_reported() {
        let (clock, cell) = cell(Duration::from_secs(5));
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        assert!(clock.now().since_boot() >= Duration::from_secs(5));

        let (clock, cell) = self::cell(Duration::from_secs(5));
        let validity = cell.validity();
        let waiter = tokio::spawn(async move { validity.lost().await });
        tokio::task::yield_now().await;
        cell.lose(LossReason::Removed);
        cell.lose(LossReason::SessionEnded);
        assert_eq!(waiter.await.unwrap(), LossReason::Removed);
        assert!(clock.now().since_boot() < Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_follows_an_extension() {
        let (clock, cell) = cell(Duration::from_secs(1));
        let validity = cell.validity();
        let waiter = tokio::spawn(async move { validity.lost().await });
        tokio::task::yield_now().await;
        assert!(cell.extend_to(clock.now() + Duration::from_secs(10)));
        assert_eq!(waiter.await.unwrap(), LossReason::DeadlinePassed);
        assert!(clock.now().since_boot() >= Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn joined_validities_end_with_the_first() {
        let (clock, long) = cell(Duration::from_secs(60));
        let (_, short) = cell(Duration::from_secs(1));
        let both = long.validity().and(short.validity());
        assert_eq!(both.until(), clock.now() + Duration::from_secs(1));
        assert_eq!(both.lost().await, LossReason::DeadlinePassed);
        assert!(long.validity().is_valid());
    }
}
