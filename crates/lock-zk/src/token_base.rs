//! The token base of a `dir`, as one session knows it: the number from which tokens are computed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::{ErrorKind, Result, TokenBlock};
use zookeeper_client::Stat;

use crate::error::error;
use crate::session::Session;
use crate::watched_node::WatchedNode;
use crate::watches::Claim;

/// The token base of the locks in one directory.
pub(crate) struct TokenBase {
    pub(crate) node: WatchedNode,
    /// The largest number that was seen: tokens keep growing even if somebody deletes the node.
    largest: AtomicU64,
}

impl TokenBase {
    /// The base of the locks in this directory, not read yet.
    pub(crate) fn beside(parent: &str, claim: Arc<Claim>) -> Arc<Self> {
        let path = format!("{}/{NODE}", if parent == "/" { "" } else { parent });
        Arc::new(Self { node: WatchedNode::new(path, claim), largest: AtomicU64::new(0) })
    }

    pub(crate) fn is_at(&self, parent: &str) -> bool {
        let above = self.path().strip_suffix(NODE).and_then(|path| path.strip_suffix('/'));
        above == Some(if parent == "/" { "" } else { parent })
    }

    pub(crate) fn path(&self) -> &str {
        &self.node.path
    }

    /// The base, and the transaction that wrote it. It is read and watched first unless the known number is the newest.
    pub(crate) async fn number(&self, session: &Session) -> Result<(u64, i64)> {
        let content = self.node.content(session).await.map_err(|fault| fault.on(self.path()))?;
        match content {
            Some(content) => {
                let number = self.parse(&content.data)?;
                Ok((self.saw(beyond_blocks(number, &content.stat)), content.stat.mzxid))
            }
            None => Ok((self.saw(0), 0)),
        }
    }

    /// Notes that the base is at least this number, and returns the largest that was seen.
    pub(crate) fn saw(&self, number: u64) -> u64 {
        self.largest.fetch_max(number, Ordering::Relaxed).max(number)
    }

    pub(crate) fn parse(&self, data: &[u8]) -> Result<u64> {
        let number = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok());
        number.filter(|&number| i64::try_from(number).is_ok()).ok_or_else(|| {
            let hint = "write a number to it, at least the largest token that was ever granted";
            error(ErrorKind::InvalidConfig, format!("the token base {} is not a number", self.path()), hint)
        })
    }
}

impl fmt::Debug for TokenBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBase").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// The number in the node, unless grants that did not know of it have larger tokens: blocks of transactions before the one that
/// wrote it. A number that is written by hand may be as small as that.
pub(crate) fn beyond_blocks(number: u64, written: &Stat) -> u64 {
    number.max(u64::try_from(written.mzxid).unwrap_or_default().saturating_mul(TokenBlock::SIZE))
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
            assert_eq!(base.path(), path);
            assert!(base.is_at(parent) && !base.is_at("/lock") && !base.is_at("/lock/s"));
        }
        let base = TokenBase::beside("/locks", WatchBudget::new("").claim(0));
        assert_eq!(base.parse(b"17").unwrap(), 17);
        for bad in [&b""[..], b"-1", b"x", b"\xff", b"9223372036854775808"] {
            assert_eq!(base.parse(bad).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
        }
    }
}
