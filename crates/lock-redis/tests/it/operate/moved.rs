//! Locks that have moved to another store: their tombstones, on a real server.

use std::sync::Arc;
use std::time::Duration;

use lock_core::migration::{MigrationSource, Reading, Removal, Removed, Swapped, Tombstone};
use lock_core::{
    Backend, BootInstant, Clock, ErrorKind, GuardState, Lease, LockName, Locks, LossReason, Outcome, Token,
};
use lock_redis::Redis;
use lock_testkit::RedisServer;
use lock_testkit::proxy::{FaultProxy, Protocol, Then};
use lock_testkit::{soon, take, until};

use crate::common::{RECIPES, backend, connect, hold, tombstone};

const DAY: Duration = Duration::from_secs(86_400);
/// The lock, its key, and the text beside the time of the recipe `setnx-timestamp`.
const NAME: &str = "orders/42";
const KEY: &str = "lock:orders/42";
const TEXT: &str = "polylock:moved:{lock:orders/42}";

struct Store {
    server: RedisServer,
    redis: Arc<Redis>,
    locks: Locks,
    name: LockName,
    tombstone: Tombstone,
}

impl Store {
    async fn start(options: &str) -> Self {
        let server = RedisServer::start().await.unwrap();
        let (redis, locks) = backend(&format!("{}?{options}", server.url())).await;
        let name = LockName::new(NAME).unwrap();
        Self { server, redis, locks, tombstone: tombstone(&name), name }
    }

    fn source(&self) -> &dyn MigrationSource {
        self.redis.migration_source().unwrap()
    }

    async fn hold(&self) -> Box<dyn Lease> {
        hold(&self.redis, &self.name).await
    }

    fn tombstone(&self) -> Tombstone {
        self.tombstone.clone()
    }

    /// Moves the lock, and returns its tombstone and its last token.
    async fn moved(&self) -> (Tombstone, Token) {
        let (tombstone, mut lease) = (self.tombstone(), self.hold().await);
        self.swap(&mut *lease).await;
        (tombstone, lease.token())
    }

    async fn removal(&self, tombstone: &Tombstone, floor: u64, until: u64) -> Removed {
        let (name, floor, ttl) = (&self.name, Token::new(floor), Duration::from_secs(30));
        self.source().remove_tombstone(&Removal { name, tombstone, floor, until, ttl }).await.unwrap()
    }

    async fn pttl(&self) -> i64 {
        self.server.call(&["PTTL", KEY]).await.int().unwrap()
    }

    async fn swap(&self, lease: &mut dyn Lease) {
        let swapped = self.source().swap(lease, &self.tombstone()).await.unwrap();
        assert!(matches!(swapped, Swapped::Done { until } if until > now() + 29 * DAY), "{swapped:?}");
    }

    async fn read(&self) -> Option<Reading> {
        self.source().read_tombstone(&self.name).await.unwrap()
    }
}

fn now() -> BootInstant {
    Clock::boot().now()
}

#[tokio::test]
async fn a_lock_that_has_moved_is_refused_with_its_new_place() {
    let store = Store::start("").await;
    let (tombstone, _) = store.moved().await;
    let error = store.locks.mutex(NAME).try_acquire().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.code(), error.outcome()),
        (ErrorKind::Moved, "moved", Outcome::NotApplied)
    );
    assert!(!error.is_retryable());
    let text = error.to_string();
    for part in ["zk://a:2181/app", "\"shop\"", NAME, "migrate://"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for error in [
        store.locks.rw(NAME).try_read().await.unwrap_err(),
        store.locks.semaphore(NAME, 2).try_acquire().await.unwrap_err(),
        store.locks.break_lock(NAME).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
    }
    let state = store.locks.inspect(NAME).await.unwrap();
    assert_eq!(state.moved, Some(tombstone));
    assert!(state.holders.is_empty());
    assert!(state.to_string().starts_with("moved to zk://a:2181/app"), "{state}");
    // As clients of other libraries ask.
    assert!(store.server.call(&["SET", KEY, "x", "NX", "PX", "100"]).await.is_nil());
}

