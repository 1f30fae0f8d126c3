//! The claim of a migration: a key beside the locks that notes in which migration they take part.

use std::sync::LazyLock;

use lock_core::{Finding, FindingLevel, Result};

use crate::route::client::RedisClient;
use crate::script;
use crate::scripts::script::Script;
use crate::scripts::wire;

/// The claims begin with this; the prefix of the locks follows.
const CLAIM: &str = "polylock:migration:";

static CLAIM_ONCE: LazyLock<Script> = script!(claim);
static CLAIMED: LazyLock<Script> = script!(claimed);
static UNCLAIM: LazyLock<Script> = script!(unclaim);

impl RedisClient {
    /// Notes that the keys under this prefix take part in a migration, unless another one is noted. Returns the one that
    /// is.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been noted. Call it again.
    pub async fn claim_keys(&self, prefix: &str, migration: &str) -> Result<String> {
        self.read(&CLAIM_ONCE.on(&[&key(prefix)]).arg(migration), wire::text).await
    }

    /// The migration that is noted for the keys under this prefix, if any is.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn claimed_keys(&self, prefix: &str) -> Result<Option<String>> {
        let noted = self.read(&CLAIMED.on(&[&key(prefix)]), wire::text).await?;
        Ok(Some(noted).filter(|noted| !noted.is_empty()))
    }

    /// Deletes what [`claim_keys`](Self::claim_keys) noted, if it is this migration.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, it may have been deleted. Call it again.
    pub async fn unclaim_keys(&self, prefix: &str, migration: &str) -> Result<()> {
        self.read(&UNCLAIM.on(&[&key(prefix)]).arg(migration), wire::flag).await.map(drop)
    }

    /// A warning for each other migration that has locks under this prefix.
    ///
    /// # Errors
    ///
    /// When a server cannot be reached, or refuses.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn other_claims(&self, prefix: &str, migration: &str) -> Result<Vec<Finding>> {
        let mut others = Vec::new();
        self.read_keys(CLAIM, None, |read| {
            let theirs = read.key.strip_prefix(CLAIM).unwrap_or_default();
            let other = read.value.filter(|other| other != migration && overlap(theirs, prefix));
            others.extend(other.map(|other| conflict(self.address(), theirs, prefix, &other)));
        })
        .await?;
        // A walk may see a key twice.
        others.sort_by(|one, other| one.what.cmp(&other.what));
        others.dedup();
        Ok(others)
    }
}

fn key(prefix: &str) -> String {
    format!("{CLAIM}{prefix}")
}

/// Whether a key can begin with both.
fn overlap(one: &str, other: &str) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn conflict(server: &str, theirs: &str, ours: &str, migration: &str) -> Finding {
    Finding::new(
        FindingLevel::Warning,
        server,
        format!(
            "the keys that begin with {theirs:?} take part in another migration, {migration:?}, and the keys of these \
             locks begin with {ours:?}"
        ),
        format!("end that migration first; if it has ended, delete the key {:?}", key(theirs)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_overlap_if_one_begins_with_the_other() {
        assert!(overlap("lock:", "lock:") && overlap("lock:", "lock:a/") && overlap("", "lock:"));
        assert!(!overlap("lock:a", "lock:b") && !overlap("locks:", "lock:"));
    }
}
