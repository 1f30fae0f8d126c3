//! Breaks a lock that was seen, and no other.
//!
//! A request may be carried out long after its caller gave up, when the lock has another holder. So the lock is looked at first, and the
//! server removes it only if its value is still the one that was seen: owner ids are unique, and so are values.

use lock_core::{Error, ErrorKind, Outcome, Result};
use redis::Value;

use crate::client::RedisClient;
use crate::script::Call;

/// How often the holder may change while it is to be broken.
const TRIES: usize = 16;

/// What a script of a break answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Broken,
    /// The type of the key, or a tombstone, and the hash of the value.
    Seen(String, String),
}

impl RedisClient {
    /// Removes the lock that this script breaks, given the hash of its value, or nothing to look only. Returns the type of the key that was
    /// removed, or that was left alone.
    ///
    /// # Errors
    ///
    /// With an unknown outcome the lock that was seen may have been broken, now or later.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock that was seen may be broken, now or later.
    pub async fn break_seen(&self, script: impl Fn(&str) -> Call) -> Result<String> {
        let mut hash = String::new();
        for _ in 0..TRIES {
            let (answer, resent) = self.run(&script(&hash), &self.dispatch()).await?;
            match Answer::read(&answer).ok_or_else(|| self.endpoint().unexpected(&answer))? {
                Answer::Broken => return Ok("string".to_owned()),
                // The first sending may have broken it; in any case it is gone.
                Answer::Seen(..) if resent && !hash.is_empty() => return Ok("string".to_owned()),
                Answer::Seen(kind, seen) if kind == "string" => hash = seen,
                Answer::Seen(kind, _) => return Ok(kind),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, self.endpoint().backend)
            .with_outcome(Outcome::NotApplied)
            .with_message("the lock changed hands each time that it was to be broken")
            .with_hint("inspect it, and break it again if it is still held too long"))
    }
}

impl Answer {
    fn read(answer: &Value) -> Option<Self> {
        let words: Vec<String> = redis::from_redis_value_ref(answer).ok()?;
        match <[String; 2]>::try_from(words) {
            Ok([kind, hash]) => Some(Self::Seen(kind, hash)),
            Err(words) => (words == ["broken"]).then_some(Self::Broken),
        }
    }
}
