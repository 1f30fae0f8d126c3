//! Mistakes of users, and the errors that they get.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{Certificates, RedisFive, RedisServer, ZooKeeper};
use polylock::{
    Error, ErrorKind, Holder, LeaseKind, LockOptions, Locks, MemoryConfig, RedisConfig, RedlockConfig,
    ZkConfig,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use zookeeper_client::{Acls, Client, CreateMode};

const SECRET: &str = "s3cret-Pa55";

#[tokio::test]
async fn an_unknown_scheme_names_the_known_ones() {
    for url in ["etcd://127.0.0.1:2379", "rediss+unix://x", "http://127.0.0.1"] {
        let error = refused(url, ErrorKind::InvalidConfig, "polylock").await;
        for known in ["memory://", "redis://", "redlock://", "zk://"] {
            assert!(error.to_string().contains(known), "{known} is not named: {error}");
        }
    }
}

#[tokio::test]
async fn a_malformed_url_is_told_by_who_reads_it() {
    for (url, backend) in [
        ("", "polylock"),
        ("redis", "polylock"),
        ("redis:/h", "polylock"),
        ("://h", "polylock"),
        ("redis://", "redis"),
        ("redis://:6379", "redis"),
        ("redis://h:port", "redis"),
        ("redis://h:99999", "redis"),
        ("redis://h/first", "redis"),
        ("redis://h1:1,h2:2", "redis"),
        ("redlock://", "redlock"),
        ("redlock://a:1,b:2,c:port", "redlock"),
        ("zk://", "zk"),
        ("zk://h:port", "zk"),
        ("zk://a:1,,b:2", "zk"),
        ("zk://h/a/../b", "zk"),
    ] {
        refused(url, ErrorKind::InvalidConfig, backend).await;
        // A password in such a URL must not be repeated.
        if let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| !scheme.is_empty()) {
            refused(&format!("{scheme}://me:{SECRET}@{rest}"), ErrorKind::InvalidConfig, backend).await;
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
async fn an_unknown_option_names_the_known_ones() {
    for (url, known) in [
        ("memory://?tll=1s", "ttl"),
        ("redis://h?tll=1s", "ttl"),
        ("redlock://a:1,b:2,c:3?tll=1s", "ttl"),
        ("zk://h?sesion_timeout=1s", "session_timeout"),
    ] {
        let error = refused(url, ErrorKind::InvalidConfig, scheme(url)).await;
        assert!(error.to_string().contains(known), "{known} is not named: {error}");
    }
}

#[tokio::test]
async fn times_that_are_none_or_too_short_are_refused() {
    for url in ["memory://", "redis://h", "redlock://a:1,b:2,c:3"] {
        for ttl in ["0s", "0ms", "1ms", "1", "soon", "-1s", ""] {
            refused(&format!("{url}?ttl={ttl}"), ErrorKind::InvalidConfig, scheme(url)).await;
        }
    }
    for timeout in ["0s", "1ms", "1", "soon", "1000days"] {
        refused(&format!("zk://h?session_timeout={timeout}"), ErrorKind::InvalidConfig, "zk").await;
    }
    let error = refused("zk://h?ttl=10s", ErrorKind::InvalidConfig, "zk").await;
    assert!(error.to_string().contains("session_timeout"), "the way out is not named: {error}");
}

#[tokio::test]
async fn options_that_a_recipe_cannot_honour_are_refused() {
    for (options, says) in [
        ("recipe=setnx", "setnx-timestamp"),
        ("recipe=setnx-timestamp&recipe_unit=us", "ms or s"),
        ("recipe=setnx-timestamp&wait=queue", "wait=poll"),
        ("wait=notify&recipe=setnx-timestamp", "wait=poll"),
        ("recipe=setnx-timestamp&local_handovers=4", "local_handovers"),
        ("recipe=setnx-timestamp&clock_skew=1", "1ms"),
        ("recipe=setnx-timestamp&clock_skew=-1s", "500ms"),
        ("recipe=setnx-timestamp&clock_skew=30days", "clocks"),
        ("recipe=setnx-timestamp&clock_skew=10s&ttl=10s", "10.1s"),
        ("clock_skew=1s", "recipe=setnx-timestamp"),
        ("recipe=set-nx-px&recipe_unit=s", "recipe=setnx-timestamp"),
    ] {
        let error = refused(&format!("redis://h?{options}"), ErrorKind::InvalidConfig, "redis").await;
        assert!(error.to_string().contains(says), "{options}: does not say {says:?}: {error}");
    }
    refused("redlock://a:1,b:2,c:3?recipe=setnx-timestamp", ErrorKind::InvalidConfig, "redlock").await;
}

#[tokio::test]
async fn masters_must_be_an_odd_number_of_different_ones() {
    let five = RedisFive::start().await.unwrap();
    let addrs: Vec<_> = five.servers().iter().map(|server| server.addr().to_string()).collect();
    for (masters, says) in [
        (&addrs[..1], "too few"),
        (&addrs[..2], "too few"),
        (&addrs[..4], "even number"),
        (&[&addrs[..2], &addrs[..1]].concat()[..], "twice"),
    ] {
        let url = format!("redlock://{}", masters.join(","));
        let error = refused(&url, ErrorKind::InvalidConfig, "redlock").await;
        assert!(error.to_string().contains(says), "does not say {says:?}: {error}");
    }
    let locks = Locks::connect(&format!("redlock://{}", addrs[..3].join(","))).await.unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
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
        let guard = locks.mutex("a").try_acquire().await.unwrap().unwrap();
        hides_the_secret(&guard);
        guard.release().await.unwrap();
    }
    hides_the_secret(&RedisConfig::from_url(&server.url()).unwrap());
    hides_the_secret(&RedlockConfig::from_url(&masters.url()).unwrap());
    hides_the_secret(&ZkConfig::from_url(&format!("zk://me:{SECRET}@h:1")).unwrap());

    // And when the server goes away under it.
    let locks = Locks::connect(&server.url()).await.unwrap();
    server.kill();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    hides_the_secret(&error);
    assert!(!error.to_string().contains(SECRET), "{error}");
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
                must_help(&error, kind, "redis");
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
        ("zk://no-such-host.invalid:1?session_timeout=1s".into(), ErrorKind::Unavailable, ""),
    ] {
        let error = Locks::connect(&url).await.unwrap_err();
        must_help(&error, kind, error.backend());
        assert!(error.to_string().contains(says), "{url} does not say {says:?}: {error}");
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
    must_help(&error, ErrorKind::Unavailable, "redlock");
    let text = error.to_string();
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
    for (url, servers) in [(server.url(), std::slice::from_ref(&server)), (masters.url(), masters.servers())]
    {
        let locks = Locks::connect(&url).await.unwrap();
        // A name for each: a release is done when a quorum has it.
        for (make, kind) in [
            (&["RPUSH", "lock:list", "x"][..], "list"),
            (&["HSET", "lock:hash", "x", "y"][..], "hash"),
            (&["SADD", "lock:set", "x"][..], "set"),
            (&["XADD", "lock:stream", "*", "x", "y"][..], "stream"),
        ] {
            let key = format!("lock:{kind}");
            everywhere(servers, make).await;
            assert!(
                locks.mutex(kind).try_acquire().await.unwrap().is_none(),
                "{url}: took a {kind} for free"
            );
            let waited = locks.mutex(kind).try_acquire_for(Duration::from_millis(100)).await;
            assert!(waited.unwrap().is_none(), "{url}: took a {kind} for free");
            let holder = locks.inspect(kind).await.unwrap().holder().cloned();
            assert!(
                matches!(&holder, Some(Holder::Foreign(text)) if text.contains(kind)),
                "{url}: {holder:?}"
            );
            let error = locks.break_lock(kind).await.unwrap_err();
            must_help(&error, ErrorKind::Unsupported, scheme(&url));
            assert!(error.to_string().contains(kind), "{error}");
            for server in servers {
                assert_eq!(server.command(&["TYPE", &key]).await.unwrap().text(), Some(kind));
            }
            // Gone, and the lock is as any other.
            everywhere(servers, &["DEL", &key]).await;
            locks.mutex(kind).try_acquire().await.unwrap().unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_missing_chroot_is_named_and_not_made() {
    let zk = ZooKeeper::start().await.unwrap();
    let url = format!("{}/apps/orders?session_timeout=2s", zk.url());
    let error = refused(&url, ErrorKind::InvalidConfig, "zk").await;
    assert!(error.to_string().contains("/apps/orders"), "the chroot is not named: {error}");
    assert!(error.to_string().contains("create"), "the way out is not named: {error}");

    let operator = Client::connect(&zk.connect_string()).await.unwrap();
    assert!(operator.check_stat("/apps").await.unwrap().is_none(), "the chroot was made");
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/apps", b"", &persistent).await.unwrap();
    operator.create("/apps/orders", b"", &persistent).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    assert!(operator.check_stat("/locks").await.unwrap().is_none(), "the chroot was left");
}

#[tokio::test]
async fn a_forbidden_directory_is_denied() {
    let zk = ZooKeeper::start().await.unwrap();
    let operator = Client::connect(&zk.connect_string()).await.unwrap();
    let read_only = CreateMode::Persistent.with_acls(Acls::anyone_read());
    operator.create("/locks", b"", &read_only).await.unwrap();
    let locks = Locks::connect(&format!("{}?session_timeout=2s", zk.url())).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    must_help(&error, ErrorKind::Denied, "zk");
    assert!(error.to_string().contains("/locks"), "the directory is not named: {error}");
}

#[tokio::test]
async fn the_session_timeout_that_was_negotiated_is_told() {
    let (shortest, longest) = (Duration::from_secs(1), Duration::from_secs(5));
    let options = ZooKeeper::builder().min_session_timeout(shortest).max_session_timeout(longest);
    let zk = options.start().await.unwrap();
    for (asked, given) in [("200ms", shortest), ("2s", Duration::from_secs(2)), ("60s", longest)] {
        let locks = Locks::connect(&format!("{}?session_timeout={asked}&connect_timeout=10s", zk.url()))
            .await
            .unwrap();
        assert_eq!(locks.capabilities().lease, LeaseKind::session(given));
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(guard.remaining() <= given, "valid for {:?} in a session of {given:?}", guard.remaining());
        guard.release().await.unwrap();
        // The way out of a ttl that is shorter names it too.
        let error = locks.mutex_with("a", LockOptions::new().ttl(shortest / 2)).unwrap_err();
        must_help(&error, ErrorKind::InvalidConfig, "zk");
        assert!(error.to_string().contains(&format!("{given:?}")), "{error}");
    }
}

/// The error of a connection that must not come about.
async fn refused(url: &str, kind: ErrorKind, backend: &str) -> Error {
    let error = Locks::connect(url).await.map(drop).expect_err(url);
    must_help(&error, kind, backend);
    assert!(!error.is_retryable(), "trying again does not help: {error}");
    error
}

fn must_help(error: &Error, kind: ErrorKind, backend: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("{backend}: ")), "the text does not name {backend}: {text}");
    assert!(text.contains("; "), "the text names no way out: {text}");
    assert!(!text.contains('\n'), "the text has more than one line: {text}");
    hides_the_secret(error);
    assert!(!text.contains(SECRET), "the text shows a password: {text}");
}

fn hides_the_secret(shown: &impl Debug) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(SECRET), "shows the password: {text}");
    }
}

async fn everywhere(servers: &[RedisServer], command: &[&str]) {
    for server in servers {
        server.call(command).await;
    }
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}
