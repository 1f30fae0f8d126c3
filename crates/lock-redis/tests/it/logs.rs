//! What is logged, and what never is.

use std::time::Duration;

use lock_core::{LockOptions, Locks, Persistence, Released};
use lock_redis::RedisConfig;
use lock_redis::redis::aio::MultiplexedConnection;
use lock_redis::redis::{Client, cmd};
use lock_testkit::proxy::{Protocol, Then, redis_command};
use lock_testkit::{FaultProxy, LogCapture, RedisCluster, RedisServer, come, give_back};
use tokio::time::{sleep, timeout};

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(20);
const PASSWORD: &str = "correct-horse-battery-staple";

#[tokio::test]
async fn a_task_that_waits_for_its_own_reader_is_warned() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&redis.url()).await;
    let (own, other) = (locks.rw("own"), locks.rw("other"));
    let reader = own.read().await.unwrap();
    let theirs = tokio::spawn({
        let other = other.clone();
        async move { other.read().await.unwrap() }
    });
    let theirs = theirs.await.unwrap();
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
    let url = |addr| format!("redis://:{PASSWORD}@{addr}?ttl=1s&command_timeout=200ms&connect_timeout=200ms");
    let (one, two) = (connect(&url(proxy.addr())).await, connect(&url(redis.addr())).await);
    let mut owners = Vec::new();

    for _ in 0..5 {
        contend(&one, &two, &mut owners).await;
    }
    // Renewals and a release that are not answered, and a connection that cannot be made.
    let guard = one.mutex("a").acquire().await.unwrap();
    owners.push(guard.owner().to_string());
    proxy.swallow_when(redis_command("EVALSHA"), Then::Hang);
    sleep(Duration::from_millis(500)).await;
    proxy.refuse(true);
    proxy.rst();
    assert!(guard.release().await.is_err());
    let strict = LockOptions::new().persistence(Persistence::Strict);
    assert!(one.mutex_with("a", strict).unwrap().acquire().await.is_err());
    sleep(Duration::from_millis(300)).await;
    proxy.heal();
    contend(&one, &two, &mut owners).await;
    // Waiting while the server is away.
    let guard = two.mutex("a").acquire().await.unwrap();
    owners.push(guard.owner().to_string());
    let waiter = tokio::spawn(contender(one.clone()));
    sleep(Duration::from_millis(200)).await;
    proxy.refuse(true);
    proxy.rst();
    sleep(Duration::from_millis(300)).await;
    proxy.heal();
    drop(guard);
    owners.push(come(waiter).await);
    // Keys that hold something else, scripts that are gone, a lock that was taken away.
    let command = async |words: &[&str]| redis.command(words).await.unwrap();
    command(&["HSET", "lock:hash", "field", "1"]).await;
    assert!(two.mutex("hash").try_acquire_for(Duration::from_millis(100)).await.unwrap().is_none());
    command(&["HSET", "polylock:tokens:{lock:fence}", "field", "1"]).await;
    assert!(two.mutex("fence").acquire().await.is_err());
    command(&["SCRIPT", "FLUSH"]).await;
    let guard = two.mutex("a").acquire().await.unwrap();
    command(&["SET", "lock:a", "theirs"]).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    // A wrong password, and a user without rights.
    let wrong = RedisConfig::from_url(&format!("redis://:{PASSWORD}x@{}", redis.addr())).unwrap();
    assert!(wrong.connect().await.is_err());
    let user = format!(">{PASSWORD}");
    command(&["ACL", "SETUSER", "weak", "on", &user, "~*", "&*", "+@all", "-client", "-subscribe"]).await;
    let weak = connect(&format!("redis://weak:{PASSWORD}@{}", redis.addr())).await;
    assert!(weak.mutex("a").try_acquire_for(Duration::from_millis(300)).await.unwrap().is_none());

    let lines = log.lines();
    for (level, line) in &lines {
        println!("{level} {line}");
    }
    assert!(lines.len() > 10, "nothing was logged");
    assert!(owners.len() > 10);
    for (_, line) in &lines {
        assert!(!line.contains(PASSWORD), "a password: {line}");
        assert!(owners.iter().all(|owner| !line.contains(owner)), "an owner: {line}");
        assert!(!has_id(line), "an id: {line}");
        for word in ["EVALSHA", "evalsha", "KEYS[", "redis.call", "PEXPIRE", "SCRIPT LOAD", "AUTH "] {
            assert!(!line.contains(word), "a command: {line}");
        }
    }
}

