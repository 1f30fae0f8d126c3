//! A lock that is held.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::background::Background;
use crate::queue::{Heir, Turn};
use crate::runtime::Runtimes;
use crate::{
    BootInstant, Clock, Error, ErrorKind, GuardState, HandOver, Lease, LockName, LossReason, Mode, OwnerId,
    Released, Result, Revocation, Token, Validity, ValidityCell,
};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// Half of all tokens: what is above lasts for ever.
const HIGHEST_FLOOR: u64 = i64::MAX as u64 / 2;

/// A lock that is held, until it is [released](Self::release), dropped or lost.
///
/// While the guard lives, the backend renews the lease or session in the background. Watch
/// [`lost`](Self::lost), or let [`run`](Self::run) do it, and send [`token`](Self::token) with every
/// write: a process that was paused cannot know in time that its lock is gone.
///
/// # Drop
///
/// Dropping the guard releases the lock in the background, on the runtime that it was acquired on.
/// It never blocks and never panics, and works from any thread. When that runtime is gone, the lock
/// ends with its lease or session.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    held: Option<Held>,
    /// Made for the first who asks.
    signals: OnceLock<Box<Signals>>,
    role: Role,
    name: LockName,
    runtime: Handle,
    origin: Arc<Origin>,
}

/// What guards keep of the [`Locks`](crate::Locks) that they came from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) runtimes: Runtimes,
    /// The releases of dropped guards, for which `close` waits.
    pub(crate) releases: Background,
}

/// What tells those who outlive the guard that it holds the lock no more. Who asks for a release has given the lock up,
/// whatever the server answers, and whenever it does.
#[derive(Debug)]
struct Signals {
    given_up: ValidityCell,
    /// The parent of all that were given out.
    cancelled: OnceLock<CancellationToken>,
}

struct Held {
    lease: Box<dyn Lease>,
    /// Given up only after the lease: the next task of this process must not find our own lock. Who
    /// shares a lock has none.
    turn: Option<Turn>,
}

/// What a holder came for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// To write, by the write side of a read/write lock.
    Writer,
    /// To read.
    Reader,
    /// A mutex, or a permit.
    Other,
}

impl Role {
    pub(crate) const fn of(mode: Mode, writes: bool) -> Self {
        match mode {
            Mode::Exclusive if writes => Self::Writer,
            Mode::Shared => Self::Reader,
            _ => Self::Other,
        }
    }
}

impl Guard {
    pub(crate) fn new(
        lease: Box<dyn Lease>,
        turn: Option<Turn>,
        role: Role,
        name: LockName,
        runtime: Handle,
        origin: Arc<Origin>,
    ) -> Self {
        if let Some(turn) = &turn {
            turn.hold(lease.validity());
        }
        Self { held: Some(Held { lease, turn }), signals: OnceLock::new(), role, name, runtime, origin }
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The fencing token of this acquisition; see [`Token`]. Costs nothing.
    #[must_use]
    pub fn token(&self) -> Token {
        self.lease().token()
    }

    /// The identity of this acquisition, as the store holds it. Costs nothing.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.lease().owner()
    }

    /// The deadline up to which the server keeps the lock for sure; the renewal moves it on. A lock on Redis that was
    /// waited for may begin with less than a second, until its first renewal is answered. Costs nothing.
    #[must_use]
    pub fn valid_until(&self) -> BootInstant {
        self.lease().validity().until()
    }

