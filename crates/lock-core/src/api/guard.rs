//! A lock that is held.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::lock_spec::LockSpec;
use crate::process::events::{Events, Holding};
use crate::process::local_queue::{NextWaiter, Turn};
use crate::process::readers::Readers;
use crate::process::tasks::background::{Background, until_released};
use crate::process::tasks::runtime::Runtimes;
use crate::seam::observe::LockEvent;
use crate::values::token_reads::TokenReads;
use crate::{
    BootInstant, Clock, Error, ErrorKind, GuardState, GuardView, HandOver, Lease, LockName, LossReason, Mode,
    Outcome, OwnerId, Released, Result, Revocation, RunError, Token, Validity, ValidityCell,
};

/// Half of all tokens: the rest never runs out.
const HIGHEST_FLOOR: u64 = i64::MAX as u64 / 2;

/// A lock that is held, until it is [released](Self::release), dropped or lost.
///
/// While the guard lives, the backend renews the lease or session in the background. Watch
/// [`lost`](Self::lost), or let [`run`](Self::run) do it, and send [`token`](Self::token) with every
/// write: a process that was paused learns too late that its lock is lost.
///
/// # Examples
///
/// ```
/// # use lock_core::MemoryConfig;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// println!("holding {} with token {}, valid for {:?}", guard.name(), guard.token(), guard.remaining());
/// guard.run(async { /* the work; dropped when the lock is lost */ }).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping the guard releases the lock in the background, on the runtime that it was acquired on.
/// It never blocks and never panics, and works from any thread. When that runtime was shut down, the
/// lock ends with its lease or session.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    held: Option<HeldLock>,
    token_reads: TokenReads,
    /// Made by the first call that needs them.
    signals: OnceLock<Box<Signals>>,
    role: Role,
    spec: Arc<LockSpec>,
    runtime: Handle,
    origin: Arc<Origin>,
}

/// What a guard keeps of the [`Locks`](crate::Locks) that it came from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) runtimes: Runtimes,
    /// The shortest time to live that the backend can honour.
    pub(crate) min_ttl: Duration,
    /// The releases of dropped guards; `close` waits for them.
    pub(crate) releases: Background,
    /// The acquisitions under way; `close` waits for them to end.
    pub(crate) acquisitions: Background,
    /// Cancelled when the locks are closed. Nothing is acquired, observed or handed over from then on.
    pub(crate) closed: CancellationToken,
    /// The guards of readers.
    pub(crate) readers: Readers,
}

/// The signals that outlive the guard. They end when a release begins, whatever the server answers: the caller has given
/// up the lock by then.
#[derive(Debug)]
struct Signals {
    released: ValidityCell,
    /// The parent of every token that was returned.
    cancelled: OnceLock<CancellationToken>,
}

/// A lease, and the turn in which it was granted.
struct HeldLock {
    lease: Box<dyn Lease>,
    /// Dropped after the lease is released, so that the next task of this process does not find the lock taken. A sharer
    /// has none.
    turn: Option<Turn<Guard>>,
    /// Until when the server is to keep the lock, though it is released earlier.
    hold_until: Option<Instant>,
    /// Whether the holder may have changed the lease, which the next one has not asked for.
    is_altered: AtomicBool,
    /// Whether it came from another task of this process.
    is_handed_over: bool,
    /// What observers see of it, once its acquisition has ended.
    holding: Holding,
}

