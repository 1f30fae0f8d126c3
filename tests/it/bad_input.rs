//! Mistakes of users, and the errors that they get.

use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{Certificates, RedisFive, RedisServer, ZooKeeper, give_back, take};
use polylock::{
    Error, ErrorKind, Holder, LeaseKind, LockOptions, Locks, MemoryConfig, RedisConfig, RedlockConfig,
    ZkConfig,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::common::{SECRET, hides_the_secret, must_help};

/// URLs that are refused without a connection, who reads them, and what the error names.
const REFUSED: &[(&str, &str, &[&str])] = &[
    ("", "polylock", &[]),
    ("redis", "polylock", &[]),
    ("redis:/h", "polylock", &[]),
    ("://h", "polylock", &[]),
    ("consul://127.0.0.1:8500", "polylock", KNOWN),
    ("rediss+unix://x", "polylock", KNOWN),
    ("http://127.0.0.1", "polylock", KNOWN),
    ("redis://", "redis", &[]),
    ("redis://:6379", "redis", &[]),
    ("redis://h:port", "redis", &[]),
    ("redis://h:99999", "redis", &[]),
    ("redis://h/first", "redis", &[]),
    ("redis://h1:1,h2:2", "redis", &[]),
    ("redis://h?tll=1s", "redis", &["ttl"]),
    ("redis://h?recipe=setnx", "redis", &["setnx-timestamp"]),
    ("redis://h?recipe=setnx-timestamp&recipe_unit=us", "redis", &["ms or s"]),
    ("redis://h?recipe=setnx-timestamp&wait=queue", "redis", &["wait=poll"]),
    ("redis://h?wait=notify&recipe=setnx-timestamp", "redis", &["wait=poll"]),
    ("redis://h?recipe=setnx-timestamp&local_handovers=4", "redis", &["local_handovers"]),
    ("redis://h?recipe=setnx-timestamp&clock_skew=1", "redis", &["1ms"]),
    ("redis://h?recipe=setnx-timestamp&clock_skew=-1s", "redis", &["500ms"]),
    ("redis://h?recipe=setnx-timestamp&clock_skew=30days", "redis", &["clocks"]),
    ("redis://h?recipe=setnx-timestamp&clock_skew=10s&ttl=10s", "redis", &["10.1s"]),
    ("redis://h?clock_skew=1s", "redis", &["recipe=setnx-timestamp"]),
    ("redis://h?recipe=set-nx-px&recipe_unit=s", "redis", &["recipe=setnx-timestamp"]),
    ("redlock://", "redlock", &[]),
    ("redlock://a:1", "redlock", &["too few"]),
    ("redlock://a:1,b:2", "redlock", &["too few"]),
    ("redlock://a:1,b:2,c:3,d:4", "redlock", &["even number"]),
    ("redlock://a:1,b:2,a:1", "redlock", &["twice"]),
    ("redlock://a:1,b:2,c:port", "redlock", &[]),
    ("redlock://a:1,b:2,c:3?tll=1s", "redlock", &["ttl"]),
    ("redlock://a:1,b:2,c:3?recipe=setnx-timestamp", "redlock", &[]),
    ("zk://", "zk", &[]),
    ("zk://h:port", "zk", &[]),
    ("zk://a:1,,b:2", "zk", &[]),
    ("zk://h/a/../b", "zk", &[]),
    ("zk://h?sesion_timeout=10s", "zk", &["session_timeout"]),
    ("zk://h?session_timeout=1000days", "zk", &[]),
    ("zk://h?ttl=10s", "zk", &["session_timeout"]),
    ("memory://?tll=1s", "memory", &["ttl"]),
];
const KNOWN: &[&str] = &["memory://", "redis://", "redlock://", "zk://"];

#[tokio::test]
async fn a_bad_url_is_told_by_who_reads_it() {
    for &(url, backend, names) in REFUSED {
        let text = refused(url, ErrorKind::InvalidConfig, backend).await.to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{names:?} are not named: {text}");
        // A password in such a URL must not be repeated.
        if let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| !scheme.is_empty()) {
            refused(&format!("{scheme}://me:{SECRET}@{rest}"), ErrorKind::InvalidConfig, backend).await;
        }
    }
}

#[tokio::test]
async fn times_that_are_none_or_too_short_are_refused() {
    for (url, backend) in [
        ("memory://?ttl", "memory"),
        ("redis://h?ttl", "redis"),
        ("redlock://a:1,b:2,c:3?ttl", "redlock"),
        ("zk://h?session_timeout", "zk"),
    ] {
        for time in ["0s", "0ms", "1ms", "1", "soon", "-1s", ""] {
            refused(&format!("{url}={time}"), ErrorKind::InvalidConfig, backend).await;
        }
    }
}

#[tokio::test]
async fn a_password_that_is_not_escaped_is_not_repeated() {
    for scheme in ["redis", "redis+cluster", "redis+sentinel", "redlock", "zk", "memory"] {
        for credentials in [":pw/", "me:pw/", "me:p@w/", ":1/", "me:pw?", "me:p?x="] {
            let url = format!("{scheme}://{credentials}{SECRET}@h:1,h:2,h:3/0");
            let error = refused(&url, ErrorKind::InvalidConfig, "polylock").await;
            assert!(error.to_string().contains("%2F"), "{error}");
        }
    }
}

