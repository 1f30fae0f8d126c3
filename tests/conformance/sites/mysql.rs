//! A table of MariaDB.

use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Capabilities, Locks};
use lock_testkit::MariadbServer;
use lock_testkit::conformance::{Fault, Handle, Harness};
use lock_testkit::proxy::{FaultProxy, Protocol};
use sqlx::mysql::MySqlPool;
use tokio::sync::OnceCell;

use super::kv::{capabilities, is_dead, parties_but};
use super::{Flavour, connect, option, set_fault, worker};

/// A server, which is started when it is first needed.
#[derive(Debug)]
pub struct MysqlHarness {
    name: String,
    flavour: Flavour,
    server: Arc<OnceCell<MariadbServer>>,
    proxy: Vec<FaultProxy>,
}

impl MysqlHarness {
    pub fn new(flavour: Flavour, server: Arc<OnceCell<MariadbServer>>) -> Self {
        Self { name: format!("mysql::{flavour}"), flavour, server, proxy: Vec::new() }
    }

    async fn server(&self) -> &MariadbServer {
        let server = self.server.get_or_try_init(MariadbServer::start).await;
        server.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn url(&self, lease: Duration) -> String {
        let server = self.server().await;
        let addr = self.proxy.first().map_or_else(|| server.addr(), FaultProxy::addr);
        // A renewal that nobody answers fails before its lease ends.
        let timeout = (lease / 2).min(Duration::from_secs(5));
        format!("{}?ttl={}&command_timeout={}", server.url_at(addr), option(lease), option(timeout))
    }

    /// The database, without this library.
    async fn database(&self) -> MySqlPool {
        MySqlPool::connect(&self.server().await.url()).await.expect("the server answers")
    }
}

#[async_trait]
impl Harness for MysqlHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        // Time: the shortest that the store takes.
        capabilities("mysql", true, Duration::from_millis(250))
    }

    fn leaves_out(&self, _: &str) -> Option<&'static str> {
        static IS_MISSING: LazyLock<bool> = LazyLock::new(MariadbServer::is_missing);
        IS_MISSING.then_some("MariaDB is not installed")
    }

    fn short_lease(&self) -> Duration {
        // Time: a lease that ends is the subject of many cases.
        Duration::from_secs(2)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease).await).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease).await)
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        let rows: Vec<(Vec<u8>, Vec<u8>)> =
            sqlx::query_as("SELECT name, value FROM polylock WHERE name LIKE 'lock/%'")
                .fetch_all(&self.database().await)
                .await
                .expect("the table can be read");
        let rows = rows.into_iter().map(|(key, value)| (String::from_utf8_lossy(&key).into_owned(), value));
        let found = rows.filter(|(key, _)| key.contains(part));
        // Clients are cut off for longer than their waiters live.
        found.flat_map(|(key, value)| parties_but(&key, &value, is_dead)).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let delete =
            sqlx::query("DELETE FROM polylock WHERE name = ?").bind(format!("lock/{name}").into_bytes());
        let deleted = delete.execute(&self.database().await).await.expect("the table can be written");
        assert_eq!(deleted.rows_affected(), 1, "the lock is held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let proxy = FaultProxy::start(self.server().await.addr(), Protocol::Mysql);
        let proxy = vec![proxy.unwrap_or_else(|error| panic!("{error}"))];
        Box::new(Self { proxy, ..Self::new(self.flavour, Arc::clone(&self.server)) })
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.flavour, Arc::default()))
    }

    async fn fault(&self, fault: Fault) {
        set_fault(&self.proxy, fault);
    }

    async fn restart(&self) {
        let server = self.server().await;
        server.kill();
        server.start_again().await.unwrap_or_else(|error| panic!("{error}"));
    }
}
