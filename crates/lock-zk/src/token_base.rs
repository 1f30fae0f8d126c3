//! The token base of a `dir`, as one session knows it: the number that is added to the `czxid` of a node.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use lock_core::{ErrorKind, Result};
use tokio::sync::Mutex as AsyncMutex;

use crate::error::error;
use crate::poison::lock;
use crate::watches::{Claim, Watch};

/// The token base of the locks in one directory.
pub(crate) struct TokenBase {
    pub(crate) path: String,
    pub(crate) claim: Arc<Claim>,
    known: Mutex<Known>,
    /// Held by the task that reads.
    pub(crate) reading: AsyncMutex<()>,
}

#[derive(Default)]
pub(crate) struct Known {
    /// The largest number that was seen.
    pub(crate) number: u64,
    /// Fires when the number may be outdated.
    pub(crate) watch: Option<Watch>,
    /// Whether it was read before, so that an event may have come that another server does not know of yet.
    pub(crate) was_read: bool,
}

impl TokenBase {
    /// The base of the locks in this directory, not read yet.
    pub(crate) fn beside(parent: &str, claim: Arc<Claim>) -> Arc<Self> {
        let path = format!("{}/{NODE}", if parent == "/" { "" } else { parent });
        Arc::new(Self { path, claim, known: Mutex::default(), reading: AsyncMutex::default() })
    }

    pub(crate) fn is_at(&self, parent: &str) -> bool {
        let above = self.path.strip_suffix(NODE).and_then(|path| path.strip_suffix('/'));
        above == Some(if parent == "/" { "" } else { parent })
    }

    /// The number, if its watch has not fired.
    pub(crate) fn newest(&self) -> Option<u64> {
        let mut known = self.known();
        if known.watch.as_mut()?.now_or_never().is_some() {
            known.watch = None;
            return None;
        }
        Some(known.number)
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    pub(crate) fn parse(&self, data: &[u8]) -> Result<u64> {
        let number = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
        number.filter(|&number| i64::try_from(number).is_ok()).ok_or_else(|| {
            let hint = "write a number to it, at least the largest token that was ever granted";
            error(ErrorKind::InvalidConfig, format!("the token base {} is not a number", self.path), hint)
        })
    }
}

impl fmt::Debug for TokenBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBase").field("path", &self.path).finish_non_exhaustive()
    }
}

/// No directory of a lock has this name: there, an exclamation mark is escaped.
const NODE: &str = "!token-base";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::WatchBudget;

    #[test]
    fn the_base_is_beside_the_directories() {
        for (parent, path) in [("/", "/!token-base"), ("/locks", "/locks/!token-base")] {
            let base = TokenBase::beside(parent, WatchBudget::new("").claim(0));
            assert_eq!(base.path, path);
            assert!(base.is_at(parent) && !base.is_at("/lock") && !base.is_at("/lock/s"));
        }
        let base = TokenBase::beside("/locks", WatchBudget::new("").claim(0));
        assert_eq!(base.parse(b"17").unwrap(), 17);
        for bad in [&b""[..], b"-1", b"x", b"\xff", b"9223372036854775808"] {
            assert_eq!(base.parse(bad).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
        }
    }
}
