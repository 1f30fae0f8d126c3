//! The quorum while masters fail.

use std::time::Duration;

use lock_core::{ErrorKind, GuardState, Locks, Released, Token};
use lock_redlock::RedlockConfig;
use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{FaultProxy, RedisFive, RedisServer, acquiring, cancel_after, give_back, until};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{connect, holder, proxied};

const PATIENCE: Duration = Duration::from_secs(20);
const TOKENS: &str = "polylock:tokens:{lock:a}";

async fn five() -> (RedisFive, Locks) {
    let five = RedisServer::builder().appendonly(true).start_n(5).await.unwrap();
    let locks = client(&five).await;
    (five, locks)
}

/// With a time to live that is longer than any test: what is left is not gone by itself.
async fn client(five: &RedisFive) -> Locks {
    connect(&format!("{}?ttl=60s", five.url())).await.unwrap()
}

async fn cycle(locks: &Locks) -> Token {
    let guard = timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap();
    let token = guard.token();
    give_back(guard).await;
    token
}

async fn no_key_is_left(five: &RedisFive, masters: &[usize]) {
    for &master in masters {
        until(&format!("a key is left on master {master}"), async || {
            five.servers()[master].command(&["TYPE", "lock:a"]).await.unwrap().text() == Some("none")
        })
        .await;
    }
}

/// As after a long idle time: the first requests get no answer, and new connections work.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_a_router_has_forgotten_cost_one_timeout_and_no_error() {
    let three = RedisFive::start_n(3).await.unwrap();
    let (proxies, url) = proxied(&three);
    let url = format!("{url}?ttl=60s&master_timeout=400ms");
    let locks = connect(&url).await.unwrap();
    cycle(&locks).await;
    for _ in 0..3 {
        proxies.iter().for_each(FaultProxy::forget);
        cycle(&locks).await;
    }
    proxies.iter().for_each(FaultProxy::forget);
    let guard = locks.mutex("a").try_acquire_for(PATIENCE).await.unwrap().expect("nobody has it");
    give_back(guard).await;
    no_key_is_left(&three, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_master_is_not_waited_for_until_it_is_back() {
    let three = RedisFive::start_n(3).await.unwrap();
    let masters = three.servers();
    let proxy = FaultProxy::start(masters[2].addr(), Protocol::Redis).unwrap();
    let url = format!("redlock://{},{},{}", masters[0].addr(), masters[1].addr(), proxy.addr());
    let locks = connect(&format!("{url}?ttl=3s")).await.unwrap();
    cycle(&locks).await;
    proxy.hold(Direction::ToClient);
    cycle(&locks).await;
    sleep(Duration::from_millis(500)).await;
    // One votes for and one against: a request to the third would have to wait for it.
    masters[0].command(&["SET", "lock:a", "theirs"]).await.unwrap();
    let started = Instant::now();
    for _ in 0..100 {
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    }
    // Waiting for its deadline each time would take twenty seconds.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    masters[0].command(&["DEL", "lock:a"]).await.unwrap();
    proxy.deliver();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let guard = locks.mutex("a").acquire().await.unwrap();
        sleep(Duration::from_millis(50)).await;
        let held = masters[2].command(&["EXISTS", "lock:a"]).await.unwrap().int() == Some(1);
        guard.release().await.unwrap();
        if held {
            break;
        }
        assert!(Instant::now() < deadline, "it is never asked again");
    }
    no_key_is_left(&three, &[0, 1, 2]).await;
}

/// The lock is on three of five, and one of those hangs: nothing tells whether it is ours on a quorum, and a quorum has
/// nothing of ours all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_does_not_wait_for_a_hung_minority() {
    let five = RedisFive::start().await.unwrap();
    // To wait for it would take as long as both together, twice.
    let url = format!("{}?ttl=30s&master_timeout=1s&connect_timeout=2s", five.url());
    let locks = connect(&url).await.unwrap();
    let masters = five.servers();
    cycle(&locks).await;
    masters[3].stop();
    masters[4].stop();
    cycle(&locks).await;
    // Their requests fail, and these two are no longer asked.
    sleep(Duration::from_secs(2)).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    masters[2].stop();
    let started = Instant::now();
    give_back(guard).await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    for master in &masters[2..] {
        master.cont();
    }
    no_key_is_left(&five, &[0, 1, 2, 3, 4]).await;
}

