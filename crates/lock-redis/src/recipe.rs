//! How a lock stands in its key: the recipes, and the seam behind which they differ.

use std::fmt;
use std::time::Duration;

use lock_core::{BootInstant, Clock, OwnerId, Token};
use redis::Value;
use redis_link::drift::valid_until;
use redis_link::keys::Keys;
use redis_link::script::Call;

use crate::request::{Ask, Extension, Moment};

/// What is written into the key of a lock. All who share a lock need the same.
///
/// # Examples
///
/// ```
/// # use lock_redis::{RedisConfig, RedisRecipe};
/// let config = RedisConfig::from_url("redis://localhost?recipe=setnx-timestamp&prefix=lock.")?;
/// let same = RedisConfig::from_url("redis://localhost")?.recipe(RedisRecipe::SetnxTimestamp).prefix("lock.");
/// # Ok::<_, lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisRecipe {
    /// An identity of its own for each acquisition, in a key that ends by itself: `SET key value NX PX ttl`.
    #[default]
    SetNxPx,
    /// The time at which the lock ends, in a key that does not end by itself: `SETNX key time`, and once
    /// that time is over `GETSET key time`. For fleets that run it already, and not for anything else.
    ///
    /// **Two may hold the lock at once.** The clocks of the clients decide when it is over, so that one
    /// whose clock is ahead takes it from a holder that still believes. We believe for less than we write
    /// and take over later than we read, by [`clock_skew`](crate::RedisConfig::clock_skew) each: so clocks
    /// that differ by no more are harmless to us and to those who share a lock with us, though not to two
    /// clients of other make. A clock that is stepped forward while a lock is held is noticed when the
    /// lock is next renewed.
    ///
    /// The value does not say whose it is. Ours are told apart by the key of the token, which names the
    /// acquisition and what it wrote last. A client of other make that wrote, to the millisecond, what we
    /// wrote last, after our lock was removed under us, is taken for us: then we believe with it, and our
    /// release is its release. And one that asks for a lock that is over, and loses, overwrites the time
    /// of the winner: if that is us, we take the lock for lost with the next renewal, and leave it to end.
    ///
    /// Waiters ask again and again; there is no queue, no sharing and no handing over within a process. A
    /// holder that dies leaves the key behind, as it does with every client of this recipe.
    SetnxTimestamp,
}

/// What the times of [`RedisRecipe::SetnxTimestamp`] are counted in. A value of another unit is never taken for
/// a time that is over.
///
/// # Examples
///
/// ```
/// # use lock_redis::{RecipeUnit, RedisConfig, RedisRecipe};
/// let config = RedisConfig::from_url("redis://localhost")?;
/// let config = config.recipe(RedisRecipe::SetnxTimestamp).recipe_unit(RecipeUnit::Seconds);
/// # Ok::<_, lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecipeUnit {
    /// Milliseconds since 1970.
    #[default]
    Millis,
    /// Seconds since 1970. We write whole ones, and read those with a fraction too.
    Seconds,
}

/// The requests of a recipe: which script is called, and with what.
pub(crate) trait Recipe: fmt::Debug + Send + Sync {
    /// Asks for a lock, confirms a grant, or queues up.
    fn ask(&self, ask: &Ask<'_>, sent: Moment) -> Call;

    /// Removes a lock, a share of it, or the `entry` of the wait queue.
    fn release(&self, keys: &Keys, owner: OwnerId, entry: Option<&str>) -> Call;

    /// Has a lease end later.
    fn extend(&self, lease: &Extension<'_>, sent: Moment) -> Call;

    /// Raises the last token to `floor`.
    fn raise(&self, keys: &Keys, owner: OwnerId, floor: Token, ttl: Duration) -> Call;

    /// Inspects a lock; with an owner, only what concerns that.
    fn inspect(&self, keys: &Keys, owner: &str) -> Call;

    /// Removes a lock, whoever holds it.
    fn break_lock(&self, keys: &Keys) -> Call;

    /// Now, for a request that is about to be sent.
    fn moment(&self, clock: &Clock) -> Moment {
        Moment { at: clock.now(), wall: Duration::ZERO }
    }

    /// When a lease ends that was requested at this moment.
    fn valid_until(&self, sent: Moment, ttl: Duration, _: &Clock) -> BootInstant {
        valid_until(sent.at, ttl)
    }

    /// Sees the answer to a request for a lock.
    fn answered(&self, _sent: Moment, _answer: &Value) {}
}
