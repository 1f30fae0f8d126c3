//! Stores that can compare and swap and have no server: a map of this process, from the examples, and a SQLite file.

use std::collections::HashMap;
use std::fmt;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::conformance::{Fault, Handle, Harness, OF_CONNECTIONS};
use polylock::KvConfig;
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tempfile::TempDir;

use super::{Flavour, connect, directory_in_memory, worker};

#[allow(dead_code, reason = "the example shows more than the suite needs")]
#[path = "../../../examples/own_registers.rs"]
mod own_registers;

use own_registers::Map;

/// Why the cases with servers are left out.
const NO_SERVER: &str = "it has no connection to cut, and no server to restart";

/// A map behind a mutex.
#[derive(Debug, Default)]
pub struct KvMemoryHarness(Map);

/// A file, which is deleted with the last harness of it.
#[derive(Clone)]
pub struct SqliteHarness {
    name: String,
    flavour: Flavour,
    directory: Arc<TempDir>,
}

impl SqliteHarness {
    pub fn new(flavour: Flavour) -> Self {
        let directory = Arc::new(directory_in_memory());
        Self { name: format!("sqlite::{flavour}"), flavour, directory }
    }

    fn url(&self, lease: Duration) -> String {
        format!("sqlite://{}/locks.db?ttl={}ms", self.directory.path().display(), lease.as_millis())
    }

    /// The file, without this library.
    async fn file(&self) -> SqlitePool {
        let options = SqliteConnectOptions::new().filename(self.directory.path().join("locks.db"));
        SqlitePool::connect_with(options).await.expect("the file exists")
    }
}

impl fmt::Debug for SqliteHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

pub(super) fn capabilities(name: &'static str, cross_process: bool, shortest: Duration) -> Capabilities {
    let lease = LeaseKind::ttl(Duration::from_secs(10), shortest);
    let mut capabilities = Capabilities::new(name, lease);
    capabilities.cross_process = cross_process;
    (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
    (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities
}

/// Whether a waiter has not changed for its time since this was asked first: it stays in the record until the lock is granted again.
pub(super) fn is_dead(waiter: &Value) -> bool {
    static SEEN: LazyLock<Mutex<HashMap<String, Instant>>> = LazyLock::new(Mutex::default);
    // Time: it is a bound of the store.
    let lasts = Duration::from_millis(waiter["lasts_ms"].as_u64().expect("waiters have a time"));
    let beat = format!("{} {}", waiter["owner"], waiter["beat"]);
    let first = *SEEN.lock().unwrap_or_else(PoisonError::into_inner).entry(beat).or_insert_with(Instant::now);
    first.elapsed() > lasts + lasts / 50
}

/// Holders and waiters in a record, also those whose time is over.
fn parties(key: &str, value: &[u8]) -> Vec<String> {
    parties_but(key, value, |_| false)
}

/// The same, without such waiters.
pub(super) fn parties_but(key: &str, value: &[u8], leaves_out: fn(&Value) -> bool) -> Vec<String> {
    let mut record: Value = serde_json::from_slice(value).expect("the value is a record");
    if let Some(queue) = record["queue"].as_array_mut() {
        queue.retain(|waiter| !leaves_out(waiter));
    }
    let lists = ["holders", "queue"].into_iter().filter_map(|list| record[list].as_array());
    lists.flatten().map(|party| format!("{key}: {party}")).collect()
}

#[async_trait]
impl Harness for KvMemoryHarness {
    fn name(&self) -> &str {
        "kv-memory::dyn"
    }

    fn capabilities(&self) -> Capabilities {
        // Time: the shortest that the store takes.
        capabilities("map", false, Duration::from_millis(100))
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        KvConfig::new().ttl(lease).connect(self.0.clone()).await
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        let map = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = map.1.iter().filter(|(key, _)| key.starts_with("lock/") && key.contains(part));
        found.flat_map(|(key, (_, value))| parties(key, value)).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let mut map = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(map.1.remove(&format!("lock/{name}")).is_some(), "the lock is held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        unreachable!("{NO_SERVER}")
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::default())
    }

    async fn fault(&self, fault: Fault) {
        unreachable!("{NO_SERVER}: {fault:?}")
    }

    async fn restart(&self) {
        unreachable!("{NO_SERVER}")
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        // Time: the shortest that the store takes.
        capabilities("sqlite", true, Duration::from_millis(100))
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        OF_CONNECTIONS.contains(&case).then_some(NO_SERVER)
    }

    fn short_lease(&self) -> Duration {
        // Time: a lease that ends is the subject of many cases.
        Duration::from_secs(2)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease)).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease))
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        let rows: Vec<(String, Vec<u8>)> =
            sqlx::query_as("SELECT key, value FROM polylock WHERE key LIKE 'lock/%'")
                .fetch_all(&self.file().await)
                .await
                .expect("the table can be read");
        let found = rows.iter().filter(|(key, _)| key.contains(part));
        found.flat_map(|(key, value)| parties(key, value)).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let delete = sqlx::query("DELETE FROM polylock WHERE key = ?").bind(format!("lock/{name}"));
        let deleted = delete.execute(&self.file().await).await.expect("the table can be written");
        assert_eq!(deleted.rows_affected(), 1, "the lock is held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        unreachable!("{NO_SERVER}")
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.flavour))
    }

    async fn fault(&self, fault: Fault) {
        unreachable!("{NO_SERVER}: {fault:?}")
    }

    async fn restart(&self) {
        unreachable!("{NO_SERVER}")
    }
}
