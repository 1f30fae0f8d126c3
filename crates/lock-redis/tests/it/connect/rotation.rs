//! Passwords and certificates that change while locks are held and waited for.

use async_trait::async_trait;
use lock_core::{ErrorKind, Locks, Password, Result};
use lock_redis::RedisConfig;
use lock_testkit::rotation::{self, HeldAndAwaited, Secured};
use lock_testkit::{RedisCluster, RedisSentinel, RedisServer, SecretFile, give_back, take, until};

use crate::common::connect;

/// Gives the user this password, and no other, and ends all connections but those of replicas and of the test.
async fn rotate(server: &RedisServer, password: &str) {
    let rules = format!("ACL SETUSER worker on resetpass >{password} ~* &* +@all");
    server.call(&rules.split(' ').collect::<Vec<_>>()).await;
    for kind in ["normal", "pubsub"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
}

struct OneServer(RedisServer);

impl OneServer {
    async fn start() -> Self {
        Self(RedisServer::start().await.unwrap())
    }

    fn config(&self, password: Password) -> RedisConfig {
        let config = RedisConfig::from_url(&format!("redis://worker@{}?ttl=6s", self.0.addr())).unwrap();
        config.password(password)
    }
}

#[async_trait]
impl Secured for OneServer {
    async fn rotate(&self, password: &str) {
        rotate(&self.0, password).await;
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
    let server = OneServer::start().await;
    rotation::a_file_is_read_at_each_connect(&server).await;
    let stale = server.connect("one".into()).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Denied, "{stale}");
}

#[tokio::test]
async fn a_function_is_asked_for_the_password_at_each_connect() {
    rotation::a_function_is_asked_at_each_connect(&OneServer::start().await).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named_and_read_again() {
    rotation::a_file_that_cannot_be_read_is_named_and_read_again(&OneServer::start().await).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_nodes_of_a_cluster_get_the_password_of_the_moment() {
    let (cluster, secret) = (RedisCluster::start().await.unwrap(), SecretFile::new("one"));
    let rotate_all = async |password: &str| {
        secret.change(password);
        for server in cluster.masters() {
            rotate(server, password).await;
        }
    };
    rotate_all("one").await;
    let url = cluster.url().replace("//", "//worker@");
    let locks = connect(&format!("{url}?ttl=6s&password_file={secret}")).await;
    let pair = HeldAndAwaited::new(&locks).await;
    rotate_all("two").await;
    pair.goes_on(&locks).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_and_their_master_have_passwords_of_their_own() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let (ours, theirs) = (SecretFile::new("one"), SecretFile::new("uno"));
    let rotate_all = async |password: &str, of_sentinels: &str| {
        ours.change(password);
        theirs.change(of_sentinels);
        for (servers, password) in [(sentinel.servers(), password), (sentinel.sentinels(), of_sentinels)] {
            for server in servers {
                rotate(server, password).await;
            }
        }
    };
    rotate_all("one", "uno").await;
    let url = sentinel.url().replace("//", "//worker@");
    let files = format!("password_file={}&sentinel_user=worker&sentinel_password_file={}", ours, theirs);
    let locks = connect(&format!("{url}?ttl=6s&{files}")).await;
    let pair = HeldAndAwaited::new(&locks).await;
    rotate_all("two", "due").await;
    pair.goes_on(&locks).await;
    // The sentinels are asked once more.
    sentinel.servers()[0].kill();
    until("the next master grants locks", async || match locks.mutex("c").acquire().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    })
    .await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificates_are_read_at_each_connect() {
    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = std::sync::Arc::new(lock_testkit::Certificates::new().unwrap());
    let server = RedisServer::builder().appendonly(true).tls(&certificates, true).start().await.unwrap();
    let (ca, (cert, key)) = (certificates.ca(), certificates.client());
    let file = |path: &std::path::Path| path.display().to_string();
    let files = format!("tls_ca={}&tls_cert={}&tls_key={}", file(&ca), file(&cert), file(&key));
    let url = format!("rediss://{}?ttl=10s&connect_timeout=10s&{files}", server.tls_addr());
    let locks = connect(&url).await;
    let guard = take(&locks, "a").await;
    certificates.replace().unwrap();
    server.restart().await.unwrap();
    lock_testkit::is_renewed(&guard).await;
    give_back(guard).await;
    give_back(take(&locks, "b").await).await;
}