/// Whether there is something as long as the id of an owner.
fn has_id(line: &str) -> bool {
    line.split(|letter: char| !letter.is_ascii_hexdigit()).any(|word| word.len() == 32)
}

async fn contend(one: &Locks, two: &Locks, owners: &mut Vec<String>) {
    let tasks = [one, two, one].map(|locks| tokio::spawn(contender(locks.clone())));
    for task in tasks {
        owners.push(timeout(PATIENCE, task).await.unwrap().unwrap());
    }
}

async fn contender(locks: Locks) -> String {
    let guard = locks.mutex("a").acquire().await.unwrap();
    sleep(Duration::from_millis(5)).await;
    let owner = guard.owner().to_string();
    // The answer may be lost.
    let _ = guard.release().await;
    owner
}

#[tokio::test]
async fn what_a_server_quotes_is_not_logged() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::builder().without_commands(&["CLIENT", "SUBSCRIBE"]).start().await.unwrap();
    let (holder, waiter) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let guard = holder.mutex("a").acquire().await.unwrap();
    let waits = tokio::spawn(contender(waiter));
    sleep(Duration::from_millis(300)).await;
    let owners = [guard.owner().to_string(), {
        give_back(guard).await;
        come(waits).await
    }];
    let lines = log.lines();
    for told in ["client tracking is refused", "refused the subscription"] {
        assert!(lines.iter().any(|(_, line)| line.contains(told)), "{told:?} is missing: {lines:?}");
    }
    for (_, line) in &lines {
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
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        let told = log.warnings(policy);
        assert_eq!(told.len(), warnings, "{policy}: {:?}", log.lines());
        assert!(told.iter().all(|text| text.contains("noeviction")), "{told:?}");
    }
}

#[tokio::test]
async fn a_downgrade_to_polling_is_logged_once() {
    for missing in [&["-subscribe"][..], &["-publish"], &["resetchannels"]] {
        let (log, _guard) = LogCapture::begin();
        let redis = RedisServer::start().await.unwrap();
        let rights = [&["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all"][..], missing].concat();
        redis.command(&rights).await.unwrap();
        let url = format!("redis://worker:pw@{}", redis.addr());
        let (holder, waiter) = (connect(&url).await, connect(&url).await);
        // Nobody waits yet. One for each that has connected.
        assert_eq!(log.warnings("falls back to polling").len(), 2, "{missing:?}: {:?}", log.lines());
        for _ in 0..3 {
            let guard = holder.mutex("a").acquire().await.unwrap();
            let waits = tokio::spawn(contender(waiter.clone()));
            sleep(Duration::from_millis(300)).await;
            assert!(!waits.is_finished());
            give_back(guard).await;
            come(waits).await;
        }
        assert_eq!(log.warnings("falls back to polling").len(), 2, "{missing:?}: {:?}", log.lines());
        let left = redis.command(&["EXISTS", "lock:a", "polylock:queue:{lock:a}"]).await.unwrap();
        assert_eq!(left.int(), Some(0), "{missing:?}");
    }
}

