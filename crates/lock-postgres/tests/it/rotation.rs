//! Passwords and certificates that change while locks are held and waited for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{ErrorKind, Guard, Locks, Password};
use lock_postgres::PostgresConfig;
use lock_testkit::postgres::PostgresServer;
use lock_testkit::{SecretFile, acquiring, come, give_back};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::site::{PATIENCE, Site, connect, take, until};

const TTL: Duration = Duration::from_secs(2);
const SCRAM: &str = "host all all 127.0.0.1/32 scram-sha-256";

async fn open(password: &str) -> Site {
    Site::secured(PostgresServer::builder(), SCRAM, password).await
}

/// Gives the role this password, and no other.
async fn set_password(site: &Site, password: &str) {
    site.client().await.batch_execute(&format!("ALTER ROLE app PASSWORD '{password}'")).await.unwrap();
}

/// A lock that is held, and a waiter for it.
async fn held_and_awaited(locks: &Locks) -> (Guard, JoinHandle<Guard>) {
    let guard = take(locks, "a").await;
    let waiter = acquiring(locks.mutex("a"));
    until("a waiter", async || locks.inspect("a").await.unwrap().waiters == 1).await;
    (guard, waiter)
}

/// The lock outlives its lease, the waiter gets it, and other locks can be acquired.
async fn goes_on((guard, waiter): (Guard, JoinHandle<Guard>), locks: &Locks) {
    sleep(TTL + TTL / 4).await;
    assert!(guard.is_valid());
    guard.verify().await.unwrap();
    give_back(guard).await;
    give_back(come(waiter).await).await;
    give_back(take(locks, "b").await).await;
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_each_connect() {
    let (site, secret) = (open("one").await, SecretFile::new("one"));
    let locks = connect(&format!("{}&ttl=2s&password_file={secret}", site.url_of("app"))).await.unwrap();
    let pair = held_and_awaited(&locks).await;
    secret.change("two");
    set_password(&site, "two").await;
    assert!(site.end_sessions().await >= 2, "one that listens, and one for requests");
    goes_on(pair, &locks).await;
    let stale = connect(&site.url_of("app:one")).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Denied, "{stale}");
}

#[tokio::test]
async fn a_function_is_asked_for_the_password_at_each_connect() {
    let (site, current) = (open("s3cret-one").await, Arc::new(Mutex::new("s3cret-one")));
    let password = {
        let current = Arc::clone(&current);
        Password::callback(move || {
            let password = *current.lock().unwrap();
            async move { Ok(password.to_owned()) }
        })
    };
    let config = PostgresConfig::from_url(&format!("{}&ttl=2s", site.url_of("app"))).unwrap();
    let config = config.password(password);
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
    let locks = config.connect().await.unwrap();
    let pair = held_and_awaited(&locks).await;
    *current.lock().unwrap() = "s3cret-two";
    set_password(&site, "s3cret-two").await;
    site.end_sessions().await;
    goes_on(pair, &locks).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_and_read_again() {
    let (site, secret) = (open("s3cret").await, SecretFile::new("s3cret"));
    let url = format!("{}&ttl=2s&password_file={secret}", site.url_of("app"));
    let is_named = |error: &lock_core::Error, kind| {
        assert_eq!((error.kind(), error.code()), (kind, "no_credentials"), "{error}");
        assert!(error.to_string().contains(&secret.to_string()), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    };
    secret.remove();
    is_named(&connect(&url).await.unwrap_err(), ErrorKind::InvalidConfig);
    let lazy = PostgresConfig::from_url(&url).unwrap().connect_lazy().unwrap();
    is_named(&lazy.mutex("a").acquire().await.unwrap_err(), ErrorKind::InvalidConfig);
    secret.change("s3cret");

    let locks = connect(&url).await.unwrap();
    let pair = held_and_awaited(&locks).await;
    // As while it is written anew.
    secret.change("");
    site.end_sessions().await;
    is_named(&locks.mutex("b").acquire().await.unwrap_err(), ErrorKind::Unavailable);
    secret.change("s3cret");
    goes_on(pair, &locks).await;
    give_back(take(&lazy, "c").await).await;
}

#[tokio::test]
async fn a_password_is_asked_for() {
    let site = open("s3cret").await;
    for (user, words) in [("app", "the server asks for a password"), ("app:wr0ng", "28P01")] {
        let error = connect(&site.url_of(user)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?}");
        assert!(error.to_string().contains(words) && !text.contains("wr0ng"), "{text}");
    }
    let config = PostgresConfig::from_url(&site.url_of("app:wr0ng")).unwrap();
    let error = config.install_schema().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "it is no matter of rights on the schema: {error}");
    // Of several servers, that one counts which answers.
    let url = format!("postgres://app@127.0.0.1:1,{}/{}", site.server.addr(), site.database);
    let error = connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("asks for a password"), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificates_are_read_at_each_connect() {
    let certificates = Arc::new(lock_testkit::Certificates::new().unwrap());
    let options = PostgresServer::builder().tls(&certificates);
    let site = Site::secured(options, "hostssl all all 127.0.0.1/32 trust clientcert=verify-ca", "").await;
    let (ca, (cert, key)) = (certificates.ca(), certificates.client());
    let files = format!("sslrootcert={}&sslcert={}&sslkey={}", ca.display(), cert.display(), key.display());
    let locks = connect(&format!("{}&ttl=4s&connect_timeout=10s&{files}", site.url_of("app"))).await.unwrap();
    let guard = take(&locks, "a").await;
    certificates.replace().unwrap();
    site.server.kill();
    site.server.start_again().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(guard.is_valid());
    guard.verify().await.unwrap();
    give_back(guard).await;
    timeout(PATIENCE, take(&locks, "b")).await.unwrap().release().await.unwrap();
}
