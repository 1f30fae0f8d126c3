//! The trait that a backend implements, and what it uses.

use std::fmt::Debug;
use std::time::Duration;

use tokio::time::sleep;

/// The attribute that implementations of [`Backend`] and [`Lease`] need.
pub use async_trait::async_trait;

pub use crate::seam::capabilities::{Capabilities, LeaseKind, MAX_LISTED, Support};
use crate::seam::migration::{MigrationSource, MigrationTarget};
pub use crate::seam::request::{AcquireRequest, LeasePolicy, Mode, OnQueued, Wait};
use crate::{DoctorReport, Lease, LockName, LockState, Locks, Result, Token};

/// How often a backend without notifications looks for another holder.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A store that grants locks.
///
/// # Contract
///
/// * **Exclusion.** A lock is granted to one holder at a time, or to several whose [`Mode`]s allow sharing.
/// * **Tokens grow.** The token of a grant is larger than every earlier token of the same name, whichever process got it.
/// * **Independent leases.** Each sharer has a lease of its own: one may end while the others last.
/// * **Own identity.** Every acquisition has an [`OwnerId`](crate::OwnerId) of its own.
/// * **Cancel safety.** Dropping a future at any await leaves nothing behind: a task that outlives the caller rolls back
///   what may have reached the server.
/// * **Contention is no error.** A lock that another client holds is [`Acquired::Busy`]. So is one whose key or node is
///   used for something else.
/// * **Deadlines.** A lock that is known to be busy at the deadline is [`Acquired::Busy`]. A server that has not said so is
///   awaited: the library drops the future 100 ms after the deadline, and one that does not wait after the
///   [answer timeout](Capabilities::answer_timeout). A waiter survives an outage of about one lease or session.
///
/// A backend that wraps another one and forwards its [`capabilities`](Self::capabilities) must forward every method, those
/// with a default too. Otherwise `doctor` and `settle` do nothing, and methods of [supported](Support::Yes) capabilities fail
/// with [`Unexpected`](crate::ErrorKind::Unexpected).
///
/// Per process and name, the library sends one `acquire` that waits at a time; the other tasks wait in a queue of the
/// process. Requests that do not wait may run beside it, in a mode that can share the lock.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// What this backend can do.
    fn capabilities(&self) -> &Capabilities;

    /// Connects, if that is still to be done: for a backend that connects at its first use. The default does nothing.
    ///
    /// # Errors
    ///
    /// As for connecting; the next use tries again.
    async fn connect(&self) -> Result<()> {
        Ok(())
    }

    /// Acquires the lock, waiting as long as the request says.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses: [`while_waiting`](crate::Error::while_waiting) if it had answered that the lock
    /// is busy. Then the caller may ask again.
    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired>;

    /// Reads the state of a lock without changing it.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn inspect(&self, name: &LockName) -> Result<LockState>;

    /// Waits until the lock has [other holders](LockState::has_holders_of) than `seen`, and returns its state then: at once
    /// if it has by now. It may wait for ever.
    ///
    /// The default polls. A backend that is notified of changes overrides it: it arms its notification first, then
    /// inspects, so that no change falls between. An observer makes one call after the other, so a call that was dropped
    /// leaves nothing for good.
    ///
    /// # Errors
    ///
    /// As for [`inspect`](Self::inspect).
    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        loop {
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Removes the lock from all its holders, and returns whether there were any.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn break_lock(&self, name: &LockName) -> Result<bool>;

    /// Removes the lock from the holder with this token, if it still holds the lock, and returns whether it did. Other
    /// sharers keep the lock. Required where [`Capabilities::breaks_one`] is supported.
    ///
    /// The token is the one that [`inspect`](Self::inspect) shows. The store compares and removes in one step: a later grant
    /// is never affected. Tasks of one process that pass the lock on among themselves share a grant.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot identify the holder by its token; when the
    /// server is unavailable or refuses.
    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let _ = (name, token);
        let capabilities = self.capabilities();
        capabilities.check_breaks_one().and_then(|()| Err(capabilities.not_implemented("break_lock_if")))
    }

    /// Returns the names of the locks that begin with this prefix, at most [`MAX_LISTED`], in any order; duplicates are
    /// allowed. Required where [`Capabilities::listing`] is supported.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for too many names; when the server is unavailable or refuses.
    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let _ = prefix;
        let capabilities = self.capabilities();
        capabilities.check_listing().and_then(|()| Err(capabilities.not_implemented("list")))
    }

    /// Asks all holders to release the lock, and returns whether there were any. Required where
    /// [`Capabilities::revocation`] is supported.
    ///
    /// # Errors
    ///
    /// When the server is unavailable or refuses.
    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        let _ = name;
        let capabilities = self.capabilities();
        capabilities.check_revocation().and_then(|()| Err(capabilities.not_implemented("request_revocation")))
    }

    /// Examines the servers: version, role and settings that endanger locks. The default reports nothing.
    ///
    /// # Errors
    ///
    /// When the server is unavailable.
    async fn doctor(&self) -> Result<DoctorReport> {
        Ok(DoctorReport::default())
    }

    /// The store as one that locks can move from, name by name. The default is that they cannot.
    fn migration_source(&self) -> Option<&dyn MigrationSource> {
        None
    }

    /// The store as one that locks can move to. The default is that they cannot.
    fn migration_target(&self) -> Option<&dyn MigrationTarget> {
        None
    }

    /// Waits until the roll-backs of dropped acquisitions have finished, as far as the servers answer.
    /// [`Locks::close`](crate::Locks::close) awaits it for a few seconds before it calls [`close`](Self::close).
    ///
    /// The default does nothing. A wrapper has to forward it.
    async fn settle(&self) {}

    /// Closes the connections. Locks that are held end with their leases or sessions. Acquisitions under way end with
    /// [`Closed`](crate::ErrorKind::Closed); what they have at the servers ends with them, whether they are polled or not.
    ///
    /// # Errors
    ///
    /// When the server does not confirm; the connections are closed all the same.
    async fn close(&self) -> Result<()>;
}

/// What [`Locks::layer`] puts on: a backend over theirs by [`Locks::over`], or an observer by [`Locks::observe`].
pub trait Layer {
    /// These locks with the layer.
    fn layer(self, locks: Locks) -> Locks;
}

/// The outcome of an acquisition.
#[derive(Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// The lock was granted.
    Held(Box<dyn Lease>),
    /// Another client holds it.
    Busy,
}
