//! The recipe `setnx-timestamp`: with clients that run it by plain commands, with clocks that differ, and when the
//! connection fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{ErrorKind, GuardState, Holder, LockOptions, Locks, LossReason, Outcome, Released, Token};
use lock_redis::{RedisConfig, WallClock};
use lock_testkit::proxy::{Direction, Then, redis_command};
use lock_testkit::{LogCapture, RedisServer, give_back, is_renewed, take, until};

use crate::common::{KEY, Link, connect, nothing_is_left};

// ---- The format ----

#[tokio::test]
async fn the_key_holds_the_time_at_which_the_lock_ends_and_has_no_ttl() {
    let bench = Bench::new().await;
    let before = millis(now());
    let guard = take(&bench.ours("").await, "a").await;
    let (value, after) = (bench.value().await, millis(now()));
    // The ttl is 10 s, and one is added.
    assert!((before + 10_001..=after + 10_001).contains(&value), "{value} between {before} and {after}");
    assert_eq!(bench.redis(&["PTTL", KEY]).await, "-1");
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
    let guard = take(&bench.ours("&recipe_unit=s").await, "a").await;
    let (value, now) = (bench.value().await, u128::from(now().as_secs()));
    assert!((now + 10..=now + 11).contains(&value), "{value}");
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
    let guard = take(&bench.ours("&ttl=5s").await, "a").await;
    let first = bench.value().await;
    is_renewed(&guard).await;
    assert!(bench.value().await > first);
    for ttl in [Duration::from_secs(20), Duration::from_secs(10)] {
        let before = millis(now());
        guard.extend(ttl).await.unwrap();
        let value = bench.value().await;
        let (first, last) = (before + ttl.as_millis() + 1, millis(now()) + ttl.as_millis() + 1);
        assert!((first..=last).contains(&value), "{value}, not from {first} to {last}");
        assert!(millis(now() + guard.remaining()) + 50 <= value);
    }
    give_back(guard).await;
    bench.nothing_is_left().await;
}

// ---- With clients of other libraries ----

/// Also where our clock is ahead, by less than is assumed.
#[tokio::test]
async fn we_take_over_when_their_time_is_over_and_not_before() {
    let bench = Bench::new().await;
    for ahead in [0, 1_900] {
        let config = bench.config("&clock_skew=2s").wall_clock(ahead_by(ahead));
        let ours = config.connect().await.unwrap();
        // Time: that it ends is the subject.
        let mut gone = Older { ttl: Duration::from_millis(1000), ..bench.older() };
        assert!(gone.try_acquire().await);
        let ends: u128 = gone.written.parse().unwrap();
        let guard = take(&ours, "a").await;
        assert!(millis(now()) + ahead as u128 > ends + 2_000, "taken over too early");
        // What they do too late does not hurt us, as they look at their own time first.
        gone.release().await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
        bench.nothing_is_left().await;
    }
}

