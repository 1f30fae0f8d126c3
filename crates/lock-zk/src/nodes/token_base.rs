//! The token base of a `dir`, as one session knows it: the numbers from which tokens are computed.

use std::fmt;
use std::sync::{Arc, Mutex};

use lock_core::{ErrorKind, Result};
use zookeeper_client::Stat;

use crate::error::error;
use crate::nodes::token_ranges::TokenRanges;
use crate::nodes::watched_node::WatchedNode;
use crate::nodes::watches::Claim;
use crate::poison::lock;

/// The token base of the locks in one directory.
pub(crate) struct TokenBase {
    pub(crate) node: WatchedNode,
    /// All that was seen: tokens keep growing even if somebody deletes the node.
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

    /// Notes that the base is at least this one, and returns the latest that was seen.
    pub(crate) fn saw(&self, ranges: &TokenRanges) -> TokenRanges {
        let mut latest = lock(&self.latest);
        latest.join(ranges);
        latest.clone()
    }

    pub(crate) fn parse(&self, data: &[u8], stat: &Stat) -> Result<TokenRanges> {
        let written = u64::try_from(stat.mzxid).unwrap_or_default();
        let hint = "write a number to it, at least the largest token that was ever granted";
        let refused =
            |why| error(ErrorKind::InvalidConfig, format!("the token base {} {why}", self.path()), hint);
        let ranges = TokenRanges::parse(data, written).ok_or_else(|| refused("cannot be read"))?;
        // No node that is created here could reach its ranges, or its tokens would be smaller than former ones.
        if ranges.is_ahead_of(written) {
            return Err(refused("is of another ensemble, whose transactions have larger numbers"));
        }
        Ok(ranges)
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
    use crate::nodes::watches::WatchBudget;

    #[test]
    fn the_base_is_beside_the_directories() {
        for (parent, path) in [("/", "/!token-base"), ("/locks", "/locks/!token-base")] {
            let base = TokenBase::beside(parent, WatchBudget::new("").claim(0));
            assert_eq!(base.path(), path);
            assert!(base.is_at(parent) && !base.is_at("/lock") && !base.is_at("/lock/s"));
        }
    }

    #[test]
    fn no_state_of_the_base_takes_back_what_another_one_raised() {
        let base = TokenBase::beside("/", WatchBudget::new("").claim(0));
        let mut ranges = TokenRanges::parse(b"1000000000000000", 100).unwrap();
        // The second one is of an older holder, has a smaller floor, and fits below the first one.
        let (high, low) = (1_000_003_605_000_000, 1_000_003_600_000_000);
        assert!(ranges.raise(1_200, high));
        let before = base.saw(&ranges);
        assert!(ranges.raise(1_100, low));
        for read in [ranges, before, TokenRanges::default()] {
            let seen = base.saw(&read);
            assert!(seen.token(1_150) > Some(low) && seen.token(1_201) > Some(high), "{seen}");
        }
    }

    #[test]
    fn what_the_base_has_forgotten_is_not_remembered() {
        let base = TokenBase::beside("/", WatchBudget::new("").claim(0));
        let mut ranges = base.saw(&TokenRanges::parse(b"1000000", 100).unwrap());
        let old = ranges.clone();
        // Meanwhile somebody raises its token, and many leaders are elected.
        assert!(ranges.raise(150, 2_000_000));
        for leader in 1..40 {
            assert!(ranges.reach(leader << 32));
        }
        for read in [&ranges, &old] {
            assert_eq!(base.saw(read).token(200), None);
        }
        assert_eq!(base.saw(&ranges), ranges);
    }

    #[test]
    fn tokens_grow_though_somebody_deletes_the_base() {
        let base = TokenBase::beside("/", WatchBudget::new("").claim(0));
        let state = |data: &[u8]| TokenRanges::parse(data, 100).unwrap();
        let known = base.saw(&state(b"0 500 9000000\n500 600 9005000"));
        // Somebody else begins a new one: it ends higher, and begins lower.
        let seen = base.saw(&state(b"0 450 8000000\n450 700 10000000"));
        let of = |ranges: &TokenRanges, at| ranges.token(at).unwrap();
        assert!((0..600).all(|at| of(&seen, at) >= of(&known, at)), "{seen}");
        assert!((1..700).all(|at| of(&seen, at - 1) < of(&seen, at)), "{seen}");
    }
}