/// Three masters that have always answered at once.
struct Swift {
    three: RedisFive,
    proxies: Vec<FaultProxy>,
    locks: Locks,
}

impl Swift {
    /// Longer than their deadlines, shorter than their connections are given.
    const DELAY: Duration = Duration::from_millis(400);

    async fn new(options: &str) -> Self {
        // That takes as long as it takes on a busy machine.
        let options = format!("?connect_timeout=20s{options}");
        let three = RedisFive::start_n(3).await.unwrap();
        let (proxies, url) = proxied(&three);
        let config = RedlockConfig::from_url(&format!("{url}{options}")).unwrap();
        let locks = config.connect().await.unwrap();
        for _ in 0..10 {
            cycle(&locks).await;
        }
        Self { three, proxies, locks }
    }

    fn become_busy(&self) {
        self.proxies.iter().for_each(|proxy| proxy.delay(Direction::ToClient, Self::DELAY));
    }

    /// Asks for a lock and does not wait for the answers.
    async fn miss_the_deadlines(&self) {
        assert!(timeout(Self::DELAY / 4, self.locks.mutex("missed").acquire()).await.is_err());
    }
}

/// A quorum decides what a release comes to, and the others have been asked by then.
#[tokio::test]
async fn close_waits_for_a_slow_master() {
    let swift = Swift::new("").await;
    swift.proxies[2].delay(Direction::ToClient, Duration::from_millis(200));
    drop(swift.locks.mutex("a").acquire().await.unwrap());
    swift.locks.close().await.unwrap();
    assert!(!swift.three.servers()[2].has_key("lock:a").await);
}

