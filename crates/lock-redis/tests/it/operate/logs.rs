//! What is logged, and what never is.

use std::time::Duration;

use lock_core::{LockOptions, Locks, Persistence, Released};
use lock_redis::redis::aio::MultiplexedConnection;
use lock_redis::redis::{Client, cmd};
use lock_testkit::proxy::{Protocol, Then, redis_command};
use lock_testkit::{
    FaultProxy, LogCapture, RedisCluster, RedisServer, acquiring, come, give_back, hand_over, queue_up, take,
    until,
};

use crate::common::{KEY, as_worker, cluster_without, connect, nothing_is_left, try_connect, url_without};
use crate::waiting::pushes::releases_are_pushed;

const PASSWORD: &str = "correct-horse-battery-staple";

#[tokio::test]
async fn a_task_that_waits_for_its_own_reader_is_warned() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&redis.url()).await;
    let (own, other) = (locks.rw("own"), locks.rw("other"));
    let reader = own.read().await.unwrap();
    let theirs = other.clone();
    let theirs = come(tokio::spawn(async move { theirs.read().await.unwrap() })).await;
    // Time: it warns of waiting for so long.
    let patience = Duration::from_millis(1_300);
    assert!(other.try_write_for(patience).await.unwrap().is_none());
    assert_eq!(log.warnings("waits for a lock"), [""; 0], "it may end at any time");
    assert!(own.try_write_for(patience).await.unwrap().is_none());
    assert!(locks.mutex("own").try_acquire_for(patience).await.unwrap().is_none());
    let warnings = log.warnings("waits for a lock");
    assert!(warnings.len() == 2 && warnings[0].contains(&reader.owner().to_string()), "{warnings:?}");
    assert!(warnings[0].contains("own"), "{warnings:?}");
    drop((reader, theirs));
}

#[tokio::test]
async fn no_secret_and_no_command_is_logged() {
    let (log, _guard) = LogCapture::begin();
    let options = RedisServer::builder().password(PASSWORD).maxmemory_policy("allkeys-lru");
    let redis = options.start().await.unwrap();
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    // Time: that requests are given up is a part of it.
    let url = |addr| format!("redis://:{PASSWORD}@{addr}?ttl=5s&command_timeout=200ms&connect_timeout=200ms");
    let (one, two) = (connect(&url(proxy.addr())).await, connect(&url(redis.addr())).await);
    let mut owners = Vec::new();

    contend(&one, &two, &mut owners).await;
    // A renewal and a release that are not answered, and a connection that cannot be made.
    let guard = take(&one, "a").await;
    owners.push(guard.owner().to_string());
    proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
    until("a renewal is not answered", async || proxy.fired() > 0).await;
    is_cut(&proxy);
    assert!(guard.release().await.is_err());
    let strict = LockOptions::new().persistence(Persistence::Strict);
    assert!(one.mutex_with("a", strict).unwrap().acquire().await.is_err());
    proxy.heal();
    contend(&one, &two, &mut owners).await;
    // Waiting while the server is away.
    let guard = take(&two, "a").await;
    owners.push(guard.owner().to_string());
    let waiter = queue_up(&one, "a").await;
    is_cut(&proxy);
    one.inspect("a").await.unwrap_err();
    proxy.heal();
    drop(guard);
    let guard = come(waiter).await;
    owners.push(guard.owner().to_string());
    drop(guard);
    // Keys that hold something else, scripts that are gone, a lock that was taken away.
    redis.call(&["HSET", "lock:hash", "field", "1"]).await;
    assert!(two.mutex("hash").try_acquire().await.unwrap().is_none());
    redis.call(&["HSET", "polylock:tokens:{lock:fence}", "field", "1"]).await;
    assert!(two.mutex("fence").acquire().await.is_err());
    redis.call(&["SCRIPT", "FLUSH"]).await;
    let guard = take(&two, "a").await;
    redis.call(&["SET", KEY, "theirs"]).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    // A wrong password, and a user without rights.
    assert!(try_connect(&format!("redis://:{PASSWORD}x@{}", redis.addr())).await.is_err());
    let user = format!(">{PASSWORD}");
    redis.call(&["ACL", "SETUSER", "weak", "on", &user, "~*", "&*", "+@all", "-client", "-subscribe"]).await;
    let weak = connect(&format!("redis://weak:{PASSWORD}@{}", redis.addr())).await;
    let patience = Duration::from_millis(300); // Time: it falls back to polling.
    assert!(weak.mutex("a").try_acquire_for(patience).await.unwrap().is_none());

    let lines = log.lines();
    assert!(lines.len() > 10 && owners.len() >= 9, "{lines:?}");
    for (_, line) in &lines {
        assert!(!line.contains(PASSWORD), "a password: {line}");
        assert!(owners.iter().all(|owner| !line.contains(owner)), "an owner: {line}");
        assert!(!has_id(line), "an id: {line}");
        for word in ["EVALSHA", "evalsha", "KEYS[", "redis.call", "PEXPIRE", "SCRIPT LOAD", "AUTH "] {
            assert!(!line.contains(word), "a command: {line}");
        }
    }
}

