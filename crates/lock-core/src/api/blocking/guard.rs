//! A lock that is held.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::runtime::wait;
use crate::{
    BootInstant, Error, GuardState, GuardView, LockName, LossReason, OwnerId, Released, Result, RunError,
    Token, Validity,
};

/// A lock that is held, until it is [released](Self::release), dropped or lost; as the asynchronous
/// [`Guard`](crate::Guard).
///
/// While the guard lives, the threads of the runtime renew its lease or session, whatever this thread does. Check
/// [`is_valid`](Self::is_valid) between the steps of long work, and send [`token`](Self::token) with every write.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let guard = locks.mutex("orders/42").acquire()?;
/// for order in ["a", "b"] {
///     if !guard.is_valid() {
///         break;
///     }
///     println!("writing {order} under token {}", guard.token());
/// }
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping the guard releases the lock in the background. It never blocks and never panics, and works from any thread, also
/// inside of a tokio task. [`Locks::close`](super::Locks::close) waits for it.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    /// The guards of a re-entrant owner share it.
    guard: Arc<crate::Guard>,
}

impl Guard {
    pub(super) fn new(guard: crate::Guard) -> Self {
        Self::shared(Arc::new(guard))
    }

    pub(super) const fn shared(guard: Arc<crate::Guard>) -> Self {
        Self { guard }
    }

    pub(super) fn as_async(&self) -> &crate::Guard {
        &self.guard
    }

    pub(super) fn into_shared(self) -> Arc<crate::Guard> {
        self.guard
    }

    /// How many guards share it.
    pub(super) fn depth(&self) -> usize {
        Arc::strong_count(&self.guard)
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// The fencing token of this acquisition; see [`Token`]. Costs nothing.
    #[must_use]
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// The identity of this acquisition, as the store keeps it. Costs nothing.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.guard.owner()
    }

    /// The deadline: the server keeps the lock at least until then. The renewal moves it. Costs nothing.
    #[must_use]
    pub fn valid_until(&self) -> BootInstant {
        self.guard.valid_until()
    }

    /// The time left until [`valid_until`](Self::valid_until), zero when the lock is lost. Costs nothing.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Whether the deadline is ahead and the lock is not known to be lost. Costs nothing.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Whether the lock is held, and whether the server still answers. Costs nothing.
    #[must_use]
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// Blocks until the lock is lost, and returns the reason; `None` if it is held after `patience`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LossReason, MemoryConfig, blocking::Locks};
    /// # fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::from(MemoryConfig::new().connect()?);
    /// let guard = locks.mutex("orders/42").acquire()?;
    /// assert_eq!(guard.lost_within(Duration::from_millis(10))?, None);
    /// locks.break_lock("orders/42")?;
    /// assert_eq!(guard.lost_within(Duration::from_secs(10))?, Some(LossReason::Removed));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio task.
    pub fn lost_within(&self, patience: Duration) -> Result<Option<LossReason>> {
        wait("wait for a loss", async { Ok(timeout(patience, self.guard.lost()).await.ok()) })
    }