#[tokio::test]
async fn close_does_not_wait_for_a_master_that_hangs() {
    let swift = Swift::new("").await;
    swift.three.servers()[2].stop();
    drop(swift.locks.mutex("a").acquire().await.unwrap());
    let asked = Instant::now();
    swift.locks.close().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    swift.three.servers()[2].cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_that_have_not_answered_yet_are_waited_for_again() {
    let swift = Swift::new("").await;
    swift.become_busy();
    swift.miss_the_deadlines().await;
    cycle(&swift.locks).await;

    let swift = Swift::new("").await;
    swift.become_busy();
    swift.miss_the_deadlines().await;
    assert_eq!(swift.locks.inspect("a").await.unwrap().holder(), None);
}

/// By 5 % of the ttl every answer is late.
#[tokio::test(flavor = "multi_thread")]
async fn busy_masters_are_waited_for_when_a_token_is_raised_and_a_lock_verified() {
    let swift = Swift::new("&ttl=3s&master_timeout=5s").await;
    let ahead = 4_000_000_000_000_000_u64;
    // Of no two masters do both know the same.
    for (master, more) in [(0, 0), (1, 10)] {
        let last = (ahead + more).to_string();
        swift.three.servers()[master].command(&["ZADD", TOKENS, &last, "last"]).await.unwrap();
    }
    swift.become_busy();
    let guard = swift.locks.mutex("a").acquire().await.unwrap();
    assert!(guard.token().get() > ahead);
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_refuses_after_the_quorum_is_asked_again() {
    let three = RedisFive::start_n(3).await.unwrap();
    let masters = three.servers();
    let proxy = FaultProxy::start(masters[2].addr(), Protocol::Redis).unwrap();
    let url = format!("redlock://{},{},{}", masters[0].addr(), masters[1].addr(), proxy.addr());
    // The first renewal is far away.
    let url = format!("{url}?ttl=200s&master_timeout=20s");
    let locks = connect(&url).await.unwrap();
    masters[2].command(&["SET", "lock:a", "theirs"]).await.unwrap();
    proxy.hold(Direction::ToClient);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while proxy.queued(Direction::ToClient) == 0 {
        assert!(Instant::now() < deadline, "it is not refused");
        sleep(Duration::from_millis(10)).await;
    }
    masters[2].command(&["DEL", "lock:a"]).await.unwrap();
    proxy.deliver();
    while holder(&masters[2]).await != Some(guard.owner().to_string()) {
        assert!(Instant::now() < deadline, "it is not asked again");
        sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
    no_key_is_left(&three, &[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_confirmed_too_late_heals_nothing() {
    let three = RedisFive::start_n(3).await.unwrap();
    let masters = three.servers();
    let (proxies, url) = proxied(&three);
    let locks = connect(&format!("{url}?ttl=2s&master_timeout=20s")).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    sleep(Duration::from_millis(200)).await;
    masters[0].command(&["DEL", "lock:a"]).await.unwrap();
    for proxy in &proxies {
        proxy.hold(Direction::ToClient);
    }
    timeout(PATIENCE, guard.lost()).await.unwrap();
    for proxy in &proxies {
        assert!(proxy.queued(Direction::ToClient) > 0, "the renewals were not answered");
        proxy.deliver();
    }
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        let key = masters[0].command(&["GET", "lock:a"]).await.unwrap();
        assert_eq!(key.text(), None, "claimed for a lease that is over");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_may_be_dead_from_the_start() {
    let five = RedisFive::start().await.unwrap();
    five.servers()[0].kill();
    five.servers()[4].kill();
    let locks = client(&five).await;
    let first = cycle(&locks).await;
    five.servers()[0].start_again().await.unwrap();
    assert!(cycle(&locks).await > first);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_seven_masters_three_may_be_dead_and_not_four() {
    let seven = RedisFive::start_n(7).await.unwrap();
    let locks = client(&seven).await;
    for dead in [0, 3, 6] {
        seven.servers()[dead].kill();
        cycle(&locks).await;
    }
    seven.servers()[1].kill();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("of 7 masters agreed, 4 are needed"), "{error}");
    no_key_is_left(&seven, &[2, 4, 5]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_survives_the_loss_of_a_minority_and_not_of_a_majority() {
    let five = RedisFive::start().await.unwrap();
    let locks = connect(&format!("{}?ttl=3s", five.url())).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    five.servers()[0].kill();
    five.servers()[1].kill();
    sleep(Duration::from_secs(5)).await;
    assert!(guard.is_valid(), "renewed by the other three");
    five.servers()[2].kill();
    timeout(PATIENCE, guard.lost()).await.unwrap();
}

/// A quorum of others may have answered first.
async fn three_have_it(masters: &[RedisServer]) {
    for master in &masters[..3] {
        until("the first three have it", async || holder(master).await.is_some()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_masters_may_have_that_are_not_seen_is_not_free() {
    let (five, locks) = five().await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let masters = five.servers();
    three_have_it(masters).await;
    masters[0].command(&["DEL", "lock:a"]).await.unwrap();
    masters[3].stop();
    masters[4].stop();
    let state = locks.inspect("a").await.unwrap();
    assert!(guard.is_valid() && state.is_held(), "{state:?}");
    assert!(locks.break_lock("a").await.unwrap());
    let state = locks.inspect("a").await.unwrap();
    assert_eq!(state.holder(), None, "two are no quorum");
    assert!(!locks.break_lock("a").await.unwrap());
    masters[3].cont();
    masters[4].cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_that_was_seen_is_broken_on_a_quorum_or_not_at_all() {
    let (five, locks) = five().await;
    let masters = five.servers();
    let guard = locks.mutex("a").acquire().await.unwrap();
    three_have_it(masters).await;
    masters[3].stop();
    masters[4].stop();
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!(seen.holders[0].token, Some(guard.token()));
    assert!(seen.holders[0].remaining.is_some_and(|left| left <= Duration::from_secs(60)), "{seen:?}");
    assert!(!locks.break_lock_if("a", Token::new(guard.token().get() - 1)).await.unwrap());
    // Somebody proposes a larger token meanwhile, and does not get the lock.
    let larger = Token::new(guard.token().get() + 1_000_000);
    masters[1].command(&["ZADD", TOKENS, "GT", &larger.to_string(), "last"]).await.unwrap();
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!((seen.holders[0].token, seen.token), (Some(guard.token()), Some(larger)), "{seen}");
    masters[2].stop();
    let error = timeout(PATIENCE, locks.break_lock_if("a", guard.token())).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    masters[2].cont();
    let broken = async {
        loop {
            // The master that was frozen may still be left alone for a moment.
            match locks.break_lock_if("a", guard.token()).await {
                Ok(broken) => return broken,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(PATIENCE, broken).await.unwrap());
    assert_eq!(holder(&masters[0]).await, None);
    assert!(matches!(guard.verify().await.unwrap(), GuardState::Lost(_)));
    masters[3].cont();
    masters[4].cont();
    let next = timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap();
    assert!(next.token() > larger);
    for before in [guard.token(), larger] {
        assert!(!locks.break_lock_if("a", before).await.unwrap(), "another client holds it");
    }
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    // Tokens that are far ahead of the clocks were not proposed by somebody who asked for the lock.
    let ahead = Token::new(1 << 52);
    for master in masters {
        master.command(&["ZADD", TOKENS, "GT", &ahead.to_string(), "last"]).await.unwrap();
    }
    assert_eq!(locks.inspect("a").await.unwrap().holders[0].token, Some(ahead));
    assert!(locks.break_lock_if("a", ahead).await.unwrap());
}

/// Each master would show another part of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_too_long_is_refused() {
    let three = RedisFive::start_n(3).await.unwrap();
    let locks = connect(&three.url()).await.unwrap();
    for master in three.servers() {
        let script = "for i = 1, 110000 do redis.call('SET', 'lock:' .. i, 'x') end";
        master.command(&["EVAL", script, "0"]).await.unwrap();
    }
    let listed = timeout(PATIENCE, locks.list("")).await.unwrap();
    let error = listed.map(|names| names.len()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(timeout(PATIENCE, locks.list("9999")).await.unwrap().unwrap().len(), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_a_quorum_may_have_are_listed_and_waiters_are_shown_with_their_time() {
    let (five, locks) = five().await;
    let masters = five.servers();
    let _guard = locks.mutex("held").acquire().await.unwrap();
    for master in &masters[..2] {
        master.command(&["SET", "lock:on two", "x"]).await.unwrap();
    }
    masters[4].command(&["SET", "lock:held elsewhere", "x"]).await.unwrap();
    let names = async || {
        let names = timeout(PATIENCE, locks.list("")).await.unwrap().unwrap();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["held"]);
    masters[3].stop();
    masters[4].stop();
    assert_eq!(names().await, ["held", "on two"], "the two that are not seen may have it");
    masters[3].cont();
    masters[4].cont();

    let before = std::time::SystemTime::now();
    let waiting = client(&five).await;
    let waiter = acquiring(waiting.mutex("held"));
    let deadline = Instant::now() + PATIENCE;
    let state = loop {
        let state = locks.inspect("held").await.unwrap();
        if !state.queue.is_empty() {
            break state;
        }
        assert!(Instant::now() < deadline, "{state:?}");
        sleep(Duration::from_millis(20)).await;
    };
    let since = state.queue[0].since.expect("it says since when it waits");
    assert!(since >= before - Duration::from_secs(1) && since <= std::time::SystemTime::now(), "{state:?}");
    assert_eq!((state.queue[0].owner(), state.waiters), (None, 1), "{state:?}");
    waiter.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_after_the_connections_closed_is_an_error() {
    let (_five, locks) = five().await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    locks.close().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_of_deleted_keys_is_noticed() {
    let (five, locks) = five().await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    for server in &five.servers()[..3] {
        server.command(&["DEL", "lock:a"]).await.unwrap();
    }
    let error = guard.extend(Duration::from_secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    no_key_is_left(&five, &[0, 1, 2, 3, 4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_though_masters_disagree() {
    let (five, locks) = five().await;
    let mut last = cycle(&locks).await;
    for master in 0..5 {
        let ahead = (last.get() + 10_000_000_000).to_string();
        five.servers()[master].command(&["ZADD", TOKENS, &ahead, "last"]).await.unwrap();
        let token = cycle(&locks).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// It is taken by plain commands first, and what these leave is the matter of the scripts.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_where_plain_commands_take_a_lock_and_the_scripts_are_refused() {
    let (five, locks) = five().await;
    let last = (cycle(&locks).await.get() + 10_000_000_000).to_string();
    for server in five.servers() {
        server.command(&["ZADD", TOKENS, &last, "last"]).await.unwrap();
        server.command(&["ACL", "SETUSER", "default", "-pttl"]).await.unwrap();
    }
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    no_key_is_left(&five, &[0, 1, 2, 3, 4]).await;
    for server in five.servers() {
        server.command(&["ACL", "SETUSER", "default", "+pttl"]).await.unwrap();
    }
    assert!(cycle(&locks).await.get() > last.parse().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_only_one_master_knows_is_written_to_a_quorum_first() {
    let (five, locks) = five().await;
    cycle(&locks).await;
    let ahead = 4_000_000_000_000_000_u64;
    let masters = five.servers();
    masters[0].command(&["ZADD", TOKENS, &ahead.to_string(), "last"]).await.unwrap();
    masters[3].stop();
    masters[4].stop();
    let token = cycle(&locks).await;
    assert!(token.get() > ahead, "one of the three that answer knows a larger one");
    masters[3].cont();
    masters[4].cont();
    masters[0].stop();
    masters[1].stop();
    assert!(cycle(&locks).await > token, "one of the other three has the token");
    masters[0].cont();
    masters[1].cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn raised_tokens_are_on_a_quorum() {
    let (five, locks) = five().await;
    let masters = five.servers();
    masters[4].stop();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let floor = Token::new(guard.token().get() + 86_400_000_000);
    guard.raise_token(floor).await.unwrap();
    guard.raise_token(Token::new(1)).await.unwrap();
    assert_eq!(guard.state(), GuardState::Valid);
    give_back(guard).await;
    // The quorum of the next holder has few masters in common with it.
    masters[4].cont();
    masters[0].stop();
    masters[1].stop();
    let token = cycle(&client(&five).await).await;
    assert!(token > floor, "{token} came after {floor}");
    masters[0].cont();
    masters[1].cont();
    assert!(cycle(&locks).await > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_not_raised_without_a_quorum_or_without_the_lock() {
    let (five, locks) = five().await;
    let masters = five.servers();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let floor = Token::new(guard.token().get() + 86_400_000_000);
    (0..3).for_each(|master| masters[master].stop());
    let error = guard.raise_token(floor).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "no_quorum"), "{error}");
    (0..3).for_each(|master| masters[master].cont());
    until("the masters answer again", async || guard.raise_token(floor).await.is_ok()).await;
    // Lost on three, as far as two can tell nobody has it.
    for master in &masters[..3] {
        master.command(&["SET", "lock:a", "theirs"]).await.unwrap();
    }
    let more = Token::new(floor.get() + 1_000_000);
    let error = guard.raise_token(more).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_valid());
    for master in &masters[..3] {
        let last = master.command(&["ZSCORE", TOKENS, "last"]).await.unwrap();
        assert!(last.text().unwrap() < more.get().to_string().as_str(), "{last:?}: it is not the owner's");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raising_a_token_may_be_given_up_at_any_point() {
    let (_five, locks) = five().await;
    let mut last = Token::new(0);
    for polls in 0..12 {
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        let floor = Token::new(last.get() + 1_000_000);
        if let Some(raised) = cancel_after(polls, guard.raise_token(floor)).await {
            raised.unwrap();
            last = floor;
        }
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_that_the_masters_would_forget_is_refused() {
    let (_five, locks) = five().await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let floor = Token::new(guard.token().get() + 8 * 86_400_000_000);
    let error = guard.raise_token(floor).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("days ahead"), "{error}");
    guard.release().await.unwrap();
    assert!(cycle(&locks).await < floor);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_through_restarts_with_data() {
    let five = RedisServer::builder().appendonly(true).start_n(5).await.unwrap();
    // A master that has restarted does not vote for so long.
    let url = format!("{}?ttl=1s&longest_ttl=1s", five.url());
    let locks = connect(&url).await.unwrap();
    let mut last = Token::new(0);
    for master in 0..5 {
        let token = cycle_in_the_end(&locks).await;
        assert!(token > last);
        last = token;
        five.servers()[master].restart().await.unwrap();
    }
    assert!(cycle_in_the_end(&locks).await > last);
}

/// As [`cycle`], through errors.
async fn cycle_in_the_end(locks: &Locks) -> Token {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match locks.mutex("a").acquire().await {
            Ok(guard) => {
                let token = guard.token();
                guard.release().await.unwrap();
                return token;
            }
            Err(error) => {
                assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < deadline, "{error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b06_a_release_does_not_overtake_a_slow_claim() {
    let three = RedisFive::start_n(3).await.unwrap();
    let masters = three.servers();
    // The release waits for the claim, or for what may be on its way on a connection that was given up.
    for (patience, late) in [("10s", 100), ("2s", 5000)] {
        let proxy = FaultProxy::start(masters[2].addr(), Protocol::Redis).unwrap();
        let url = format!("redlock://{},{},{}", masters[0].addr(), masters[1].addr(), proxy.addr());
        let options = format!("ttl=60s&master_timeout={patience}&connect_timeout=20s");
        let locks = connect(&format!("{url}?{options}")).await.unwrap();
        proxy.hold(Direction::ToServer);
        let guard = timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap();
        let release = tokio::spawn(guard.release());
        sleep(Duration::from_millis(late)).await;
        proxy.deliver();
        assert_eq!(timeout(PATIENCE, release).await.unwrap().unwrap().unwrap(), Released::Released);
        no_key_is_left(&three, &[0, 1, 2]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b08_a_minority_is_given_back_before_the_next_attempt() {
    let three = RedisFive::start_n(3).await.unwrap();
    let (one, two) = (client(&three).await, client(&three).await);
    three.servers()[0].command(&["SET", "lock:a", "theirs"]).await.unwrap();
    three.servers()[1].command(&["SET", "lock:a", "theirs", "PX", "500"]).await.unwrap();
    // Both get the third master again and again; neither may keep it from the other.
    let started = Instant::now();
    let (first, second) = tokio::join!(timeout(PATIENCE, cycle(&one)), timeout(PATIENCE, cycle(&two)));
    assert_ne!(first.unwrap(), second.unwrap());
    assert!(started.elapsed() < Duration::from_millis(2500), "by its ttl: {:?}", started.elapsed());
    no_key_is_left(&three, &[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b09_one_vote_for_and_one_against_is_an_end() {
    let three = RedisFive::start_n(3).await.unwrap();
    let locks = client(&three).await;
    three.servers()[1].command(&["SET", "lock:a", "theirs"]).await.unwrap();
    three.servers()[2].kill();
    let started = Instant::now();
    assert!(timeout(PATIENCE, locks.mutex("a").try_acquire()).await.unwrap().unwrap().is_none());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    no_key_is_left(&three, &[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b10_an_error_of_a_minority_is_no_error_of_the_quorum() {
    let three = RedisFive::start_n(3).await.unwrap();
    let locks = client(&three).await;
    three.servers()[0].command(&["HSET", TOKENS, "some", "data"]).await.unwrap();
    cycle(&locks).await;
    three.servers()[0].kill();
    cycle(&locks).await;
    no_key_is_left(&three, &[1, 2]).await;
}

/// A caller that tries again each second would log each of them each time.
#[tokio::test]
async fn masters_that_are_all_away_are_named_by_the_error_and_not_in_the_log() {
    let (log, _guard) = lock_testkit::LogCapture::begin();
    let config = RedlockConfig::from_url("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3").unwrap();
    let error = config.connect().await.unwrap_err();
    assert_eq!(error.code(), "no_quorum", "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert_eq!(log.warnings("unreachable"), [""; 0]);
}
