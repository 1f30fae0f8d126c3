//! Passwords and certificates that change while locks are held and waited for.

use async_trait::async_trait;
use lock_core::{ErrorKind, Locks, Password, Result};
use lock_postgres::PostgresConfig;
use lock_testkit::postgres::PostgresServer;
use lock_testkit::rotation::{self, Secured};

use crate::site::{Site, connect};

const SCRAM: &str = "host all all 127.0.0.1/32 scram-sha-256";

async fn open(password: &str) -> Site {
    Site::secured(PostgresServer::builder(), SCRAM, password).await
}

impl Site {
    fn config(&self, password: Password) -> PostgresConfig {
        PostgresConfig::from_url(&format!("{}&ttl=6s", self.url_of("app"))).unwrap().password(password)
    }
}

#[async_trait]
impl Secured for Site {
    async fn rotate(&self, password: &str) {
        self.client().await.batch_execute(&format!("ALTER ROLE app PASSWORD '{password}'")).await.unwrap();
        self.end_sessions().await;
    }

    async fn connect(&self, password: Password) -> Result<Locks> {
        self.config(password).connect().await
    }

    fn connect_lazy(&self, password: Password) -> Result<Locks> {
        self.config(password).connect_lazy()
    }
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_each_connect() {
    let site = open("one").await;
    rotation::a_file_is_read_at_each_connect(&site).await;
    let stale = connect(&site.url_of("app:one")).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Denied, "{stale}");
}

#[tokio::test]
async fn a_function_is_asked_for_the_password_at_each_connect() {
    rotation::a_function_is_asked_at_each_connect(&open("one").await).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_and_read_again() {
    rotation::a_file_that_cannot_be_read_is_named_and_read_again(&open("one").await).await;
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
    use lock_testkit::{give_back, is_renewed, take};

    let certificates = std::sync::Arc::new(lock_testkit::Certificates::new().unwrap());
    let options = PostgresServer::builder().tls(&certificates);
    let site = Site::secured(options, "hostssl all all 127.0.0.1/32 trust clientcert=verify-ca", "").await;
    let (ca, (cert, key)) = (certificates.ca(), certificates.client());
    let files = format!("sslrootcert={}&sslcert={}&sslkey={}", ca.display(), cert.display(), key.display());
    let locks =
        connect(&format!("{}&ttl=20s&connect_timeout=10s&{files}", site.url_of("app"))).await.unwrap();
    let guard = take(&locks, "a").await;
    certificates.replace().unwrap();
    site.server.kill();
    site.server.start_again().await.unwrap();
    is_renewed(&guard).await;
    give_back(guard).await;
    give_back(take(&locks, "b").await).await;
}