    /// The validity of the guard, as a clone that can be moved into a thread: see
    /// [`Guard::validity`](crate::Guard::validity). Costs no round trip.
    ///
    /// ```
    /// # use std::thread;
    /// # use lock_core::{MemoryConfig, blocking::Locks};
    /// # fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::from(MemoryConfig::new().connect()?);
    /// let guard = locks.mutex("import").acquire()?;
    /// let validity = guard.validity();
    /// let import = thread::spawn(move || (0..100).take_while(|_| validity.is_valid()).count());
    /// assert_eq!(import.join().unwrap(), 100);
    /// guard.release()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.guard.validity()
    }

    /// A view of the guard for work in other threads: its name, token and [validity](Self::validity). Costs no round trip.
    #[must_use]
    pub fn view(&self) -> GuardView {
        self.guard.view()
    }

    /// A token that is cancelled when the lock is lost or released, or the guard is dropped: for asynchronous work of the
    /// program. See [`Guard::cancellation_token`](crate::Guard::cancellation_token).
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.guard.cancellation_token()
    }

    /// Whether a client [asked](super::Locks::request_revocation) the holder to release the lock. Costs nothing.
    #[must_use]
    pub fn is_revoke_requested(&self) -> bool {
        self.guard.is_revoke_requested()
    }

    /// Blocks until a client [asks](super::Locks::request_revocation) the holder to release the lock, for `patience` at most,
    /// and returns whether one did.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio task.
    pub fn revoke_requested_within(&self, patience: Duration) -> Result<bool> {
        let asked = async { Ok(timeout(patience, self.guard.revoke_requested()).await.is_ok()) };
        wait("wait for a revocation", asked)
    }

    /// Runs `body` on this thread if the lock is held, and checks the lock again after it: `Ok` means that it was valid until
    /// then.
    ///
    /// Nothing stops a closure half-way. When the lock is lost during `body`, `body` runs on to its end, and its last steps
    /// run without the lock. A long one checks [`is_valid`](Self::is_valid) between its steps.
    ///
    /// ```
    /// # use lock_core::{ErrorKind, MemoryConfig, blocking::Locks};
    /// # fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::from(MemoryConfig::new().connect()?);
    /// let guard = locks.mutex("orders/42").acquire()?;
    /// assert_eq!(guard.run(|| 40 + 2)?, 42);
    /// let late = guard.run(|| locks.break_lock("orders/42")).unwrap_err();
    /// assert_eq!(late.error().kind(), ErrorKind::Lost);
    /// assert!(late.into_output().expect("it ran to its end")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) when the lock was lost before, and `body` did not run; or when it was lost until the
    /// end of `body`: then [`RunError::into_output`] has what `body` returned.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> Result<T, RunError<T>> {
        if let Some(error) = self.lost_error() {
            return Err(RunError::not_acquired(error));
        }
        let output = body();
        match self.lost_error() {
            Some(error) => Err(RunError { error, output: Some(output) }),
            None => Ok(output),
        }
    }

    /// Asks the server whether the lock is still held: one round trip.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::verify`](crate::Guard::verify), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio
    /// task. None of them loses the guard.
    pub fn verify(&self) -> Result<GuardState> {
        wait("verify", self.guard.verify())
    }

    /// Sets a new time to live, and returns the new [deadline](Self::valid_until): one round trip. See
    /// [`Guard::extend`](crate::Guard::extend).
    ///
    /// # Errors
    ///
    /// Those of [`Guard::extend`](crate::Guard::extend), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio
    /// task.
    pub fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        wait("extend", self.guard.extend(ttl))
    }

    /// Makes all later tokens of this name larger than `floor`: one round trip. See
    /// [`Guard::raise_token`](crate::Guard::raise_token).
    ///
    /// # Errors
    ///
    /// Those of [`Guard::raise_token`](crate::Guard::raise_token), and [`Unsupported`](crate::ErrorKind::Unsupported) inside
    /// of a tokio task.
    pub fn raise_token(&self, floor: Token) -> Result<()> {
        wait("raise token", self.guard.raise_token(floor))
    }

    /// Turns a writer into a reader without releasing the lock. See [`Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Errors
    ///
    /// Those of [`Guard::downgrade`](crate::Guard::downgrade), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a
    /// tokio task.
    pub fn downgrade(&mut self) -> Result<()> {
        let Some(guard) = Arc::get_mut(&mut self.guard) else { unreachable!("{ONLY_REENTRANT}") };
        wait("downgrade", guard.downgrade())
    }

    /// Releases the lock, and returns whether it was held until then. Blocks until the server has answered; dropping the
    /// guard does not.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`](crate::Guard::release): the release is repeated in the background. Inside of a tokio task
    /// [`Unsupported`](crate::ErrorKind::Unsupported), and the lock is released in the background too.
    pub fn release(self) -> Result<Released> {
        wait("release", self.into_async().release())
    }

    /// The guard, which releases the lock from now on.
    pub(super) fn into_async(self) -> crate::Guard {
        let Some(guard) = Arc::into_inner(self.guard) else { unreachable!("{ONLY_REENTRANT}") };
        guard
    }

    /// What locks of one backend alone can do, if this lock is one of them, also through layers.
    #[must_use]
    pub fn backend_specific<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.guard.backend_specific()
    }

    /// The error if the lock is lost.
    pub(super) fn lost_error(&self) -> Option<Error> {
        match self.state() {
            GuardState::Lost(reason) => Some(self.guard.lost_error(reason)),
            _ => None,
        }
    }
}

/// Why this guard is not shared: re-entrant guards only lend theirs.
const ONLY_REENTRANT: &str = "only re-entrant guards share a guard, and they never give it away";

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}
