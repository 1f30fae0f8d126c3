//! Inspects, breaks, lists and watches locks.

use lock_core::backend::MAX_LISTED;
use lock_core::migration::Tombstone;
use lock_core::{Capabilities, Error, ErrorKind, LockMode, LockName, LockState, OwnerId, Result, Token};
use redis_link::error::not_a_lock;
use redis_link::inspection::Inspection;
use redis_link::key_watch::KeyWatch;
use redis_link::keys::Keys;
use redis_link::waiting::{ROUNDING, poll_pause};
use tokio::time::sleep;

use crate::context::Context;
use crate::error::BACKEND;
use crate::tombstone::moved;

impl Context {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState> {
        Ok(self.server.inspect(&self.keys(name)?, None).await?.state())
    }

    /// Waits until the lock has other holders. Each round arms the report of the server that the key has changed, then inspects
    /// the lock, so that no change falls between. After a renewal the round ends in the same holders, and the next begins.
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let keys = self.keys(name)?;
        loop {
            let watch = KeyWatch::arm(&self.push, &keys).await;
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            let expires = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let again = match watch.is_armed() {
                // A report that is lost, and the end of a lease, which the server may report late.
                true => expires.map_or(self.ttl, |left| self.ttl.min(left + ROUNDING)),
                false => poll_pause(),
            };
            tokio::select! {
                () = watch.reported() => {}
                () = sleep(again) => {}
            }
        }
    }

    pub(crate) async fn break_lock(&self, name: &LockName) -> Result<bool> {
        match self.server.break_lock(&self.keys(name)?).await?.as_str() {
            "string" => Ok(true),
            "none" => Ok(false),
            tombstone if Tombstone::is_one(tombstone) => Err(moved(tombstone)),
            kind => Err(not_a_lock(BACKEND, kind)),
        }
    }

    pub(crate) async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let keys = self.keys(name)?;
        let seen = self.server.inspect(&keys, None).await?;
        if !matches!(seen.kind.as_str(), "string" | "none") {
            return Err(not_a_lock(BACKEND, &seen.kind));
        }
        let Some(owner) = holder_with(&seen, token)? else { return Ok(false) };
        // It compares the owner id, which is unique. `None`: the request was sent twice, and the first sending removed the
        // lock that was seen a moment ago.
        Ok(self.server.release(&keys, owner, None).await?.unwrap_or(true))
    }

    pub(crate) async fn list(&self, prefix: &str, capabilities: &Capabilities) -> Result<Vec<LockName>> {
        let beginning = format!("{}{prefix}", self.prefix);
        let keys = self.server.client.keys_that_begin(&beginning, MAX_LISTED).await?;
        capabilities.check_listed(keys.len())?;
        Ok(Keys::names(&self.prefix, keys))
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