#[tokio::test]
async fn waiters_of_every_kind_learn_of_it() {
    for (wait, recipe) in [("queue", ""), ("notify", ""), ("poll", ""), ("poll", RECIPES[1])] {
        let store = Store::start(&format!("wait={wait}&{recipe}")).await;
        let mut lease = store.hold().await;
        let asked = store.server.calls_of("evalsha").await;
        let waiters = [(); 3].map(|()| {
            let url = format!("{}?wait={wait}&{recipe}", store.server.url());
            tokio::spawn(async move { connect(&url).await.mutex(NAME).acquire().await.unwrap_err() })
        });
        until("three wait", async || match wait {
            // Those are not counted.
            "poll" => store.server.calls_of("evalsha").await >= asked + 6,
            _ => store.locks.inspect(NAME).await.unwrap().waiters == 3,
        })
        .await;
        store.swap(&mut *lease).await;
        for waiter in waiters {
            let error = soon(waiter).await.unwrap();
            assert_eq!(error.kind(), ErrorKind::Moved, "wait={wait}: {error}");
        }
        assert!(store.server.has_key(KEY).await);
    }
}

#[tokio::test]
async fn only_the_holder_moves_a_lock() {
    for options in RECIPES {
        let store = Store::start(options).await;
        let mut lease = store.hold().await;
        store.locks.break_lock(NAME).await.unwrap();
        let guard = take(&store.locks, NAME).await;
        assert_eq!(store.source().swap(&mut *lease, &store.tombstone()).await.unwrap(), Swapped::NotHeld);
        assert_eq!(lease.validity().state(), GuardState::Lost(LossReason::Removed));
        assert!(guard.verify().await.unwrap() == GuardState::Valid);
        assert!(store.read().await.is_none());
    }
}

#[tokio::test]
async fn a_swap_whose_answer_is_lost_is_repeated() {
    for options in RECIPES {
        let store = Store::start(options).await;
        let proxy = FaultProxy::start(store.server.addr(), Protocol::Redis).unwrap();
        // Time: it is not answered.
        let (redis, _) = backend(&format!("redis://{}?command_timeout=300ms&{options}", proxy.addr())).await;
        let through = Store { redis, ..store };
        let mut lease = through.hold().await;
        let is_swap = |request: &[u8]| request.windows(14).any(|part| part == b"polylock:moved");
        proxy.swallow_when(is_swap, Then::Hang);
        let error = through.source().swap(&mut *lease, &through.tombstone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        proxy.heal();
        for _ in 0..2 {
            through.swap(&mut *lease).await;
        }
    }
}

#[tokio::test]
async fn a_reading_counts_the_remaining_life_and_refreshes_from_half_on() {
    for options in RECIPES {
        let store = Store::start(options).await;
        let (tombstone, _) = store.moved().await;
        let left = async || store.read().await.unwrap().until.saturating_duration_since(now());
        let most = i64::try_from((16 * DAY).as_millis()).unwrap();
        store.server.call(&["PEXPIRE", KEY, &most.to_string()]).await;
        let reading = store.read().await.unwrap();
        assert!(reading.tombstone == tombstone && reading.is_fresh(now()), "{reading:?}");
        assert!(left().await > 15 * DAY && left().await < 16 * DAY, "{reading:?}");
        assert!(store.pttl().await <= most, "there is more than half left");
        store.server.call(&["PEXPIRE", KEY, "1000000"]).await;
        assert!(left().await > 29 * DAY);
        assert!(store.pttl().await > most);
        store.server.call(&["PERSIST", KEY]).await;
        assert!(left().await > 29 * DAY);
        store.server.call(&["DEL", KEY]).await;
        assert!(store.read().await.is_none(), "a reading creates none");
        assert_eq!(store.pttl().await, -2);
    }
}

#[tokio::test]
async fn a_new_connection_voids_what_was_read() {
    for options in RECIPES {
        let store = Store::start(options).await;
        store.moved().await;
        let reading = store.read().await.unwrap();
        let is_current = || store.source().is_current(&reading, &store.name);
        assert!(is_current());
        store.server.kill();
        store.redis.inspect(&store.name).await.unwrap_err();
        assert!(is_current(), "the server is down, and has lost nothing yet");
        store.server.start_again().await.unwrap();
        until("there is a connection", async || store.redis.inspect(&store.name).await.is_ok()).await;
        assert!(!is_current());
    }
}

#[tokio::test]
async fn a_removal_is_exact_in_time_and_raises_the_last_token() {
    for options in RECIPES {
        let store = Store::start(options).await;
        let (tombstone, token) = store.moved().await;
        let (floor, now) = (token.get() + 1_000_000, store.source().time(&store.name).await.unwrap());
        let other = Tombstone { newest: 18, ..tombstone.clone() };
        assert_eq!(store.removal(&other, floor, now + 10_000_000).await, Removed::NotThere);
        assert_eq!(store.removal(&tombstone, floor, now).await, Removed::TooLate);
        assert!(store.read().await.is_some());
        let listed = store.source().tombstones("").await.unwrap();
        assert_eq!(listed.iter().map(|reading| &reading.tombstone.lock).collect::<Vec<_>>(), [&store.name]);
        assert_eq!(store.source().tombstones("x").await.unwrap(), []);
        assert_eq!(store.removal(&tombstone, floor, now + 10_000_000).await, Removed::Done);
        assert_eq!(store.removal(&tombstone, floor, now + 10_000_000).await, Removed::NotThere);
        assert_eq!(store.source().tombstones("").await.unwrap(), []);
        let guard = take(&store.locks, NAME).await;
        assert!(guard.token().get() > floor, "{} {floor}", guard.token());
    }
}

#[tokio::test]
async fn a_lock_moves_from_a_server_whose_memory_is_full() {
    for options in RECIPES {
        let store = Store::start(options).await;
        let (tombstone, mut lease) = (store.tombstone(), store.hold().await);
        store.server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
        assert!(store.server.text(&["SET", "other", "x"]).await.contains("OOM"), "it is full");
        store.swap(&mut *lease).await;
        assert_eq!(store.read().await.unwrap().tombstone, tombstone);
        let (floor, now) = (lease.token().get() + 160, store.source().time(&store.name).await.unwrap());
        assert_eq!(store.removal(&tombstone, floor, now + 10_000_000).await, Removed::Done);
    }
}

#[tokio::test]
async fn a_text_of_a_later_version_is_an_error() {
    let store = Store::start("").await;
    store.server.text(&["SET", KEY, "polylock:moved2 to=zk://a"]).await;
    for error in [
        store.source().read_tombstone(&store.name).await.unwrap_err(),
        store.locks.mutex(NAME).try_acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Moved);
        assert!(error.to_string().contains("later version"), "{error}");
    }
}

