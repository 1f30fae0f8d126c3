//! What a backend gives to a holder, and how long the holder may believe in it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{FutureExt, select_all};
use smallvec::{SmallVec, smallvec};
use tokio::sync::Notify;

use crate::error::NO_BACKEND;
use crate::{AcquireRequest, BootInstant, Clock, Error, ErrorKind, OwnerId, Result, Revocation, Token};

/// A lock that is held: what a backend implements and a [`Guard`](crate::Guard) holds.
///
/// # Contract
///
/// * [`validity`](Self::validity) never says "valid" for longer than the server keeps the lock: it
///   counts from when the request was sent, less a margin for clock drift.
/// * Dropping any future of a lease at any await leaves the lease usable; what the dropped call may
///   have done is known or undone by the next one.
/// * A lease that is dropped without [`release`](Self::release) is no longer renewed, so that it
///   ends by itself.
#[async_trait]
pub trait Lease: Any + Debug + Send + Sync {
    /// The fencing token of this acquisition.
    fn token(&self) -> Token;

    /// The identity of this acquisition, as the store holds it.
    fn owner(&self) -> OwnerId;

    /// How long the holder may believe that it holds the lock.
    fn validity(&self) -> &Validity;

    /// Whether somebody has asked us to give the lock up; `None` where nobody can.
    fn revocation(&self) -> Option<&Revocation> {
        None
    }

    /// Lets a lock with a fixed time to live end `ttl` from now, or gives another one this time to live; answers the new
    /// deadline. Where a session keeps the lock, a fixed end is kept by the backend: the lease is lost then, and the lock
    /// deleted.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a `ttl` that
    /// [cannot be kept](crate::Capabilities::check_lease_ttl),
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is no longer ours; never takes it again.
    async fn extend(&self, ttl: Duration) -> Result<BootInstant>;

    /// Asks the server whether the lock is still ours.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    async fn verify(&self) -> Result<GuardState>;

    /// Gives the lock back: stops and joins the renewal, then removes what is ours and nothing else.
    ///
    /// May be called again after it was dropped or failed, until it answers. An answer is final.
    ///
    /// # Errors
    ///
    /// When it is not known whether the lock is released; call it again.
    async fn release(&mut self) -> Result<Released>;

    /// Gives the lock back as [`release`](Self::release) does, to another acquisition of this process if
    /// the backend can do that at once and nobody else is overtaken for too long.
    ///
    /// As for `release`: call it, or `release`, again until it answers.
    ///
    /// # Errors
    ///
    /// As for `release`.
    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        let _ = next;
        Ok(HandOver::Released(self.release().await?))
    }

    /// Lets readers share the lock of one who came to [write](AcquireRequest::writes), who goes on as one of
    /// them and with the same token, and lets in those who wait before the first that wants more. At no time
    /// is the lock free, and nobody is let in who could not share it.
    ///
    /// May be called again after it was dropped or failed; until it answers, the lock is held in one way or
    /// the other, and [`release`](Self::release) gives back either. A backend whose
    /// [`Capabilities::shared`](crate::Capabilities::shared) is there has its own way to do it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where there is no way to do it,
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is no longer ours,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when it is not known whether it has happened,
    /// [`Denied`](crate::ErrorKind::Denied) or [`Exhausted`](crate::ErrorKind::Exhausted) when the server refuses it.
    async fn downgrade(&mut self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, NO_BACKEND)
            .with_message("a writer cannot become a reader on this backend")
            .with_hint("release the lock, and ask to read"))
    }

    /// Lets the tokens that are granted after this one be larger than `floor` as well.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend cannot do that,
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is no longer ours,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when it is not known whether they will be.
    async fn raise_token(&self, floor: Token) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, NO_BACKEND)
            .with_message(format!("the tokens of this backend cannot be raised to {floor}"))
            .with_hint("use a backend that can, such as redis://"))
    }
}

/// What a [hand-over](Lease::hand_over) ended with.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandOver {
    /// The lock was ours until now, and is the next acquisition's from now on.
    HandedOver(Box<dyn Lease>),
    /// The lock was given back; the next acquisition has to ask for itself.
    Released(Released),
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// The lock was ours until now.
    Released,
    /// The lock was lost before; somebody else may have held it since.
    AlreadyLost,
}

/// Whether a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GuardState {
    /// The server confirmed it, and the deadline is ahead.
    Valid,
    /// The server does not answer, but the deadline is still ahead.
    Suspect,
    /// It is over, for good.
    Lost(LossReason),
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed before the server confirmed the lock again.
    DeadlinePassed,
    /// Somebody removed or took over the key or node.
    Removed,
    /// The session that kept the lock ended.
    SessionEnded,
    /// The lock was held for as long as `max_hold` allows.
    MaxHold,
    /// It was released.
    Released,
}

