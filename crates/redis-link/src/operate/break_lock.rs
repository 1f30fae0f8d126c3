//! Breaks a lock that was seen, and no other.
//!
//! A request may be carried out long after its caller gave up, when the lock has another holder. So the lock is looked at first, and the
//! server removes it only if somebody still holds it who was seen: owner ids are unique.

use lock_core::{Error, ErrorKind, Outcome, Result};
use redis::Value;

use crate::route::client::RedisClient;
use crate::scripts::script::Call;

/// What became of a lock that was to be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breaking {
    /// What was seen is gone.
    Broken,
    /// Nothing was removed.
    Left {
        /// The type of the key, or a tombstone.
        kind: String,
        /// What stands for its holders.
        hash: String,
    },
}

impl RedisClient {
    /// Removes the lock that this script breaks, given what stands for its holders. Returns the type of the key that was removed, or that was
    /// left alone.
    ///
    /// # Errors
    ///
    /// With an unknown outcome the lock that was seen may have been broken, now or later.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock that was seen may be broken, now or later.
    pub async fn break_seen(&self, script: impl Fn(&str) -> Call + Send + Sync) -> Result<String> {
        let (mut seen, mut until) = (String::new(), None);
        loop {
            match self.break_if(&script, &seen).await? {
                Breaking::Broken => return Ok("string".to_owned()),
                Breaking::Left { kind, hash } if kind == "string" => seen = hash,
                Breaking::Left { kind, .. } => return Ok(kind),
            }
            // A holder that comes much later, as while this process is paused, is not meant.
            let now = self.clock().now();
            if now >= *until.get_or_insert_with(|| now + self.command_timeout()) {
                break;
            }
        }
        Err(Error::new(ErrorKind::Unavailable, self.endpoint().backend)
            .with_outcome(Outcome::NotApplied)
            .with_message("the lock changed hands each time that it was to be broken")
            .with_hint("inspect it, and break it again if it is still held too long"))
    }

    /// Removes the lock of these holders, by one request; with an empty text, only looks.
    ///
    /// # Errors
    ///
    /// As [`break_seen`](Self::break_seen).
    ///
    /// # Cancel safety
    ///
    /// As [`break_seen`](Self::break_seen).
    pub async fn break_if(
        &self,
        script: impl Fn(&str) -> Call + Send + Sync,
        seen: &str,
    ) -> Result<Breaking> {
        let (answer, resent) = self.run(&script(seen), &self.dispatch()).await?;
        let breaking = Breaking::read(&answer).ok_or_else(|| self.endpoint().unexpected(&answer))?;
        // The first sending may have broken it; in any case nobody holds it who was seen.
        Ok(if resent && !seen.is_empty() { Breaking::Broken } else { breaking })
    }
}

impl Breaking {
    fn read(answer: &Value) -> Option<Self> {
        let words: Vec<String> = redis::from_redis_value_ref(answer).ok()?;
        match <[String; 2]>::try_from(words) {
            Ok([kind, hash]) => Some(Self::Left { kind, hash }),
            Err(words) => (words == ["broken"]).then_some(Self::Broken),
        }
    }
}
