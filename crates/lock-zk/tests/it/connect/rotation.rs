//! Passwords and certificates that change while a lock is held.

use lock_core::{ErrorKind, Guard, GuardState, Password};
use lock_testkit::SecretFile;
#[cfg(any(feature = "sasl", feature = "tls"))]
use lock_testkit::ZooKeeper;
use lock_zk::zookeeper_client::{Acl, AuthId, Permission};
use lock_zk::{NodeAcl, ZkConfig};

use crate::common::*;

/// The user `me` with the password `one`, and with `two`.
const ONE: &str = "me:GI1kdP8BarIfvjgSTISj2cDHomg=";
const TWO: &str = "me:aHNtON+NCRZpXDf9xXrUVtfVZes=";

/// A server that is restarted needs some seconds, on a busy machine twenty.
#[cfg(any(feature = "sasl", feature = "tls"))]
const OPTIONS: &str = "session_timeout=60s&connect_timeout=20s&session=private";

async fn connect(url: &str) -> lock_core::Locks {
    ZkConfig::from_url(url).unwrap().connect().await.unwrap()
}

/// Waits until the session answers over another connection; the lock is still held.
async fn goes_on(guard: Guard) {
    until("it is confirmed", async || match guard.verify().await {
        Ok(state) => {
            assert_eq!(state, GuardState::Valid);
            true
        }
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            false
        }
    })
    .await;
    give_back(guard).await;
}

#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: a server of its own, restarted"]
async fn a_password_of_sasl_is_read_at_each_connect() {
    let server = Server::from(ZooKeeper::builder().sasl("me", "one").start().await.unwrap());
    let secret = SecretFile::new("one");
    let url = format!("zk://me@{}?{OPTIONS}&auth=sasl&password_file={secret}", server.addr());
    let locks = connect(&url).await;
    let guard = take(&locks, "a").await;
    server.set_sasl("me", "two").unwrap();
    server.restart().await.unwrap();
    // The server refuses the old password for a while.
    settled().await;
    secret.change("two");
    goes_on(guard).await;
    give_back(take(&connect(&url).await, "a").await).await;
    let stale = ZkConfig::new(server.connect_string()).sasl_credentials("me", "one");
    assert_eq!(stale.connect().await.unwrap_err().kind(), ErrorKind::Denied);
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: a server of its own, restarted"]
async fn certificates_are_read_at_each_connect() {
    let certificates = lock_testkit::Certificates::new().unwrap();
    let server = Server::from(ZooKeeper::builder().tls(&certificates, true).start().await.unwrap());
    let (ca, (cert, key)) = (certificates.ca(), certificates.client());
    let files = format!("tls_ca={}&tls_cert={}&tls_key={}", ca.display(), cert.display(), key.display());
    let locks = connect(&format!("zks://{}?{OPTIONS}&{files}", server.secure_addr())).await;
    let guard = take(&locks, "a").await;
    certificates.replace().unwrap();
    server.set_certificates(&certificates).unwrap();
    server.restart().await.unwrap();
    goes_on(guard).await;
}

/// A new password is a new user, to whom the nodes of the old one have to belong as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_password_of_digest_is_read_at_each_connect() {
    let server = server().await;
    let (other, proxy, secret) = (client(&server).await, proxy(&server), SecretFile::new("one"));
    mkdir(&other, "/locks").await;
    let user = |digest: &str| Acl::new(Permission::ALL, AuthId::new("digest", digest));
    let both = NodeAcl::Custom(vec![user(ONE), user(TWO)]);
    let password = Password::file(secret.path());
    let locks = opened(&through(&proxy).credentials("me", password).acl(both.clone())).await;
    let guard = take(&locks, "a").await;
    secret.change("two");
    proxy.rst();
    goes_on(guard).await;
    // From now on the old user may create nothing here.
    other.set_acl("/locks", &[user(TWO)], None).await.unwrap();
    let stale = opened(&config(&server).credentials("me", "one").acl(both)).await;
    assert_eq!(stale.mutex("b").acquire().await.unwrap_err().kind(), ErrorKind::Denied);
    give_back(take(&locks, "b").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_that_cannot_be_read_is_named_and_read_again() {
    let server = server().await;
    let (proxy, secret) = (proxy(&server), SecretFile::new("s3cret"));
    let config = through(&proxy).session_timeout(LASTING).credentials("me", Password::file(secret.path()));
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
    secret.remove();
    let error = config.clone().connect().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "no_credentials"), "{error}");
    assert!(error.to_string().contains(&secret.to_string()), "{error}");
    secret.change("s3cret");
    let locks = opened(&config).await;
    let guard = take(&locks, "a").await;
    secret.change("");
    proxy.rst();
    settled().await;
    secret.change("s3cret");
    goes_on(guard).await;
}
