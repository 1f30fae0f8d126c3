//! Servers that do not allow all commands, and proxies that clients share: what works less well there, and what is refused.

use std::time::Duration;

use lock_core::{Error, ErrorKind, LockOptions, Locks, Outcome, Persistence, Released};
use lock_testkit::proxy::{Multiplexer, Protocol, Refusal, Then, redis_command};
use lock_testkit::{
    FaultProxy, RedisCluster, RedisSentinel, RedisServer, acquiring, come, give_back, hand_over, is_renewed,
    soon, take, until,
};

use crate::common::{
    Relay, as_worker, client, cluster_without, connect, queue_is, try_connect, until_info, url_without, works,
};

/// What a proxy cannot send over a connection that clients share, or to one of several servers.
const NOT_SHARED: [&str; 14] = [
    "ASKING",
    "CLIENT",
    "CONFIG",
    "HELLO",
    "INFO",
    "PSUBSCRIBE",
    "PUBLISH",
    "SCAN",
    "SCRIPT",
    "SELECT",
    "SUBSCRIBE",
    "TIME",
    "UNSUBSCRIBE",
    "WAIT",
];

/// A server, and the URL of a user with all rights but these.
async fn without(rights: &str) -> (RedisServer, String) {
    let server = RedisServer::start().await.unwrap();
    let url = url_without(&server, &rights.split(' ').collect::<Vec<_>>()).await;
    (server, url)
}

/// Locks are renewed, several at once, and shared, besides what [`works`].
async fn works_in_all(url: &str) {
    works(url).await;
    let (ours, theirs) = (connect(&format!("{url}?ttl=5s")).await, connect(url).await);
    let guards = [take(&ours, "a").await, take(&ours, "b").await];
    for guard in guards {
        is_renewed(&guard).await;
        give_back(guard).await;
    }
    let readers = [ours.rw("rw").read().await.unwrap(), theirs.rw("rw").read().await.unwrap()];
    assert!(ours.rw("rw").try_write().await.unwrap().is_none());
    for reader in readers {
        assert_eq!(reader.release().await.unwrap(), Released::Released);
    }
}

#[tokio::test]
async fn without_config_and_info_the_doctor_sees_less() {
    let (_server, url) = without("-config -info").await;
    works_in_all(&url).await;
    let report = connect(&url).await.doctor().await.unwrap().to_string();
    for missing in ["CONFIG GET is not allowed", "INFO is not allowed"] {
        assert!(report.contains(missing), "{report}");
    }
}

#[tokio::test]
async fn without_script_load_calls_bring_their_script() {
    let (server, url) = without("-script").await;
    works_in_all(&url).await;
    for options in ["?ttl=5s", "?ttl=5s&recipe=setnx-timestamp&clock_skew=50ms&prefix=old:"] {
        let guard = take(&connect(&format!("{url}{options}")).await, "a").await;
        server.call(&["SCRIPT", "FLUSH"]).await;
        is_renewed(&guard).await;
        give_back(guard).await;
    }
}

#[tokio::test]
async fn without_script_load_and_eval_it_is_refused_at_connect() {
    let (_server, url) = without("-script -eval").await;
    let error = try_connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+script|load"), "{error}");
}

#[tokio::test]
#[ignore = "full: a replica, and a cluster"]
async fn without_script_load_replicas_and_clusters_work() {
    let (master, url) = without("-script").await;
    let replica = RedisServer::builder().replica_of(&master).start().await.unwrap();
    let locks = connect(&format!("{url}?wait_replicas=1&wait_replicas_timeout=10s")).await;
    for name in ["a", "b"] {
        let guard = take(&locks, name).await;
        assert!(replica.has_key(&format!("lock:{name}")).await);
        give_back(guard).await;
    }
    let cluster = RedisCluster::start().await.unwrap();
    let locks = connect(&cluster_without(&cluster, &["-script"]).await).await;
    for number in 0..8 {
        give_back(take(&locks, &format!("a{number}")).await).await;
    }
}

#[tokio::test]
async fn without_wait_a_lock_that_replicas_are_to_have_is_refused() {
    let (server, url) = without("-wait").await;
    let locks = connect(&format!("{url}?wait_replicas=1")).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+wait"), "{error}");
    assert!(!server.has_key("lock:a").await);
}