/// What a guard was acquired for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The write side of a read/write lock.
    Writer,
    /// The read side.
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
        turn: Option<Turn<Self>>,
        spec: Arc<LockSpec>,
        runtime: Handle,
        origin: Arc<Origin>,
    ) -> Self {
        if let Some(turn) = &turn {
            turn.hold(lease.validity());
        }
        let role = Role::of(spec.mode, spec.writes);
        if role == Role::Reader {
            origin.readers.enter(&spec.name, lease.owner());
        }
        let (is_altered, holding) = (AtomicBool::new(false), Holding::default());
        let held = HeldLock { lease, turn, hold_until: None, is_altered, is_handed_over: false, holding };
        let (token_reads, signals) = (TokenReads::default(), OnceLock::new());
        Self { held: Some(held), token_reads, signals, role, spec, runtime, origin }
    }

    /// Its acquisition has ended: from now on observers learn what becomes of the lock.
    pub(crate) fn observe(&mut self, events: Events) {
        let runtime = self.runtime.clone();
        let held = self.held_mut();
        let (token, is_handed_over) = (held.lease.token(), held.is_handed_over);
        events.tell(|| LockEvent::Acquired { token, is_handed_over });
        held.holding = Holding::begin(events, held.lease.validity(), &runtime);
    }

    /// Has the server confirm that it keeps the lock for as long as it is to be [held at least](crate::LockOptions::hold_at_least),
    /// whatever becomes of its holder, and returns until when that is. The lease of a lock that was waited for may begin much shorter.
    pub(crate) async fn confirm_hold(&self) -> Result<Option<Instant>> {
        let Some(hold) = self.spec.hold_at_least else { return Ok(None) };
        let (until, ttl) = (Instant::now() + hold, self.spec.lease.ttl);
        let extended = self.lease_to_alter().extend(ttl.map_or(hold, |ttl| ttl.max(hold)));
        let confirmed = self.held().holding.request("extend", extended).await;
        confirmed.map_err(|error| self.failed("acquire", error))?;
        Ok(Some(until))
    }

    /// From now on, the end of this guard leaves the lock held until then.
    pub(crate) fn keep_until(&mut self, until: Option<Instant>) {
        self.held_mut().hold_until = until;
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.spec.name
    }

    /// The fencing token of this acquisition; see [`Token`]. Costs nothing.
    ///
    /// PostgreSQL checks tokens itself, in [the fence]. There, the guard goes to the next task of this process by a
    /// request to the server if its token was read, and else without one. A token counts as read if it was returned by this
    /// method, written into a fence, or printed with the guard (`{:?}`), and while a [view](Self::view) exists.
    ///
    /// [the fence]: https://github.com/polylock/polylock/blob/main/docs/FENCING.md#postgresql
    #[must_use]
    pub fn token(&self) -> Token {
        self.token_reads.note();
        self.unread_token()
    }

    /// The token for a use within the library, which does not count as read.
    pub(crate) fn unread_token(&self) -> Token {
        self.lease().token()
    }

    /// The identity of this acquisition, as the store keeps it. Costs nothing.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.lease().owner()
    }

    /// The deadline: the server keeps the lock at least until then. The renewal moves it. On Redis, a lock that was waited
    /// for may begin with less than a second, until its first renewal is answered. Costs nothing.
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

    /// Waits until the lock is lost, and returns the reason.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn lost(&self) -> LossReason {
        self.lease().validity().lost().await
    }

    /// The validity of the guard, as a clone that can be moved into a task or a thread. Costs no round trip.
    ///
    /// It does not hold the lock: it is lost, with [`LossReason::Released`], as soon as a release begins or the guard is
    /// dropped. It stays lost if that release fails: the server may grant the lock to another client from then on.
    ///
    /// ```
    /// # use lock_core::{LossReason, MemoryConfig};
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
        self.signals().released.validity().and(self.lease().validity().clone())
    }

    /// A view of the guard for work in other tasks: its name, token and [validity](Self::validity). Costs no round trip.
    #[must_use]
    pub fn view(&self) -> GuardView {
        GuardView {
            name: self.spec.name.clone(),
            token: self.unread_token(),
            token_reads: self.token_reads.of_view(),
            owner: self.owner(),
            validity: self.validity(),
        }
    }

    /// A token that is cancelled when the lock is lost or released, or the guard is dropped: for work in other tasks.
    ///
    /// It is cancelled before a release sends anything, and before a drop returns. The first call starts a small task that
    /// watches the [validity](Self::validity), on the runtime of the acquisition; when that runtime is shut down, the token
    /// is cancelled as well. Like every signal of a lost lock it may come late: send the fencing token with every write.
    ///
    /// Each call returns a token of its own: cancelling it cancels no other.
    ///
    /// ```
    /// # use lock_core::MemoryConfig;
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

    /// Whether a client [asked](crate::Locks::request_revocation) the holder to release the lock. The guard
    /// holds it all the same, until it is released. Costs nothing.
    #[must_use]
    pub fn is_revoke_requested(&self) -> bool {
        self.lease().revocation().is_some_and(Revocation::is_requested)
    }

    /// Waits until a client [asks](crate::Locks::request_revocation) the holder to release the lock: for ever
    /// if none does, and where the backend does not support it
    /// ([`Capabilities::revocation`](crate::Capabilities::revocation)).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn revoke_requested(&self) {
        match self.lease().revocation() {
            Some(revocation) => revocation.requested().await,
            None => std::future::pending().await,
        }
    }

    /// Runs `body` while the lock is held, and drops it when the lock is lost.
    ///
    /// The lock is checked again after `body`: `Ok` means that it was valid until then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lock was lost before `body` ended, or was found lost right after. In the second case
    /// [`RunError::into_output`] has what `body` returned: its last step may have run without the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `body` with it; the guard stays.
    ///
    /// ```
    /// # use lock_core::{MemoryConfig, Result};
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
            // A body that blocks its thread, or a paused process, passes the deadline without another signal.
            GuardState::Lost(reason) => {
                Err(RunError { error: self.lost_error(reason), output: Some(output) })
            }
            _ => Ok(output),
        }
    }

    /// Asks the server whether the lock is still held: one round trip.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the server does not answer, [`ErrorKind::Denied`] when it refuses,
    /// [`ErrorKind::Closed`] after [`close`](crate::Locks::close), [`ErrorKind::Unsupported`] outside a tokio runtime.
    /// None of them loses the guard.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn verify(&self) -> Result<GuardState> {
        self.on_runtime("verify")?;
        self.request("verify", self.lease().verify()).await
    }

    /// A duplicate of the descriptor of the locked file, where the kernel keeps the lock (`flock://`); `None` elsewhere.
    ///
    /// A process that inherits it keeps the lock when this process dies, until it closes the descriptor. A
    /// [`release`](Self::release) frees the lock for both. Give it to a child that must end before anybody else gets the lock.
    #[cfg(unix)]
    #[must_use]
    pub fn locked_file(&self) -> Option<std::os::fd::OwnedFd> {
        self.lease().locked_file()
    }

    /// Sets a new time to live, and returns the new [deadline](Self::valid_until): one round trip.
    ///
    /// A lock with a [fixed time to live](crate::LockOptions::fixed_ttl) expires `ttl` from now, earlier or later than
    /// before. Any other lock is renewed with this [time to live](crate::LockOptions::ttl) from now on. Where a session keeps
    /// the lock, the deadline of the session is returned if that is earlier; it moves by itself up to the new end.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// let ttl = Duration::from_secs(10);
    /// let guard = locks.mutex_with("import", LockOptions::new().fixed_ttl(ttl))?.acquire().await?;
    /// // More work than expected: another 10 s from now.
    /// guard.extend(ttl).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// On Redlock the new deadline may be nearer than `ttl`, once extensions that shortened the lease have got no answer at
    /// several masters: these may execute them at any time.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::InvalidConfig`] when `ttl` is too short: below the session timeout where a session keeps the lock.
    /// * [`ErrorKind::Lost`] when the lock is lost; it is never acquired again.
    /// * [`ErrorKind::Unavailable`] when the server does not answer; on Redlock, when no quorum answers while the lease
    ///   lasts.
    /// * [`ErrorKind::Exhausted`] when the lease is extended by less than `ttl`: an earlier extension that shortened the lease got no
    ///   answer, and the server may still execute it, which would cut the lease short.
    /// * [`ErrorKind::Denied`] when the server refuses, [`ErrorKind::Closed`] after [`close`](crate::Locks::close),
    ///   [`ErrorKind::Unsupported`] outside a tokio runtime.
    ///
    /// After any error but `Lost` the guard stays valid up to its deadline.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lease may or may not have been extended;
    /// [`valid_until`](Self::valid_until) then keeps the earlier deadline.
    pub async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.on_runtime("extend")?;
        let to_hold = self.held().left_to_hold().unwrap_or_default();
        self.request("extend", self.lease_to_alter().extend(ttl.max(to_hold))).await
    }

    /// Makes all later tokens of this name larger than `floor`: one round trip.
    ///
    /// For a move from another store, whose tokens were larger. Of callers that share the lock, one that was granted it before may
    /// still get a smaller token, if it learns of its grant only now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the backend cannot do that, [`ErrorKind::Lost`] when the lock is lost,
    /// [`ErrorKind::Unavailable`] when the server does not answer, [`ErrorKind::Exhausted`] when too few tokens
    /// would be left.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the tokens may or may not have been raised; raise them again.
    pub async fn raise_token(&self, floor: Token) -> Result<()> {
        if floor.get() > HIGHEST_FLOOR {
            return Err(Error::new(ErrorKind::Exhausted, self.backend())
                .with_message(format!("too few tokens are left above {floor}"))
                .with_hint("use another lock name, and let the resource forget the tokens of this one")
                .with_can_pass(false)
                .during("raise token")
                .on(&self.spec.name));
        }
        self.on_runtime("raise token")?;
        self.request("raise token", self.lease_to_alter().raise_token(floor)).await
    }

    /// Turns a writer into a reader without releasing the lock: readers may join from then on, and writers wait
    /// for the last reader. A few round trips.
    ///
    /// * It is for guards of [`RwLock::write`](crate::RwLock::write), and does nothing to the guard of a reader.
    /// * Readers of other processes ahead of the first waiting writer get the lock at once. Readers of this
    ///   process enter the wait queue of the store only now. No writer overtakes any of them.
    /// * The [`token`](Self::token) stays, and is smaller than those of the new readers.
    /// * A lease with a time to live may be renewed by the same request.
    /// * There is no upgrade: release the guard, then acquire the lock as a writer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for the guard of a mutex or a semaphore, [`ErrorKind::Lost`] when the lock is
    /// lost (it is never acquired again), [`ErrorKind::Unavailable`] when the server does not answer,
    /// [`ErrorKind::Denied`] and [`ErrorKind::Exhausted`] when it refuses: a right is missing, a limit is reached.
    /// After any error but [`ErrorKind::Lost`] the guard still holds the lock. With
    /// [`Outcome::Unknown`](crate::Outcome::Unknown) it is a writer or a reader: stop writing, and call it again
    /// to be sure that readers can join.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the outcome is unknown, as above. [`release`](Self::release) releases either.
    ///
    /// Source of the idea: the downgrade of tokio's and parking_lot's `RwLockWriteGuard`.
    pub async fn downgrade(&mut self) -> Result<()> {
        match self.role {
            Role::Reader => return Ok(()),
            Role::Writer => {}
            Role::Other => return Err(self.not_a_writer()),
        }
        self.on_runtime("downgrade")?;
        let held = self.held_mut();
        held.is_altered.store(true, Ordering::Relaxed);
        let downgraded = held.holding.request("downgrade", held.lease.downgrade()).await;
        downgraded.map_err(|error| self.failed("downgrade", error))?;
        self.role = Role::Reader;
        self.origin.readers.enter(&self.spec.name, self.owner());
        // A sharer gives up its turn, so that the next task of this process can ask to share the lock.
        self.held_mut().turn = None;
        Ok(())
    }

    /// Releases the lock, and returns whether it was held until then.
    ///
    /// Where the backend can do that, the lock is handed over to the next waiting task of this process in one step.
    ///
    /// # Errors
    ///
    /// When the outcome is unknown. The release is repeated in the background until it is known or the lease has
    /// ended; there is nothing left to do for the caller. After [`ErrorKind::Closed`] nothing is repeated: the lock
    /// ends with its lease or session.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, or kept and not polled, the release goes on in the background.
    pub async fn release(mut self) -> Result<Released> {
        self.give_up();
        let runtime = self.on_runtime("release")?;
        if self.pass_on() {
            return Ok(Released::Released);
        }
        let (origin, spec) = (Arc::clone(&self.origin), Arc::clone(&self.spec));
        let released = origin.releases.finish(&runtime, self.end()).await;
        released.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Unavailable, origin.runtimes.backend())
                .with_message("the tokio runtime on which the release began was shut down")
                .with_hint("the lock is released in the background, or ends with its lease or session")
                .with_outcome(Outcome::Unknown)
                .during("release")
                .on(&spec.name))
        })
    }

    async fn end(mut self) -> Result<Released> {
        let origin = Arc::clone(&self.origin);
        let ended = self.held_mut().end(&origin).await;
        let released = ended.map_err(|error| self.failed("release", error))?;
        self.held = None;
        Ok(released)
    }

    /// Hands the lock over to the next task of this process without asking the server, where the backend and the terms of
    /// both allow that.
    fn pass_on(&mut self) -> bool {
        let Some(held) = &mut self.held else { return false };
        let may_have_it = |next: &NextWaiter| next.is_on(&self.runtime) && self.spec.may_pass_to(&next.spec);
        let Some(next) = held.next_waiter(&self.origin).filter(may_have_it) else { return false };
        if !held.may_pass_on() || !held.lease.pass_on(self.token_reads.may_be_known()) {
            return false;
        }
        held.holding.tell(LockEvent::HandedOver);
        if let Some(HeldLock { lease, turn: Some(turn), .. }) = self.held.take() {
            deliver(&next, lease, turn, &self.origin);
        }
        true
    }

    /// What locks of one backend alone can do, if this lock is one of them, also through layers: for extension traits of that backend.
    #[must_use]
    pub fn backend_specific<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.lease().backend_specific()?.downcast().ok()
    }

    fn signals(&self) -> &Signals {
        self.signals.get_or_init(|| {
            let released = ValidityCell::new(Clock::boot(), BootInstant::NEVER);
            Box::new(Signals { released, cancelled: OnceLock::new() })
        })
    }

    /// Ends the validities and cancellation tokens of this guard. An earlier loss keeps its reason.
    fn give_up(&self) {
        self.held().holding.ending();
        if self.role == Role::Reader {
            self.origin.readers.leave(&self.spec.name, self.owner());
        }
        let Some(signals) = self.signals.get() else { return };
        signals.released.lose(match self.state() {
            GuardState::Lost(reason) => reason,
            _ => LossReason::Released,
        });
        if let Some(cancelled) = signals.cancelled.get() {
            cancelled.cancel();
        }
    }

    async fn request<T>(&self, operation: &'static str, sent: impl Future<Output = Result<T>>) -> Result<T> {
        self.held().holding.request(operation, sent).await.map_err(|error| self.failed(operation, error))
    }

    fn lease(&self) -> &dyn Lease {
        &*self.held().lease
    }

    /// The lease, for a request that changes it: whatever becomes of it, no other task gets this lease.
    fn lease_to_alter(&self) -> &dyn Lease {
        self.held().is_altered.store(true, Ordering::Relaxed);
        self.lease()
    }

    fn held(&self) -> &HeldLock {
        let Some(held) = &self.held else { unreachable!("a guard holds its lease until it ends") };
        held
    }

    fn held_mut(&mut self) -> &mut HeldLock {
        let Some(held) = &mut self.held else { unreachable!("a guard holds its lease until it ends") };
        held
    }

    fn on_runtime(&self, operation: &'static str) -> Result<Handle> {
        self.origin.runtimes.enter().map_err(|error| self.failed(operation, error))
    }

    fn failed(&self, operation: &'static str, error: Error) -> Error {
        let error = self.origin.runtimes.explain(error);
        error.on_backend(self.backend()).during(operation).on(&self.spec.name)
    }

    fn backend(&self) -> &'static str {
        self.origin.runtimes.backend()
    }

    fn not_a_writer(&self) -> Error {
        Error::new(ErrorKind::Unsupported, self.backend())
            .with_message(
                "only a writer can become a reader, and this is the guard of a mutex or a semaphore",
            )
            .with_hint("acquire the lock by locks.rw(name).write(): it is the same lock as the mutex")
            .during("downgrade")
            .on(&self.spec.name)
    }

    /// The error for a release that finds the lock gone, though the guard was valid.
    pub(crate) fn found_lost(&self) -> Error {
        self.lost_because("the release found it held no longer")
    }

    /// The error for another acquisition by the owner of this lost guard.
    pub(crate) fn lost_while_nested(&self) -> Error {
        Error::new(ErrorKind::Lost, self.backend())
            .with_message("this owner has guards of a lock that it lost")
            .with_hint("stop the work that it protects, and end these guards; then acquire it again")
            .during("acquire")
            .on(&self.spec.name)
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        self.lost_because(&reason.to_string())
    }

    fn lost_because(&self, reason: &str) -> Error {
        Error::new(ErrorKind::Lost, self.backend())
            .with_message(format!("the lock was lost: {reason}"))
            .with_hint("stop the work that it protects, and acquire it again")
            .during("run")
            .on(&self.spec.name)
    }
}