    /// The time left until [`valid_until`](Self::valid_until), zero when the lock is lost.
    /// Costs nothing.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease().validity().remaining()
    }

    /// Whether the deadline is ahead and the lock is not known to be lost. Costs nothing.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease().validity().is_valid()
    }

    /// Whether the lock is held, and whether the server still answers. Costs nothing.
    #[must_use]
    pub fn state(&self) -> GuardState {
        self.lease().validity().state()
    }

    /// Waits until the lock is lost, and says why.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn lost(&self) -> LossReason {
        self.lease().validity().lost().await
    }

    /// The validity of the guard, apart from it: a clone that can be moved into a task or a thread.
    ///
    /// It does not hold the lock: it is lost, with [`LossReason::Released`], as soon as a release begins or the guard is
    /// dropped. It stays so if that release fails: from then on the server may give the lock to somebody else. Costs no
    /// round trip.
    ///
    /// ```
    /// # use lock_core::{Locks, LossReason, Memory, MemoryConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// let guard = locks.mutex("report").acquire().await?;
    /// let validity = guard.validity();
    /// let watch = tokio::spawn(async move { validity.lost().await });
    /// guard.release().await?;
    /// assert_eq!(watch.await.unwrap(), LossReason::Released);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.signals().given_up.validity().and(self.lease().validity().clone())
    }

    /// A token that is cancelled when the lock is lost, released, or dropped with the guard: for work in tasks of its own.
    ///
    /// It is cancelled before a release sends anything, and before a drop returns. The first call starts a small task that
    /// watches the [validity](Self::validity), on the runtime of the acquisition; when that runtime is shut down, the token
    /// is cancelled as well. Like every signal of a lost lock it may come late: send the fencing token with every write.
    ///
    /// Each call gives a token of its own: cancelling it ends no other.
    ///
    /// ```
    /// # use lock_core::{Locks, Memory, MemoryConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// let guard = locks.mutex("import").acquire().await?;
    /// let cancelled = guard.cancellation_token();
    /// let import = tokio::spawn(async move {
    ///     tokio::select! {
    ///         () = cancelled.cancelled() => "stopped",
    ///         () = std::future::pending() => "imported",
    ///     }
    /// });
    /// guard.release().await?;
    /// assert_eq!(import.await.unwrap(), "stopped");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let cancelled = self.signals().cancelled.get_or_init(|| {
            let token = CancellationToken::new();
            let (validity, on_end) = (self.validity(), token.clone().drop_guard());
            drop(self.runtime.spawn(async move {
                validity.lost().await;
                drop(on_end);
            }));
            token
        });
        cancelled.child_token()
    }

    /// Whether somebody has [asked](crate::Locks::request_revocation) that the lock be given up. The lock
    /// stays ours all the same, until we release it. Costs nothing.
    #[must_use]
    pub fn is_revoke_requested(&self) -> bool {
        self.lease().revocation().is_some_and(Revocation::is_requested)
    }

    /// Waits until somebody [asks](crate::Locks::request_revocation) that the lock be given up: for ever if
    /// nobody does, and where the backend cannot tell
    /// ([`Capabilities::revocation`](crate::Capabilities::revocation)).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn revoke_requested(&self) {
        match self.lease().revocation() {
            Some(revocation) => revocation.requested().await,
            None => std::future::pending().await,
        }
    }

    /// Runs `body` while the lock is held, and drops it when the lock is lost.
    ///
    /// The lock is checked again when `body` has ended: `Ok` means that the lock was valid until then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lock was lost before `body` ended, or by the time that it had. In the second case
    /// [`RunError::into_output`] has what `body` returned: its last step may have run without the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `body` with it; the guard stays.
    ///
    /// ```
    /// # use lock_core::{Locks, Memory, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// let guard = locks.mutex("orders/42").acquire().await?;
    /// let sum = guard.run(async { 40 + 2 }).await?;
    /// assert_eq!(sum, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, RunError<F::Output>> {
        let output = tokio::select! {
            biased;
            reason = self.lost() => return Err(RunError { error: self.lost_error(reason), output: None }),
            output = body => output,
        };
        match self.state() {
            // A body that blocked its thread, or a paused process, ends after the deadline without any other sign.
            GuardState::Lost(reason) => {
                Err(RunError { error: self.lost_error(reason), output: Some(output) })
            }
            _ => Ok(output),
        }
    }

    /// Asks the server whether the lock is still ours: one round trip.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the server does not answer, [`ErrorKind::Denied`] when it refuses,
    /// [`ErrorKind::Closed`] after [`close`](crate::Locks::close), [`ErrorKind::Unsupported`] outside a tokio runtime.
    /// The guard is not lost by any of them.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn verify(&self) -> Result<GuardState> {
        self.on_runtime("verify")?;
        self.lease().verify().await.map_err(|error| self.failed("verify", error))
    }

    /// Lets the lock end `ttl` from now, later or earlier than before, and gives the new
    /// [deadline](Self::valid_until): one round trip.
    ///
    /// For locks with a [fixed time to live](crate::LockOptions::fixed_ttl); a lock that lasts as long as its guard takes
    /// `ttl` as its new [time to live](crate::LockOptions::ttl). Where a session keeps the lock, the deadline that is
    /// given is the session's, if that is nearer: it moves on by itself up to the end that was asked for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, Locks, Memory, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = Locks::new(Memory::open(MemoryConfig::new())?);
    /// let ttl = Duration::from_secs(10);
    /// let guard = locks.mutex_with("import", LockOptions::new().fixed_ttl(ttl))?.acquire().await?;
    /// // More work than was expected: another 10 s, from now on.
    /// guard.extend(ttl).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when `ttl` is too short, as one below the session timeout is where a session keeps
    /// the lock, [`ErrorKind::Lost`] when the lock is no longer ours (it is never taken
    /// again), [`ErrorKind::Unavailable`] when the server does not answer; of several masters for as long as the
    /// lease lasts. [`ErrorKind::Denied`] when the server refuses, [`ErrorKind::Closed`] after
    /// [`close`](crate::Locks::close), and [`ErrorKind::Unsupported`] outside a tokio runtime; the guard is valid as
    /// before then, up to its deadline.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lease may or may not have been extended;
    /// [`valid_until`](Self::valid_until) then keeps the earlier deadline.
    pub async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.on_runtime("extend")?;
        self.lease().extend(ttl).await.map_err(|error| self.failed("extend", error))
    }

    /// Lets the tokens that are granted after this one be larger than `floor` as well: one round trip.
    ///
    /// For those who bring their locks along from another store, whose tokens were larger.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the backend cannot do that, [`ErrorKind::Lost`] when the lock is no
    /// longer ours, [`ErrorKind::Unavailable`] when the server does not answer, [`ErrorKind::Exhausted`] when
    /// hardly any tokens would be left.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the tokens may or may not have been raised; raise them again.
    pub async fn raise_token(&self, floor: Token) -> Result<()> {
        if floor.get() > HIGHEST_FLOOR {
            return Err(Error::new(ErrorKind::Exhausted, self.backend())
                .with_message(format!("hardly any tokens are left above {floor}"))
                .with_hint(
                    "begin again under another lock name, and let the resource forget the tokens of this one",
                )
                .during("raise token")
                .on(&self.name));
        }
        self.on_runtime("raise token")?;
        self.lease().raise_token(floor).await.map_err(|error| self.failed("raise token", error))
    }

    /// Goes on as a reader, without giving the lock up in between: readers may join from then on, and writers
    /// wait until the last reader has gone. A few round trips.
    ///
    /// For guards of [`RwLock::write`](crate::RwLock::write). Readers of other processes who wait before the
    /// first writer in the queue get the lock at once; those of this process come to stand in that queue only
    /// now. No writer overtakes any of them, nor us. The [`token`](Self::token) stays, and is smaller than
    /// theirs. A lease with a time to live may be renewed with it. For the guard of a reader there is nothing
    /// to do. There is no way back: release it, and ask to write.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for the guard of a mutex or a semaphore, [`ErrorKind::Lost`] when the lock is
    /// no longer ours (it is never taken again), [`ErrorKind::Unavailable`] when the server does not answer,
    /// [`ErrorKind::Denied`] and [`ErrorKind::Exhausted`] when it refuses: a right is missing, a limit is reached.
    /// After any error but [`ErrorKind::Lost`] the guard holds the lock all the same. With
    /// [`Outcome::Unknown`](crate::Outcome::Unknown) it does so as a writer or as a reader: do not write any
    /// more, and call it again to be sure that readers can join.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the outcome is unknown as above. A release gives back either form.
    ///
    /// Source of the idea: the downgrade of tokio's and parking_lot's `RwLockWriteGuard`.
    pub async fn downgrade(&mut self) -> Result<()> {
        match self.role {
            Role::Reader => return Ok(()),
            Role::Writer => {}
            Role::Other => return Err(self.no_writer()),
        }
        self.on_runtime("downgrade")?;
        let held = self.held_mut();
        let downgraded = held.lease.downgrade().await;
        downgraded.map_err(|error| self.failed("downgrade", error))?;
        self.role = Role::Reader;
        // Who shares the lock lets the others of this process ask for it as well.
        self.held_mut().turn = None;
        Ok(())
    }

    /// Gives the lock back, and says whether it was ours until then.
    ///
    /// A task of this process that waits for the lock gets it at once, where the backend can do that.
    ///
    /// # Errors
    ///
    /// When it is not known whether the lock is released. The release goes on in the background
    /// until it is known or the lease has ended, so there is nothing left to do. After
    /// [`ErrorKind::Closed`] nothing goes on: the lock ends with its lease or session.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the release goes on in the background.
    pub async fn release(mut self) -> Result<Released> {
        self.end_signals();
        self.on_runtime("release")?;
        let (name, origin) = (self.name.clone(), Arc::clone(&self.origin));
        let ended = self.held_mut().end(&name, &origin).await;
        let released = ended.map_err(|error| self.failed("release", error))?;
        self.held = None;
        Ok(released)
    }

    /// The lease behind the guard, if it is of this type: for backends that offer more than all of them can.
    #[must_use]
    pub fn lease_as<T: Lease>(&self) -> Option<&T> {
        let lease: &dyn Any = self.lease();
        lease.downcast_ref()
    }

    fn signals(&self) -> &Signals {
        self.signals.get_or_init(|| {
            let given_up = ValidityCell::new(Clock::boot(), BootInstant::NEVER);
            Box::new(Signals { given_up, cancelled: OnceLock::new() })
        })
    }

    /// Tells those who have asked that the lock is given up. A loss from before keeps its reason.
    fn end_signals(&self) {
        let Some(signals) = self.signals.get() else { return };
        signals.given_up.lose(match self.state() {
            GuardState::Lost(reason) => reason,
            _ => LossReason::Released,
        });
        if let Some(cancelled) = signals.cancelled.get() {
            cancelled.cancel();
        }
    }

    fn lease(&self) -> &dyn Lease {
        let Some(held) = &self.held else { unreachable!("a guard holds its lease until it ends") };
        &*held.lease
    }

    fn held_mut(&mut self) -> &mut Held {
        let Some(held) = &mut self.held else { unreachable!("a guard holds its lease until it ends") };
        held
    }

    fn on_runtime(&self, operation: &'static str) -> Result<()> {
        self.origin.runtimes.enter().map(drop).map_err(|error| self.failed(operation, error))
    }

    fn failed(&self, operation: &'static str, error: Error) -> Error {
        let error = self.origin.runtimes.explain(error);
        error.told_by(self.backend()).during(operation).on(&self.name)
    }

    fn backend(&self) -> &'static str {
        self.origin.runtimes.backend()
    }

    fn no_writer(&self) -> Error {
        Error::new(ErrorKind::Unsupported, self.backend())
            .with_message(
                "only who writes can become a reader, and this is the guard of a mutex or a semaphore",
            )
            .with_hint("take the lock with locks.rw(name).write(): it is the same lock as the mutex")
            .during("downgrade")
            .on(&self.name)
    }

    fn lost_error(&self, reason: LossReason) -> Error {
        Error::new(ErrorKind::Lost, self.backend())
            .with_message(format!("the lock was lost: {reason}"))
            .with_hint("stop the work that it protects, and acquire it again")
            .during("run")
            .on(&self.name)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("backend", &self.backend())
            .field("name", &self.name)
            .field("token", &self.token())
            .field("standing", &self.state())
            .finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.end_signals();
        }
        if let Some(held) = self.held.take() {
            let release = held.release(self.name.clone(), Arc::clone(&self.origin));
            self.origin.releases.spawn(&self.runtime, release);
        }
    }
}

