//! The tombstones of locks that have moved to another store: writing, reading, removing and listing them.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::drift::valid_until;
use lock_core::migration::{Reading, Removal, Removed, Tombstone};
use lock_core::{BootInstant, Error, ErrorKind, LockName, Outcome, OwnerId, Result};
use redis::Value;
use redis_link::keys::Keys;
use redis_link::wire;

use crate::error::{BACKEND, moved};
use crate::recipes::recipe::KeyState;
use crate::store::RedisStore;

/// How long replicas may take for a tombstone.
const REPLICATION_LIMIT: Duration = Duration::from_secs(2);

impl RedisStore {
    /// Replaces the lock of an exclusive owner by a tombstone that lives from `sent` on, and reports whether it is there.
    pub(crate) async fn swap(&self, keys: &Keys, owner: OwnerId, tombstone: &Tombstone) -> Result<bool> {
        let call = self.server.recipe().swap(keys, owner, tombstone);
        let replicas = self.server.client.connected_replicas(keys).await?;
        if replicas == 0 {
            return self.server.client.read(&call, wire::flag).await;
        }
        let (answer, have) = self.server.client.replicate(keys, &call, replicas, REPLICATION_LIMIT).await?;
        match wire::flag(&answer) {
            Some(true) if have < replicas => Err(not_replicated(have, replicas)),
            Some(is_there) => Ok(is_there),
            None => Err(self.server.client.endpoint().unexpected(&answer)),
        }
    }

    /// Reads the tombstone of a lock, and refreshes it if less than half of its life is left.
    pub(crate) async fn read_tombstone(&self, name: &LockName) -> Result<Option<Reading>> {
        let keys = self.keys(name)?;
        self.server.client.reach(&keys).await?;
        let connection = self.server.client.generation(&keys).unwrap_or_default();
        let sent = self.now();
        let read =
            self.server.client.read(&self.server.recipe().read_tombstone(&keys), text_and_life).await?;
        let Some((text, left)) = read else { return Ok(None) };
        let tombstone = Tombstone::parse(&text).ok_or_else(|| moved(&text))?;
        Ok(Some(Reading::new(tombstone, valid_until(sent, left), sent, connection)))
    }

    /// Removes a tombstone, and raises the last token.
    pub(crate) async fn remove_tombstone(&self, keys: &Keys, removal: &Removal<'_>) -> Result<Removed> {
        let read = |answer: &Value| match answer {
            Value::Int(1) => Some(Removed::Done),
            Value::Int(0) => Some(Removed::NotThere),
            Value::Int(-1) => Some(Removed::TooLate),
            _ => None,
        };
        // Once: an answer about a second request does not tell what the first one did.
        let (client, call) = (&self.server.client, self.server.recipe().remove_tombstone(keys, removal));
        client.read_once(&call, &client.dispatch(), read).await
    }

    /// The tombstones of all locks whose names begin so.
    pub(crate) async fn tombstones(&self, prefix: &str) -> Result<Vec<Reading>> {
        let recipe = self.server.recipe();
        let (mut moved, mut unreadable) = (BTreeMap::new(), None);
        let visit = |read: redis_link::scan::ReadKey| {
            let state = read.value.map(|value| recipe.key_state(value, read.beside, read.left));
            let tombstone = match state {
                Some(KeyState::Moved(text)) => {
                    let tombstone = Tombstone::parse(&text);
                    if tombstone.is_none() {
                        unreadable = Some(self.moved_from(&read.key, &text));
                    }
                    tombstone
                }
                _ => None,
            };
            match tombstone {
                Some(tombstone) => {
                    // Without an end, it is there until the next request refreshes it.
                    let left = read.left.unwrap_or(tombstone.life);
                    let until = valid_until(read.sent, left);
                    moved.insert(read.key, Reading::new(tombstone, until, read.sent, read.connection));
                }
                None => drop(moved.remove(&read.key)),
            }
        };
        self.server.client.read_keys(&format!("{}{prefix}", self.prefix), recipe.beside(), visit).await?;
        match unreadable {
            Some(error) => Err(error),
            None => Ok(moved.into_values().collect()),
        }
    }

    fn moved_from(&self, key: &str, text: &str) -> Error {
        match key.strip_prefix(&*self.prefix).map(LockName::new) {
            Some(Ok(name)) => moved(text).on(&name),
            _ => moved(text),
        }
    }

    /// The longest remaining life of the locks that are held.
    pub(crate) async fn longest_lease(&self) -> Result<Option<Duration>> {
        let recipe = self.server.recipe();
        let mut longest = None;
        let visit = |read: redis_link::scan::ReadKey| {
            let state = match read.value {
                Some(value) => recipe.key_state(value, read.beside, read.left),
                // A lock of another library, as those of Redisson are: it keeps ours out.
                None => KeyState::held(read.left),
            };
            if let KeyState::Held(left) = state {
                longest = longest.max(Some(left));
            }
        };
        self.server.client.read_keys(&self.prefix, recipe.beside(), visit).await?;
        Ok(longest)
    }
}

/// The time at which a swap that was sent then has certainly not ended yet.
pub(crate) fn lives_until(sent: BootInstant, tombstone: &Tombstone) -> BootInstant {
    valid_until(sent, tombstone.life)
}

/// The answer of the script that reads a tombstone: nothing if there is none.
#[allow(clippy::option_option, reason = "the outer one is for an unexpected answer")]
fn text_and_life(answer: &Value) -> Option<Option<(String, Duration)>> {
    match answer {
        Value::Int(0) => Some(None),
        Value::Array(parts) => match parts.as_slice() {
            [text, Value::Int(left)] => {
                Some(Some((wire::text(text)?, Duration::from_millis(u64::try_from(*left).ok()?))))
            }
            _ => None,
        },
        _ => None,
    }
}

fn not_replicated(have: u32, wanted: u32) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!(
            "only {have} of {wanted} replicas had the tombstone within {REPLICATION_LIMIT:?}"
        ))
        .with_hint("bring the replicas back, or remove them from the master; the lock has moved")
        .with_outcome(Outcome::Applied)
}
