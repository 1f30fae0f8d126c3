//! What goes over the connection, and what becomes of it when the connection fails.

use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use lock_core::{
    ErrorKind, Guard, GuardState, LockName, LockOptions, Locks, LossReason, Outcome, OwnerId, Released, Token,
};
use lock_redis::deadpool_redis::Config;
use lock_redis::redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use lock_redis::redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisResult};
use lock_redis::{Connection, Dial, RedisConfig};
use lock_testkit::proxy::{Direction, Protocol, Then, redis_command};
use lock_testkit::{
    FaultProxy, PATIENCE, RedisServer, acquiring, come, give_back, hand_over, is_renewed, queue_up, soon,
    take, until,
};
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::keys::Keys;
use tokio::runtime::Builder;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use crate::common::{KEY, Link, QUEUE, RECIPES, TOKENS, client, connect};

/// What begins an acquisition of a free lock.
const REQUESTS: [&str; 2] = ["EVALSHA", "SET"];
/// The commands of ten locks one after the other: two scripts for the first; then three commands in one write and a script for
/// each, the time now and then, and a script where the token was not larger.
const SCRIPTS_THEN_COMMANDS: RangeInclusive<u64> = 38..=52;

impl Link {
    /// Without an answer, a request fails before the lease of a lock can end.
    // Time: the faults of these tests are requests without an answer.
    async fn new() -> Self {
        Self::with("ttl=6s&command_timeout=400ms").await // Time: as above.
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
            give_back(take(&self.locks, "first").await).await;
        }
    }
}

/// Over our own connection, and over one of a pool of the user's, which is never pinged.
#[tokio::test]
async fn acquire_and_release_are_one_round_trip_each() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    let url = format!("redis://{}", proxy.addr());
    let pool = Config::from_url(&url).create_pool(None).unwrap();
    let config = || RedisConfig::from_url(&url).unwrap();
    for config in [config(), config().pool(pool.clone())] {
        let locks = config.connect().await.unwrap();
        proxy.reset_counters();
        for _ in 0..10 {
            give_back(take(&locks, "a").await).await;
        }
        assert!(SCRIPTS_THEN_COMMANDS.contains(&proxy.requests()), "{}", proxy.requests());
        locks.close().await.unwrap();
    }
    assert_eq!(pool.status().size, 0, "the connection was taken out for good");
}

/// As after a long idle time: the first request gets no answer, and a new connection works.
#[tokio::test]
async fn a_connection_that_a_router_has_forgotten_costs_one_timeout_and_no_error() {
    for request in REQUESTS {
        let link = Link::new().await;
        link.is_to_send(request).await;
        let mutex = link.locks.mutex("a");
        link.proxy.forget();
        give_back(take(&link.locks, "a").await).await;
        link.proxy.forget();
        give_back(mutex.try_acquire_for(PATIENCE).await.unwrap().expect("nobody has it")).await;
        link.proxy.forget();
        give_back(mutex.try_acquire().await.unwrap().expect("nobody has it")).await;
        link.nothing_is_left().await;
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
        until("it sends the first of plain commands", async || {
            link.redis.has_key(KEY).await && link.proxy.queued(Direction::ToServer) > 0
        })
        .await;
        let token = link.redis.text(&["GET", KEY]).await.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(link.redis.call(&["ZSCORE", TOKENS, "last"]).await.text(), None);
        Self { link, claim, token }
    }

    /// Removes the half-acquired lock.
    async fn is_broken(&self, by: &Locks, command: &str) {
        match command {
            "break_lock" => assert!(by.break_lock("a").await.unwrap(), "it is held"),
            _ => assert_eq!(self.link.redis.call(&["DEL", KEY]).await.int(), Some(1)),
        }
    }

    fn goes_on(self) -> (Link, JoinHandle<Guard>) {
        self.link.proxy.deliver();
        (self.link, self.claim)
    }
}

