//! Servers that do not allow all commands, and proxies that clients share: what works less well there, and what is refused.

use std::net::SocketAddr;
use std::time::Duration;

use lock_core::{ErrorKind, GuardState, LockOptions, Locks, Outcome, Persistence, Released};
use lock_redis::RedisConfig;
use lock_testkit::proxy::{Multiplexer, Protocol, Refusal, Then, redis_command};
use lock_testkit::{FaultProxy, RedisCluster, RedisServer, acquiring, come, give_back};
use tokio::time::{sleep, timeout};

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(1);
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
    let rules = format!("on >pw ~* &* +@all {rights}");
    let server = RedisServer::builder().user("worker", &rules).start().await.unwrap();
    let url = url(server.addr());
    (server, url)
}

fn url(addr: SocketAddr) -> String {
    format!("redis://worker:pw@{addr}?ttl=1s")
}

/// Locks exclude, are renewed, go to a waiter with a larger token, are shared, and leave nothing.
async fn works(url: &str, server: &RedisServer) {
    let (ours, theirs) = (connect(url).await, connect(url).await);
    let names = ["a", "b", "c"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(ours.mutex(name).acquire().await.unwrap());
    }
    assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    let waiter = acquiring(theirs.mutex("a"));
    sleep(2 * TTL).await;
    for guard in &guards {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "it is renewed");
        guard.extend(2 * TTL).await.unwrap();
    }
    assert!(!waiter.is_finished());
    let token = guards[0].token();
    for guard in guards {
        give_back(guard).await;
    }
    let next = come(waiter).await;
    assert!(next.token() > token);
    give_back(next).await;

    let (one, two) = (ours.rw("rw").read().await.unwrap(), theirs.rw("rw").read().await.unwrap());
    assert!(ours.rw("rw").try_write().await.unwrap().is_none());
    assert!(
        one.release().await.unwrap() == Released::Released
            && two.release().await.unwrap() == Released::Released
    );
    let left =
        server.command(&["EXISTS", "lock:a", "lock:b", "lock:c", "lock:rw", "polylock:queue:{lock:a}"]);
    assert_eq!(left.await.unwrap().int(), Some(0));
}

#[tokio::test]
async fn without_config_and_info_the_doctor_sees_less() {
    let (server, url) = without("-config -info").await;
    works(&url, &server).await;
    let report = connect(&url).await.doctor().await.unwrap().to_string();
    for missing in ["CONFIG GET is not allowed", "INFO is not allowed"] {
        assert!(report.contains(missing), "{report}");
    }
}

#[tokio::test]
async fn without_script_load_calls_bring_their_script() {
    let (server, url) = without("-script").await;
    works(&url, &server).await;
    let locks = connect(&url).await;
    let guards = [locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap()];
    server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    sleep(2 * TTL).await;
    for guard in guards {
        assert!(guard.is_valid(), "renewed after the server has forgotten the scripts");
        give_back(guard).await;
    }
    let old = connect(&format!("{url}&recipe=setnx-timestamp&clock_skew=50ms&prefix=old:")).await;
    let guard = old.mutex("a").acquire().await.unwrap();
    sleep(2 * TTL).await;
    give_back(guard).await;
}

#[tokio::test]
async fn without_script_load_and_eval_it_is_refused_at_connect() {
    let (_server, url) = without("-script -eval").await;
    let error = RedisConfig::from_url(&url).unwrap().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+script|load"), "{error}");
}

#[tokio::test]
#[ignore = "full: a replica, and a cluster"]
async fn without_script_load_replicas_and_clusters_work() {
    let (master, url) = without("-script").await;
    let replica = RedisServer::builder().replica_of(&master).start().await.unwrap();
    let locks =
        connect(&format!("{}&wait_replicas=1&wait_replicas_timeout=10s", url.replace("1s", "30s"))).await;
    for name in ["a", "b"] {
        let guard = timeout(PATIENCE, locks.mutex(name).acquire()).await.unwrap().unwrap();
        assert!(replica.has_key(&format!("lock:{name}")).await);
        guard.release().await.unwrap();
    }
    let cluster = RedisCluster::start().await.unwrap();
    for server in cluster.masters() {
        let rules = ["ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", "-script"];
        assert!(!server.command(&rules).await.unwrap().is_error());
    }
    let locks = connect(&cluster.url().replace("//", "//worker:pw@")).await;
    for number in 0..8 {
        let guard = locks.mutex(format!("a{number}")).acquire().await.unwrap();
        give_back(guard).await;
    }
}

#[tokio::test]
async fn without_wait_a_lock_that_replicas_are_to_have_is_refused() {
    let (server, url) = without("-wait").await;
    let locks = connect(&format!("{url}&wait_replicas=1")).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+wait"), "{error}");
    assert!(!server.has_key("lock:a").await);
}