impl std::fmt::Display for LossReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "the deadline passed before the server confirmed the lock again",
            Self::Removed => "somebody removed the lock on the server",
            Self::SessionEnded => "the session that kept the lock ended",
            Self::MaxHold => "the lock was held for as long as max_hold allows",
            Self::Released => "the lock was released",
        })
    }
}

/// The writing side of a [`Validity`]: what a backend knows about one lease or session.
///
/// It goes from valid to suspect and back, and once to lost. Lost is latched: no later answer of the
/// server revives it, not even one that was on its way when the deadline passed.
#[derive(Clone, Debug)]
pub struct ValidityCell(Arc<Shared>);

/// One for every lock that is held: a channel of tokio's would be four times as large.
#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    changed: Notify,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
struct State {
    until: BootInstant,
    standing: GuardState,
    end: LossReason,
}

impl ValidityCell {
    /// A cell that is valid until `until`.
    #[must_use]
    pub fn new(clock: Clock, until: BootInstant) -> Self {
        let state = State { until, standing: GuardState::Valid, end: LossReason::DeadlinePassed };
        Self(Arc::new(Shared { state: RwLock::new(state), changed: Notify::new(), clock }))
    }

    /// Sets a new deadline, later or earlier, and says whether the cell is still valid.
    pub fn set_until(&self, until: BootInstant) -> bool {
        self.change(|state| (state.until, state.standing) = (until, GuardState::Valid))
    }

    /// Moves the deadline on to `until` if that is later, and says whether the cell is still valid.
    pub fn extend_to(&self, until: BootInstant) -> bool {
        self.change(|state| (state.until, state.standing) = (state.until.max(until), GuardState::Valid))
    }

    /// Moves the deadline back to `until` if that is earlier.
    pub fn shorten_to(&self, until: BootInstant) {
        self.change(|state| state.until = state.until.min(until));
    }

    /// Names the reason for which the lock will be lost at its deadline.
    pub fn end_with(&self, reason: LossReason) {
        self.change(|state| state.end = reason);
    }

    /// Notes that the server did not answer.
    pub fn suspect(&self) {
        self.change(|state| state.standing = GuardState::Suspect);
    }

    /// Notes that the lock is lost. The first reason stays.
    pub fn lose(&self, reason: LossReason) {
        self.change(|state| state.standing = GuardState::Lost(reason));
    }

    /// The reading side.
    #[must_use]
    pub fn validity(&self) -> Validity {
        Validity { cells: smallvec![self.clone()] }
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let (mut valid, mut changed) = (false, false);
        {
            let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
            changed |= state.latch(&self.0.clock);
            if !matches!(state.standing, GuardState::Lost(_)) {
                change(&mut state);
                // The new deadline may have passed already.
                state.latch(&self.0.clock);
                valid = !matches!(state.standing, GuardState::Lost(_));
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
        if matches!(state.standing, GuardState::Lost(_)) || self.0.clock.now() < state.until {
            return state;
        }
        // It latches.
        self.change(|_| {});
        self.0.state()
    }
}

impl Shared {
    fn state(&self) -> State {
        *self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn latch(&mut self, clock: &Clock) -> bool {
        let passed = !matches!(self.standing, GuardState::Lost(_)) && clock.now() >= self.until;
        if passed {
            self.standing = GuardState::Lost(self.end);
        }
        passed
    }
}

/// How long a holder may believe that it holds a lock.
///
/// Reading it is local: it costs no round trip. Several validities can be joined into one that holds
/// only as long as all of them do.
#[derive(Clone, Debug)]
pub struct Validity {
    /// Most often there is one.
    cells: SmallVec<[ValidityCell; 1]>,
}

impl Validity {
    /// The validity that holds as long as both do.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.cells.extend(other.cells);
        self
    }

    /// Whether the lock is held; lost once the deadline has passed.
    #[must_use]
    pub fn state(&self) -> GuardState {
        let mut standing = GuardState::Valid;
        for cell in &self.cells {
            match cell.read().standing {
                GuardState::Lost(reason) => return GuardState::Lost(reason),
                GuardState::Suspect => standing = GuardState::Suspect,
                GuardState::Valid => {}
            }
        }
        standing
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
    /// Nothing is lost when the future is dropped.
    pub async fn lost(&self) -> LossReason {
        loop {
            // From here on no change is missed.
            let changed: Vec<_> = self.cells.iter().map(|cell| cell.0.changed.notified().boxed()).collect();
            if let GuardState::Lost(reason) = self.state() {
                return reason;
            }
            let passed = self.cells.iter().map(|cell| cell.0.clock.sleep_until(cell.read().until).boxed());
            tokio::select! {
                _ = select_all(changed) => {}
                _ = select_all(passed) => {}
            }
        }
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
    async fn lost_resolves_at_the_deadline_and_at_once_when_told() {
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
