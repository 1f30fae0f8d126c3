//! TLS with an authority of our own, and what is refused.

use std::net::TcpListener;
use std::sync::Arc;

use lock_core::lookup::TestName;
use lock_core::{ErrorKind, Locks};
use lock_testkit::postgres::PostgresServer;
use lock_testkit::{Certificates, PostgresOptions, give_back, hand_over, queue_up, take};

use super::statements::prepared_by;
use crate::site::{SESSIONS, Site, connect};

const SECURE: &str = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                      WHERE datname = current_database() AND application_name LIKE 'polylock%' AND ssl";

fn options(certificates: &Arc<Certificates>) -> PostgresOptions {
    PostgresServer::builder().config("listen_addresses", "127.0.0.1,127.0.0.2").tls(certificates)
}

/// Requests and notifications are secure.
async fn works(site: &Site, url: &str) -> Locks {
    let locks = connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let guard = take(&locks, "orders").await;
    let other = connect(url).await.unwrap();
    let waiter = queue_up(&other, "orders").await;
    let secure = site.number(SECURE).await;
    assert!(secure >= 4 && secure == site.number(SESSIONS).await, "two that listen, and two for requests");
    give_back(hand_over(guard, waiter).await).await;
    locks
}

#[tokio::test]
async fn with_our_own_authority() {
    let certificates = Arc::new(Certificates::new().unwrap());
    let hba = "hostssl all all 127.0.0.0/8 scram-sha-256";
    let site = Site::secured(options(&certificates), hba, "s3cret").await;
    let (url, ca) = (format!("{}&connect_timeout=10s", site.url_of("app:s3cret")), certificates.ca());
    works(&site, &format!("{url}&sslrootcert={}", ca.display())).await;
    works(&site, &format!("{url}&sslmode=require&sslrootcert={}", ca.display())).await;
    let by_name = url.replace("127.0.0.1", "localhost");
    let locks = works(&site, &format!("{by_name}&sslmode=verify-full&sslrootcert={}", ca.display())).await;
    assert!(prepared_by(&site, &[locks]).await > 0, "the session is our own");

    let another = Certificates::new().unwrap();
    let elsewhere = url.replace("127.0.0.1", "127.0.0.2");
    for url in [
        // Whom the system trusts, or another authority, is not whom the test made.
        format!("{url}&sslmode=require"),
        format!("{url}&sslmode=verify-full&sslrootcert={}", another.ca().display()),
        // The certificate is for 127.0.0.1 and localhost.
        format!("{elsewhere}&sslmode=require&sslrootcert={}", ca.display()),
    ] {
        let error = connect(&url).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "bad_certificate"), "{error:?}");
        assert!(error.to_string().contains("sslrootcert") && error.can_pass(), "{error}");
    }
    let plain = connect(&url).await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Denied, "{plain}");
    assert!(plain.to_string().contains("sslmode=require"), "{plain}");
    let denied = connect(&format!("{}&sslrootcert={}", site.url_of("app:wrong"), ca.display())).await;
    assert_eq!(denied.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn with_a_certificate_of_ours() {
    let certificates = Arc::new(Certificates::new().unwrap());
    let hba = "hostssl all all 127.0.0.0/8 trust clientcert=verify-ca";
    let site = Site::secured(options(&certificates), hba, "").await;
    let url =
        format!("{}&connect_timeout=10s&sslrootcert={}", site.url_of("app"), certificates.ca().display());
    let client = |certificates: &Certificates| {
        let (cert, key) = certificates.client();
        format!("{url}&sslcert={}&sslkey={}", cert.display(), key.display())
    };
    works(&site, &client(&certificates)).await;
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("sslcert"), "{error}");
    let error = connect(&client(&Certificates::new().unwrap())).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "bad_certificate"), "{error:?}");
    assert!(error.to_string().contains("sslcert"), "{error}");
}

#[tokio::test]
async fn servers_without_tls_and_files_without_certificates() {
    let site = Site::open().await;
    let error = connect(&format!("{}&sslmode=require", site.url())).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "no_tls"), "{error:?}");
    let certificates = Certificates::new().unwrap();
    let (cert, key) = certificates.client();
    for (files, named) in [
        ("sslrootcert=/no/such/file.pem".to_owned(), "/no/such/file.pem"),
        // A key is no certificate, and a certificate no key.
        (format!("sslrootcert={}", key.display()), "client.key"),
        (format!("sslcert={0}&sslkey={0}", cert.display()), "client.crt"),
    ] {
        let error = connect(&format!("{}&{files}", site.url())).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "no_credentials"), "{error:?}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn a_name_with_a_silent_address_is_that_of_the_certificate_and_the_login_is_bound_to_it() {
    let certificates = Arc::new(Certificates::new().unwrap());
    let bound = "hostssl all app 127.0.0.1/32 scram-sha-256\nhostssl all postgres 127.0.0.1/32 trust";
    let site = Site::secured(PostgresServer::builder().tls(&certificates), bound, "s3cret").await;
    let (port, ca) = (site.server.addr().port(), certificates.ca());
    let _silent = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let _name = TestName::new("postgres.lock.test", [[127, 0, 0, 2], [127, 0, 0, 1]]);
    let _others = ["postgres.other.test", "one.lock.test"].map(|name| TestName::new(name, [[127, 0, 0, 1]]));
    let url = |user: &str, host: &str| {
        let options = "connect_timeout=10&sslmode=verify-ca&channel_binding=require";
        format!("postgres://{user}@{host}:{port}/{}?{options}&sslrootcert={}", site.database, ca.display())
    };
    works(&site, &url("app:s3cret", "postgres.lock.test")).await;
    let error = connect(&url("app:s3cret", "postgres.other.test")).await.unwrap_err();
    assert_eq!(error.code(), "bad_certificate", "{error}");
    // A server that asks for no password may be anybody's.
    let error = connect(&url("postgres", "one.lock.test")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("channel_binding"), "{error}");
}