#[tokio::test]
async fn a_downgrade_to_polling_is_logged_once_for_all_nodes_of_a_cluster() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    for missing in ["-ssubscribe", "-spublish"] {
        let (log, _guard) = LogCapture::begin();
        let cluster = RedisCluster::start().await.unwrap();
        for master in cluster.masters() {
            let rights = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", missing];
            master.command(&rights).await.unwrap();
        }
        let locks = connect(&cluster.url().replace("//", "//worker:pw@")).await;
        assert_eq!(log.warnings("falls back to polling").len(), 1, "{missing}: {:?}", log.lines());
        let holder = connect(&cluster.url()).await;
        // On several masters, most likely.
        for number in 0..8 {
            let name = format!("a{number}");
            let guard = holder.mutex(&name).acquire().await.unwrap();
            let waited = locks.mutex(&name).try_acquire_for(Duration::from_millis(200)).await;
            assert!(waited.unwrap().is_none());
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
    let servers = [(single.url(), vec![&single]), (cluster.url(), cluster.masters().iter().collect())];
    for (url, masters) in servers {
        for (right, warnings) in [("+subscribe", 0), ("-subscribe", 1)] {
            let (log, _guard) = LogCapture::begin();
            let rights = ["ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "&polylock:free:*"];
            let commands = ["+@all", "-@pubsub", "-client|tracking", "+unsubscribe", right];
            for master in &masters {
                let answer = master.command(&[&rights[..], &commands].concat()).await.unwrap();
                assert!(!answer.is_error(), "{answer:?}");
            }
            let worker = connect(&format!("{}?wait=notify", url.replace("//", "//worker:pw@"))).await;
            assert_eq!(log.warnings("falls back to polling").len(), warnings, "{right}: {:?}", log.lines());
            let holder = connect(&format!("{url}?wait=notify")).await;
            let guard = holder.mutex("a").acquire().await.unwrap();
            let waits = tokio::spawn(contender(worker.clone()));
            sleep(Duration::from_millis(300)).await;
            assert!(!waits.is_finished());
            give_back(guard).await;
            // Sooner than who listens asks by itself.
            timeout(Duration::from_millis(700), waits).await.expect("not told").unwrap();
            assert_eq!(log.warnings("falls back to polling").len(), warnings, "{right}: {:?}", log.lines());
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
async fn listens_again(redis: &mut MultiplexedConnection) -> bool {
    for _ in 0..500 {
        let mut ask = cmd("PUBSUB");
        let channels: Vec<String> =
            ask.arg("CHANNELS").arg("polylock:inbox:*").query_async(redis).await.unwrap();
        if !channels.is_empty() {
            return true;
        }
        sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test]
async fn restored_rights_end_the_polling() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let mut admin = Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let command = async |words: &[&str]| redis.command(words).await.unwrap();
    command(&["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", "-subscribe"]).await;
    let locks = connect(&format!("redis://worker:pw@{}", redis.addr())).await;
    command(&["SET", "lock:a", "other"]).await;
    let waits = async || locks.mutex("a").try_acquire_for(Duration::from_millis(300)).await.unwrap();
    assert!(waits().await.is_none());
    command(&["ACL", "SETUSER", "worker", "+subscribe"]).await;
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
    let waiter = tokio::spawn(contender(locks.clone()));
    assert!(listens_again(&mut admin).await, "the process polls for ever");
    assert!(log.lines().iter().any(|(_, line)| line.contains("allows SUBSCRIBE and PUBLISH again")));
    command(&["DEL", "lock:a"]).await;
    come(waiter).await;
}

#[tokio::test]
async fn a_password_that_changes_is_no_refusal() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let mut admin = Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let locks = connect(&redis.url()).await;
    redis.command(&["SET", "lock:a", "other"]).await.unwrap();
    let waiter = tokio::spawn(contender(locks.clone()));
    assert!(listens_again(&mut admin).await);
    cmd("CONFIG").arg("SET").arg("requirepass").arg(PASSWORD).exec_async(&mut admin).await.unwrap();
    cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub").exec_async(&mut admin).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    cmd("CONFIG").arg("SET").arg("requirepass").arg("").exec_async(&mut admin).await.unwrap();
    assert!(listens_again(&mut admin).await, "the process polls for ever");
    assert!(log.warnings("falls back to polling").is_empty(), "{:?}", log.lines());
    redis.command(&["DEL", "lock:a"]).await.unwrap();
    come(waiter).await;
}