/// The token counts as read: what is printed can be used.
impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("backend", &self.backend())
            .field("name", &self.spec.name)
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.give_up();
        }
        if self.pass_on() {
            return;
        }
        if let Some(held) = self.held.take() {
            self.origin.releases.spawn(&self.runtime, held.release(Arc::clone(&self.origin)));
        }
    }
}

impl HeldLock {
    async fn release(mut self, origin: Arc<Origin>) {
        until_released(&mut self, |held| {
            let origin = Arc::clone(&origin);
            async move { held.end(&origin).await }.boxed()
        })
        .await;
    }

    /// The time for which the server is still to keep the lock.
    fn left_to_hold(&self) -> Option<Duration> {
        self.hold_until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Leaves the lock to a time to live of `left`. The lease is dropped after it, which ends its renewal.
    async fn leave_for(&self, left: Duration, origin: &Origin) -> Result<Released> {
        let extended = self.lease.leave(left.max(origin.min_ttl));
        match self.holding.request("extend", extended).await {
            Ok(_) => Ok(Released::Released),
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Released::AlreadyLost),
            Err(error) => Err(error),
        }
    }

    /// The next task of this process that waits for the lock, unless the locks are closed: nobody may poll it any more.
    fn next_waiter(&self, origin: &Origin) -> Option<NextWaiter> {
        self.turn.as_ref().filter(|_| !origin.closed.is_cancelled()).and_then(Turn::next_waiter)
    }