/// The lock was lost while [`Guard::run`] ran its body. The `?` operator turns it into an [`Error`].
///
/// ```
/// # use std::{thread, time::Duration};
/// # use lock_core::{ErrorKind, LockOptions, Locks, Memory, MemoryConfig, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let ttl = Duration::from_millis(100);
/// let guard = locks.mutex_with("a", LockOptions::new().fixed_ttl(ttl))?.acquire().await?;
/// // A body that blocks its thread for longer than the lease lasts.
/// let late = guard.run(async { thread::sleep(3 * ttl); "written" }).await.unwrap_err();
/// assert_eq!(late.error().kind(), ErrorKind::Lost);
/// assert_eq!(late.into_output(), Some("written"));
/// # Ok(())
/// # }
/// ```
pub struct RunError<T> {
    error: Error,
    output: Option<T>,
}

impl<T> RunError<T> {
    /// Why the lock was lost: an error of the kind [`ErrorKind::Lost`].
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What the body returned, if it had ended by the time that the loss was seen. `None` when it was dropped.
    #[must_use]
    pub fn into_output(self) -> Option<T> {
        self.output
    }
}

impl<T> From<RunError<T>> for Error {
    fn from(lost: RunError<T>) -> Self {
        lost.error
    }
}

impl<T> fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl Held {
    async fn release(mut self, name: LockName, origin: Arc<Origin>) {
        let mut pause = FIRST_RETRY;
        while let Err(error) = self.end(&name, &origin).await {
            if error.kind() == ErrorKind::Closed {
                tracing::debug!(%error, "the lock ends with its lease or session");
                return;
            }
            tracing::debug!(%error, "release goes on");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Gives the lock to the next task of this process, or back to the server.
    async fn end(&mut self, name: &LockName, origin: &Arc<Origin>) -> Result<Released> {
        let Some(heir) = self.turn.as_ref().and_then(Turn::heir) else { return self.lease.release().await };
        match self.lease.hand_over(&heir.request).await? {
            HandOver::Released(released) => Ok(released),
            HandOver::HandedOver(lease) => {
                self.bequeath(&heir, lease, name, origin);
                Ok(Released::Released)
            }
        }
    }

    fn bequeath(&mut self, heir: &Heir, lease: Box<dyn Lease>, name: &LockName, origin: &Arc<Origin>) {
        let Some(turn) = self.turn.take() else { return };
        let queue = turn.queue();
        let (turn, spent) = match heir.request.mode {
            Mode::Exclusive => (Some(turn), None),
            _ => (None, Some(turn)),
        };
        let role = Role::of(heir.request.mode, heir.request.writes);
        let guard = Guard::new(lease, turn, role, name.clone(), heir.runtime.clone(), Arc::clone(origin));
        queue.bequeath(heir, guard);
        // Who shares the lock lets the one behind it ask; until now that would have been the heir.
        drop(spent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AcquireRequest, Acquired, Backend, Capabilities, LockState, Locks, Memory, MemoryConfig, Validity,
    };
    use async_trait::async_trait;

    /// The memory backend, whose locks go from task to task.
    #[derive(Clone, Debug)]
    struct Passing(Memory);

    #[derive(Debug)]
    struct PassingLease {
        backend: Passing,
        inner: Box<dyn Lease>,
    }

    #[async_trait]
    impl Backend for Passing {
        fn capabilities(&self) -> &Capabilities {
            self.0.capabilities()
        }

        async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
            Ok(match self.0.acquire(request).await? {
                Acquired::Held(inner) => {
                    Acquired::Held(Box::new(PassingLease { backend: self.clone(), inner }))
                }
                Acquired::Busy => Acquired::Busy,
            })
        }

        async fn inspect(&self, name: &LockName) -> Result<LockState> {
            self.0.inspect(name).await
        }

        async fn break_lock(&self, name: &LockName) -> Result<bool> {
            self.0.break_lock(name).await
        }

        async fn close(&self) -> Result<()> {
            self.0.close().await
        }
    }

    #[async_trait]
    impl Lease for PassingLease {
        fn token(&self) -> Token {
            self.inner.token()
        }

        fn owner(&self) -> OwnerId {
            self.inner.owner()
        }

        fn validity(&self) -> &Validity {
            self.inner.validity()
        }

        async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
            self.inner.extend(ttl).await
        }

        async fn verify(&self) -> Result<GuardState> {
            self.inner.verify().await
        }

        async fn release(&mut self) -> Result<Released> {
            self.inner.release().await
        }

        async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
            self.inner.release().await?;
            match self.backend.acquire(next.clone()).await? {
                Acquired::Held(lease) => Ok(HandOver::HandedOver(lease)),
                Acquired::Busy => panic!("somebody was faster"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cancelling_one_token_of_a_guard_cancels_no_other() {
        let locks = MemoryConfig::new().connect().unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let (one, two) = (guard.cancellation_token(), guard.cancellation_token());
        one.cancel();
        assert!(one.is_cancelled() && !two.is_cancelled() && !guard.cancellation_token().is_cancelled());
        // Nothing is awaited: no task has run when it is cancelled.
        drop(guard);
        assert!(two.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_from_before_the_release_keeps_its_reason() {
        let locks = MemoryConfig::new().connect().unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let validity = guard.validity();
        assert!(locks.break_lock("a").await.unwrap());
        drop(guard);
        assert_eq!(validity.state(), GuardState::Lost(LossReason::Removed));
    }

    #[tokio::test(start_paused = true)]
    async fn signals_end_when_the_lock_is_passed_on() {
        let locks = Locks::new(Passing(Memory::open(MemoryConfig::new()).unwrap()));
        let guard = locks.mutex("a").acquire().await.unwrap();
        let (validity, cancelled) = (guard.validity(), guard.cancellation_token());
        let mutex = locks.mutex("a");
        let next = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        tokio::task::yield_now().await;
        assert!(validity.is_valid());
        guard.release().await.unwrap();
        let next = next.await.unwrap();
        assert!(!validity.is_valid() && cancelled.is_cancelled());
        assert!(next.validity().is_valid() && !next.cancellation_token().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_passed_to_a_reader_is_shared_with_the_one_behind_it() {
        let locks = Locks::new(Passing(Memory::open(MemoryConfig::new()).unwrap()));
        let writer = locks.rw("a").write().await.unwrap();
        let readers = [(); 3].map(|()| {
            let lock = locks.rw("a");
            tokio::spawn(async move { lock.read().await.unwrap() })
        });
        tokio::task::yield_now().await;
        let writer_token = writer.token();
        assert_eq!(writer.release().await.unwrap(), Released::Released);
        let passed = Token::new(writer_token.get() + 1);
        let mut guards = Vec::new();
        for reader in readers {
            let guard = tokio::time::timeout(Duration::from_secs(5), reader).await;
            guards.push(guard.expect("each lets the next one ask").unwrap());
        }
        assert!(guards.iter().all(Guard::is_valid));
        assert_eq!(guards[0].token(), passed, "what was passed on was given back");
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        for guard in guards {
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
    }
}
