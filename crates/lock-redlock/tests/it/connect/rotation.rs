//! Passwords and certificates that change while a lock is held.

use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Locks, Password, Result};
use lock_redlock::redis::IntoConnectionInfo as _;
use lock_redlock::{MasterConfig, RedlockConfig};
use lock_testkit::rotation::{self, Secured};
use lock_testkit::{RedisFive, RedisServer};

use crate::common::run;

async fn end_connections(server: &RedisServer) {
    for kind in ["normal", "pubsub"] {
        run(server, &format!("CLIENT KILL TYPE {kind}")).await;
    }
}

struct Masters(RedisFive);

impl Masters {
    async fn start() -> Self {
        Self(RedisFive::start_n(3).await.unwrap())
    }

    fn config(&self, password: &Password) -> RedlockConfig {
        let masters = self.0.servers().iter().map(|master| {
            let info = format!("redis://worker@{}", master.addr()).into_connection_info().unwrap();
            MasterConfig::new(info).password(password.clone())
        });
        RedlockConfig::new(masters).ttl(Duration::from_secs(6))
    }
}

#[async_trait]
impl Secured for Masters {
    async fn rotate(&self, password: &str) {
        for master in self.0.servers() {
            run(master, &format!("ACL SETUSER worker on resetpass >{password} ~* &* +@all")).await;
            end_connections(master).await;
        }
    }

    async fn connect(&self, password: Password) -> Result<Locks> {
        self.config(&password).connect().await
    }

    fn connect_lazy(&self, password: Password) -> Result<Locks> {
        self.config(&password).connect_lazy()
    }
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_each_connect() {
    rotation::a_file_is_read_at_each_connect(&Masters::start().await).await;
}

#[tokio::test]
async fn a_function_is_asked_for_the_password_at_each_connect() {
    rotation::a_function_is_asked_at_each_connect(&Masters::start().await).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_and_read_again() {
    rotation::a_file_that_cannot_be_read_is_named_and_read_again(&Masters::start().await).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificates_are_read_at_each_connect() {
    use std::sync::Arc;

    use lock_testkit::{Certificates, give_back, is_renewed, take};

    use crate::common::{connect, secure};

    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(Certificates::new().unwrap());
    let (masters, url) = secure(&certificates).await;
    let ca = certificates.ca();
    let locks = connect(&format!("{url}?ttl=10s&connect_timeout=10s&tls_ca={}", ca.display())).await.unwrap();
    let guard = take(&locks, "a").await;
    certificates.replace().unwrap();
    for master in masters.servers() {
        // It reads the file again.
        run(master, &format!("CONFIG SET tls-ca-cert-file {}", ca.display())).await;
        let (cert, key) = certificates.server();
        run(master, &format!("CONFIG SET tls-cert-file {} tls-key-file {}", cert.display(), key.display()))
            .await;
        end_connections(master).await;
    }
    is_renewed(&guard).await;
    give_back(guard).await;
    give_back(take(&locks, "b").await).await;
}
