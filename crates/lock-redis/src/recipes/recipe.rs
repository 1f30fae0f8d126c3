//! The recipes: the formats of the key of a lock, and the requests that differ between them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::engine::Extension;
use lock_core::migration::{Removal, Tombstone};
use lock_core::{BootInstant, Clock, Finding, OwnerId, Token};
use redis::Value;
use redis_link::commands::Commands;
use redis_link::keys::Keys;
use redis_link::scan::Beside;
use redis_link::script::Call;

use crate::recipes::request::{Ask, Moment, ReleaseKind};

/// The format of the key of a lock. All clients that share a lock need the same.
///
/// # Examples
///
/// Join a fleet of the legacy recipe, with its URL options or with methods:
///
/// ```
/// use lock_redis::{RecipeUnit, RedisConfig, RedisRecipe};
///
/// let config = RedisConfig::from_url("redis://localhost?recipe=setnx-timestamp&recipe_unit=s")?;
/// let config = RedisConfig::from_url("redis://localhost")?
///     .recipe(RedisRecipe::SetnxTimestamp)
///     .recipe_unit(RecipeUnit::Seconds);
/// # let _ = config;
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisRecipe {
    /// A unique owner id for each acquisition, in a key that expires: `SET key value NX PX ttl`.
    #[default]
    SetNxPx,
    /// The time at which the lock ends, in a key that does not expire: `SETNX key time`, and after that time
    /// `GETSET key time`. Only for fleets that already use it.
    ///
    /// **Two may hold the lock at once.** The clients' clocks decide when a lock has ended: a client whose clock is ahead
    /// takes it from a holder whose lease is still valid. This library holds a lock for less time than it writes, and
    /// takes one over later than it reads, each by [`clock_skew`](crate::RedisConfig::clock_skew). So it is safe, with
    /// itself and with clients of other libraries, if the clocks differ by no more than that. Two clients of other
    /// libraries are not safe with each other. A clock that is stepped forward is noticed at the next renewal.
    ///
    /// The value does not name its owner. The fence key does: it stores the acquisition and the last value that it wrote.
    /// Two confusions with clients of other libraries remain:
    ///
    /// * The lock was removed, and another client then wrote the same time to the millisecond: this library takes the lock
    ///   for its own, treats it as valid, and releases it.
    /// * Another client asks for an expired lock just after this library took it, and overwrites the time: the next renewal
    ///   reports the lock as lost, and the key remains until that time.
    ///
    /// A lock that has moved to another store is a time around the year 5000, in a key that expires: clients of every
    /// library wait for it. The second confusion may also overwrite it, if the lock moves just after this library took it
    /// from an owner that had died.
    ///
    /// Waiters poll. There is no queue, no sharing and no hand-over within a process. A holder that dies leaves the key
    /// behind, as with every client of this recipe.
    SetnxTimestamp,
}

/// What the key of a lock stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// A lock whose last lease has ended, though its key is there.
    Free,
    /// A lock that is held, for at most this long.
    Held(Duration),
    /// The tombstone with this text.
    Moved(String),
}

impl KeyState {
    /// A lock that is held until its key expires.
    pub(crate) fn held(left: Option<Duration>) -> Self {
        Self::Held(left.unwrap_or(Duration::MAX))
    }
}

/// The requests of a recipe.
pub(crate) trait Recipe: fmt::Debug + Send + Sync {
    /// Asks for a lock, confirms a grant, or queues up.
    fn ask(&self, ask: &Ask<'_>, sent: Moment) -> Call;

    /// Acquires a lock that is probably free and not waited for by plain commands, which cost the server half as much as a
    /// script, with this token unless the last one is as large; `None` if the recipe or the request needs a script. Commands
    /// of other clients may run between them. With `keeps`, the last token is kept for its ttl from now on; else the second answer
    /// counts it, as it was before.
    fn claim(&self, _ask: &Ask<'_>, _token: u64, _keeps: bool) -> Option<Commands> {
        None
    }

    /// Removes a lock, a share of it, or the entry of the wait queue.
    fn release(&self, keys: &Keys, owner: OwnerId, how: ReleaseKind<'_>) -> Call;

    /// Extends a lease.
    fn extend(&self, lease: &Extension<'_, Arc<Keys>>, sent: Moment) -> Call;

    /// Raises the last token to `floor`.
    fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Call;

    /// Inspects a lock; with an owner, only that owner's part.
    fn inspect(&self, keys: &Keys, owner: &str) -> Call;

    /// Removes the lock, whoever holds it, if one of these holders does, as an earlier look told; with none, only looks.
    fn break_lock(&self, keys: &Keys, seen: &str) -> Call;

    /// Replaces the lock of an exclusive owner by a tombstone.
    fn swap(&self, keys: &Keys, owner: OwnerId, tombstone: &Tombstone) -> Call;

    /// Reads the tombstone of a lock, and refreshes it if less than half of its life is left.
    fn read_tombstone(&self, keys: &Keys) -> Call;

    /// Removes a tombstone, and raises the last token.
    fn remove_tombstone(&self, keys: &Keys, removal: &Removal<'_>) -> Call;

    /// The key that [`key_state`](Self::key_state) needs beside the key of a lock.
    fn beside(&self) -> Option<Beside> {
        None
    }

    /// What the key of a lock stands for, with this value and this remaining life.
    fn key_state(&self, value: String, beside: Option<String>, left: Option<Duration>) -> KeyState;

    /// The present, for a request that is about to be sent.
    fn moment(&self, clock: &Clock) -> Moment {
        Moment { at: clock.now(), wall: Duration::ZERO }
    }

    /// Whether a request says when its lease ends: the lease counts from before it, though it may be sent later.
    fn says_the_end(&self) -> bool {
        false
    }

    /// Whether the wall clock was stepped forward since a request was sent then, which says when its lease ends: by that clock, others
    /// take the lease for ended too early.
    fn was_stepped(&self, _sent: Moment, _now: BootInstant) -> bool {
        false
    }

    /// Whether the wall clock was set back since a request was sent then, in microseconds since the boot: a lease that seems to be longer
    /// than one that is asked for now may be shorter.
    fn was_set_back_since(&self, _sent: u64) -> bool {
        false
    }

    /// How much shorter than its ttl a lease is, as the clocks of the clients differ.
    fn skew(&self) -> Duration {
        Duration::ZERO
    }

    /// The warning about the recipe, if it has one.
    fn danger(&self) -> Option<Finding> {
        None
    }

    /// Called with every answer to a request for a lock.
    fn answered(&self, _sent: Moment, _answer: &Value) {}
}
