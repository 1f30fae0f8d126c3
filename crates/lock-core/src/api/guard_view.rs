//! What the work under a lock needs of its guard.

use std::fmt;

use crate::values::token_reads::ViewReads;
use crate::{LockName, OwnerId, Token, Validity};

/// A view of a [`Guard`](crate::Guard): what the work under the lock needs of it, as a clone that can be moved into a task.
///
/// Made by [`Guard::view`](crate::Guard::view); the body of [`Mutex::run`](crate::Mutex::run) gets one. It does not hold the
/// lock: its [`validity`](Self::validity) ends as soon as a release begins or the guard is dropped.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let view = locks.mutex("orders/42").run(|view| async move {
///     assert!(view.validity().is_valid());
///     println!("writing under token {}", view.token());
///     view
/// }).await?;
/// assert!(!view.validity().is_valid()); // the lock is released
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct GuardView {
    pub(crate) name: LockName,
    pub(crate) token: Token,
    pub(crate) token_reads: ViewReads,
    pub(crate) owner: OwnerId,
    pub(crate) validity: Validity,
}

impl GuardView {
    /// The name of the lock.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// The fencing token: send it along with every write. See [`Guard::token`](crate::Guard::token).
    #[must_use]
    pub fn token(&self) -> Token {
        self.token_reads.note();
        self.token
    }

    /// The identity of the acquisition, as the store keeps it.
    #[must_use]
    pub const fn owner(&self) -> OwnerId {
        self.owner
    }

    /// How long the lock is held; see [`Guard::validity`](crate::Guard::validity).
    #[must_use]
    pub const fn validity(&self) -> &Validity {
        &self.validity
    }
}

/// The token counts as read: what is printed can be used.
impl fmt::Debug for GuardView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardView")
            .field("name", &self.name)
            .field("token", &self.token())
            .field("owner", &self.owner)
            .field("validity", &self.validity)
            .finish()
    }
}
