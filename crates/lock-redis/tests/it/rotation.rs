//! Passwords and certificates that change while locks are held and waited for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{ErrorKind, Guard, Locks, Outcome, Password, Result};
use lock_redis::RedisConfig;
use lock_testkit::{RedisCluster, RedisSentinel, RedisServer, SecretFile, acquiring, come, give_back};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);
const EVERYTHING: &str = "~* &* +@all";

async fn connect(url: &str) -> Result<Locks> {
    RedisConfig::from_url(url)?.connect().await
}

/// Gives the user this password, and no other.
async fn set_password(server: &RedisServer, password: &str) {
    let rules = format!("ACL SETUSER worker on resetpass >{password} {EVERYTHING}");
    server.call(&rules.split(' ').collect::<Vec<_>>()).await;
}

/// Ends all connections but those of replicas and of the test.
async fn end_connections(server: &RedisServer) {
    for kind in ["normal", "pubsub"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
}

/// A lock that is held, and a waiter for it.
async fn held_and_awaited(locks: &Locks) -> (Guard, JoinHandle<Guard>) {
    let guard = locks.mutex("a").acquire().await.unwrap();
    let waiter = acquiring(locks.mutex("a"));
    sleep(Duration::from_millis(100)).await;
    (guard, waiter)
}

/// The lock outlives its lease, the waiter gets it, and other locks can be acquired.
async fn goes_on((guard, waiter): (Guard, JoinHandle<Guard>), locks: &Locks) {
    sleep(TTL + TTL / 4).await;
    assert!(guard.is_valid());
    guard.verify().await.unwrap();
    give_back(guard).await;
    let next = come(waiter).await;
    give_back(next).await;
    let other = timeout(PATIENCE, locks.mutex("b").acquire()).await.unwrap().unwrap();
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_each_connect() {
    let (server, secret) = (RedisServer::start().await.unwrap(), SecretFile::new("one"));
    set_password(&server, "one").await;
    let url = format!("redis://worker@{}?ttl=2s&password_file={}", server.addr(), secret);
    let locks = connect(&url).await.unwrap();
    let pair = held_and_awaited(&locks).await;
    secret.change("two");
    set_password(&server, "two").await;
    end_connections(&server).await;
    goes_on(pair, &locks).await;
    let stale = connect(&format!("redis://worker:one@{}", server.addr())).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Denied, "{stale}");
}

#[tokio::test]
async fn a_function_is_asked_for_the_password_at_each_connect() {
    let server = RedisServer::start().await.unwrap();
    set_password(&server, "s3cret-one").await;
    let current = Arc::new(Mutex::new("s3cret-one"));
    let password = {
        let current = Arc::clone(&current);
        Password::callback(move || {
            let password = *current.lock().unwrap();
            async move { Ok(password.to_owned()) }
        })
    };
    let url = format!("redis://worker@{}?ttl=2s", server.addr());
    let config = RedisConfig::from_url(&url).unwrap().password(password);
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
    let locks = config.connect().await.unwrap();
    let pair = held_and_awaited(&locks).await;
    *current.lock().unwrap() = "s3cret-two";
    set_password(&server, "s3cret-two").await;
    end_connections(&server).await;
    goes_on(pair, &locks).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_and_read_again() {
    let (server, secret) = (RedisServer::start().await.unwrap(), SecretFile::new("s3cret"));
    set_password(&server, "s3cret").await;
    let url = format!("redis://worker@{}?ttl=2s&password_file={}", server.addr(), secret);

    let is_named = |error: &lock_core::Error, kind| {
        assert_eq!((error.kind(), error.code()), (kind, "no_credentials"), "{error}");
        assert!(error.to_string().contains(&secret.to_string()), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    };
    secret.remove();
    is_named(&connect(&url).await.unwrap_err(), ErrorKind::InvalidConfig);
    let lazy = RedisConfig::from_url(&url).unwrap().connect_lazy().unwrap();
    is_named(&lazy.mutex("a").acquire().await.unwrap_err(), ErrorKind::InvalidConfig);
    secret.change("s3cret");

    let locks = connect(&url).await.unwrap();
    let pair = held_and_awaited(&locks).await;
    // As while it is written anew.
    secret.change("");
    end_connections(&server).await;
    let error = locks.mutex("b").acquire().await.unwrap_err();
    is_named(&error, ErrorKind::Unavailable);
    // Unknown if it was first sent on the connection that was about to end.
    assert_ne!(error.outcome(), Outcome::Applied, "{error}");
    secret.change("s3cret");
    goes_on(pair, &locks).await;
    lazy.mutex("c").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_nodes_of_a_cluster_get_the_password_of_the_moment() {
    let (cluster, secret) = (RedisCluster::start().await.unwrap(), SecretFile::new("one"));
    let rotate = async |password: &str| {
        secret.change(password);
        for server in cluster.masters() {
            set_password(server, password).await;
            end_connections(server).await;
        }
    };
    rotate("one").await;
    let url = cluster.url().replace("//", "//worker@");
    let locks = connect(&format!("{url}?ttl=2s&password_file={secret}")).await.unwrap();
    let pair = held_and_awaited(&locks).await;
    rotate("two").await;
    goes_on(pair, &locks).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_and_their_master_have_passwords_of_their_own() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let (ours, theirs) = (SecretFile::new("one"), SecretFile::new("uno"));
    let rotate = async |password: &str, of_sentinels: &str| {
        ours.change(password);
        theirs.change(of_sentinels);
        for (servers, password) in [(sentinel.servers(), password), (sentinel.sentinels(), of_sentinels)] {
            for server in servers {
                set_password(server, password).await;
                end_connections(server).await;
            }
        }
    };
    rotate("one", "uno").await;
    let url = sentinel.url().replace("//", "//worker@");
    let files = format!("password_file={}&sentinel_user=worker&sentinel_password_file={}", ours, theirs);
    let locks = connect(&format!("{url}?ttl=2s&{files}")).await.unwrap();
    let pair = held_and_awaited(&locks).await;
    rotate("two", "due").await;
    goes_on(pair, &locks).await;
    // The sentinels are asked once more.
    sentinel.servers()[0].kill();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = match locks.mutex("c").acquire().await {
            Ok(guard) => break drop(guard.release().await),
            Err(error) => error,
        };
        assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificates_are_read_at_each_connect() {
    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(lock_testkit::Certificates::new().unwrap());
    let server = RedisServer::builder().appendonly(true).tls(&certificates, true).start().await.unwrap();
    let (ca, (cert, key)) = (certificates.ca(), certificates.client());
    let file = |path: &std::path::Path| path.display().to_string();
    let files = format!("tls_ca={}&tls_cert={}&tls_key={}", file(&ca), file(&cert), file(&key));
    let url = format!("rediss://{}?ttl=2s&connect_timeout=10s&{files}", server.tls_addr());
    let locks = connect(&url).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    certificates.replace().unwrap();
    server.restart().await.unwrap();
    sleep(TTL + TTL / 4).await;
    assert!(guard.is_valid());
    guard.verify().await.unwrap();
    give_back(guard).await;
    locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
}
