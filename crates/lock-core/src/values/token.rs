//! The fencing token.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fencing token: a number that grows with every holder of one lock name.
///
/// Send it along with every write, and let the resource refuse a write with a smaller token than one
/// that it has seen. Then a holder that was paused beyond its lease does no harm. A token protects
/// nothing unless the resource checks it.
///
/// A token fits a signed 64-bit column: `UPDATE account SET cents = $1, token = $2 WHERE id = 7 AND token <= $2`.
/// [FENCING] shows the whole of it, for PostgreSQL, Redis, ZooKeeper and S3.
///
/// Source of the idea: the sequencer of Burrows, "The Chubby lock service" (2006); the name:
/// Kleppmann, "How to do distributed locking" (2016).
///
/// [FENCING]: https://github.com/polylock/polylock/blob/main/docs/FENCING.md
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let first = locks.mutex("orders/42").acquire().await?;
/// let stale = first.token();
/// first.release().await?;
/// let second = locks.mutex("orders/42").acquire().await?;
/// assert!(stale < second.token());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(u64);

impl Token {
    /// The token with this number.
    ///
    /// # Panics
    ///
    /// If the number does not fit a signed 64-bit integer.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        assert!(number <= i64::MAX as u64, "a fencing token must fit a signed 64-bit integer");
        Self(number)
    }

    /// The token with a number that a store tells, in which anybody may have written it; `None` if there is no such token.
    #[must_use]
    pub const fn stored(number: u64) -> Option<Self> {
        if number <= i64::MAX as u64 { Some(Self(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}