#[tokio::test]
async fn with_hardly_more_than_the_commands_of_a_lock_it_works() {
    let (server, url) =
        without("-@admin -@dangerous -@connection -@pubsub -script -client -info -config -scan").await;
    works(&url, &server).await;
}

/// A proxy that sends the requests of all clients over one connection, and to one of several servers by their keys.
#[tokio::test]
async fn behind_a_proxy_that_multiplexes_it_works() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Multiplexer::start(server.addr(), &NOT_SHARED, Refusal::Error).unwrap();
    let url = format!("redis://{}?ttl=1s", proxy.addr());
    works(&url, &server).await;
    assert_eq!(connected(&server).await, 2, "the proxy, and this question");
    let report = connect(&url).await.doctor().await.unwrap().to_string();
    assert!(report.contains("SUBSCRIBE is refused") && report.contains("RESP3 is refused"), "{report}");
    let error =
        RedisConfig::from_url(&format!("redis://{}/1", proxy.addr())).unwrap().connect().await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("select"), "{error}");
    let locks = connect(&format!("{url}&wait_replicas=1")).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert!(error.to_string().contains("WAIT"), "{error}");
    let error = locks.list("").await.unwrap_err();
    assert!(error.to_string().contains("SCAN"), "{error}");
}

async fn connected(server: &RedisServer) -> usize {
    let list = server.command(&["CLIENT", "LIST"]).await.unwrap();
    list.text().unwrap().lines().count()
}

#[tokio::test]
async fn a_proxy_that_closes_connections_at_what_it_does_not_forward_is_refused() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Multiplexer::start(server.addr(), &NOT_SHARED, Refusal::Close).unwrap();
    let config = RedisConfig::from_url(&format!("redis://{}", proxy.addr())).unwrap();
    let error = config.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("proxy") && error.to_string().contains("HELLO"), "{error}");
}

/// A proxy, and a line to its server that can be cut: the proxy answers that it has lost the server then.
async fn cut_behind_a_proxy() -> (RedisServer, FaultProxy, Multiplexer, Locks) {
    let server = RedisServer::start().await.unwrap();
    let line = FaultProxy::start(server.addr(), Protocol::Redis).unwrap();
    let proxy = Multiplexer::start(line.addr(), &["CLIENT", "HELLO", "SUBSCRIBE"], Refusal::Error).unwrap();
    let locks = connect(&format!("redis://{}?ttl=30s", proxy.addr())).await;
    (server, line, proxy, locks)
}

#[tokio::test]
async fn a_request_that_a_proxy_answers_for_a_lost_server_is_rolled_back() {
    for command in ["EVALSHA", "SET"] {
        let (server, line, _proxy, locks) = cut_behind_a_proxy().await;
        if command == "SET" {
            // The first request of a connection is a script.
            locks.mutex("first").acquire().await.unwrap().release().await.unwrap();
        }
        line.swallow_when(redis_command(command), Then::Reset);
        // The server has granted it; it is asked for again under another owner id.
        let guard = timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap();
        assert_eq!(line.fired(), 1, "{command}");
        give_back(guard).await;
        assert!(!server.has_key("lock:a").await, "{command}");
    }
}

#[tokio::test]
async fn an_extension_that_a_proxy_answers_for_a_lost_server_may_have_been_applied() {
    let (server, line, _proxy, locks) = cut_behind_a_proxy().await;
    let other = connect(&server.url()).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    // Nor is anything renewed soon after it.
    line.refuse(true);
    line.swallow_when(redis_command("EVALSHA"), Then::Reset);
    let extended = guard.extend(TTL / 2).await;
    assert_eq!(line.fired(), 1);
    let next = timeout(PATIENCE, other.mutex("a").acquire()).await.unwrap().unwrap();
    assert!(!guard.is_valid(), "two valid guards");
    assert_eq!(extended.unwrap_err().outcome(), Outcome::Unknown);
    give_back(next).await;
}

#[tokio::test]
async fn a_proxy_without_a_server_is_waited_for() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Multiplexer::start(server.addr(), &NOT_SHARED, Refusal::Error).unwrap();
    let url = format!("redis://{}?ttl=1s", proxy.addr());
    let locks = connect(&url).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    // It polls: nothing shows whether it has been answered yet.
    let options = LockOptions::new().persistence(Persistence::Always);
    let waiter = acquiring(connect(&url).await.mutex_with("a", options).unwrap());
    sleep(Duration::from_millis(300)).await;
    server.kill();
    let error = RedisConfig::from_url(&url).unwrap().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("upstream failure"), "{error}");
    assert!(timeout(PATIENCE, guard.lost()).await.is_ok());
    assert!(!waiter.is_finished());
    server.start_again().await.unwrap();
    come(waiter).await.release().await.unwrap();
}