#[tokio::test]
async fn with_hardly_more_than_the_commands_of_a_lock_it_works() {
    let (_server, url) =
        without("-@admin -@dangerous -@connection -@pubsub -script -client -info -config -scan").await;
    works_in_all(&url).await;
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn missing_rights_are_named() {
    for (rights, connects) in [
        ("-@scripting", false),
        ("-script -eval", false),
        ("-evalsha", true),
        ("-set", true),
        ("-pexpire -time", true),
    ] {
        let (server, url) = without(rights).await;
        let locks = try_connect(&url).await;
        assert_eq!(locks.is_ok(), connects, "{rights}: {locks:?}");
        let error = match locks {
            Ok(locks) => locks.mutex("a").acquire().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{rights}: {error}");
        for right in ["+evalsha", "+script|load", "+set", "+get", "+del", "+pexpire", "~lock:*"] {
            assert!(error.to_string().contains(right), "{rights}: {right} is missing: {error}");
        }
        assert!(!server.has_key("lock:a").await, "{rights}: something was left behind");
    }
}

/// There is nothing to roll back, and what would do that may be refused as well.
#[tokio::test]
async fn where_the_first_command_of_a_script_is_refused_nothing_was_applied() {
    for (rights, missing) in [
        ("-evalsha -eval", "evalsha"),
        ("-time", "time"),
        ("-exists", "exists"),
        ("-set", "set"),
        ("-set -lpop -lrem", "set"),
    ] {
        let (server, url) = without(rights).await;
        let locks = connect(&url).await;
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error}");
        names(&error, missing);
        assert!(server.calls_of("evalsha").await <= 1, "{rights}: it was rolled back");
        assert!(!server.has_key("lock:a").await, "{rights}");
    }
}

/// Then the script may have written something before. Without the right to PEXPIRE, the lock can be neither kept nor removed.
#[tokio::test]
async fn where_a_later_command_of_a_script_is_refused_what_it_left_is_rolled_back() {
    for (rights, outcome) in [("-zadd", Outcome::NotApplied), ("-pexpire", Outcome::Applied)] {
        let (server, url) = without(rights).await;
        let error = connect(&url).await.mutex("a").acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, outcome), "{rights}: {error}");
        assert_eq!(server.has_key("lock:a").await, outcome == Outcome::Applied, "{rights}");
        if outcome == Outcome::Applied {
            names(&error, "pexpire");
        }
    }
}

/// The server names the command; before Redis 7.2, only its line in the script.
fn names(error: &Error, command: &str) {
    let text = error.to_string();
    assert!(
        text.contains(&format!("'{command}'")) || text.contains(&format!("+{command} is missing")),
        "{text}"
    );
}

// ---- The rights that errors name ----