#[test]
fn a_url_of_another_backend_is_refused() {
    assert_eq!(MemoryConfig::from_url("redis://h").unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(RedisConfig::from_url("zk://h").unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(RedlockConfig::from_url("redis://h").unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(ZkConfig::from_url("redis://h").unwrap_err().kind(), ErrorKind::InvalidConfig);
    for url in ["memory://name/path", "memory://me@name", "memory://me:pw@name"] {
        assert_eq!(MemoryConfig::from_url(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_never_shown() {
    let server = RedisServer::builder().password(SECRET).start().await.unwrap();
    let masters = RedisServer::builder().password(SECRET).start_n(3).await.unwrap();
    let addrs: Vec<_> = masters.servers().iter().map(|server| server.addr().to_string()).collect();
    for (scheme, addrs) in [("redis", server.addr().to_string()), ("redlock", addrs.join(","))] {
        for credentials in ["", ":Wr0ng-Pa55@", "nobody:Wr0ng-Pa55@"] {
            let error = refused(&format!("{scheme}://{credentials}{addrs}"), ErrorKind::Denied, scheme).await;
            assert!(!format!("{error} {error:?}").contains("Wr0ng"), "{error:?}");
            assert!(error.to_string().contains("password"), "the way out is not named: {error}");
        }
        let locks = Locks::connect(&format!("{scheme}://:{SECRET}@{addrs}")).await.unwrap();
        hides_the_secret(&locks);
        let guard = take(&locks, "a").await;
        hides_the_secret(&guard);
        give_back(guard).await;
    }
    hides_the_secret(&RedisConfig::from_url(&server.url()).unwrap());
    hides_the_secret(&RedlockConfig::from_url(&masters.url()).unwrap());
    hides_the_secret(&ZkConfig::from_url(&format!("zk://me:{SECRET}@h:1")).unwrap());

    // And when the server goes away under it.
    let locks = Locks::connect(&server.url()).await.unwrap();
    server.kill();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    must_name(&error, ErrorKind::Unavailable, "redis");
}

/// A server says so before it closes the connection.
#[tokio::test]
async fn a_server_that_lets_nobody_in_is_quoted() {
    let server = RedisServer::builder().config("maxclients", "1").start().await.unwrap();
    // One of them may come before the server has noticed that another one went.
    let _others = [TcpStream::connect(server.addr()).await, TcpStream::connect(server.addr()).await];
    let protects = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let protected = protects.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = protects.accept().await {
            client.write_all(PROTECTED.as_bytes()).await.unwrap();
        }
    });
    for (server, kind, says, advice) in [
        (server.addr(), ErrorKind::Unavailable, "max number of clients reached", "maxclients"),
        (
            protected,
            ErrorKind::Denied,
            "is running in protected mode because",
            "set its protected-mode to no",
        ),
    ] {
        for url in [format!("redis://{server}"), format!("redlock://{server},a.invalid:1,b.invalid:2")] {
            let error = Locks::connect(&url).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(says) && !text.contains("CONFIG REWRITE"), "{text}");
            if url.starts_with("redis:") {
                must_name(&error, kind, "redis");
                assert!(text.contains(advice) && !text.contains("TLS"), "{text}");
            }
        }
    }
}

/// What Redis 7.0 says to a client on another host.
const PROTECTED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set \
    for the default user. In this mode connections are only accepted from the loopback interface. If you want to connect from \
    external computers to Redis you may adopt one of the following solutions: 1) Just disable protected mode sending the \
    command 'CONFIG SET protected-mode no' from the loopback interface [...] Use CONFIG REWRITE to make this change permanent.\r\n";

#[tokio::test]
async fn a_connection_that_fails_says_why() {
    let plain = RedisServer::start().await.unwrap();
    let certificates = Arc::new(Certificates::new().unwrap());
    let tls = RedisServer::builder().tls(&certificates, false).start().await.unwrap();
    let (port, tls_port) = (plain.addr(), tls.tls_addr());
    let master = RedisServer::start().await.unwrap();
    // Its port stays reserved: nobody else answers.
    let gone = master.addr();
    master.kill();
    for (url, kind, says) in [
        (format!("redis://{gone}"), ErrorKind::Unavailable, "connection refused"),
        ("redis+unix:///no/such.sock".into(), ErrorKind::Unavailable, "socket file does not exist"),
        (
            "redis://no-such-host.invalid:1?connect_timeout=30s".into(),
            ErrorKind::Unavailable,
            "cannot be resolved",
        ),
        // It takes the greeting for a command that goes on, or answers in plain text.
        (format!("rediss://{port}"), ErrorKind::Unavailable, "TLS"),
        (format!("redis://{tls_port}"), ErrorKind::Unavailable, "speaks TLS if and only if"),
        (format!("redis+sentinel://{port}/main"), ErrorKind::InvalidConfig, "not a sentinel"),
        (format!("redis+sentinel://{gone}/main"), ErrorKind::Unavailable, "connection refused"),
        ("zk://no-such-host.invalid:1?session_timeout=5s".into(), ErrorKind::Unavailable, ""),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        let text = must_name(&error, kind, error.backend());
        assert!(text.contains(says), "{url} does not say {says:?}: {text}");
    }
}

#[tokio::test]
async fn a_quorum_that_fails_names_each_master_and_its_reason() {
    let (one, two) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let protected = RedisServer::builder().password(SECRET).start().await.unwrap();
    one.kill();
    let masters = [one.addr(), protected.addr(), two.addr()].map(|addr| addr.to_string());
    let url = format!("redlock://{},{},{},a.invalid:1,b.invalid:2", masters[0], masters[1], masters[2]);
    let error = Locks::connect(&format!("{url}?connect_timeout=30s")).await.unwrap_err();
    let text = must_name(&error, ErrorKind::Unavailable, "redlock");
    for (master, why) in [
        (&*masters[0], "connection refused"),
        (&masters[1], "password"),
        ("a.invalid:1", "cannot be resolved"),
        ("b.invalid:2", "cannot be resolved"),
    ] {
        let reasons = text.split(';').filter(|reason| reason.contains(master));
        assert!(reasons.clone().any(|reason| reason.contains(why)), "{master} does not get {why:?}: {text}");
    }
    assert!(text.contains("only 1 of 5"), "{text}");
}

#[tokio::test]
async fn a_key_of_another_type_is_busy_and_named() {
    let (server, masters) = (RedisServer::start().await.unwrap(), RedisFive::start_n(3).await.unwrap());
    for (backend, url, servers) in [
        ("redis", server.url(), std::slice::from_ref(&server)),
        ("redlock", masters.url(), masters.servers()),
    ] {
        let locks = Locks::connect(&url).await.unwrap();
        // A name for each: a release is done when a quorum has it.
        for (kind, make) in [
            ("list", &["RPUSH", "lock:list", "x"][..]),
            ("hash", &["HSET", "lock:hash", "x", "y"]),
            ("set", &["SADD", "lock:set", "x"]),
            ("stream", &["XADD", "lock:stream", "*", "x", "y"]),
        ] {
            for server in servers {
                server.call(make).await;
            }
            assert!(locks.mutex(kind).try_acquire().await.unwrap().is_none(), "{url}: {kind}");
            // Time: it passes in vain.
            let waited = locks.mutex(kind).try_acquire_for(Duration::from_millis(100)).await;
            assert!(waited.unwrap().is_none(), "{url}: {kind}");
            let state = locks.inspect(kind).await.unwrap();
            assert!(matches!(state.holder(), Some(Holder::Foreign(text)) if text.contains(kind)), "{state}");
            let error = locks.break_lock(kind).await.unwrap_err();
            assert!(must_name(&error, ErrorKind::Unsupported, backend).contains(kind), "{error}");
            for server in servers {
                let key = format!("lock:{kind}");
                assert_eq!(server.call(&["TYPE", &key]).await.text(), Some(kind));
                server.call(&["DEL", &key]).await;
            }
            give_back(take(&locks, kind).await).await;
        }
    }
}

#[tokio::test]
async fn the_session_timeout_that_was_negotiated_is_told() {
    // Time: the server's own bounds.
    let (shortest, longest) = (Duration::from_secs(5), Duration::from_secs(15));
    let options = ZooKeeper::builder().min_session_timeout(shortest).max_session_timeout(longest);
    let zk = options.start().await.unwrap();
    for (asked, given) in [("200ms", shortest), ("8s", Duration::from_secs(8)), ("60s", longest)] {
        let url = format!("{}?session_timeout={asked}&connect_timeout=10s", zk.url());
        let locks = Locks::connect(&url).await.unwrap();
        assert_eq!(locks.capabilities().lease, LeaseKind::session(given));
        let guard = take(&locks, "a").await;
        assert!(guard.remaining() <= given, "valid for {:?} in a session of {given:?}", guard.remaining());
        give_back(guard).await;
        // The way out of a ttl that is shorter names it too.
        let error = locks.mutex_with("a", LockOptions::new().ttl(shortest / 2)).unwrap_err();
        let text = must_name(&error, ErrorKind::InvalidConfig, "zk");
        assert!(text.contains(&format!("{given:?}")), "{text}");
    }
}

/// The error of a connection that must not come about.
async fn refused(url: &str, kind: ErrorKind, backend: &str) -> Error {
    let error = Locks::connect(url).await.map(drop).expect_err(url);
    must_name(&error, kind, backend);
    assert!(!error.is_retryable(), "trying again does not help: {error}");
    error
}

fn must_name(error: &Error, kind: ErrorKind, backend: &str) -> String {
    let text = must_help(error, kind);
    assert!(text.starts_with(&format!("{backend}: ")), "the text does not name {backend}: {text}");
    text
}
