//! What goes over the connection, and what becomes of it when the connection fails.

use std::ops::RangeInclusive;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{
    ErrorKind, Guard, GuardState, LockOptions, Locks, LossReason, Outcome, OwnerId, Released, Token,
};
use lock_redis::deadpool_redis::Config;
use lock_redis::{RedisConfig, RedisWait};
use lock_testkit::proxy::{Direction, Protocol, Then, redis_command};
use lock_testkit::{FaultProxy, RedisServer, acquiring, come, give_back, until};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::Link;

const PATIENCE: Duration = Duration::from_secs(10);
/// The recipes, by their options.
const RECIPES: [&str; 2] = ["recipe=set-nx-px", "recipe=setnx-timestamp&clock_skew=50ms"];
/// What begins an acquisition of a free lock.
const REQUESTS: [&str; 2] = ["EVALSHA", "SET"];
/// The commands of ten locks one after the other: two scripts for the first; then three commands in one write and a script for
/// each, the time now and then, and a script where the token was not larger.
const SCRIPTS_THEN_COMMANDS: RangeInclusive<u64> = 38..=52;

impl Link {
    async fn new() -> Self {
        Self::with("ttl=3s&command_timeout=400ms").await
    }

    async fn of(recipe: &str) -> Self {
        Self::with(&format!("ttl=3s&command_timeout=400ms&{recipe}")).await
    }

