//! Breaks locks.

use lock_core::migration::Tombstone;
use lock_core::{Error, ErrorKind, LockMode, OwnerId, Result, Token};
use redis_link::error::not_a_lock;
use redis_link::inspection::Inspection;
use redis_link::keys::Keys;

use crate::error::{BACKEND, moved};
use crate::store::RedisStore;

impl RedisStore {
    /// Removes the lock that there is now.
    pub(crate) async fn break_seen(&self, keys: &Keys) -> Result<bool> {
        match self.server.break_lock(keys).await?.as_str() {
            "string" => Ok(true),
            "none" => Ok(false),
            tombstone if Tombstone::is_one(tombstone) => Err(moved(tombstone)),
            kind => Err(not_a_lock(BACKEND, kind)),
        }
    }

    /// Removes the lock from the holder with this token.
    pub(crate) async fn break_one(&self, keys: &Keys, token: Token) -> Result<bool> {
        let seen = self.server.inspect(keys, None).await?;
        if !matches!(seen.kind.as_str(), "string" | "none") {
            return Err(not_a_lock(BACKEND, &seen.kind));
        }
        let Some(owner) = holder_with(&seen, token)? else { return Ok(false) };
        // It compares the owner id, which is unique. `None`: the request was sent twice, and the first sending removed the
        // lock that was seen a moment ago.
        Ok(self.server.release(keys, owner, None).await?.unwrap_or(true))
    }
}

/// The owner id of the holder with this token, if it holds the lock.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] if another than the last of several holders may have the token: the server stores only the
/// last one.
fn holder_with(seen: &Inspection, token: Token) -> Result<Option<OwnerId>> {
    let is_last = seen.token == Some(token);
    let holds = match seen.mode {
        Some(LockMode::Shared | LockMode::Permit { .. }) if !is_last => {
            let is_old = seen.token.is_none_or(|last| token < last);
            // The owner of the last token is excluded: its token is known, and differs.
            let others = seen.shares.iter().any(|(owner, _)| *owner != seen.owner);
            return if is_old && others { Err(not_kept(token)) } else { Ok(None) };
        }
        Some(LockMode::Shared | LockMode::Permit { .. }) => {
            seen.shares.iter().any(|(owner, _)| *owner == seen.owner)
        }
        _ => is_last && seen.kind == "string" && seen.value == seen.owner,
    };
    Ok(OwnerId::decode(&seen.owner).filter(|_| holds))
}

fn not_kept(token: Token) -> Error {
    Error::new(ErrorKind::Unsupported, BACKEND)
        .with_message(format!(
            "several holders share the lock, and the server stores only the last token: the holder of {token} is unknown"
        ))
        .with_hint("break the lock for all of them, or wait until that lease has expired")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shared(shares: &[(&str, u64)], fence: (u64, &str)) -> Inspection {
        let shares = shares.iter().map(|(owner, left)| ((*owner).to_owned(), Duration::from_millis(*left)));
        let mut seen =
            Inspection { kind: "string".into(), value: "polylock:shared".into(), ..Inspection::default() };
        (seen.token, seen.owner) = (Some(Token::new(fence.0)), fence.1.to_owned());
        (seen.mode, seen.shares) = (Some(LockMode::Shared), shares.collect());
        seen
    }

    #[test]
    fn of_several_holders_only_the_last_is_known_by_its_token() {
        let id = "0123456789abcdef0123456789abcdef";
        let fence = (17, id);
        let with = |inspection: &Inspection, token| holder_with(inspection, Token::new(token));
        let both = shared(&[("ffff", 300), (id, 900)], fence);
        assert_eq!(with(&both, 17).unwrap(), OwnerId::decode(id));
        assert_eq!(with(&both, 16).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(with(&both, 18).unwrap(), None, "it was never granted");
        let left = shared(&[("ffff", 300)], fence);
        assert_eq!(with(&left, 17).unwrap(), None, "the last has left");
        assert_eq!(with(&left, 16).unwrap_err().kind(), ErrorKind::Unsupported);
        let alone = shared(&[(id, 300)], fence);
        assert_eq!(with(&alone, 16).unwrap(), None, "there is no other holder");
    }
}
