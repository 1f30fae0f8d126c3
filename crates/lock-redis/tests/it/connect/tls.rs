//! Servers with TLS: which certificates are trusted, and which are shown.

use std::sync::Arc;

use lock_core::ErrorKind;
use lock_testkit::{Certificates, RedisServer};

use crate::common::{try_connect, works};

async fn is_refused(url: &str, option: &str) {
    let error = try_connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error} {error:?}");
    assert!(error.to_string().contains(option), "{error} {error:?}");
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn with_our_own_authority() {
    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(Certificates::new().unwrap());
    let server = RedisServer::builder().tls(&certificates, false).start().await.unwrap();
    let url = format!("rediss://{}?connect_timeout=10s", server.tls_addr());
    works(&format!("{url}&tls_ca={}", certificates.ca().display())).await;
    works(&format!("{url}&tls_insecure_skip_verify=true")).await;
    // Whom the system trusts, or another authority, is not whom the test made.
    is_refused(&url, "tls_ca").await;
    let another = Certificates::new().unwrap();
    is_refused(&format!("{url}&tls_ca={}", another.ca().display()), "tls_ca").await;
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn with_a_certificate_of_ours() {
    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(Certificates::new().unwrap());
    let server = RedisServer::builder().tls(&certificates, true).start().await.unwrap();
    let url = format!("rediss://{}?tls_ca={}", server.tls_addr(), certificates.ca().display());
    let (cert, key) = certificates.client();
    works(&format!("{url}&tls_cert={}&tls_key={}", cert.display(), key.display())).await;
    is_refused(&url, "tls_cert").await;
    is_refused(&format!("{url}&tls_cert={}", cert.display()), "tls_key").await;
}

#[tokio::test]
async fn files_that_are_not_there_are_named() {
    is_refused("rediss://h?tls_ca=/no/such/file.pem", "/no/such/file.pem").await;
}