fn is_cut(proxy: &FaultProxy) {
    proxy.refuse(true);
    proxy.rst();
}

/// Whether there is something as long as the id of an owner.
fn has_id(line: &str) -> bool {
    line.split(|letter: char| !letter.is_ascii_hexdigit()).any(|word| word.len() == 32)
}

async fn contend(one: &Locks, two: &Locks, owners: &mut Vec<String>) {
    let turns = [one, two, one].map(|locks| {
        let mutex = locks.mutex("a");
        tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            let owner = guard.owner().to_string();
            // The answer may be lost.
            let _ = guard.release().await;
            owner
        })
    });
    for turn in turns {
        owners.push(come(turn).await);
    }
}

#[tokio::test]
async fn what_a_server_quotes_is_not_logged() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::builder().without_commands(&["CLIENT", "SUBSCRIBE"]).start().await.unwrap();
    let guard = take(&connect(&redis.url()).await, "a").await;
    let waiter = acquiring(connect(&redis.url()).await.mutex("a"));
    let mut owners = vec![guard.owner().to_string()];
    let is_told = |what: &str| log.lines().iter().any(|(_, line)| line.contains(what));
    for told in ["client tracking is refused", "refused the subscription"] {
        until(told, async || is_told(told)).await;
    }
    let guard = hand_over(guard, waiter).await;
    owners.push(guard.owner().to_string());
    give_back(guard).await;
    for (_, line) in &log.lines() {
        assert!(!line.contains("with args"), "what the server quotes: {line}");
        assert!(owners.iter().all(|owner| !line.contains(owner)), "an owner: {line}");
        assert!(!has_id(line), "an id: {line}");
    }
}

#[tokio::test]
async fn b18_a_server_that_evicts_is_warned_of() {
    for (policy, warnings) in [("allkeys-lru", 1), ("volatile-ttl", 1), ("noeviction", 0)] {
        let (log, _guard) = LogCapture::begin();
        let redis = RedisServer::builder().maxmemory_policy(policy).start().await.unwrap();
        let locks = connect(&redis.url()).await;
        // Logged once, not with every connection.
        redis.call(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        give_back(take(&locks, "a").await).await;
        let told = log.warnings(policy);
        assert_eq!(told.len(), warnings, "{policy}: {:?}", log.lines());
        assert!(told.iter().all(|text| text.contains("noeviction")), "{told:?}");
    }
}

#[tokio::test]
async fn a_downgrade_to_polling_is_logged_once() {
    for missing in ["-subscribe", "-publish", "resetchannels"] {
        let (log, _guard) = LogCapture::begin();
        let is_told = || {
            let told = log.warnings("falls back to polling").len();
            assert_eq!(told, 2, "{missing}: {:?}", log.lines());
        };
        let redis = RedisServer::start().await.unwrap();
        let url = url_without(&redis, &[missing]).await;
        let (holder, next) = (connect(&url).await, connect(&url).await);
        // Nobody waits yet. One for each that has connected.
        is_told();
        for _ in 0..3 {
            let guard = take(&holder, "a").await;
            let waiter = asks_in_vain(&redis, &next).await;
            give_back(hand_over(guard, waiter).await).await;
        }
        is_told();
        nothing_is_left(&redis).await;
    }
}

/// A waiter that has asked several times.
async fn asks_in_vain(redis: &RedisServer, locks: &Locks) -> tokio::task::JoinHandle<lock_core::Guard> {
    let before = redis.calls_of("evalsha").await;
    let waiter = acquiring(locks.mutex("a"));
    until("it asks again", async || redis.calls_of("evalsha").await > before + 1).await;
    assert!(!waiter.is_finished());
    waiter
}

#[tokio::test]
async fn a_downgrade_to_polling_is_logged_once_for_all_nodes_of_a_cluster() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let cluster = RedisCluster::start().await.unwrap();
    for missing in ["-ssubscribe", "-spublish"] {
        let (log, _guard) = LogCapture::begin();
        let locks = connect(&cluster_without(&cluster, &[missing]).await).await;
        assert_eq!(log.warnings("falls back to polling").len(), 1, "{missing}: {:?}", log.lines());
        let holder = connect(&cluster.url()).await;
        // On several masters, most likely.
        for name in ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"] {
            let guard = take(&holder, name).await;
            let patience = Duration::from_millis(200); // Time: it polls.
            assert!(locks.mutex(name).try_acquire_for(patience).await.unwrap().is_none());
            give_back(guard).await;
        }
        assert_eq!(log.warnings("falls back to polling").len(), 1, "{missing}: {:?}", log.lines());
    }
}

