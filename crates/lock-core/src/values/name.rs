//! The name of a lock.

use std::fmt;
use std::sync::Arc;

use crate::values::error::NO_BACKEND;
use crate::{Error, ErrorKind, Result};

/// The name of a lock: 1 to [`LockName::MAX_BYTES`] bytes of UTF-8, compared byte for byte.
///
/// Every character is allowed; a backend escapes what its store does not accept, so two names never share a key or node.
/// Redis refuses two kinds of names: in cluster mode a name with a `}` outside of a hash tag, and without a prefix a name that
/// begins with `polylock:`.
///
/// # Examples
///
/// ```
/// # use lock_core::{ErrorKind, LockName};
/// let name = LockName::new("orders/42")?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::InvalidName);
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Checks the name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] when it is empty or too long.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        match name.len() {
            0 => Err(Error::new(ErrorKind::InvalidName, NO_BACKEND)
                .with_message("the lock name is empty")
                .with_hint("give the lock a name, such as \"orders/42\"")),
            length if length > Self::MAX_BYTES => Err(Error::new(ErrorKind::InvalidName, NO_BACKEND)
                .with_message(format!("the lock name {:?}... has {length} bytes", preview(name)))
                .with_hint(format!(
                    "use at most {} bytes, for instance a hash of the long part",
                    Self::MAX_BYTES
                ))),
            _ => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn preview(name: &str) -> &str {
    let end = (0..=24).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::InvalidName);
        assert!(LockName::new("x".repeat(LockName::MAX_BYTES)).is_ok());
        let error = LockName::new("ö".repeat(LockName::MAX_BYTES)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        assert!(error.to_string().contains("2048 bytes"), "{error}");
    }
}
