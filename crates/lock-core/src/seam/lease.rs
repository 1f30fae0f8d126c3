//! The trait of one granted lock, which a backend implements and a guard holds.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::values::error::NO_BACKEND;
use crate::{
    AcquireRequest, BootInstant, Error, ErrorKind, GuardState, OwnerId, Result, Revocation, Token, Validity,
};

/// One lock that was granted: a backend implements it, a [`Guard`](crate::Guard) holds it.
///
/// # Contract
///
/// * [`validity`](Self::validity) never lasts longer than the server keeps the lock: it counts from before the request was
///   sent, less a margin for clock drift.
/// * Dropping any future of a lease at any await leaves the lease usable. The next call finds out or undoes what the
///   dropped one may have done.
/// * A lease that is dropped without [`release`](Self::release) is no longer renewed, so it expires.
#[async_trait]
pub trait Lease: Any + Debug + Send + Sync {
    /// The fencing token of this acquisition. Layers may read it, as for a log: that does not count as known in
    /// [`pass_on`](Self::pass_on). A layer that sends it to a resource says there that it is known.
    fn token(&self) -> Token;

    /// The identity of this acquisition, as the store keeps it. Acquisitions of one process that
    /// [pass the lock on](Self::pass_on) share it.
    fn owner(&self) -> OwnerId;

    /// How long the holder may rely on the lock.
    fn validity(&self) -> &Validity;

    /// Whether the holder was asked to release the lock; `None` where the backend cannot know.
    fn revocation(&self) -> Option<&Revocation> {
        None
    }

    /// The descriptor of the locked file, where the kernel keeps the lock; `None` elsewhere.
    #[cfg(unix)]
    fn locked_file(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }

    /// What locks of this backend alone can do, in a type of the backend, for
    /// [`Guard::backend_specific`](crate::Guard::backend_specific). Layers return that of the lease below.
    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Sets a new time to live and returns the new deadline: a lock with a fixed ttl expires `ttl` from now, another one is
    /// renewed with this ttl from now on. Where a session keeps the lock, the backend deletes it at a fixed end.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a `ttl` that the backend
    /// [cannot honour](crate::Capabilities::check_lease_ttl),
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is lost; it is never acquired again.
    async fn extend(&self, ttl: Duration) -> Result<BootInstant>;

    /// The same, when the guard is gone and nobody counts on the lock any more: a store without a clock may then note when it ends by the time
    /// of day.
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend).
    async fn leave(&self, ttl: Duration) -> Result<BootInstant> {
        self.extend(ttl).await
    }

    /// Asks the server whether the lock is still held.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    async fn verify(&self) -> Result<GuardState>;

    /// Releases the lock: stops and joins the renewal, then removes what this acquisition has on the server, and nothing
    /// else.
    ///
    /// It may be called again after its future was dropped or failed, until it returns `Ok`. That is final.
    ///
    /// # Errors
    ///
    /// When the outcome is unknown; call it again.
    async fn release(&mut self) -> Result<Released>;

    /// Releases the lock as [`release`](Self::release) does, or hands it over to another acquisition of this process. A
    /// backend hands over where it can do so in one step, and where no other process is overtaken for too long.
    ///
    /// After an error or a drop, call it or `release` again, as for `release`.
    ///
    /// # Errors
    ///
    /// As for `release`.
    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        let _ = next;
        Ok(HandOver::Released(self.release().await?))
    }

    /// Hands the lock over to another acquisition of this process without asking the store, and returns whether it did: the
    /// store goes on keeping the lock for the same owner id, and [`token`](Self::token) is a larger one, which the grant
    /// has reserved. Everything else stays as it is.
    ///
    /// It is called only where the next acquisition is on the same terms: exclusive, of the same
    /// [owner](AcquireRequest::owner), with the same lease, which is renewed and neither extended, raised nor limited. A backend
    /// lets go of the lock after some hand-overs in a row, or some milliseconds: other processes may be waiting.
    /// [`TokenBlock`](crate::TokenBlock) does the counting. The default hands nothing over.
    ///
    /// `is_token_known` says whether the holder has read its token, or still can by a view that outlives the guard. Where the store
    /// itself checks tokens, and knows only the grant, the backend declines then: it could not refuse the earlier holder. Resources
    /// that compare tokens can.
    fn pass_on(&mut self, is_token_known: bool) -> bool {
        let _ = is_token_known;
        false
    }

    /// Turns a [writer](AcquireRequest::writes) into a reader with the same token, and admits the readers ahead of the
    /// first other waiter. The lock is never free meanwhile, and only readers are admitted.
    ///
    /// It may be called again after its future was dropped or failed. Until it returns `Ok`, the lock is held as writer or
    /// as reader, and [`release`](Self::release) releases either. Required where
    /// [`Capabilities::shared`](crate::Capabilities::shared) is supported.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend cannot do it,
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is lost,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the outcome is unknown,
    /// [`Denied`](crate::ErrorKind::Denied) or [`Exhausted`](crate::ErrorKind::Exhausted) when the server refuses it.
    async fn downgrade(&mut self) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, NO_BACKEND)
            .with_message("a writer cannot become a reader on this backend")
            .with_hint("release the lock, then acquire it as a reader"))
    }

    /// Makes all later tokens larger than `floor`: those of all locks of this name that the store grants from now on.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend cannot do it,
    /// [`Lost`](crate::ErrorKind::Lost) when the lock is lost,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the outcome is unknown.
    async fn raise_token(&self, floor: Token) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, NO_BACKEND)
            .with_message(format!("the tokens of this backend cannot be raised to {floor}"))
            .with_hint("use a backend that can, such as redis://"))
    }
}

/// The outcome of a [hand-over](Lease::hand_over).
#[derive(Debug)]
#[non_exhaustive]
pub enum HandOver {
    /// The lock now belongs to the next acquisition.
    HandedOver(Box<dyn Lease>),
    /// The lock was released; the next acquisition has to ask the server.
    Released(Released),
}

/// The outcome of a release.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, Released};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// match guard.release().await? {
///     Released::Released => println!("the lock was held until now"),
///     _ => println!("the lock was lost before: check what the work has written"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// The lock was held until now.
    Released,
    /// The lock was lost before; another client may have held it since.
    AlreadyLost,
}