#[tokio::test]
async fn wait_notify_needs_only_the_right_to_subscribe() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let cluster = RedisCluster::start().await.unwrap();
    let single = RedisServer::start().await.unwrap();
    for url in [single.url(), cluster.url()] {
        for (right, warnings) in [("+subscribe", 0), ("-subscribe", 1)] {
            let (log, _guard) = LogCapture::begin();
            let polls = || {
                let told = log.warnings("falls back to polling").len();
                assert_eq!(told, warnings, "{right}: {:?}", log.lines());
            };
            let rights =
                ["resetchannels", "&polylock:free:*", "-@pubsub", "-client|tracking", "+unsubscribe", right];
            url_without(&single, &rights).await;
            cluster_without(&cluster, &rights).await;
            let worker = connect(&format!("{}?wait=notify", as_worker(&url))).await;
            polls();
            let holder = connect(&format!("{url}?ttl=60s&wait=notify")).await;
            let (guard, waiter) = (take(&holder, "a").await, acquiring(worker.mutex("a")));
            give_back(hand_over(guard, waiter).await).await;
            // In a cluster such waiters are not counted.
            if right == "+subscribe" && url == single.url() {
                releases_are_pushed(&holder, &worker).await;
            }
            polls();
        }
    }
}

#[tokio::test]
async fn a_server_with_all_rights_logs_nothing() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let _locks = connect(&redis.url()).await;
    assert!(log.warnings("").is_empty(), "{:?}", log.lines());
}

/// The process listens again once it may, and says so.
async fn listens_again(redis: &mut MultiplexedConnection) {
    let mut ask = cmd("PUBSUB");
    ask.arg("CHANNELS").arg("polylock:inbox:*");
    until("the process listens again", async || {
        !ask.query_async::<Vec<String>>(redis).await.unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn restored_rights_end_the_polling() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let mut admin = Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let locks = connect(&url_without(&redis, &["-subscribe"]).await).await;
    redis.call(&["SET", KEY, "other"]).await;
    let patience = Duration::from_millis(300); // Time: it polls.
    let waits = async || locks.mutex("a").try_acquire_for(patience).await.unwrap();
    assert!(waits().await.is_none());
    redis.call(&["ACL", "SETUSER", "worker", "+subscribe"]).await;
    let polls = log.warnings("falls back to polling").len();
    assert!(polls >= 1);
    // Nobody tries again soon.
    assert!(waits().await.is_none());
    assert!(
        log.warnings("").len() == polls
            && !log.lines().iter().any(|(_, line)| line.contains("again; waiters"))
    );
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let waiter = acquiring(locks.mutex("a"));
    listens_again(&mut admin).await;
    assert!(log.lines().iter().any(|(_, line)| line.contains("allows SUBSCRIBE and PUBLISH again")));
    redis.call(&["DEL", KEY]).await;
    give_back(come(waiter).await).await;
}

#[tokio::test]
async fn a_password_that_changes_is_no_refusal() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let mut admin = Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let locks = connect(&redis.url()).await;
    redis.call(&["SET", KEY, "other"]).await;
    let waiter = acquiring(locks.mutex("a"));
    listens_again(&mut admin).await;
    cmd("CONFIG").arg("SET").arg("requirepass").arg(PASSWORD).exec_async(&mut admin).await.unwrap();
    cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").exec_async(&mut admin).await.unwrap();
    // Time: it is refused.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cmd("CONFIG").arg("SET").arg("requirepass").arg("").exec_async(&mut admin).await.unwrap();
    listens_again(&mut admin).await;
    assert!(log.warnings("falls back to polling").is_empty(), "{:?}", log.lines());
    redis.call(&["DEL", KEY]).await;
    give_back(come(waiter).await).await;
}
