//! The recipe `setnx-timestamp`: with clients that run it by plain commands, with clocks that differ, and when the
//! connection fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::backend::{Backend, Mode};
use lock_core::migration::{Removal, Removed, Swapped};
use lock_core::{
    ErrorKind, Guard, GuardState, Holder, LockName, LockOptions, Locks, LossReason, Released, Token,
};
use lock_redis::{Redis, RedisConfig, WallClock};
use lock_testkit::cancel::{cancel_after, for_each_poll_count};
use lock_testkit::proxy::{Direction, Protocol, Then, redis_command};
use lock_testkit::{FaultProxy, LogCapture, RedisServer, give_back, until};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{hold, request, tombstone};

// ---- The format ----

#[tokio::test]
async fn the_key_holds_the_time_at_which_the_lock_ends_and_has_no_ttl() {
    let bench = Bench::new().await;
    let before = millis(now());
    let guard = bench.ours("").await.mutex("a").acquire().await.unwrap();
    let value: u128 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
    let after = millis(now());
    // The ttl is 10 s, and one is added.
    assert!((before + 10_001..=after + 10_001).contains(&value), "{value} between {before} and {after}");
    assert_eq!(bench.redis(&["PTTL", "lock:a"]).await, "-1");
    let valid_until = millis(now() + guard.remaining());
    assert!(
        valid_until + 50 <= value,
        "valid until {valid_until}, wrote {value}, and clocks differ by 50 ms"
    );
    give_back(guard).await;
    bench.nothing_is_left().await;
}

#[tokio::test]
async fn seconds_are_whole_ones() {
    let bench = Bench::new().await;
    let guard = bench.ours("&recipe_unit=s").await.mutex("a").acquire().await.unwrap();
    let value: u64 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
    assert!((now().as_secs() + 10..=now().as_secs() + 11).contains(&value), "{value}");
    let mut older = Older { unit: 1000, ..bench.older() };
    assert!(!older.try_acquire().await);
    give_back(guard).await;
    assert!(older.try_acquire().await);
    older.release().await;
    bench.nothing_is_left().await;
}

#[tokio::test]
async fn renewal_writes_later_times_and_an_extension_the_one_that_was_asked_for() {
    let bench = Bench::new().await;
    let guard = bench.ours("&ttl=900ms").await.mutex("a").acquire().await.unwrap();
    let first: u128 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
    sleep(Duration::from_millis(1500)).await;
    let renewed: u128 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
    assert!(renewed > first + 600 && renewed > millis(now()), "{first}, then {renewed}");
    assert_eq!(guard.state(), GuardState::Valid);
    for ttl in [Duration::from_secs(20), Duration::from_secs(5)] {
        let before = millis(now());
        guard.extend(ttl).await.unwrap();
        let value: u128 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
        let (first, last) = (before + ttl.as_millis() + 1, millis(now()) + ttl.as_millis() + 1);
        assert!((first..=last).contains(&value), "{value}, not from {first} to {last}");
        assert!(millis(now() + guard.remaining()) + 50 <= value);
    }
    give_back(guard).await;
    bench.nothing_is_left().await;
}

// ---- With clients of other libraries ----