#[tokio::test]
async fn a_move_waits_for_all_replicas() {
    for (options, text) in RECIPES.into_iter().zip([KEY, TEXT]) {
        let store = Store::start(options).await;
        let replica = store.server.replica().await.unwrap();
        let mut lease = store.hold().await;
        replica.stop();
        let error = store.source().swap(&mut *lease, &store.tombstone()).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Applied), "{error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        replica.cont();
        store.swap(&mut *lease).await;
        assert_eq!(replica.text(&["GET", text]).await, store.tombstone().to_string());
    }
}

// ---- The recipe setnx-timestamp ----

#[tokio::test]
async fn the_tombstone_of_a_timestamp_is_a_time_in_the_far_future() {
    for (unit, year_5000) in [("ms", "95617584000000"), ("s", "95617584000")] {
        let store = Store::start(&format!("{}&recipe_unit={unit}", RECIPES[1])).await;
        let (tombstone, _) = store.moved().await;
        assert_eq!(store.server.text(&["GET", KEY]).await, year_5000);
        assert_eq!(store.server.text(&["GET", TEXT]).await, tombstone.to_string());
        let life = i64::try_from((29 * DAY).as_millis()).unwrap();
        let lives = store.server.call(&["PTTL", TEXT]).await.int().unwrap();
        assert!(store.pttl().await > life && lives > life);
        for error in [
            store.locks.mutex(NAME).try_acquire().await.unwrap_err(),
            store.locks.mutex(NAME).acquire().await.unwrap_err(),
            store.locks.break_lock(NAME).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
            assert!(error.to_string().contains("zk://a:2181/app"), "{error}");
        }
        let state = store.locks.inspect(NAME).await.unwrap();
        assert_eq!(state.moved.as_ref(), Some(&tombstone));
        assert!(state.holders.is_empty());
        let listed = store.source().tombstones("").await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].tombstone, tombstone);
        assert_eq!(store.source().longest_lease().await.unwrap(), None);
        let until = store.source().time(&store.name).await.unwrap() + 10_000_000;
        assert_eq!(store.removal(&tombstone, 1, until).await, Removed::Done);
        assert_eq!(store.server.text(&["EXISTS", KEY, TEXT]).await, "Int(0)");
    }
}

