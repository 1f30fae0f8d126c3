//! Locks over every way to reach a Redis server.

use lock_core::{ErrorKind, Locks, Released, Result};
use lock_redis::RedisConfig;
use lock_testkit::RedisServer;

const SECRET: &str = "s3cret-Pa55";

async fn connect(url: &str) -> Result<Locks> {
    RedisConfig::from_url(url)?.connect().await
}

/// Takes a lock, sees that it excludes, gives it back, and takes it when somebody waits.
async fn works(url: &str) {
    let (ours, theirs) = (connect(url).await.unwrap(), connect(url).await.unwrap());
    let guard = ours.mutex("a").acquire().await.unwrap();
    assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { theirs.mutex("a").acquire().await });
    while ours.inspect("a").await.unwrap().waiters == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let next = waiter.await.unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn unix_sockets() {
    let server = RedisServer::builder().unix_socket().start().await.unwrap();
    let path = server.socket().display().to_string();
    works(&format!("redis+unix://{path}")).await;
    let locks = connect(&format!("redis+unix://{path}?db=3")).await.unwrap();
    let guard = locks.mutex("in3").acquire().await.unwrap();
    let keyspace = server.command(&["INFO", "keyspace"]).await.unwrap();
    assert!(keyspace.text().unwrap().contains("db3:"), "{keyspace:?}");
    guard.release().await.unwrap();
    let error = connect("redis+unix:///no/such/socket").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("/no/such/socket"), "{error}");
}

#[tokio::test]
async fn databases_are_apart() {
    let server = RedisServer::start().await.unwrap();
    works(&format!("{}/5", server.url())).await;
    let (five, six) = (format!("{}/5", server.url()), format!("{}/6", server.url()));
    let (five, six) = (connect(&five).await.unwrap(), connect(&six).await.unwrap());
    let held = five.mutex("a").acquire().await.unwrap();
    six.mutex("a").try_acquire().await.unwrap().expect("another database").release().await.unwrap();
    held.release().await.unwrap();
    let error = connect(&format!("{}/99", server.url())).await.unwrap_err();
    assert!(error.to_string().contains("database") || error.to_string().contains("DB"), "{error}");
}

#[tokio::test]
async fn users_of_the_access_list() {
    let rules = format!("on >{SECRET} ~lock:* ~polylock:* &polylock:* +@all -@admin -@dangerous");
    let server = RedisServer::builder().user("worker", &rules).start().await.unwrap();
    works(&format!("redis://worker:{SECRET}@{}", server.addr())).await;
    let error = connect(&format!("redis://worker:wrong@{}", server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[cfg(feature = "tls")]
mod tls {
    use std::sync::Arc;

    use lock_testkit::Certificates;

    use super::*;

    #[tokio::test]
    async fn with_our_own_authority() {
        let certificates = Arc::new(Certificates::new().unwrap());
        let server = RedisServer::builder().tls(&certificates, false).start().await.unwrap();
        let url = format!("rediss://{}", server.tls_addr());
        works(&format!("{url}?tls_ca={}", certificates.ca().display())).await;
        works(&format!("{url}?tls_insecure_skip_verify=true")).await;

        for (url, why) in [
            // Whom the system trusts is not whom the test made.
            (url.clone(), "ertificate"),
            (format!("{url}?tls_ca={}", Certificates::new().unwrap().ca().display()), "ertificate"),
        ] {
            let error = connect(&url).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidConfig), "{error}");
            assert!(format!("{error} {error:?}").contains(why), "{error} {error:?}");
        }
    }

    #[tokio::test]
    async fn with_a_certificate_of_ours() {
        let certificates = Arc::new(Certificates::new().unwrap());
        let server = RedisServer::builder().tls(&certificates, true).start().await.unwrap();
        let url = format!("rediss://{}?tls_ca={}", server.tls_addr(), certificates.ca().display());
        let (cert, key) = certificates.client();
        works(&format!("{url}&tls_cert={}&tls_key={}", cert.display(), key.display())).await;
        let error = connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = connect(&format!("{url}&tls_cert={}", cert.display())).await.unwrap_err();
        assert!(error.to_string().contains("tls_key"), "{error}");
    }

    #[tokio::test]
    async fn files_that_are_not_there_are_named() {
        let error = connect("rediss://h?tls_ca=/no/such/file.pem").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("/no/such/file.pem"), "{error}");
    }
}
