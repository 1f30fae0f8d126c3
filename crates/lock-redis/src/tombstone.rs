//! The tombstones of locks that have moved to another store: writing, reading, removing and listing them.

use std::any::Any;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::MAX_LISTED;
use lock_core::migration::{MigrationSource, Reading, Removal, Removed, Swapped, Tombstone};
use lock_core::{BootInstant, Error, ErrorKind, Lease, LockName, Outcome, OwnerId, Result};
use redis::Value;
use redis_link::drift::valid_until;
use redis_link::keys::Keys;
use redis_link::script;
use redis_link::script::Script;
use redis_link::wire::{self, fence_ttl, millis};

use crate::backend::Redis;
use crate::config::RedisWait;
use crate::context::Context;
use crate::error::BACKEND;
use crate::lease::RedisLease;

static SWAP: LazyLock<Script> = script!(value waiter swap);
static READ: LazyLock<Script> = script!(value lock tombstone);
static REMOVE: LazyLock<Script> = script!(value clock mint_fast number remove_tombstone);
static TIME: LazyLock<Script> = script!(clock time);

/// How long replicas may take for a tombstone.
const REPLICATION_LIMIT: Duration = Duration::from_secs(2);
/// How many tombstones are asked for in one round trip.
const AT_ONCE: usize = 500;

#[async_trait]
impl MigrationSource for Redis {
    fn identity(&self) -> String {
        format!("redis://?prefix={}", self.context().prefix)
    }

    async fn claimed(&self) -> Result<Option<String>> {
        Ok(None)
    }

    async fn claim(&self, migration: &str) -> Result<String> {
        Ok(migration.to_owned())
    }

    async fn unclaim(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn examine(&self, _: &str) -> Result<Vec<lock_core::Finding>> {
        Ok(Vec::new())
    }

    async fn writers(&self) -> Result<Vec<lock_core::migration::Writer>> {
        Ok(Vec::new())
    }

    async fn longest_lease(&self) -> Result<Option<Duration>> {
        Ok(None)
    }

    async fn swap(&self, lease: &mut dyn Lease, tombstone: &Tombstone) -> Result<Swapped> {
        let lease: &mut dyn Any = lease;
        lease.downcast_mut::<RedisLease>().ok_or_else(not_ours)?.swap(tombstone).await
    }

    async fn read_tombstone(&self, name: &LockName) -> Result<Option<Reading>> {
        let (context, keys) = (self.context(), self.context().keys(name)?);
        context.server.reach(&keys).await?;
        let connection = context.server.generation(&keys).unwrap_or_default();
        let sent = context.clock.now();
        let read = context.server.read(&READ.on(&[keys.lock()]), text_and_life).await?;
        let Some((text, left)) = read else { return Ok(None) };
        let tombstone = Tombstone::parse(&text).ok_or_else(|| later_format(&text))?;
        Ok(Some(Reading::new(tombstone, valid_until(sent, left), sent, connection)))
    }

    fn is_current(&self, reading: &Reading, name: &LockName) -> bool {
        let generation = self.context().keys(name).map(|keys| self.context().server.generation(&keys));
        generation.is_ok_and(|generation| generation.is_none_or(|present| present == reading.connection))
    }

    async fn remove_tombstone(&self, removal: &Removal<'_>) -> Result<Removed> {
        let (context, keys) = (self.context(), self.context().keys(removal.name)?);
        let call = REMOVE
            .on(&[keys.lock(), keys.fence()])
            .arg(removal.tombstone.to_string())
            .arg(removal.floor.get())
            .arg(removal.until)
            .arg(&*fence_ttl(removal.ttl));
        let read = |answer: &Value| match answer {
            Value::Int(1) => Some(Removed::Done),
            Value::Int(0) => Some(Removed::NotThere),
            Value::Int(-1) => Some(Removed::TooLate),
            _ => None,
        };
        // Once: an answer about a second request does not tell what the first one did.
        context.server.read_once(&call, read).await
    }

    async fn tombstones(&self, prefix: &str) -> Result<Vec<Reading>> {
        let context = self.context();
        let beginning = format!("{}{prefix}", context.prefix);
        let keys = context.server.keys_that_begin(&beginning, MAX_LISTED).await?;
        let names = Keys::names(&context.prefix, keys);
        let sent = context.clock.now();
        let mut moved = Vec::new();
        for names in names.chunks(AT_ONCE) {
            let keys: Vec<Keys> = names.iter().map(|name| context.keys(name)).collect::<Result<_>>()?;
            let calls: Vec<_> = keys.iter().map(|keys| READ.on(&[keys.lock()])).collect();
            let found = context.server.read_all(&calls, text_and_life).await?;
            for found in found {
                let Some((text, left)) = found? else { continue };
                if let Some(tombstone) = Tombstone::parse(&text) {
                    moved.push(Reading::new(tombstone, valid_until(sent, left), sent, 0));
                }
            }
        }
        Ok(moved)
    }

    async fn time(&self, name: &LockName) -> Result<u64> {
        let (context, keys) = (self.context(), self.context().keys(name)?);
        let read = |answer: &Value| wire::text(answer)?.parse().ok();
        context.server.read(&TIME.on(&[keys.lock()]), read).await
    }
}

impl Context {
    /// Replaces the lock of an exclusive owner by a tombstone that lives from `sent` on, and reports whether it is there.
    pub(crate) async fn swap(&self, keys: &Keys, owner: OwnerId, tombstone: &Tombstone) -> Result<bool> {
        let channel = if self.wait == RedisWait::Notify { keys.channel() } else { "" };
        let call = SWAP
            .on(&[keys.lock(), keys.fence(), keys.queue()])
            .arg(owner.to_string())
            .arg(tombstone.to_string())
            .arg(millis(tombstone.life))
            .arg(channel);
        let replicas = self.server.connected_replicas(keys).await?;
        if replicas == 0 {
            return self.server.read(&call, wire::flag).await;
        }
        let (answer, have) = self.server.replicate(keys, &call, replicas, REPLICATION_LIMIT).await?;
        match wire::flag(&answer) {
            Some(true) if have < replicas => Err(not_replicated(have, replicas)),
            Some(is_there) => Ok(is_there),
            None => Err(self.server.endpoint().unexpected(&answer)),
        }
    }
}

/// The error for a lock that has moved, with the tombstone in its place.
pub(crate) fn moved(text: &str) -> Error {
    match Tombstone::parse(text) {
        Some(tombstone) => tombstone.moved(BACKEND),
        None => later_format(text),
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

fn later_format(text: &str) -> Error {
    Error::new(ErrorKind::Moved, BACKEND)
        .with_message(format!("the lock has moved, says a text of a later version: {text:?}"))
        .with_hint("use the version of this library that wrote it, or a later one")
}

fn not_ours() -> Error {
    Error::new(ErrorKind::Unexpected, BACKEND).with_message("the lease is not one of this backend")
}

fn not_replicated(have: u32, wanted: u32) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!(
            "only {have} of {wanted} replicas had the tombstone within {REPLICATION_LIMIT:?}"
        ))
        .with_hint("bring the replicas back, or remove them from the master; the lock has moved")
        .with_outcome(Outcome::Applied)
}