#[tokio::test]
async fn a_claim_that_is_broken_between_its_commands_is_a_broken_holder() {
    for command in ["break_lock", "DEL"] {
        let half = HalfClaim::begin().await;
        let other = half.link.direct().await;
        half.is_broken(&other, command).await;
        let token = half.token;
        let (_link, claim) = half.goes_on();
        let broken = come(claim).await;
        assert_eq!(broken.token().get(), token, "it was granted before it was broken");
        assert!(!other.inspect("a").await.unwrap().is_held());
        let next = other.mutex("a").try_acquire().await.unwrap().expect("the lock is free");
        assert!(next.token() > broken.token());
        // By the next renewal at the latest, as any holder.
        soon(broken.lost()).await;
        assert_eq!(broken.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        give_back(next).await;
    }
}

#[tokio::test]
async fn a_claim_whose_lock_has_another_holder_by_its_second_command_waits() {
    for command in ["break_lock", "DEL"] {
        let half = HalfClaim::begin().await;
        let other = half.link.direct().await;
        half.is_broken(&other, command).await;
        // By a script, with the time of the server: larger than what the first proposes.
        let holder = take(&other, "a").await;
        assert!(holder.token().get() > half.token);
        let (_link, claim) = half.goes_on();
        until("it waits", async || {
            assert!(!claim.is_finished(), "two hold the lock");
            other.inspect("a").await.unwrap().waiters == 1
        })
        .await;
        let first = holder.token();
        let next = hand_over(holder, claim).await;
        assert!(next.token() > first, "{} after {first}", next.token());
        give_back(next).await;
    }
}

/// The one way to a token that is larger than that of the next holder.
#[tokio::test]
async fn a_broken_claim_may_have_a_larger_token_than_a_holder_that_knows_less_of_the_clock() {
    let half = HalfClaim::begin().await;
    let other = half.link.direct().await;
    half.is_broken(&other, "DEL").await;
    // What a client sends whose lower bound of the server's clock is behind that of the first.
    let redis = &half.link.redis;
    let smaller = (half.token - 1).to_string();
    let value = format!("{} {smaller} {smaller} next", OwnerId::random());
    redis.call(&["SET", KEY, &value, "NX", "PX", "60000"]).await;
    let raised = redis.call(&["ZADD", TOKENS, "GT", "CH", &smaller, "last"]).await;
    assert_eq!(raised.int(), Some(1), "it is granted");
    let token = half.token;
    let (link, claim) = half.goes_on();
    let broken = come(claim).await;
    assert_eq!(broken.token().get(), token);
    // The broken holder learns of it as any other one, and touches nobody else's lock.
    assert!(matches!(broken.verify().await.unwrap(), GuardState::Lost(LossReason::Removed)));
    assert_eq!(broken.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(link.redis.text(&["GET", KEY]).await, value);
    link.redis.call(&["DEL", KEY]).await;
    let next = take(&other, "a").await;
    assert!(next.token().get() > token, "the order holds from the next holder on");
}

/// What a broken connection may have carried is looked for over a whole lease: the first answer is enough for `close`.
#[tokio::test]
async fn close_waits_for_one_answer_only() {
    let link = Link::with("ttl=60s").await;
    give_back(take(&link.locks, "a").await).await;
    link.proxy.rst();
    give_back(take(&link.locks, "a").await).await;
    soon(link.locks.close()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_slow_to_greet_is_given_the_time_of_a_connection() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    // Time: an answer takes longer than `command_timeout`.
    proxy.delay(Direction::ToClient, Duration::from_millis(300));
    // Time: as above.
    let locks = connect(&format!("redis://{}?command_timeout=100ms&connect_timeout=20s", proxy.addr())).await;
    // An answer to a request is not.
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert!(error.to_string().contains("no answer in time"), "{error}");
}

/// A command of no consequence goes ahead of it, see `Call::answered_last`.
#[tokio::test]
async fn a_contended_lock_is_released_in_one_round_trip() {
    let link = Link::with("ttl=60s&command_timeout=10s").await;
    let other = link.direct().await;
    let waited_for = async || {
        let guard = take(&other, "a").await;
        let guard = hand_over(guard, queue_up(&link.locks, "a").await).await;
        until("it is confirmed", async || guard.remaining() >= PATIENCE).await;
        link.proxy.reset_counters();
        guard
    };
    give_back(waited_for().await).await;
    assert_eq!(link.proxy.requests(), 2, "EXISTS and EVALSHA");

    let guard = waited_for().await;
    link.redis.call(&["SCRIPT", "FLUSH"]).await;
    give_back(guard).await;
    assert_eq!(link.proxy.requests(), 4, "and then SCRIPT LOAD and EVALSHA");

    let guard = waited_for().await;
    link.redis.call(&["DEL", KEY]).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);

    let guard = waited_for().await;
    link.proxy.swallow_when(redis_command("EVALSHA"), Then::Reset);
    give_back(guard).await;
    assert_eq!(link.proxy.fired(), 1);
    link.nothing_is_left().await;
}

#[tokio::test]
async fn a_handed_over_lock_is_kept_even_if_the_next_waiter_cannot_be_notified() {
    let link = Link::with("ttl=60s").await;
    let guard = take(&link.direct().await, "a").await;
    let waiter = queue_up(&link.locks, "a").await;
    // The confirmation is on its way while the queue becomes something else.
    link.proxy.hold(Direction::ToServer);
    let guard = hand_over(guard, waiter).await;
    until("it is to be confirmed", async || link.proxy.queued(Direction::ToServer) > 0).await;
    link.redis.call(&["SET", QUEUE, "something"]).await;
    link.proxy.deliver();
    until("it is confirmed", async || {
        assert_eq!(guard.state(), GuardState::Valid, "the confirmation failed");
        guard.remaining() >= PATIENCE
    })
    .await;
    link.redis.call(&["DEL", QUEUE]).await;
    give_back(guard).await;
    link.nothing_is_left().await;
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_costs_one_round_trip_more() {
    let link = Link::new().await;
    link.redis.call(&["SCRIPT", "FLUSH"]).await;
    link.proxy.reset_counters();
    // The first request of a connection is a script.
    let guard = take(&link.locks, "a").await;
    assert_eq!(link.proxy.requests(), 3, "EVALSHA, then SCRIPT LOAD and EVALSHA together");
    give_back(guard).await;
}

#[tokio::test]
async fn a_broken_connection_is_replaced_without_an_error() {
    let link = Link::new().await;
    for cut in [FaultProxy::fin, FaultProxy::rst, FaultProxy::fin, FaultProxy::rst] {
        cut(&link.proxy);
        give_back(take(&link.locks, "a").await).await;
    }
}

/// The server may still execute the renewal, which is shorter.
#[tokio::test]
async fn a_renewal_without_an_answer_cuts_no_later_extension_short() {
    for recipe in RECIPES {
        let link = Link::with(&format!("ttl=6s&command_timeout=2s&{recipe}")).await; // Time: renewed soon.
        let guard = take(&link.locks, "a").await;
        let renewed = guard.valid_until();
        link.proxy.cut_when(redis_command("EVALSHA"));
        until("a renewal is cut", async || link.proxy.fired() == 1).await;
        let long = Duration::from_secs(120);
        let until = soon(guard.extend(long)).await.unwrap();
        assert!(until > renewed + long - Duration::from_secs(10), "{recipe}: {until:?}");
        assert_eq!(guard.valid_until(), until);
        give_back(guard).await;
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
    give_back(take(&link.locks, "b").await).await;
    give_back(unpolled.await.unwrap()).await;
}

#[tokio::test]
async fn acquisitions_that_were_dropped_without_a_connection_leave_nothing_to_do() {
    let link = Link::new().await;
    link.loses_its_connection().await;
    link.proxy.black_hole(Direction::ToClient, true);
    for number in 0..20 {
        let mutex = link.locks.mutex(format!("dropped{number}"));
        // Time: it is given up while it connects.
        assert!(tokio::time::timeout(Duration::from_millis(20), mutex.acquire()).await.is_err());
    }
    link.proxy.heal();
    until("there is a connection", async || link.locks.inspect("a").await.is_ok()).await;
    link.proxy.reset_counters();
    // Time: that nothing comes has no event.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(link.proxy.requests(), 0);
}

/// A clock that was set back, or a token that was raised far beyond it, makes the last token last longer than usual.
#[tokio::test]
async fn a_renewal_keeps_the_last_token_for_no_shorter_than_before() {
    let redis = RedisServer::start().await.unwrap();
    for recipe in RECIPES {
        let locks = client(&redis, &format!("ttl=20s&{recipe}")).await;
        let guard = take(&locks, recipe).await;
        let tokens = format!("polylock:tokens:{{lock:{recipe}}}");
        let lasts = async |wanted: std::ops::Range<i64>| {
            let left = redis.call(&["PTTL", &tokens]).await.int().unwrap();
            assert!(wanted.contains(&left), "{recipe}: {left}, and not {wanted:?}");
        };
        let year: i64 = 365 * 24 * 3600 * 1000;
        for (before, after) in [(year, year / 2..year + 1), (30_000, 100_000..year)] {
            redis.call(&["PEXPIRE", &tokens, &before.to_string()]).await;
            guard.extend(Duration::from_secs(20)).await.unwrap();
            lasts(after).await;
        }
        // Until the clock can go on from there.
        let lead: i64 = 1_000_000_000;
        let floor = Token::new(guard.token().get() + lead as u64 * 1_000);
        guard.raise_token(floor).await.unwrap();
        let shown = locks.inspect(recipe).await.unwrap().holders[0].token;
        assert!(shown == Some(guard.token()) && floor > guard.token(), "that of the holder: {shown:?}");
        lasts(lead..2 * lead).await;
        guard.extend(Duration::from_secs(20)).await.unwrap();
        lasts(lead..2 * lead).await;
        give_back(guard).await;
        lasts(lead..2 * lead).await;
        // The next grant is ahead of the clock, too.
        let next = take(&locks, recipe).await;
        assert!(next.token() > floor, "{recipe}: {} after {floor}", next.token());
        lasts(lead..2 * lead).await;
        give_back(next).await;
    }
}

#[tokio::test]
async fn a_lost_reply_to_acquire_is_asked_for_again() {
    for (recipe, request) in [(RECIPES[0], "EVALSHA"), (RECIPES[0], "SET"), (RECIPES[1], "EVALSHA")] {
        let link = Link::with(recipe).await;
        link.is_to_send(request).await;
        link.proxy.cut_when(redis_command(request));
        let guard = take(&link.locks, "a").await;
        assert_eq!(link.proxy.fired(), 1, "{recipe}: {request}");
        // So is that of its release.
        link.proxy.cut_when(redis_command("EVALSHA"));
        give_back(guard).await;
        link.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_claim_without_a_token_is_taken_back_when_no_script_can_follow() {
    let link = Link::new().await;
    link.is_to_send("SET").await;
    link.redis.call(&["ZADD", TOKENS, "4000000000000000", "last"]).await;
    let mutex = link.locks.mutex_with("a", LockOptions::new().ttl(Duration::from_secs(600))).unwrap();
    let mut acquire = pin!(mutex.try_acquire());
    assert!(acquire.as_mut().now_or_never().is_none(), "the claim is sent");
    until("it is carried out", async || link.redis.has_key(KEY).await).await;
    // Time: the answer arrives.
    sleep(Duration::from_millis(200)).await;
    // The connection is gone before the script can be sent.
    link.proxy.refuse(true);
    link.proxy.rst();
    link.locks.inspect("b").await.unwrap_err();
    assert_eq!(acquire.await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(link.redis.has_key(KEY).await);
    link.proxy.refuse(false);
    link.nothing_is_left().await;
}

#[tokio::test]
async fn renewal_goes_on_when_the_server_forgot_the_scripts() {
    let redis = RedisServer::start().await.unwrap();
    for recipe in RECIPES {
        let locks = client(&redis, &format!("ttl=5s&{recipe}")).await;
        let guards = [take(&locks, "a").await, take(&locks, "b").await];
        for _ in 0..2 {
            redis.call(&["SCRIPT", "FLUSH"]).await;
            for guard in &guards {
                is_renewed(guard).await;
            }
        }
        for guard in guards {
            give_back(guard).await;
        }
    }
}

#[tokio::test]
async fn a_downgrade_that_fails_half_way_may_have_let_readers_in() {
    let redis = RedisServer::start().await.unwrap();
    let mut writer = client(&redis, "").await.rw("a").write().await.unwrap();
    // A script that may not go on keeps what it has done.
    redis.call(&["ACL", "SETUSER", "default", "-pexpireat"]).await;
    let error = writer.downgrade().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::Unknown), "{error}");
    assert!(redis.text(&["GET", KEY]).await.starts_with("polylock:shared "));
    redis.call(&["ACL", "SETUSER", "default", "+pexpireat"]).await;
    writer.downgrade().await.unwrap();
    give_back(writer).await;
}

#[tokio::test]
async fn an_acquisition_that_arrives_late_is_taken_back() {
    for recipe in RECIPES {
        // Time: it is given up before it arrives. Its lease would be longer than the test is patient.
        let link = Link::with(&format!("ttl=60s&command_timeout=400ms&{recipe}")).await;
        link.proxy.hold(Direction::ToServer);
        assert!(link.locks.mutex("a").acquire().await.is_err());
        let granted = link.redis.calls_of("evalsha").await;
        link.proxy.deliver();
        until("it arrives", async || link.redis.calls_of("evalsha").await > granted).await;
        link.nothing_is_left().await;
    }
}

#[tokio::test]
async fn polling_needs_no_second_connection() {
    let link = Link::with("wait=poll").await;
    let guard = take(&link.direct().await, "a").await;
    let waiter = acquiring(link.locks.mutex("a"));
    let asked = link.proxy.requests();
    until("it asks again", async || link.proxy.requests() > asked + 2).await;
    assert_eq!(link.proxy.connections(), 1);
    give_back(hand_over(guard, waiter).await).await;
}

/// The second connection makes the runtime stand still while it is greeted, and the third leads elsewhere.
#[derive(Debug)]
struct Stalls {
    dials: AtomicUsize,
    slow: u16,
    then: u16,
}

#[async_trait]
impl Dial for Stalls {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        let number = self.dials.fetch_add(1, Ordering::SeqCst);
        let to = match number {
            0 => to.clone(),
            1 => ("127.0.0.1", self.slow).into_connection_info()?,
            _ => ("127.0.0.1", self.then).into_connection_info()?,
        };
        let made = Client::open(to)?.get_multiplexed_async_connection().await?;
        if number == 1 {
            drop(tokio::spawn(async {
                // Time: the greeting has left by then, and its time is over afterwards.
                sleep(Duration::from_millis(50)).await;
                std::thread::sleep(Duration::from_secs(4)); // Time: as above.
            }));
        }
        Ok(made.into())
    }

    async fn pushes(
        &self,
        _: &ConnectionInfo,
        _: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        unreachable!("nobody listens")
    }

    async fn messages(&self, _: &ConnectionInfo) -> RedisResult<PubSub> {
        unreachable!("nobody listens")
    }
}

#[tokio::test]
#[ignore = "full: many seconds"]
async fn a_connection_whose_making_stood_still_replaces_none() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let slow = FaultProxy::start(old.addr(), Protocol::Redis).unwrap();
    // Time: the runtime stands still before it is answered.
    slow.delay(Direction::ToClient, Duration::from_millis(200));
    let mut options = ClientOptions::new("test", &[], old.url().into_connection_info().unwrap());
    options.dial = Some(Arc::new(Stalls { dials: AtomicUsize::new(0), slow: slow.port(), then: new.port() }));
    options.asks_identity = true;
    let server = Arc::new(RedisClient::new(options).unwrap());
    server.connect().await.unwrap();
    let first = server.identity().unwrap();
    old.call(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until("it notices", async || server.time().await.is_err()).await;
    let stalled = Arc::clone(&server);
    let stalled = spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(stalled.connect().await);
            // Time: for what it began.
            sleep(Duration::from_secs(1)).await;
        });
    });
    // Time: it stands still by then.
    sleep(Duration::from_secs(1)).await;
    until("there is another connection", async || server.connect().await.is_ok()).await;
    let keys = Keys::new("lock:", &LockName::new("a").unwrap());
    let (second, generation) = (server.identity().unwrap(), server.generation(&keys));
    assert_ne!(first.run_id, second.run_id);
    stalled.await.unwrap();
    assert_eq!(server.generation(&keys), generation);
    assert_eq!(server.identity().unwrap().run_id, second.run_id);
}
