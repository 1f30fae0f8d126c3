//! The token base of a `dir`, as one session knows it: the numbers from which tokens are computed.

use std::fmt;
use std::sync::{Arc, Mutex};

use lock_core::{ErrorKind, Result};
use zookeeper_client::Stat;

use crate::error::error;
use crate::poison::lock;
use crate::session::Session;
use crate::token_ranges::TokenRanges;
use crate::watched_node::WatchedNode;
use crate::watches::Claim;

/// The token base of the locks in one directory.
pub(crate) struct TokenBase {
    pub(crate) node: WatchedNode,
    /// The latest that was seen: tokens keep growing even if somebody deletes the node.
    latest: Mutex<TokenRanges>,
}

impl TokenBase {
    /// The base of the locks in this directory, not read yet.
    pub(crate) fn beside(parent: &str, claim: Arc<Claim>) -> Arc<Self> {
        let path = format!("{}/{NODE}", if parent == "/" { "" } else { parent });
        Arc::new(Self { node: WatchedNode::new(path, claim), latest: Mutex::default() })
    }

    pub(crate) fn is_at(&self, parent: &str) -> bool {
        let above = self.path().strip_suffix(NODE).and_then(|path| path.strip_suffix('/'));
        above == Some(if parent == "/" { "" } else { parent })
    }

    pub(crate) fn path(&self) -> &str {
        &self.node.path
    }

    /// The base, and the transaction that wrote it. It is read and watched first unless what is known is the newest.
    pub(crate) async fn ranges(&self, session: &Session) -> Result<(TokenRanges, i64)> {
        let content = self.node.content(session).await.map_err(|fault| fault.on(self.path()))?;
        match content {
            Some(content) => {
                let ranges = self.parse(&content.data, &content.stat)?;
                Ok((self.saw(ranges), content.stat.mzxid))
            }
            None => Ok((self.saw(TokenRanges::default()), 0)),
        }
    }

    /// Notes that the base is at least this one, and returns the latest that was seen.
    pub(crate) fn saw(&self, ranges: TokenRanges) -> TokenRanges {
        let mut latest = lock(&self.latest);
        if latest.end() < ranges.end() {
            *latest = ranges;
        }
        latest.clone()
    }

    pub(crate) fn parse(&self, data: &[u8], stat: &Stat) -> Result<TokenRanges> {
        let written = u64::try_from(stat.mzxid).unwrap_or_default();
        TokenRanges::parse(data, written).ok_or_else(|| {
            let hint = "write a number to it, at least the largest token that was ever granted";
            error(ErrorKind::InvalidConfig, format!("the token base {} cannot be read", self.path()), hint)
        })
    }
}

impl fmt::Debug for TokenBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenBase").field("path", &self.path()).finish_non_exhaustive()
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
            assert_eq!(base.path(), path);
            assert!(base.is_at(parent) && !base.is_at("/lock") && !base.is_at("/lock/s"));
        }
    }
}