    /// Until the server is asked for something again there is none.
    async fn loses_its_connection(&self) {
        self.proxy.refuse(true);
        self.proxy.rst();
        let error = self.locks.inspect("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        self.proxy.refuse(false);
    }

    /// Prepares for locks to be acquired by this request.
    async fn is_to_send(&self, request: &str) {
        if request == "SET" {
            // The first request of a connection is a script.
            self.locks.mutex("first").acquire().await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn acquire_and_release_are_one_round_trip_each() {
    let link = Link::new().await;
    link.proxy.reset_counters();
    for _ in 0..10 {
        link.locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert!(SCRIPTS_THEN_COMMANDS.contains(&link.proxy.requests()), "{}", link.proxy.requests());
    assert_eq!(link.proxy.connections(), 1);
}

/// As after a long idle time: the first request gets no answer, and a new connection works.
#[tokio::test]
async fn a_connection_that_a_router_has_forgotten_costs_one_timeout_and_no_error() {
    for request in REQUESTS {
        let link = Link::new().await;
        link.is_to_send(request).await;
        link.proxy.forget();
        let guard = timeout(PATIENCE, link.locks.mutex("a").acquire()).await.unwrap().unwrap();
        give_back(guard).await;
        link.proxy.forget();
        let guard = link.locks.mutex("a").try_acquire_for(PATIENCE).await.unwrap().expect("nobody has it");
        give_back(guard).await;
        link.proxy.forget();
        let guard = link.locks.mutex("a").try_acquire().await.unwrap().expect("nobody has it");
        give_back(guard).await;
        link.no_key_is_left().await;
    }
}

/// A claim by plain commands, of which the server has executed the first one.
struct HalfClaim {
    link: Link,
    claim: JoinHandle<Guard>,
    /// The token that the second command is to write.
    token: u64,
}

impl HalfClaim {
    async fn begin() -> Self {
        let link = Link::with("ttl=6s&command_timeout=20s").await;
        link.is_to_send("SET").await;
        link.proxy.hold_after(redis_command("SET"));
        let claim = acquiring(link.locks.mutex("a"));
        let deadline = Instant::now() + PATIENCE;
        let value = loop {
            let value = link.redis.command(&["GET", "lock:a"]).await.unwrap();
            match value.text() {
                Some(value) if link.proxy.queued(Direction::ToServer) > 0 => break value.to_owned(),
                _ => assert!(Instant::now() < deadline, "it sends no plain commands: {value:?}"),
            }
            sleep(Duration::from_millis(5)).await;
        };
        let token = value.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(link.redis.command(&["ZSCORE", TOKENS, "last"]).await.unwrap().text(), None);
        Self { link, claim, token }
    }

    /// Another client, without the proxy.
    async fn another(&self) -> Locks {
        RedisConfig::from_url(&self.link.redis.url()).unwrap().connect().await.unwrap()
    }

    /// Removes the half-acquired lock.
    async fn is_broken(&self, by: &Locks, command: &str) {
        match command {
            "break_lock" => assert!(by.break_lock("a").await.unwrap(), "it is held"),
            _ => assert_eq!(self.link.redis.command(&["DEL", "lock:a"]).await.unwrap().int(), Some(1)),
        }
    }

    fn goes_on(self) -> (Link, JoinHandle<Guard>) {
        self.link.proxy.deliver();
        (self.link, self.claim)
    }
}

const TOKENS: &str = "polylock:tokens:{lock:a}";

#[tokio::test]
async fn a_claim_that_is_broken_between_its_commands_is_a_broken_holder() {
    for command in ["break_lock", "DEL"] {
        let half = HalfClaim::begin().await;
        let other = half.another().await;
        half.is_broken(&other, command).await;
        let token = half.token;
        let (_link, claim) = half.goes_on();
        let broken = come(claim).await;
        assert_eq!(broken.token().get(), token, "it was granted before it was broken");
        assert!(!other.inspect("a").await.unwrap().is_held());
        let next = other.mutex("a").try_acquire().await.unwrap().expect("the lock is free");
        assert!(next.token() > broken.token());
        // By the next renewal at the latest, as any holder.
        timeout(PATIENCE, broken.lost()).await.unwrap();
        assert_eq!(broken.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_whose_lock_has_another_holder_by_its_second_command_waits() {
    for command in ["break_lock", "DEL"] {
        let half = HalfClaim::begin().await;
        let other = half.another().await;
        half.is_broken(&other, command).await;
        // By a script, with the time of the server: larger than what the first proposes.
        let holder = other.mutex("a").acquire().await.unwrap();
        assert!(holder.token().get() > half.token);
        let (_link, mut claim) = half.goes_on();
        let waits = timeout(Duration::from_millis(300), &mut claim).await;
        assert!(waits.is_err(), "two hold the lock: {waits:?}");
        let first = holder.token();
        give_back(holder).await;
        let next = come(claim).await;
        assert!(next.token() > first, "{} after {first}", next.token());
        give_back(next).await;
    }
}

/// The one way to a token that is larger than that of the next holder.
#[tokio::test]
async fn a_broken_claim_may_have_a_larger_token_than_a_holder_that_knows_less_of_the_clock() {
    let half = HalfClaim::begin().await;
    let other = half.another().await;
    half.is_broken(&other, "DEL").await;
    // What a client sends whose lower bound of the server's clock is behind that of the first.
    let redis = &half.link.redis;
    let smaller = (half.token - 1).to_string();
    let value = format!("{} {smaller} {smaller} next", OwnerId::random());
    redis.command(&["SET", "lock:a", &value, "NX", "PX", "20000"]).await.unwrap();
    let raised = redis.command(&["ZADD", TOKENS, "GT", "CH", &smaller, "last"]).await.unwrap();
    assert_eq!(raised.int(), Some(1), "it is granted");
    let token = half.token;
    let (link, claim) = half.goes_on();
    let broken = come(claim).await;
    assert_eq!(broken.token().get(), token);
    // The broken holder learns of it as any other one, and touches nobody else's lock.
    assert!(matches!(broken.verify().await.unwrap(), GuardState::Lost(LossReason::Removed)));
    assert_eq!(broken.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(link.redis.command(&["GET", "lock:a"]).await.unwrap().text(), Some(&*value));
    link.redis.command(&["DEL", "lock:a"]).await.unwrap();
    let next = other.mutex("a").acquire().await.unwrap();
    assert!(next.token().get() > token, "the order holds from the next holder on");
}

/// What a broken connection may have carried is looked for over a whole lease: the first answer is enough for `close`.
#[tokio::test]
async fn close_waits_for_one_answer_only() {
    let Link { redis: _redis, proxy, .. } = Link::new().await;
    let url = format!("redis://{}?ttl=60s", proxy.addr());
    let locks = RedisConfig::from_url(&url).unwrap().connect().await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    proxy.rst();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let asked = Instant::now();
    locks.close().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_server_that_is_slow_to_greet_is_given_the_time_of_a_connection() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    proxy.delay(Direction::ToClient, Duration::from_millis(300));
    let url = format!("redis://{}?command_timeout=100ms&connect_timeout=20s", proxy.addr());
    let locks = RedisConfig::from_url(&url).unwrap().connect().await.unwrap();
    // An answer to a request is not.
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert!(error.to_string().contains("no answer in time"), "{error}");
}

/// A command of no consequence goes ahead of it, see `Call::answered_last`.
#[tokio::test]
async fn a_contended_lock_is_released_in_one_round_trip() {
    let link = Link::new().await;
    let other = RedisConfig::from_url(&link.redis.url()).unwrap().connect().await.unwrap();
    let waited_for = async || {
        let guard = other.mutex("a").acquire().await.unwrap();
        let waiter = acquiring(link.locks.mutex("a"));
        until("it waits", async || other.inspect("a").await.unwrap().waiters == 1).await;
        guard.release().await.unwrap();
        let guard = come(waiter).await;
        // Until then it is not confirmed.
        until("it is not confirmed", async || guard.remaining() >= Duration::from_secs(2)).await;
        link.proxy.reset_counters();
        guard
    };
    let guard = waited_for().await;
    give_back(guard).await;
    assert_eq!(link.proxy.requests(), 2, "EXISTS and EVALSHA");

    let guard = waited_for().await;
    link.redis.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    give_back(guard).await;
    assert_eq!(link.proxy.requests(), 4, "and then SCRIPT LOAD and EVALSHA");

    let guard = waited_for().await;
    link.redis.command(&["DEL", "lock:a"]).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);

    let guard = waited_for().await;
    link.proxy.swallow_when(redis_command("EVALSHA"), Then::Reset);
    give_back(guard).await;
    assert_eq!(link.proxy.fired(), 1);
    link.no_key_is_left().await;
}

#[tokio::test]
async fn a_handed_over_lock_is_kept_even_if_the_next_waiter_cannot_be_notified() {
    let link = Link::new().await;
    let other = RedisConfig::from_url(&link.redis.url()).unwrap().connect().await.unwrap();
    let guard = other.mutex("a").acquire().await.unwrap();
    let waiter = acquiring(link.locks.mutex("a"));
    until("it waits", async || other.inspect("a").await.unwrap().waiters == 1).await;
    // The first renewal is on its way while the queue becomes something else.
    link.proxy.hold(Direction::ToServer);
    guard.release().await.unwrap();
    let guard = come(waiter).await;
    let deadline = Instant::now() + PATIENCE;
    while link.proxy.queued(Direction::ToServer) == 0 {
        assert!(Instant::now() < deadline, "no renewal was sent");
        sleep(Duration::from_millis(1)).await;
    }
    link.redis.command(&["SET", "polylock:queue:{lock:a}", "something"]).await.unwrap();
    link.proxy.deliver();
    while guard.remaining() < Duration::from_secs(2) {
        assert!(Instant::now() < deadline, "it is not confirmed");
        assert_eq!(guard.state(), GuardState::Valid, "the confirmation failed");
        sleep(Duration::from_millis(1)).await;
    }
    link.redis.command(&["DEL", "polylock:queue:{lock:a}"]).await.unwrap();
    give_back(guard).await;
    link.no_key_is_left().await;
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_costs_one_round_trip_more() {
    let link = Link::new().await;
    link.redis.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    link.proxy.reset_counters();
    // The first request of a connection is a script.
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    assert_eq!(link.proxy.requests(), 3, "EVALSHA, then SCRIPT LOAD and EVALSHA together");
    give_back(guard).await;
}

#[tokio::test]
async fn a_pool_of_the_users_is_taken_one_connection_and_never_pinged() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    let url = format!("redis://{}", proxy.addr());
    let pool = Config::from_url(&url).create_pool(None).unwrap();
    let config = RedisConfig::from_url(&url).unwrap().pool(pool.clone());
    let locks = config.connect().await.unwrap();
    proxy.reset_counters();
    for _ in 0..10 {
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert!(SCRIPTS_THEN_COMMANDS.contains(&proxy.requests()), "{}", proxy.requests());
    assert_eq!(pool.status().size, 0, "the connection was taken out for good");
}

#[tokio::test]
async fn a_broken_connection_is_replaced_without_an_error() {
    let link = Link::new().await;
    for cut in 0..4 {
        if cut % 2 == 0 {
            link.proxy.fin();
        } else {
            link.proxy.rst();
        }
        let guard = timeout(PATIENCE, link.locks.mutex("a").acquire()).await.unwrap().unwrap();
        give_back(guard).await;
    }
}

/// The server may still execute the renewal, which is shorter.
#[tokio::test]
async fn a_renewal_without_an_answer_cuts_no_later_extension_short() {
    for recipe in RECIPES {
        let link = Link::with(&format!("ttl=6s&command_timeout=2s&{recipe}")).await;
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        let renewed = guard.valid_until();
        link.proxy.cut_when(redis_command("EVALSHA"));
        until("a renewal is cut", async || link.proxy.fired() == 1).await;
        let long = Duration::from_secs(120);
        let until = timeout(PATIENCE, guard.extend(long)).await.unwrap().unwrap();
        assert!(until > renewed + long - Duration::from_secs(10), "{recipe}: {until:?}");
        assert_eq!(guard.valid_until(), until);
        guard.release().await.unwrap();
    }
}

/// As in a loop over `select!` that is busy with another branch.
#[tokio::test]
async fn a_paused_request_that_is_connecting_delays_no_other() {
    let link = Link::new().await;
    link.loses_its_connection().await;
    let mutex = link.locks.mutex("a");
    let mut unpolled = pin!(mutex.acquire());
    assert!(unpolled.as_mut().now_or_never().is_none());
    let other = timeout(PATIENCE, link.locks.mutex("b").acquire()).await.unwrap().unwrap();
    give_back(other).await;
    unpolled.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn acquisitions_that_were_dropped_without_a_connection_leave_nothing_to_do() {
    let link = Link::new().await;
    link.loses_its_connection().await;
    link.proxy.black_hole(Direction::ToClient, true);
    for number in 0..20 {
        let mutex = link.locks.mutex(format!("dropped{number}"));
        assert!(timeout(Duration::from_millis(20), mutex.acquire()).await.is_err());
    }
    link.proxy.heal();
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = link.locks.inspect("a").await {
        assert!(Instant::now() < deadline, "{error}");
    }
    link.proxy.reset_counters();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(link.proxy.requests(), 0);
}

/// A clock that was set back, or a token that was raised far beyond it, makes the last token last longer than usual.
#[tokio::test]
async fn a_renewal_keeps_the_last_token_for_no_shorter_than_before() {
    let link = Link::new().await;
    for recipe in ["set-nx-px", "setnx-timestamp"] {
        let url = format!("{}?ttl=20s&recipe={recipe}", link.redis.url());
        let locks = RedisConfig::from_url(&url).unwrap().connect().await.unwrap();
        let guard = locks.mutex(recipe).acquire().await.unwrap();
        let tokens = format!("polylock:tokens:{{lock:{recipe}}}");
        let pttl = async || link.redis.command(&["PTTL", &tokens]).await.unwrap().int().unwrap();
        let year: i64 = 365 * 24 * 3600 * 1000;
        link.redis.command(&["PEXPIRE", &tokens, &year.to_string()]).await.unwrap();
        guard.extend(Duration::from_secs(20)).await.unwrap();
        assert!(pttl().await > year / 2, "{recipe}: {}", pttl().await);
        link.redis.command(&["PEXPIRE", &tokens, "30000"]).await.unwrap();
        guard.extend(Duration::from_secs(20)).await.unwrap();
        assert!(pttl().await > 100_000, "{recipe}: {}", pttl().await);
        // Until the clock can go on from there.
        let lead: i64 = 1_000_000_000;
        let floor = Token::new(guard.token().get() + lead as u64 * 1_000);
        guard.raise_token(floor).await.unwrap();
        let shown = locks.inspect(recipe).await.unwrap().holders[0].token;
        assert!(shown == Some(guard.token()) && floor > guard.token(), "that of the holder: {shown:?}");
        assert!((lead..2 * lead).contains(&pttl().await), "{recipe}: {}", pttl().await);
        guard.extend(Duration::from_secs(20)).await.unwrap();
        assert!((lead..2 * lead).contains(&pttl().await), "{recipe}: {}", pttl().await);
        give_back(guard).await;
        assert!((lead..2 * lead).contains(&pttl().await), "{recipe}: {}", pttl().await);
        // The next grant is ahead of the clock, too.
        let next = locks.mutex(recipe).acquire().await.unwrap();
        assert!(next.token() > floor, "{recipe}: {} after {floor}", next.token());
        assert!((lead..2 * lead).contains(&pttl().await), "{recipe}: {}", pttl().await);
        give_back(next).await;
    }
}

#[tokio::test]
async fn a_lost_reply_to_acquire_is_asked_for_again() {
    for (recipe, request) in [(RECIPES[0], REQUESTS[0]), (RECIPES[0], REQUESTS[1]), (RECIPES[1], REQUESTS[0])]
    {
        let link = Link::of(recipe).await;
        link.is_to_send(request).await;
        link.proxy.cut_when(redis_command(request));
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        assert_eq!(link.proxy.fired(), 1, "{recipe}: {request}");
        give_back(guard).await;
        link.no_key_is_left().await;
    }
}

#[tokio::test]
async fn a_claim_without_a_token_is_taken_back_when_no_script_can_follow() {
    let link = Link::new().await;
    link.is_to_send("SET").await;
    link.redis.command(&["ZADD", "polylock:tokens:{lock:a}", "4000000000000000", "last"]).await.unwrap();
    let mutex = link.locks.mutex_with("a", LockOptions::new().ttl(Duration::from_secs(600))).unwrap();
    let mut acquire = pin!(mutex.try_acquire());
    assert!(acquire.as_mut().now_or_never().is_none(), "the claim is sent");
    while link.keys().await == "Array([])" {
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(200)).await;
    // The claim is answered, and the connection is gone before the script can be sent.
    link.proxy.refuse(true);
    link.proxy.rst();
    link.locks.inspect("b").await.unwrap_err();
    assert_eq!(acquire.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_ne!(link.keys().await, "Array([])");
    link.proxy.refuse(false);
    link.no_key_is_left().await;
}

#[tokio::test]
async fn a_lost_reply_to_release_counts_as_released() {
    let link = Link::new().await;
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown));
    link.proxy.heal();
    let next = timeout(PATIENCE, link.locks.mutex("a").acquire()).await.unwrap().unwrap();
    give_back(next).await;
}

#[tokio::test]
async fn a_release_that_was_cut_off_and_sent_again_counts_as_released() {
    for recipe in RECIPES {
        let link = Link::of(recipe).await;
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        link.proxy.cut_when(redis_command("EVALSHA"));
        give_back(guard).await;
        assert_eq!(link.proxy.fired(), 1, "{recipe}");
    }
}

#[tokio::test]
async fn renewal_goes_on_when_the_server_forgot_the_scripts() {
    for recipe in RECIPES {
        let link = Link::of(recipe).await;
        let guards =
            [link.locks.mutex("a").acquire().await.unwrap(), link.locks.mutex("b").acquire().await.unwrap()];
        for _ in 0..4 {
            link.redis.call(&["SCRIPT", "FLUSH"]).await;
            sleep(Duration::from_millis(1000)).await;
        }
        for guard in guards {
            assert_eq!(guard.state(), GuardState::Valid, "{recipe}");
            give_back(guard).await;
        }
    }
}

#[tokio::test]
async fn an_acquisition_without_an_answer_is_taken_back() {
    for request in REQUESTS {
        let link = Link::new().await;
        link.is_to_send(request).await;
        link.proxy.swallow_when(redis_command(request), Then::Hang);
        // Nor is another connection possible.
        link.proxy.refuse(true);
        let error = link.locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown));
        assert!(error.to_string().starts_with("redis: acquire \"a\": no answer in time"), "{error}");
        assert!(link.redis.has_key("polylock:tokens:{lock:a}").await, "the server did grant it: {request}");
        link.proxy.heal();
        link.no_key_is_left().await;
    }
}

#[tokio::test]
async fn a_downgrade_without_an_answer_leaves_the_lock_in_one_form_or_the_other() {
    let link = Link::new().await;
    // The server has its script from then on.
    link.locks.rw("b").write().await.unwrap().downgrade().await.unwrap();
    for carried_out in [true, false] {
        let mut writer = link.locks.rw("a").write().await.unwrap();
        match carried_out {
            true => link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang),
            false => link.proxy.black_hole(Direction::ToServer, true),
        }
        let error = writer.downgrade().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
        let value = link.redis.command(&["GET", "lock:a"]).await.unwrap();
        let shared = value.text().unwrap().starts_with("polylock:shared ");
        assert_eq!(shared, carried_out, "{value:?}");
        link.proxy.heal();
        // Longer than the time to live: it is renewed as what it is.
        sleep(Duration::from_secs(5)).await;
        assert_eq!(writer.state(), GuardState::Valid, "carried out: {carried_out}");
        writer.downgrade().await.unwrap();
        give_back(writer).await;
    }
}

#[tokio::test]
async fn a_downgrade_that_fails_half_way_may_have_let_readers_in() {
    let link = Link::new().await;
    let mut writer = link.locks.rw("a").write().await.unwrap();
    // A script that may not go on keeps what it has done.
    link.redis.command(&["ACL", "SETUSER", "default", "-pexpireat"]).await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::Unknown), "{error}");
    let value = link.redis.command(&["GET", "lock:a"]).await.unwrap();
    assert!(value.text().unwrap().starts_with("polylock:shared "), "{value:?}");
    link.redis.command(&["ACL", "SETUSER", "default", "+pexpireat"]).await.unwrap();
    writer.downgrade().await.unwrap();
    give_back(writer).await;
}

#[tokio::test]
async fn an_acquisition_that_arrives_late_is_taken_back() {
    for recipe in RECIPES {
        let link = Link::of(recipe).await;
        link.proxy.hold(Direction::ToServer);
        assert!(link.locks.mutex("a").acquire().await.is_err());
        sleep(Duration::from_millis(300)).await;
        link.proxy.deliver();
        // It takes until the next look; well before the three seconds of the lease.
        let started = Instant::now();
        sleep(Duration::from_millis(50)).await;
        link.no_key_is_left().await;
        assert!(started.elapsed() < Duration::from_millis(2500), "ended by its ttl: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_guard_without_a_server_is_suspect_and_then_lost_in_time() {
    let link = Link::new().await;
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    let until = guard.valid_until();
    link.proxy.black_hole(Direction::ToServer, true);
    sleep(Duration::from_millis(2000)).await;
    assert_eq!(guard.state(), GuardState::Suspect);
    guard.lost().await;
    assert!(lock_core::Clock::boot().now() >= until);
    assert_eq!(guard.valid_until(), until, "no unanswered renewal moved the deadline");
}

#[tokio::test]
async fn a_guard_is_never_valid_longer_than_on_the_server() {
    let link = Link::new().await;
    link.proxy.delay(Direction::ToClient, Duration::from_millis(250));
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    for round in 0..25 {
        // Ours is read first, as a renewal may come between; and the clock last, as the answer may be slow.
        let valid_until = guard.valid_until();
        let left = link.redis.command(&["PTTL", "lock:a"]).await.unwrap().int().unwrap();
        let left = Duration::from_millis(u64::try_from(left).unwrap());
        let end = lock_core::Clock::boot().now() + left;
        assert!(valid_until < end, "valid until {valid_until:?}, and the server keeps it until {end:?}");
        if round == 10 {
            guard.extend(Duration::from_secs(1)).await.unwrap();
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(guard.is_valid());
}

#[tokio::test]
async fn without_the_right_to_subscribe_waiting_polls() {
    let link = Link::new().await;
    let rights = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "+@all", "-subscribe", "resetchannels"];
    link.redis.command(&rights).await.unwrap();
    let url = format!("redis://worker:pw@{}", link.redis.addr());
    let limited = RedisConfig::from_url(&url).unwrap().connect().await.unwrap();
    let guard = limited.mutex("a").acquire().await.unwrap();
    let other = RedisConfig::from_url(&url).unwrap().connect().await.unwrap();
    let waiter = acquiring(other.mutex("a"));
    sleep(Duration::from_millis(300)).await;
    give_back(guard).await;
    come(waiter).await.release().await.unwrap();
}

#[tokio::test]
async fn polling_needs_no_second_connection() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    let config = RedisConfig::from_url(&format!("redis://{}", proxy.addr())).unwrap().wait(RedisWait::Poll);
    let locks = config.connect().await.unwrap();
    redis.command(&["SET", "lock:a", "theirs", "PX", "400"]).await.unwrap();
    let guard = timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap();
    assert_eq!(proxy.connections(), 1);
    guard.release().await.unwrap();
}
