//! The two classic mistakes of Redis locks: by bare commands, and the same with polylock.

use std::time::Duration;

use polylock::{LockOptions, Locks};
use redis::aio::MultiplexedConnection;
use redis::{Client, cmd};
use tokio::time::sleep;

use crate::data::{Failure, Outcome};
use crate::rig::url;

/// Whether a third client gets the lock while the second one holds it, as the first one deletes whatever is there.
pub(crate) async fn delete_whoever_holds(url: &str, lock: &str) -> Outcome<bool> {
    let mut redis = connect(url).await?;
    take(set_if_absent(&mut redis, lock, "first", TTL).await?)?;
    sleep(BEYOND_TTL).await;
    take(set_if_absent(&mut redis, lock, "second", LONG_TTL).await?)?;
    let () = cmd("DEL").arg(lock).query_async(&mut redis).await?;
    set_if_absent(&mut redis, lock, "third", TTL).await
}

/// The same with polylock; with the defect, its release deletes the lock of whoever holds it.
pub(crate) async fn release_late(url: &str, lock: &str, is_broken: bool) -> Outcome<bool> {
    let locks = [Locks::connect(url).await?, Locks::connect(url).await?, Locks::connect(url).await?];
    let mutex = |client: usize| locks[client].mutex_with(lock, LockOptions::new().fixed_ttl(TTL));
    let first = mutex(0)?.acquire().await?;
    sleep(BEYOND_TTL).await;
    let long = LockOptions::new().fixed_ttl(LONG_TTL);
    let second = locks[1].mutex_with(lock, long)?.try_acquire().await?;
    // Otherwise nothing is tested.
    take(second.as_ref().is_some_and(|second| second.is_valid()))?;
    // It says that the lock was lost.
    first.release().await?;
    if is_broken {
        locks[0].break_lock(lock).await?;
    }
    let third = mutex(2)?.try_acquire().await?;
    let broken = third.is_some();
    drop((second, third));
    for locks in locks {
        locks.close().await?;
    }
    Ok(broken)
}

/// Whether the lock is still held long after its client has ended, between the two commands.
pub(crate) async fn lose_expire(url: &str, lock: &str) -> Outcome<bool> {
    let mut ended = connect(url).await?;
    take(cmd("SETNX").arg(lock).arg("first").query_async(&mut ended).await?)?;
    drop(ended);
    sleep(10 * TTL).await;
    let mut redis = connect(url).await?;
    let held = !set_if_absent(&mut redis, lock, "second", LONG_TTL).await?;
    let () = cmd("DEL").arg(lock).query_async(&mut redis).await?;
    Ok(held)
}

/// The same with polylock: the guard is forgotten, and nothing renews it.
pub(crate) async fn end_at_once(url: &str, lock: &str) -> Outcome<bool> {
    let ended = Locks::connect(url).await?;
    std::mem::forget(ended.mutex_with(lock, LockOptions::new().fixed_ttl(TTL))?.acquire().await?);
    drop(ended);
    sleep(10 * TTL).await;
    let rival = Locks::connect(url).await?;
    let held = rival.mutex(lock).try_acquire().await?.is_none();
    rival.close().await?;
    Ok(held)
}

/// Fails when a lock that was free, or had expired, was not granted: then the round shows nothing.
fn take(is_granted: bool) -> Outcome<()> {
    is_granted.then_some(()).ok_or_else(|| Failure::new("a lock that should be free was not granted"))
}

async fn connect(url: &str) -> Outcome<MultiplexedConnection> {
    Ok(Client::open(url::without_options(url))?.get_multiplexed_async_connection().await?)
}

async fn set_if_absent(
    redis: &mut MultiplexedConnection,
    lock: &str,
    value: &str,
    ttl: Duration,
) -> Outcome<bool> {
    let ttl = ttl.as_millis() as u64;
    let set: Option<String> =
        cmd("SET").arg(lock).arg(value).arg("NX").arg("PX").arg(ttl).query_async(redis).await?;
    Ok(set.is_some())
}

const TTL: Duration = Duration::from_millis(150);
/// Of the second holder, which must still hold when the third one tries.
const LONG_TTL: Duration = Duration::from_secs(10);
const BEYOND_TTL: Duration = Duration::from_millis(200);
