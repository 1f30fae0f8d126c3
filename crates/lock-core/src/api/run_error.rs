//! The error of a body that ran under a lock, or could not.

use std::fmt;

use crate::Error;

/// The error of [`Guard::run`](crate::Guard::run) and [`Mutex::run`](crate::Mutex::run): the lock was lost while they ran
/// their body, or `Mutex::run` could not acquire it. The `?` operator turns it into an [`Error`].
///
/// # Examples
///
/// ```
/// # use std::{thread, time::Duration};
/// # use lock_core::{ErrorKind, LockOptions, MemoryConfig, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let ttl = Duration::from_millis(100);
/// let guard = locks.mutex_with("a", LockOptions::new().fixed_ttl(ttl))?.acquire().await?;
/// // A body that blocks its thread beyond the end of the lease.
/// let late = guard.run(async { thread::sleep(3 * ttl); "written" }).await.unwrap_err();
/// assert_eq!(late.error().kind(), ErrorKind::Lost);
/// assert_eq!(late.into_output(), Some("written"));
/// # Ok(())
/// # }
/// ```
pub struct RunError<T> {
    pub(crate) error: Error,
    pub(crate) output: Option<T>,
}

impl<T> RunError<T> {
    /// Why the lock was lost, with the kind [`ErrorKind::Lost`](crate::ErrorKind::Lost); or else why it was not acquired.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What the body returned, if it ended before the loss was noticed. `None` when it was dropped, or never ran.
    #[must_use]
    pub fn into_output(self) -> Option<T> {
        self.output
    }
}

impl<T> RunError<T> {
    /// Whether the body was dropped or never ran.
    pub(crate) const fn has_no_output(&self) -> bool {
        self.output.is_none()
    }

    /// The error of a body that never ran.
    pub(crate) const fn not_acquired(error: Error) -> Self {
        Self { error, output: None }
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