#[tokio::test]
async fn a_time_in_the_far_future_without_a_text_is_a_lock_that_has_moved_somewhere() {
    let store = Store::start(RECIPES[1]).await;
    store.moved().await;
    for words in [vec!["SET", TEXT, "something else"], vec!["DEL", TEXT], vec!["HSET", TEXT, "a", "b"]] {
        store.server.text(&words).await;
        for error in [
            store.locks.mutex(NAME).try_acquire().await.unwrap_err(),
            store.locks.break_lock(NAME).await.unwrap_err(),
            store.source().read_tombstone(&store.name).await.unwrap_err(),
            store.source().tombstones("").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
            assert!(error.to_string().contains("is missing"), "{error}");
        }
        assert_eq!(store.source().longest_lease().await.unwrap(), None);
        let state = store.locks.inspect(NAME).await.unwrap();
        assert_eq!((state.moved, state.holders.len()), (None, 1));
    }
    // A text alone is nothing.
    store.server.text(&["DEL", TEXT, KEY]).await;
    store.server.text(&["SET", TEXT, &store.tombstone().to_string()]).await;
    assert!(store.read().await.is_none());
    let guard = store.locks.mutex(NAME).try_acquire().await.unwrap();
    assert!(guard.is_some(), "the lock is free");
}

/// Another client that has read this time takes the lock by GETSET, whatever is there by then.
#[tokio::test]
async fn a_lease_that_is_over_by_any_clock_moves_nothing() {
    for unit in ["ms", "s"] {
        let store = Store::start(&format!("{}&recipe_unit={unit}", RECIPES[1])).await;
        let mut lease = store.hold().await;
        let fence = store.server.text(&["GET", "polylock:fence:{lock:orders/42}"]).await;
        let value = store.server.text(&["GET", KEY]).await;
        let micros = store.source().time(&store.name).await.unwrap();
        let over = if unit == "s" { micros / 1_000_000 } else { micros / 1000 + 20 }.to_string();
        store.server.text(&["SET", KEY, &over]).await;
        let fence = fence.replace(&value, &over);
        store.server.text(&["SET", "polylock:fence:{lock:orders/42}", &fence]).await;
        assert_eq!(store.source().swap(&mut *lease, &store.tombstone()).await.unwrap(), Swapped::NotHeld);
        assert_eq!(store.server.text(&["GET", KEY]).await, over);
        assert_eq!(store.server.text(&["EXISTS", TEXT]).await, "Int(0)");
    }
}

#[tokio::test]
async fn the_leases_of_timestamps_end_with_their_time() {
    let store = Store::start(RECIPES[1]).await;
    let source = store.source();
    assert_eq!(source.longest_lease().await.unwrap(), None);
    let lease = store.hold().await;
    let longest = source.longest_lease().await.unwrap().unwrap();
    assert!(longest > Duration::from_secs(20) && longest < Duration::from_secs(31), "{longest:?}");
    let micros = source.time(&store.name).await.unwrap();
    let (hour, past) = (micros / 1000 + 3_600_000, micros / 1000 - 60_000);
    store.server.text(&["SET", "lock:other", &hour.to_string()]).await;
    store.server.text(&["SET", "lock:left-behind", &past.to_string()]).await;
    let longest = source.longest_lease().await.unwrap().unwrap();
    assert!(longest > Duration::from_secs(3500) && longest < Duration::from_secs(3700), "{longest:?}");
    store.server.text(&["SET", "lock:other", "no time"]).await;
    assert_eq!(source.longest_lease().await.unwrap(), Some(Duration::MAX));
    store.server.text(&["DEL", "lock:other"]).await;
    drop(lease);
    assert!(source.longest_lease().await.unwrap() < Some(Duration::from_secs(60)));
}

#[tokio::test]
async fn a_preflight_moves_a_timestamp_and_leaves_nothing() {
    let store = Store::start(RECIPES[1]).await;
    let findings = store.source().examine("one").await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("moved back")), "{findings:?}");
    assert_eq!(store.server.text(&["DBSIZE"]).await, "Int(0)");
    assert_eq!(store.source().claim("one").await.unwrap(), "one");
    assert!(!store.source().writers().await.unwrap().is_empty());
}