/// Also where their clock is ahead, by less than is assumed.
#[tokio::test]
async fn other_clients_take_over_only_after_the_lease_has_ended() {
    let bench = Bench::new().await;
    // Time: that the lease ends is the subject.
    for (ttl, skew, ahead) in [(800, 50, 0), (3_000, 2_000, 1_900)] {
        let (ours, ttl) = (bench.ours(&format!("&clock_skew={skew}ms")).await, Duration::from_millis(ttl)); // Time: as above.
        let mut older = Older { ahead, ..bench.older() };
        let fixed = ours.mutex_with("a", LockOptions::new().fixed_ttl(ttl)).unwrap();
        let guard = fixed.acquire().await.unwrap();
        let ends = bench.value().await;
        until("it is over", async || older.try_acquire().await).await;
        assert!(!guard.is_valid(), "two hold the lock, for {:?}", guard.remaining());
        assert!(ahead > 0 || millis(now()) > ends);
        // What we do too late does not hurt them.
        assert_eq!(guard.extend(Duration::from_secs(9)).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(bench.redis(&["GET", KEY]).await, older.written);
        older.release().await;
    }
}

#[tokio::test]
async fn a_loser_that_overwrites_the_time_ends_the_lease_and_holds_nothing() {
    let bench = Bench::new().await;
    // The ttl is another, so that the time cannot be the same.
    let (ours, mut older) = (bench.ours("").await, Older { ttl: Duration::from_secs(20), ..bench.older() });
    bench.redis(&["SET", KEY, "1500000000000"]).await;
    let read = older.read().await;
    let guard = ours.mutex("a").try_acquire().await.unwrap().expect("it was over");
    assert!(!older.take_over(&read).await, "two hold the lock");
    assert_eq!(guard.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    // It may be somebody's, for all that we know.
    assert_eq!(bench.redis(&["GET", KEY]).await, older.written);
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
            bench.redis(&["SET", KEY, value]).await;
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
            bench.redis(&["SET", KEY, value]).await;
            assert!(!locks.inspect("a").await.unwrap().is_held(), "{value:?}");
            let guard = locks.mutex("a").try_acquire().await.unwrap();
            assert!(log.warnings("").is_empty(), "{log:?}");
            assert_eq!(guard.expect(value).release().await.unwrap(), Released::Released);
        }
    }
    bench.redis(&["HSET", KEY, "field", "1"]).await;
    assert!(millis.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(millis.break_lock("a").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

// ---- With the other recipe, on the way to it ----

#[tokio::test]
async fn both_recipes_exclude_each_other_and_their_tokens_grow() {
    let bench = Bench::new().await;
    let (new, old) = (connect(&bench.server.url()).await, bench.ours("").await);
    let mut last = Token::new(0);
    for round in 0..6 {
        let (holder, other) = if round % 2 == 0 { (&old, &new) } else { (&new, &old) };
        let guard = take(holder, "a").await;
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "two hold the lock");
        if round == 2 {
            last = Token::new(last.get() + 1_000_000_000);
            guard.raise_token(last).await.unwrap();
        }
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
    bench.nothing_is_left().await;
}

// ---- Clocks ----

#[tokio::test]
async fn a_clock_that_is_ahead_gives_two_the_lock() {
    let bench = Bench::new().await;
    // Whoever assumes that clocks do not differ.
    let config = |ahead| bench.config("&clock_skew=0s&ttl=30s").wall_clock(ahead_by(ahead));
    let holder = take(&config(0).connect().await.unwrap(), "a").await;
    let early = config(15_000).connect().await.unwrap();
    assert!(early.mutex("a").try_acquire().await.unwrap().is_none());
    let second = take(&config(31_000).connect().await.unwrap(), "a").await;
    assert!(holder.is_valid() && second.is_valid(), "this is what makes the recipe unsafe");
    // What can be had: a resource that compares tokens takes the second's side.
    assert!(second.token() > holder.token());
    assert_eq!(holder.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
}

/// What was written says an earlier end by the new time: it is taken back, and written again.
#[tokio::test]
async fn a_step_of_the_clock_before_the_answer_counts() {
    let offset = Arc::new(AtomicI64::new(0));
    let steps = Arc::clone(&offset);
    let link = link("ttl=60s", WallClock::new(move || shifted(steps.load(Ordering::SeqCst)))).await;
    let mutex = link.locks.mutex("a");
    for (step, scripts) in [(0, 1), (20_000, 3), (-20_000, 1), (90_000, 3)] {
        let before = link.redis.calls_of("evalsha").await;
        link.proxy.hold(Direction::ToClient);
        let stepping = async {
            until("it is granted", async || link.redis.calls_of("evalsha").await > before).await;
            offset.fetch_add(step, Ordering::SeqCst);
            link.proxy.deliver();
        };
        let guard = tokio::join!(mutex.acquire(), stepping).0.unwrap();
        assert_eq!(link.redis.calls_of("evalsha").await - before, scripts, "after a step of {step} ms");
        let left = guard.remaining().as_secs();
        assert!((50..=60).contains(&left), "valid for {left} s after a step of {step} ms");
        give_back(guard).await;
        link.nothing_is_left().await;
    }
}

#[tokio::test]
async fn the_recipe_and_a_wrong_clock_are_warned_about() {
    for (ahead, count) in [(0, 0), (3_000, 1), (-3_000, 1)] {
        let bench = Bench::new().await;
        let (log, _listening) = LogCapture::begin();
        let locks = bench.config("&clock_skew=1s").wall_clock(ahead_by(ahead)).connect().await.unwrap();
        for _ in 0..2 {
            give_back(take(&locks, "a").await).await;
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
    give_back(take(&connect(&bench.server.url()).await, "a").await).await;
    assert!(log.warnings("").is_empty(), "the usual recipe is no reason to worry: {log:?}");
}

// ---- Ours among themselves ----

#[tokio::test]
async fn two_acquisitions_that_write_the_same_time_are_distinguished() {
    let bench = Bench::new().await;
    let at = now();
    let frozen = || bench.config("").wall_clock(WallClock::new(move || UNIX_EPOCH + at)).connect();
    let first = take(&frozen().await.unwrap(), "a").await;
    let value = bench.redis(&["GET", KEY]).await;
    bench.redis(&["DEL", KEY]).await;
    let second = take(&frozen().await.unwrap(), "a").await;
    assert_eq!(bench.redis(&["GET", KEY]).await, value);
    assert_eq!(first.extend(Duration::from_secs(10)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(second.verify().await.unwrap(), GuardState::Valid);
    give_back(second).await;
}

#[tokio::test]
async fn a_time_that_others_write_after_our_release_is_theirs() {
    let link = hasty_link().await;
    for broken in [false, true] {
        let guard = take(&link.locks, "a").await;
        let value = link.redis.text(&["GET", KEY]).await;
        let sent = link.redis.calls_of("evalsha").await;
        if broken {
            assert!(link.locks.break_lock("a").await.unwrap());
        } else {
            // It is going to be sent again.
            link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(link.redis.call(&["SETNX", KEY, &value]).await.int(), Some(1));
        link.proxy.heal();
        until("it is sent again", async || broken || link.redis.calls_of("evalsha").await > sent + 1).await;
        assert_eq!(link.redis.text(&["GET", KEY]).await, value, "their lock was released");
        let holder = link.locks.inspect("a").await.unwrap().holder().cloned();
        assert!(matches!(holder, Some(Holder::Foreign(_))), "{holder:?}");
        link.redis.call(&["DEL", KEY]).await;
    }
}

/// What it would write is an earlier end, for all others: it does not say that the lease is longer.
#[tokio::test]
async fn a_clock_that_was_set_back_extends_nothing() {
    let offset = Arc::new(AtomicI64::new(0));
    let steps = Arc::clone(&offset);
    let link = link("ttl=60s", WallClock::new(move || shifted(steps.load(Ordering::SeqCst)))).await;
    let guard = take(&link.locks, "a").await;
    let value = link.redis.text(&["GET", KEY]).await;
    offset.store(-86_400_000, Ordering::SeqCst);
    let error = guard.extend(Duration::from_secs(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
    assert_eq!(link.redis.text(&["GET", KEY]).await, value, "an earlier end was written");
    assert!(guard.is_valid(), "until its deadline, as before");
    // Whose clock is right finds it busy until then.
    let others = connect(&format!("{}?recipe=setnx-timestamp", link.redis.url())).await;
    assert!(others.mutex("a").try_acquire().await.unwrap().is_none());
    // An extension by less is wanted, and is written.
    offset.store(0, Ordering::SeqCst);
    guard.extend(Duration::from_secs(30)).await.unwrap();
    assert_ne!(link.redis.text(&["GET", KEY]).await, value);
    give_back(guard).await;
}

// ---- Cancellation and faults ----

#[tokio::test]
async fn an_extension_of_unknown_outcome_is_known_to_the_release() {
    let link = hasty_link().await;
    let guard = take(&link.locks, "a").await;
    let before = link.redis.text(&["GET", KEY]).await;
    link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
    let error = guard.extend(Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_ne!(link.redis.text(&["GET", KEY]).await, before, "it was carried out");
    link.proxy.heal();
    assert_eq!(guard.verify().await.unwrap(), GuardState::Suspect);
    give_back(guard).await;
    link.nothing_is_left().await;
}

/// With less than that, nothing of the lease would be left.
#[tokio::test]
async fn a_ttl_that_is_no_longer_than_clocks_differ_is_refused() {
    let bench = Bench::new().await;
    let locks = bench.ours("&clock_skew=10s&ttl=20s").await;
    let short = Duration::from_millis(10_050); // Time: hardly more.
    let refused = locks.mutex_with("a", LockOptions::new().ttl(short)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    let guard = take(&locks, "a").await;
    assert_eq!(guard.extend(short).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert!(guard.is_valid());
}

// ---- Helpers ----

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

    /// The time in the key.
    async fn value(&self) -> u128 {
        self.redis(&["GET", KEY]).await.parse().unwrap()
    }

    async fn nothing_is_left(&self) {
        nothing_is_left(&self.server).await;
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
        if self.redis(&["SETNX", KEY, &self.written]).await.as_deref() == Some("1") {
            return true;
        }
        let read = self.read().await;
        read.parse().is_ok_and(|ends| self.now() > ends) && self.take_over(&read).await
    }

    async fn read(&self) -> String {
        self.redis(&["GET", KEY]).await.unwrap_or_default()
    }

    /// What follows when the time that was read is over.
    async fn take_over(&mut self, read: &str) -> bool {
        self.written = self.value();
        self.redis(&["GETSET", KEY, &self.written]).await.as_deref() == Some(read)
    }

    /// Only while the lock is not over: another client may hold it then.
    async fn release(&self) {
        if self.written.parse().is_ok_and(|ends| self.now() <= ends) {
            self.redis(&["DEL", KEY]).await;
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

/// Ours behind a proxy.
async fn link(options: &str, clock: WallClock) -> Link {
    let options = format!("recipe=setnx-timestamp&clock_skew=50ms&{options}");
    let link = Link::configured(&options, |config| config.wall_clock(clock)).await;
    // So that the scripts are known, and a request is one command.
    let guard = take(&link.locks, "a").await;
    guard.extend(Duration::from_secs(10)).await.unwrap();
    give_back(guard).await;
    link
}

/// The same, that waits for an answer for a short time only.
async fn hasty_link() -> Link {
    // Time: a request that is not answered fails before the lease ends.
    link("ttl=10s&command_timeout=400ms", WallClock::default()).await
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
    // Time: by how much a clock is wrong.
    let span = Duration::from_millis(by.unsigned_abs());
    if by < 0 { SystemTime::now() - span } else { SystemTime::now() + span }
}