#[tokio::test]
async fn a_lock_that_has_moved_keeps_other_clients_out() {
    let bench = Bench::new().await;
    for (options, unit) in [("", 1), ("&recipe_unit=s", 1000)] {
        let redis = Redis::connect(bench.config(options)).await.unwrap();
        let name = LockName::new("a").unwrap();
        let mut lease = hold(&redis, &name).await;
        // One is ahead by ten years, and waits all the same.
        let decade = 10 * 365 * 86_400_000;
        let clients = [0, decade].map(|ahead| Older { ahead, unit, ..bench.older() });
        let tombstone = tombstone(&name);
        let source = redis.migration_source().unwrap();
        let swapped = source.swap(&mut *lease, &tombstone).await.unwrap();
        assert!(matches!(swapped, Swapped::Done { .. }), "{swapped:?}");
        let moved = bench.redis(&["GET", "lock:a"]).await;
        for mut older in clients {
            for _ in 0..3 {
                assert!(!older.try_acquire().await);
            }
        }
        assert_eq!(bench.redis(&["GET", "lock:a"]).await, moved, "nobody has overwritten it");
        assert!(bench.redis(&["PTTL", "lock:a"]).await.parse::<u64>().unwrap() > 2_000_000_000);
        assert_eq!(lease.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(bench.redis(&["GET", "lock:a"]).await, moved, "it is not the lease's any more");
        let removal = Removal {
            name: &name,
            tombstone: &tombstone,
            floor: Token::new(1),
            until: i64::MAX as u64,
            ttl: Duration::from_secs(10),
        };
        assert_eq!(source.remove_tombstone(&removal).await.unwrap(), Removed::Done);
        let mut older = Older { unit, ..bench.older() };
        assert!(older.try_acquire().await);
        older.release().await;
    }
    bench.nothing_is_left().await;
}

#[tokio::test]
async fn we_take_over_when_their_time_is_over_and_not_before() {
    let bench = Bench::new().await;
    let ours = bench.ours("&clock_skew=400ms").await;
    let mut gone = Older { ttl: Duration::from_millis(1000), ..bench.older() };
    assert!(gone.try_acquire().await);
    let ends: u128 = gone.written.parse().unwrap();
    let guard = timeout(PATIENCE, ours.mutex("a").acquire()).await.unwrap().unwrap();
    let taken = millis(now());
    assert!(taken > ends + 400, "taken over {} ms after {ends}", taken.saturating_sub(ends));
    // What they do too late does not hurt us, as they look at their own time first.
    gone.release().await;
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    give_back(guard).await;
    bench.nothing_is_left().await;
}

#[tokio::test]
async fn other_clients_take_over_only_after_the_lease_has_ended() {
    let bench = Bench::new().await;
    let (ours, mut older) = (bench.ours("").await, bench.older());
    let fixed = ours.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_millis(800))).unwrap();
    let guard = fixed.acquire().await.unwrap();
    let ends: u128 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
    while !older.try_acquire().await {
        sleep(Duration::from_millis(2)).await;
    }
    assert!(!guard.is_valid(), "valid for {:?} although the other client holds the lock", guard.remaining());
    assert!(millis(now()) > ends);
    // What we do too late does not hurt them.
    assert_eq!(guard.extend(Duration::from_secs(9)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(bench.redis(&["GET", "lock:a"]).await, older.written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_clients_that_take_over_one_wins() {
    let bench = Bench::new().await;
    let mut wins = [0, 0];
    for round in 0..30 {
        bench.redis(&["SET", "lock:a", "1500000000000"]).await;
        let (mut race, read) = (JoinSet::new(), bench.older().read().await);
        let mut ours = Vec::new();
        for _ in 0..3 {
            ours.push(bench.ours("").await);
        }
        // Without a head start it is mostly the same side that wins.
        let late = |side| Duration::from_millis(if round % 3 == side { 20 } else { 0 });
        let (ours_late, theirs_late) = (late(0), late(1));
        for ours in ours {
            race.spawn(async move {
                sleep(ours_late).await;
                ours.mutex("a").try_acquire().await.unwrap().map(Won::Ours)
            });
            // Each of them has seen that it is over.
            let (mut older, read) = (bench.older(), read.clone());
            race.spawn(async move {
                sleep(theirs_late).await;
                older.take_over(&read).await.then_some(Won::Theirs)
            });
        }
        let results = race.join_all().await;
        let won: Vec<_> = results.iter().flatten().collect();
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        wins[usize::from(matches!(won[0], Won::Theirs))] += 1;
        drop(results);
        bench.redis(&["DEL", "lock:a"]).await;
    }
    assert!(wins.iter().all(|count| *count > 0), "no race at all: {wins:?}");
}

#[tokio::test]
async fn a_loser_that_overwrites_the_time_ends_the_lease_and_holds_nothing() {
    let bench = Bench::new().await;
    // The ttl is another, so that the time cannot be the same.
    let (ours, mut older) = (bench.ours("").await, Older { ttl: PATIENCE * 2, ..bench.older() });
    bench.redis(&["SET", "lock:a", "1500000000000"]).await;
    let read = older.read().await;
    let guard = ours.mutex("a").try_acquire().await.unwrap().expect("it was over");
    assert!(!older.take_over(&read).await, "two hold the lock");
    assert_eq!(guard.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    // It may be somebody's, for all that we know.
    assert_eq!(bench.redis(&["GET", "lock:a"]).await, older.written);
}

#[tokio::test]
async fn values_that_are_no_times_of_the_unit_are_never_over() {
    let bench = Bench::new().await;
    let (millis, seconds) = (bench.ours("").await, bench.ours("&recipe_unit=s").await);
    let hex = "0123456789abcdef0123456789abcdef";
    let (log, _listening) = LogCapture::begin();
    for (locks, busy) in [
        (&millis, &["1500000000", "1500000000.5", "0", "1", "", "-5", "1.5e12", "nonsense", hex, "9e99"][..]),
        (&seconds, &["1500000000000", "0", "1", "", "1500000000s", "0x59682F00", hex][..]),
    ] {
        for value in busy {
            bench.redis(&["SET", "lock:a", value]).await;
            assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "{value:?} was taken over");
            assert_eq!(log.warnings("").len(), 1, "no warning of {value:?}");
            log.clear();
            assert!(locks.inspect("a").await.unwrap().is_held(), "{value:?}");
        }
    }
    for (locks, over) in [
        (&millis, &["1500000000000", "1500000000000.25"][..]),
        (&seconds, &["1500000000", "1500000000.25", "1500000000.0"][..]),
    ] {
        for value in over {
            bench.redis(&["SET", "lock:a", value]).await;
            assert!(!locks.inspect("a").await.unwrap().is_held(), "{value:?}");
            let guard = locks.mutex("a").try_acquire().await.unwrap();
            assert!(log.warnings("").is_empty(), "{log:?}");
            assert_eq!(guard.expect(value).release().await.unwrap(), Released::Released);
        }
    }
    bench.redis(&["HSET", "lock:a", "field", "1"]).await;
    assert!(millis.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(millis.break_lock("a").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

// ---- With the other recipe, on the way to it ----

#[tokio::test]
async fn both_recipes_exclude_each_other_and_their_tokens_grow() {
    let bench = Bench::new().await;
    let new = RedisConfig::from_url(&bench.server.url()).unwrap().connect().await.unwrap();
    let old = bench.ours("").await;
    let mut tokens = Vec::new();
    for round in 0..6 {
        let (holder, other) = if round % 2 == 0 { (&old, &new) } else { (&new, &old) };
        let guard = holder.mutex("a").try_acquire().await.unwrap().expect("it was released");
        tokens.push(guard.token());
        assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "two hold the lock");
        if round == 2 {
            guard.raise_token(Token::new(tokens[2].get() + 1_000_000_000)).await.unwrap();
        }
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "tokens do not grow: {tokens:?}");
    assert!(tokens[3].get() > tokens[2].get() + 1_000_000_000, "raised: {tokens:?}");
    bench.nothing_is_left().await;
}

// ---- Clocks ----

#[tokio::test]
async fn a_clock_that_is_ahead_gives_two_the_lock() {
    let bench = Bench::new().await;
    // Whoever assumes that clocks do not differ.
    let config = |ahead| bench.config("&clock_skew=0s&ttl=5s").wall_clock(ahead_by(ahead));
    let holder = config(0).connect().await.unwrap().mutex("a").acquire().await.unwrap();
    let early = config(4_000).connect().await.unwrap();
    assert!(early.mutex("a").try_acquire().await.unwrap().is_none());
    let fast = config(6_000).connect().await.unwrap();
    let second = fast.mutex("a").try_acquire().await.unwrap().expect("over by this clock");
    assert!(holder.is_valid() && second.is_valid(), "this is what makes the recipe unsafe");
    // What can be had: a resource that compares tokens takes the second's side.
    assert!(second.token() > holder.token());
    assert_eq!(holder.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
}

#[tokio::test]
async fn with_enough_skew_assumed_the_holder_has_lost_before() {
    let bench = Bench::new().await;
    let ours = bench.ours("&ttl=3s&clock_skew=2s").await;
    let guard = ours.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(3))).unwrap();
    let guard = guard.acquire().await.unwrap();
    assert!(guard.remaining() <= Duration::from_secs(1));
    let mut fast = Older { ahead: 1_900, ..bench.older() };
    let deadline = Instant::now() + PATIENCE;
    let ends: u128 = bench.redis(&["GET", "lock:a"]).await.parse().unwrap();
    while !fast.try_acquire().await {
        assert!(Instant::now() < deadline, "never over");
        sleep(Duration::from_millis(2)).await;
    }
    assert!(millis(now()) < ends, "its clock is ahead, so it took the lock early");
    assert!(!guard.is_valid(), "two hold the lock, for {:?}", guard.remaining());
}

#[tokio::test]
async fn with_enough_skew_assumed_a_fast_clock_of_ours_takes_nothing_early() {
    let bench = Bench::new().await;
    let fast = bench.config("&clock_skew=2s").wall_clock(ahead_by(1_900)).connect().await.unwrap();
    let mut older = Older { ttl: Duration::from_millis(700), ..bench.older() };
    assert!(older.try_acquire().await);
    let ends: u128 = older.written.parse().unwrap();
    let _guard = timeout(PATIENCE, fast.mutex("a").acquire()).await.unwrap().unwrap();
    assert!(millis(now()) >= ends, "taken over while the other client's lock is valid");
}

#[tokio::test]
async fn a_step_of_the_clock_before_the_answer_counts() {
    let bench = Bench::new().await;
    let proxy = FaultProxy::start(bench.server.addr(), Protocol::Redis).unwrap();
    let offset = Arc::new(AtomicI64::new(0));
    let clock = WallClock::new({
        let offset = Arc::clone(&offset);
        move || shifted(offset.load(Ordering::SeqCst))
    });
    let url = format!("redis://{}?recipe=setnx-timestamp&ttl=10s", proxy.addr());
    let locks = RedisConfig::from_url(&url).unwrap().wall_clock(clock).connect().await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();

    proxy.delay(Direction::ToClient, Duration::from_millis(300));
    let mutex = locks.mutex("a");
    for (step, valid_for) in [(0, 8_000..=9_000), (4_000, 4_000..=5_000), (-4_000, 8_000..=9_000)] {
        let stepping = async {
            sleep(Duration::from_millis(100)).await;
            offset.fetch_add(step, Ordering::SeqCst)
        };
        let (guard, _) = tokio::join!(timeout(PATIENCE, mutex.acquire()), stepping);
        let guard = guard.unwrap().unwrap();
        let left = millis(guard.remaining());
        assert!(valid_for.contains(&left), "valid for {left} ms after a step of {step} ms");
        guard.release().await.unwrap();
    }
    let stepping = async {
        sleep(Duration::from_millis(100)).await;
        offset.fetch_add(60_000, Ordering::SeqCst)
    };
    let (tried, _) = tokio::join!(timeout(PATIENCE, mutex.acquire()), stepping);
    assert_eq!(tried.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    bench.nothing_is_left().await;
}

#[tokio::test]
async fn the_recipe_and_a_wrong_clock_are_warned_about() {
    for (ahead, count) in [(0, 0), (3_000, 1), (-3_000, 1)] {
        let bench = Bench::new().await;
        let (log, _listening) = LogCapture::begin();
        let locks = bench.config("&clock_skew=1s").wall_clock(ahead_by(ahead)).connect().await.unwrap();
        for _ in 0..2 {
            locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        }
        let report = locks.doctor().await.unwrap();
        assert_eq!(report.warnings().filter(|finding| finding.what.contains("two may hold")).count(), 1);
        let named = log.warnings("set-nx-px");
        assert!(named.len() == 1 && named[0].contains("two may hold"), "{named:?}");
        let differs = log.warnings("clock_skew");
        assert_eq!(differs.len(), count, "{ahead}: {differs:?}");
        let which = if ahead > 0 { "ahead of the server's" } else { "behind the server's" };
        assert!(differs.iter().all(|text| text.contains(which)), "{differs:?}");
    }
    let bench = Bench::new().await;
    let (log, _listening) = LogCapture::begin();
    let locks = RedisConfig::from_url(&bench.server.url()).unwrap().connect().await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    assert!(log.warnings("").is_empty(), "the usual recipe is no reason to worry: {log:?}");
}

// ---- Ours among themselves ----

#[tokio::test]
async fn two_acquisitions_that_write_the_same_time_are_distinguished() {
    let bench = Bench::new().await;
    let at = now();
    let frozen = || bench.config("").wall_clock(WallClock::new(move || UNIX_EPOCH + at)).connect();
    let (one, two) = (frozen().await.unwrap(), frozen().await.unwrap());
    let first = one.mutex("a").acquire().await.unwrap();
    let value = bench.redis(&["GET", "lock:a"]).await;
    bench.redis(&["DEL", "lock:a"]).await;
    let second = two.mutex("a").acquire().await.unwrap();
    assert_eq!(bench.redis(&["GET", "lock:a"]).await, value);
    assert_eq!(first.extend(Duration::from_secs(10)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(second.verify().await.unwrap(), GuardState::Valid);
    give_back(second).await;
}

#[tokio::test]
async fn a_time_that_others_write_after_our_release_is_theirs() {
    let link = Link::new().await;
    for broken in [false, true] {
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        let value = link.bench.redis(&["GET", "lock:a"]).await;
        if broken {
            assert!(link.locks.break_lock("a").await.unwrap());
        } else {
            // It is going to be sent again.
            link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(link.bench.redis(&["SETNX", "lock:a", &value]).await, "1");
        link.proxy.heal();
        sleep(Duration::from_millis(1000)).await;
        assert_eq!(link.bench.redis(&["GET", "lock:a"]).await, value, "their lock was released");
        let holder = link.locks.inspect("a").await.unwrap().holder().cloned();
        assert!(matches!(holder, Some(Holder::Foreign(_))), "{holder:?}");
        link.bench.redis(&["DEL", "lock:a"]).await;
    }
}

// ---- Cancellation and faults ----

#[tokio::test]
async fn a_cancelled_acquire_leaves_nothing() {
    let bench = Bench::new().await;
    let (one, two) = (bench.ours("").await, bench.ours("").await);
    for over in [false, true] {
        for_each_poll_count(async |k| {
            if over {
                bench.redis(&["SET", "lock:a", "1500000000000"]).await;
            }
            let acquired = cancel_after(k, one.mutex("a").acquire()).await;
            let done = acquired.is_some();
            drop(acquired.transpose().unwrap());
            two.mutex("a").acquire().await.unwrap().release().await.unwrap();
            bench.nothing_is_left().await;
            done.then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_extension_of_unknown_outcome_is_known_to_the_release() {
    let link = Link::new().await;
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    let before = link.bench.redis(&["GET", "lock:a"]).await;
    link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
    let error = guard.extend(Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_ne!(link.bench.redis(&["GET", "lock:a"]).await, before, "it was carried out");
    link.proxy.heal();
    assert_eq!(guard.verify().await.unwrap(), GuardState::Suspect);
    give_back(guard).await;
    link.bench.nothing_is_left().await;
}

// ---- What is refused ----

#[tokio::test]
async fn its_capabilities_report_what_it_cannot_do() {
    let bench = Bench::new().await;
    let locks = bench.ours("&clock_skew=1s").await;
    let capabilities = locks.capabilities();
    assert!(!capabilities.fifo && !capabilities.counts_waiters);
    for mode in [Mode::Shared, Mode::Permit { max: 2.try_into().unwrap() }] {
        let request = request(&LockName::new("a").unwrap());
        let error = locks.backend().acquire(request.in_mode(mode)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("one holder"), "{error}");
    }
    // With less than that, nothing of the lease would be left.
    let short = LockOptions::new().ttl(Duration::from_millis(1_050));
    assert_eq!(locks.mutex_with("a", short).unwrap_err().kind(), ErrorKind::InvalidConfig);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let error = guard.extend(Duration::from_millis(1_050)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(guard.is_valid());
}

// ---- Helpers ----

const PATIENCE: Duration = Duration::from_secs(10);

struct Bench {
    server: Arc<RedisServer>,
}

impl Bench {
    async fn new() -> Self {
        Self { server: Arc::new(RedisServer::start().await.unwrap()) }
    }

    async fn ours(&self, options: &str) -> Locks {
        self.config(options).connect().await.unwrap()
    }

    /// The recipe with a ttl of 10 s and a skew of 50 ms, unless the options say something else.
    fn config(&self, options: &str) -> RedisConfig {
        let mut url = format!("{}?recipe=setnx-timestamp{options}", self.server.url());
        for (option, value) in [("&ttl=", "10s"), ("&clock_skew=", "50ms")] {
            if !options.contains(option) {
                url.extend([option, value]);
            }
        }
        RedisConfig::from_url(&url).unwrap()
    }

    fn older(&self) -> Older {
        let (server, ttl) = (Arc::clone(&self.server), Duration::from_secs(10));
        Older { server, ttl, ahead: 0, unit: 1, written: String::new() }
    }

    async fn redis(&self, words: &[&str]) -> String {
        redis(&self.server, words).await.unwrap_or_default()
    }

    async fn nothing_is_left(&self) {
        until("a lock is left behind", async || !self.server.has_key("lock:a").await).await;
    }
}

/// A client as the page of the command SETNX described one, by plain commands.
struct Older {
    server: Arc<RedisServer>,
    ttl: Duration,
    /// By how many ms its clock is ahead.
    ahead: i64,
    /// In ms.
    unit: u128,
    written: String,
}

impl Older {
    async fn try_acquire(&mut self) -> bool {
        self.written = self.value();
        if self.redis(&["SETNX", "lock:a", &self.written]).await.as_deref() == Some("1") {
            return true;
        }
        let read = self.read().await;
        read.parse().is_ok_and(|ends| self.now() > ends) && self.take_over(&read).await
    }

    async fn read(&self) -> String {
        self.redis(&["GET", "lock:a"]).await.unwrap_or_default()
    }

    /// What follows when the time that was read is over.
    async fn take_over(&mut self, read: &str) -> bool {
        self.written = self.value();
        self.redis(&["GETSET", "lock:a", &self.written]).await.as_deref() == Some(read)
    }

    /// Only while the lock is not over: another client may hold it then.
    async fn release(&self) {
        if self.written.parse().is_ok_and(|ends| self.now() <= ends) {
            self.redis(&["DEL", "lock:a"]).await;
        }
    }

    fn now(&self) -> u128 {
        millis(shifted(self.ahead).duration_since(UNIX_EPOCH).unwrap()) / self.unit
    }

    fn value(&self) -> String {
        (self.now() + self.ttl.as_millis() / self.unit + 1).to_string()
    }

    async fn redis(&self, words: &[&str]) -> Option<String> {
        redis(&self.server, words).await
    }
}

#[derive(Debug)]
enum Won {
    Ours(#[allow(dead_code, reason = "held until the race is judged")] Guard),
    Theirs,
}

/// Ours behind a proxy, that waits for an answer for a short time only.
struct Link {
    bench: Bench,
    proxy: FaultProxy,
    locks: Locks,
}

impl Link {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let proxy = FaultProxy::start(bench.server.addr(), Protocol::Redis).unwrap();
        let options = "recipe=setnx-timestamp&ttl=3s&clock_skew=50ms&command_timeout=400ms";
        let config = RedisConfig::from_url(&format!("redis://{}?{options}", proxy.addr())).unwrap();
        let locks = config.connect().await.unwrap();
        // So that the scripts are known, and a request is one command.
        let guard = locks.mutex("a").acquire().await.unwrap();
        guard.extend(Duration::from_secs(3)).await.unwrap();
        guard.release().await.unwrap();
        Self { bench, proxy, locks }
    }
}

async fn redis(server: &RedisServer, words: &[&str]) -> Option<String> {
    let reply = server.command(words).await.unwrap();
    assert!(!reply.is_error(), "{words:?}: {reply:?}");
    reply.text().map(Into::into).or_else(|| reply.int().map(|number| number.to_string()))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn millis(time: Duration) -> u128 {
    time.as_millis()
}

fn ahead_by(by: i64) -> WallClock {
    WallClock::new(move || shifted(by))
}

fn shifted(by: i64) -> SystemTime {
    let span = Duration::from_millis(by.unsigned_abs());
    if by < 0 { SystemTime::now() - span } else { SystemTime::now() + span }
}
