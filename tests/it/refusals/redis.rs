//! Refusals of Redis and of Redlock's masters.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{Certificates, RedisFive, RedisSentinel, RedisServer, soon, take};
use polylock::{ErrorKind, LockOptions, Locks, Persistence};
use tokio::time::{Instant, sleep};

use super::{OUTAGE, Standbys, endure, has, is_refused};
use crate::common::connect_at_last;

// Time: an outage outlasts them.
const REDIS: &str = "ttl=2s&command_timeout=500ms&connect_timeout=1s";
// Time: the same.
const REDLOCK: &str = "ttl=2s&longest_ttl=2s&master_timeout=500ms&connect_timeout=1s";

const NOBODY_IN_QUEUES: [&str; 3] = ["DEL", "polylock:queue:{lock:leader}", "polylock:queue:{lock:a}"];

async fn all(servers: &[RedisServer], words: &[&str]) {
    for server in servers {
        server.call(words).await;
    }
}

async fn limits_memory(servers: &[RedisServer], bytes: &str) {
    all(servers, &["CONFIG", "SET", "maxmemory", bytes]).await;
}

/// Has the user of the locks another password, and closes its connections.
async fn set_password(servers: &[RedisServer], password: &str) {
    all(servers, &["ACL", "SETUSER", "app", "resetpass", &format!(">{password}")]).await;
    all(servers, &["CLIENT", "KILL", "USER", "app"]).await;
}

async fn with_a_user() -> (RedisServer, String) {
    let server = RedisServer::builder().user("app", "on >right ~* &* +@all").start().await.unwrap();
    let url = format!("redis://app:right@{}?{REDIS}", server.addr());
    (server, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_runs_out_of_memory_while_the_leader_resigns() {
    let server = [RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap()];
    let url = format!("{}?{REDIS}", server[0].url());
    // The locks are handed over all the same.
    let mut standbys = Standbys::of(&url, &url).await;
    limits_memory(&server, "1").await;
    standbys.give_back().await;
    // Time: the outage lasts.
    sleep(OUTAGE / 3).await;
    limits_memory(&server, "0").await;
    standbys.come().await;

    // As after a restart: the locks are handed over to nobody. Nobody can enter the queue again.
    let refuse = async || {
        limits_memory(&server, "1").await;
        all(&server, &NOBODY_IN_QUEUES).await;
    };
    let refusals = endure((&url, &url), OUTAGE, refuse, async || limits_memory(&server, "0").await).await;
    // It is a candidate of the observing client that was refused.
    has(&refusals, ErrorKind::Exhausted);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_refuses_the_password_for_some_seconds() {
    let (server, url) = with_a_user().await;
    let server = [server];
    let allow = async || {
        is_refused(&url, ErrorKind::Denied).await;
        set_password(&server, "right").await;
    };
    has(
        &endure((&url, &url), OUTAGE, async || set_password(&server, "wrong").await, allow).await,
        ErrorKind::Denied,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_keeps_redis_busy() {
    let server = RedisServer::builder().config("lua-time-limit", "700").start().await.unwrap();
    // The connections are given up first. Then the database has to be selected again, and that is refused.
    for database in [0, 1] {
        let url = format!("{}/{database}?{REDIS}", server.url());
        let refuse = async || {
            let mut script = TcpStream::connect(server.addr()).unwrap();
            script.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
        };
        let allow = async || {
            let refused = Locks::connect(&url).await.unwrap_err();
            let text = refused.to_string();
            assert!(refused.can_pass() && text.contains("a script blocks the server"), "{text}");
            server.call(&["SCRIPT", "KILL"]).await;
        };
        endure((&url, &url), OUTAGE, refuse, allow).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_has_a_wrong_certificate_for_some_seconds() {
    let (right, wrong) = (Arc::new(Certificates::new().unwrap()), Certificates::new().unwrap());
    let server = RedisServer::builder().tls(&right, false).start().await.unwrap();
    let set = async |certificates: &Certificates| {
        let (cert, key) = certificates.server();
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        server.call(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key]).await;
    };
    // Time: on a busy machine, the first handshakes of a test program take a while.
    let options = REDIS.replace("connect_timeout=1s", "connect_timeout=5s");
    let url = format!("rediss://{}?{options}&tls_ca={}", server.tls_addr(), right.ca().display());
    let refuse = async || {
        set(&wrong).await;
        for kind in ["normal", "pubsub"] {
            server.call(&["CLIENT", "KILL", "TYPE", kind]).await;
        }
    };
    let first = format!("{}?{REDIS}", server.url());
    let refusals = endure((&first, &url), OUTAGE, refuse, async || set(&right).await).await;
    has(&refusals, ErrorKind::InvalidConfig);
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_ends_with_the_refusal_and_the_strict_end_at_once() {
    let (server, url) = with_a_user().await;
    let server = [server];
    let (holds, patient, strict) =
        (connect_at_last(&url).await, connect_at_last(&url).await, connect_at_last(&url).await);
    let _guard = take(&holds, "a").await;
    // Time: it ends while the store refuses.
    let (began, patience) = (Instant::now(), Duration::from_secs(4));
    let patients = [(); 2].map(|()| {
        let mutex = patient.mutex("a");
        tokio::spawn(async move { mutex.try_acquire_for(patience).await })
    });
    let mutex = strict.mutex_with("a", LockOptions::new().persistence(Persistence::Strict)).unwrap();
    let at_once = tokio::spawn(async move { mutex.acquire().await });
    let are_two = async || holds.inspect("a").await.is_ok_and(|seen| seen.waiters >= 2);
    lock_testkit::until("two wait", are_two).await;
    set_password(&server, "wrong").await;
    let error = soon(at_once).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for waiter in patients {
        let error = soon(waiter).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    assert!(began.elapsed() >= patience, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: a master, a replica and three sentinels"]
async fn a_master_behind_sentinels_runs_out_of_memory() {
    let options = RedisServer::builder().maxmemory_policy("noeviction");
    let servers = RedisSentinel::start_with(options, RedisSentinel::DOWN_AFTER).await.unwrap();
    let url = format!("{}?{REDIS}", servers.url());
    let master = std::slice::from_ref(servers.master().await.expect("there is one"));
    let refuse = async || {
        limits_memory(master, "1").await;
        all(master, &NOBODY_IN_QUEUES).await;
    };
    endure((&url, &url), OUTAGE, refuse, async || limits_memory(master, "0").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_masters_refuse_for_some_seconds() {
    let options = RedisServer::builder().maxmemory_policy("noeviction").user("app", "on >right ~* &* +@all");
    let masters: RedisFive = options.start_n(3).await.unwrap();
    masters.have_been_used().await.unwrap();
    let url = format!("{}?{REDLOCK}", masters.url().replace("redlock://", "redlock://app:right@"));
    let few = &masters.servers()[..2];
    let (refuse, allow) =
        (async || set_password(few, "wrong").await, async || set_password(few, "right").await);
    has(&endure((&url, &url), OUTAGE, refuse, allow).await, ErrorKind::Denied);

    let refuse = async || {
        limits_memory(few, "1").await;
        all(few, &["DEL", "polylock:line:{lock:leader}", "polylock:line:{lock:a}"]).await;
    };
    endure((&url, &url), OUTAGE, refuse, async || limits_memory(few, "0").await).await;
}
