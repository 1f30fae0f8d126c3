//! The guard of a leader.

use std::ops::Deref;

use crate::{Guard, Released, Result};

/// The guard of a leader, from [`Election::campaign`](crate::Election::campaign) until it [resigns](Self::resign), is
/// dropped or loses the leadership.
///
/// It dereferences to its [`Guard`]: watch [`lost`](Guard::lost), or let [`run`](Guard::run) do it, and send the
/// [`token`](Guard::token) with every write.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let leadership = locks.election("scheduler").campaign("web-1").await?;
/// leadership.run(async { /* the work; dropped when the leadership is lost */ }).await?;
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping it resigns in the background, as dropping a [`Guard`] releases its lock.
#[derive(Debug)]
#[must_use = "it resigns when it is dropped"]
pub struct Leadership(Guard);

impl Leadership {
    pub(super) const fn new(guard: Guard) -> Self {
        Self(guard)
    }

    /// Resigns: the next candidate leads. Returns whether this one led until then.
    ///
    /// A new [campaign](crate::Election::campaign) may follow at once: it waits behind the other candidates where the
    /// backend has an order of waiters.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the resignation goes on in the background.
    pub async fn resign(self) -> Result<Released> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

/// The guard of the lock that makes it the leader.
impl From<Leadership> for Guard {
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}