    /// Whether the lease is as it was acquired, and the lock certainly held.
    fn may_pass_on(&self) -> bool {
        self.hold_until.is_none()
            && !self.is_altered.load(Ordering::Relaxed)
            && self.lease.validity().state() == GuardState::Valid
    }

    /// Hands the lock over to the next task of this process, or releases it.
    async fn end(&mut self, origin: &Arc<Origin>) -> Result<Released> {
        // From here on it may not be renewed any more: where this future is dropped, no other task gets this lease.
        self.is_altered.store(true, Ordering::Relaxed);
        if let Some(left) = self.left_to_hold() {
            return self.leave_for(left, origin).await;
        }
        // The lease of the next holder begins on this runtime.
        let here = |next: &NextWaiter| Handle::try_current().is_ok_and(|here| next.is_on(&here));
        let Some(next) = self.next_waiter(origin).filter(here) else {
            let released = self.holding.request("release", self.lease.release()).await?;
            return Ok(self.holding.released(released));
        };
        let next_request = next.request();
        match self.holding.request("hand over", self.lease.hand_over(&next_request)).await? {
            HandOver::Released(released) => Ok(self.holding.released(released)),
            HandOver::HandedOver(lease) => {
                self.holding.tell(LockEvent::HandedOver);
                if let Some(turn) = self.turn.take() {
                    deliver(&next, lease, turn, origin);
                }
                Ok(Released::Released)
            }
        }
    }
}