/// Gives a user the rights that are named when it has none, and no other. Returns the error that names them.
async fn give_rights(url: &str, servers: &[RedisServer]) -> String {
    let rule = ["ACL", "SETUSER", "worker", "on", ">pw"];
    for server in servers {
        server.call(&rule).await;
    }
    let error = try_connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = error.to_string();
    let named: Vec<&str> =
        error.split_whitespace().filter(|word| word.starts_with(['+', '~', '&'])).collect();
    for server in servers {
        server.call(&[&rule[..3], &named[..]].concat()).await;
    }
    error
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_rights_that_are_named_are_enough() {
    if RedisServer::lacks("rights to sharded channels", (7, 0)) {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    let cluster = RedisCluster::start().await.unwrap();
    for (url, servers) in [(server.url(), std::slice::from_ref(&server)), (cluster.url(), cluster.masters())]
    {
        let url = as_worker(&url);
        give_rights(&url, servers).await;
        works(&url).await;
        waits_without_polling(&url, servers).await;
    }
}

async fn waits_without_polling(url: &str, servers: &[RedisServer]) {
    let guard = take(&connect(url).await, "a").await;
    let waiter = acquiring(connect(url).await.mutex("a"));
    for server in servers {
        // The others say where it is.
        if server.command(&["EXISTS", "lock:a"]).await.unwrap().int() == Some(1) {
            // It is in the queue only while its inbox is live.
            queue_is(server, 1).await;
            until_info(server, "clients", "tracking_clients:1").await;
        }
    }
    give_back(guard).await;
    give_back(come(waiter).await).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn missing_rights_for_a_database_or_the_sentinels_are_reported() {
    if RedisServer::lacks("rights to sharded channels", (7, 0)) {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    let url = as_worker(&format!("{}/1", server.url()));
    give_rights(&url, std::slice::from_ref(&server)).await;
    works(&url).await;

    let sentinel = RedisSentinel::start().await.unwrap();
    let url = format!("{}?sentinel_user=worker&sentinel_password=pw", sentinel.url());
    let error = give_rights(&url, sentinel.sentinels()).await;
    assert!(!error.contains("~lock:"), "{error}");
    works(&url).await;
    let error = try_connect(&url.replace("=pw", "=another")).await.unwrap_err().to_string();
    assert!(error.contains("sentinel_password") && !error.contains("~lock:"), "{error}");
}

// ---- Proxies ----

/// A proxy that sends the requests of all clients over one connection, and to one of several servers by their keys.
#[tokio::test]
async fn behind_a_proxy_that_multiplexes_it_works() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Multiplexer::start(server.addr(), &NOT_SHARED, Refusal::Error).unwrap();
    let url = format!("redis://{}", proxy.addr());
    works_in_all(&url).await;
    let connected = server.text(&["CLIENT", "LIST"]).await.lines().count();
    assert_eq!(connected, 2, "the proxy, and this question");
    let report = connect(&url).await.doctor().await.unwrap().to_string();
    assert!(report.contains("SUBSCRIBE is refused") && report.contains("RESP3 is refused"), "{report}");
    let error = try_connect(&format!("{url}/1")).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("select"), "{error}");
    let locks = connect(&format!("{url}?wait_replicas=1")).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert!(error.to_string().contains("WAIT"), "{error}");
    let error = locks.list("").await.unwrap_err();
    assert!(error.to_string().contains("SCAN"), "{error}");
}

#[tokio::test]
async fn a_proxy_that_closes_connections_at_what_it_does_not_forward_is_refused() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Multiplexer::start(server.addr(), &NOT_SHARED, Refusal::Close).unwrap();
    let error = try_connect(&format!("redis://{}", proxy.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("proxy") && error.to_string().contains("HELLO"), "{error}");
}

/// A proxy, and a line to its server that can be cut: the proxy answers that it has lost the server then.
async fn cut_behind_a_proxy() -> (RedisServer, FaultProxy, Multiplexer, Locks) {
    let server = RedisServer::start().await.unwrap();
    let line = FaultProxy::start(server.addr(), Protocol::Redis).unwrap();
    let proxy = Multiplexer::start(line.addr(), &["CLIENT", "HELLO", "SUBSCRIBE"], Refusal::Error).unwrap();
    let locks = connect(&format!("redis://{}", proxy.addr())).await;
    (server, line, proxy, locks)
}

#[tokio::test]
async fn a_request_that_a_proxy_answers_for_a_lost_server_is_rolled_back() {
    for command in ["EVALSHA", "SET"] {
        let (server, line, _proxy, locks) = cut_behind_a_proxy().await;
        if command == "SET" {
            // The first request of a connection is a script.
            give_back(take(&locks, "first").await).await;
        }
        line.swallow_when(redis_command(command), Then::Reset);
        // The server has granted it; it is asked for again under another owner id.
        let guard = take(&locks, "a").await;
        assert_eq!(line.fired(), 1, "{command}");
        give_back(guard).await;
        assert!(!server.has_key("lock:a").await, "{command}");
    }
}

#[tokio::test]
async fn an_extension_that_a_proxy_answers_for_a_lost_server_may_have_been_applied() {
    let (server, line, _proxy, locks) = cut_behind_a_proxy().await;
    let other = client(&server, "").await;
    let guard = take(&locks, "a").await;
    // Nor is anything renewed soon after it.
    line.refuse(true);
    line.swallow_when(redis_command("EVALSHA"), Then::Reset);
    // Time: what was applied ends before the lease that is left if it was not.
    let extended = guard.extend(Duration::from_millis(500)).await;
    assert_eq!(line.fired(), 1);
    let next = take(&other, "a").await;
    assert!(!guard.is_valid(), "two valid guards");
    assert_eq!(extended.unwrap_err().outcome(), Outcome::Unknown);
    give_back(next).await;
}

#[tokio::test]
async fn a_proxy_without_a_server_is_waited_for() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Multiplexer::start(server.addr(), &NOT_SHARED, Refusal::Error).unwrap();
    let url = format!("redis://{}?ttl=5s", proxy.addr());
    let guard = take(&connect(&url).await, "a").await;
    let options = LockOptions::new().persistence(Persistence::Always);
    let asked = server.calls_of("evalsha").await + server.calls_of("eval").await;
    let waiter = acquiring(connect(&url).await.mutex_with("a", options).unwrap());
    until("it asks", async || server.calls_of("evalsha").await + server.calls_of("eval").await > asked).await;
    server.kill();
    let error = try_connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("upstream failure"), "{error}");
    soon(guard.lost()).await;
    assert!(!waiter.is_finished());
    server.start_again().await.unwrap();
    give_back(come(waiter).await).await;
}

/// As a proxy that knows no pub/sub: it lets everything through that comes before.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_connection_that_is_closed_at_once_is_not_made_again_and_again() {
    let server = RedisServer::start().await.unwrap();
    let relay = Relay::start(server.addr(), Some("SUBSCRIBE")).await;
    let locks = connect(&format!("{}?ttl=60s", relay.url())).await;
    let guard = take(&client(&server, "ttl=60s").await, "a").await;
    let waiter = acquiring(locks.mutex("a"));
    let before = relay.accepted();
    until("it tries again", async || relay.accepted() >= before + 2).await;
    let before = relay.accepted();
    // Time: that there are pauses is the subject.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let made = relay.accepted() - before;
    assert!(made <= 8, "{made} connections in two seconds");
    give_back(hand_over(guard, waiter).await).await;
}