/// Gives the lease, and the turn, to the next waiter.
fn deliver(next: &NextWaiter, lease: Box<dyn Lease>, turn: Turn<Guard>, origin: &Arc<Origin>) {
    let queues = turn.queues();
    let (turn, spent) = match next.spec.mode {
        Mode::Exclusive => (Some(turn), None),
        _ => (None, Some(turn)),
    };
    let spec = Arc::clone(&next.spec);
    let mut guard = Guard::new(lease, turn, spec, next.runtime.clone(), Arc::clone(origin));
    guard.held_mut().is_handed_over = true;
    let patience = guard.remaining();
    queues.deliver(&next.spec.name, next, guard, patience);
    // A sharer gives up the turn. Earlier it would have gone to the waiter that has the lock by now.
    drop(spent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AcquireRequest, Acquired, Backend, Capabilities, LockOptions, LockState, Locks, Memory, MemoryConfig,
        Validity,
    };
    use async_trait::async_trait;
    use futures_util::poll;
    use std::pin::pin;

    /// The memory backend, with a hand-over from task to task, which may take a second.
    #[derive(Clone, Debug)]
    struct HandOverMemory {
        memory: Memory,
        is_slow: bool,
    }

    impl HandOverMemory {
        fn locks(is_slow: bool) -> Locks {
            let config = MemoryConfig::new().clock(Clock::tokio());
            Locks::new(Self { memory: Memory::open(config).unwrap(), is_slow })
        }
    }

    #[derive(Debug)]
    struct HandOverLease {
        backend: HandOverMemory,
        inner: Box<dyn Lease>,
    }

    #[async_trait]
    impl Backend for HandOverMemory {
        fn capabilities(&self) -> &Capabilities {
            self.memory.capabilities()
        }

        async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
            Ok(match self.memory.acquire(request).await? {
                Acquired::Held(inner) => {
                    Acquired::Held(Box::new(HandOverLease { backend: self.clone(), inner }))
                }
                Acquired::Busy => Acquired::Busy,
            })
        }

        async fn inspect(&self, name: &LockName) -> Result<LockState> {
            self.memory.inspect(name).await
        }

        async fn break_lock(&self, name: &LockName) -> Result<bool> {
            self.memory.break_lock(name).await
        }

        async fn close(&self) -> Result<()> {
            self.memory.close().await
        }
    }

    #[async_trait]
    impl Lease for HandOverLease {
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
            if self.backend.is_slow {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            self.inner.release().await
        }

        fn pass_on(&mut self, _: bool) -> bool {
            self.backend.is_slow
        }

        async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
            self.release().await?;
            match self.backend.acquire(next.clone()).await? {
                Acquired::Held(lease) => Ok(HandOver::HandedOver(lease)),
                Acquired::Busy => panic!("another client was faster"),
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
    async fn a_loss_before_the_release_keeps_its_reason() {
        let locks = MemoryConfig::new().connect().unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        let validity = guard.validity();
        assert!(locks.break_lock("a").await.unwrap());
        drop(guard);
        assert_eq!(validity.state(), GuardState::Lost(LossReason::Removed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_held_as_long_as_it_must_be_and_no_longer() {
        const HOLD: Duration = Duration::from_secs(100);
        let locks = MemoryConfig::new().clock(Clock::tokio()).connect().unwrap();
        let mutex = locks.mutex_with("a", LockOptions::new().hold_at_least(HOLD)).unwrap();
        let start = Instant::now();
        for round in 1..=3 {
            let guard = mutex.acquire().await.unwrap();
            tokio::time::sleep(HOLD / 2).await;
            // It does not cut the hold short.
            guard.extend(Duration::from_secs(1)).await.unwrap();
            match round {
                1 => assert_eq!(guard.release().await.unwrap(), Released::Released),
                _ => drop(guard),
            }
            let next = locks.mutex("a").acquire().await.unwrap();
            assert_eq!(start.elapsed().as_secs(), round * HOLD.as_secs());
            next.release().await.unwrap();
        }
        // Held for longer than it must be, it is free at once.
        let guard = mutex.acquire().await.unwrap();
        tokio::time::sleep(2 * HOLD).await;
        guard.release().await.unwrap();
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn signals_end_when_the_lock_is_handed_over() {
        let locks = HandOverMemory::locks(false);
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
    async fn a_lock_that_is_lost_before_its_waiter_takes_it_is_acquired_again() {
        let locks = HandOverMemory::locks(false);
        let (guard, mutex) = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("a"));
        let mut next = pin!(mutex.acquire());
        assert!(poll!(&mut next).is_pending());
        guard.release().await.unwrap();
        assert!(locks.break_lock("a").await.unwrap(), "it was handed over");
        assert!(next.await.unwrap().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_passed_on_if_it_is_as_it_was_acquired_and_as_the_next_one_would_be() {
        const LONG: Duration = Duration::from_secs(100);
        let plain = LockOptions::new;
        for (case, is_passed_on, options, next) in [
            ("as it was", true, plain(), plain()),
            ("extended", false, plain(), plain()),
            ("held for a time", false, plain().hold_at_least(LONG), plain()),
            ("of other terms", false, plain(), plain().ttl(LONG)),
        ] {
            let locks = HandOverMemory::locks(true);
            let guard = locks.mutex_with("a", options).unwrap().acquire().await.unwrap();
            let owner = guard.owner();
            if case == "extended" {
                guard.extend(LONG).await.unwrap();
            }
            let mutex = locks.mutex_with("a", next).unwrap();
            let mut next = pin!(mutex.acquire());
            assert!(poll!(&mut next).is_pending());
            drop(guard);
            let next = next.await.unwrap();
            assert_eq!(next.owner() == owner, is_passed_on, "{case}");
        }
    }

    /// What a backend has begun to release, whose renewal it may have stopped, is nothing to pass on.
    #[tokio::test(start_paused = true)]
    async fn a_release_that_is_dropped_passes_the_lease_on_to_nobody() {
        let locks = HandOverMemory::locks(true);
        let guard = locks.mutex("a").acquire().await.unwrap();
        let owner = guard.owner();
        let mutex = locks.mutex("a");
        let next = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            mutex.acquire().await.unwrap()
        });
        tokio::time::timeout(Duration::from_millis(100), guard.release()).await.unwrap_err();
        let next = next.await.unwrap();
        assert_ne!(next.owner(), owner, "the lease of the dropped release was passed on");
        assert_eq!(next.release().await.unwrap(), Released::Released);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_handed_over_to_a_reader_is_shared_with_the_next() {
        let locks = HandOverMemory::locks(false);
        let writer = locks.rw("a").write().await.unwrap();
        let readers = [(); 3].map(|()| {
            let lock = locks.rw("a");
            tokio::spawn(async move { lock.read().await.unwrap() })
        });
        tokio::task::yield_now().await;
        let writer_token = writer.token();
        assert_eq!(writer.release().await.unwrap(), Released::Released);
        let handed_over = Token::new(writer_token.get() + 1);
        let mut guards = Vec::new();
        for reader in readers {
            let guard = tokio::time::timeout(Duration::from_secs(5), reader).await;
            guards.push(guard.expect("each lets the next reader ask").unwrap());
        }
        assert!(guards.iter().all(Guard::is_valid));
        assert_eq!(guards[0].token(), handed_over, "the lease that was handed over was released");
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        for guard in guards {
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
    }
}
