//! Stores that can compare and swap: a map of this process, from the examples, an etcd, a bucket, and a SQLite file.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::conformance::{Fault, Handle, Harness, OF_CONNECTIONS};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{EtcdServer, S3Server};
use polylock::KvConfig;
use polylock::kv::object_store::aws::{AmazonS3, AmazonS3Builder};
use polylock::kv::object_store::path::Path as ObjectPath;
use polylock::kv::object_store::{ObjectStore, ObjectStoreExt};
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::{Flavour, PASSWORD, connect, directory_in_memory, option, set_fault, worker};

#[allow(dead_code, reason = "the example shows more than the suite needs")]
#[path = "../../../examples/own_registers.rs"]
mod own_registers;

use own_registers::Map;

/// Why the cases with servers are left out.
const NO_SERVER: &str = "it has no connection to cut, and no server to restart";

/// A map behind a mutex.
#[derive(Debug, Default)]
pub struct KvMemoryHarness(Map);

/// A server of one member, which is started when it is first needed.
#[derive(Debug)]
pub struct EtcdHarness {
    name: String,
    flavour: Flavour,
    server: Arc<OnceCell<EtcdServer>>,
    proxy: Vec<FaultProxy>,
}

/// A bucket of a server in memory, which is started when it is first needed.
#[derive(Debug)]
pub struct S3Harness {
    name: String,
    flavour: Flavour,
    server: Arc<OnceCell<S3Server>>,
    proxy: Vec<FaultProxy>,
}

/// A file, which is deleted with the last harness of it.
#[derive(Clone)]
pub struct SqliteHarness {
    name: String,
    flavour: Flavour,
    directory: Arc<TempDir>,
}

impl EtcdHarness {
    pub fn new(flavour: Flavour, server: Arc<OnceCell<EtcdServer>>) -> Self {
        Self { name: format!("etcd::{flavour}"), flavour, server, proxy: Vec::new() }
    }

    async fn server(&self) -> &EtcdServer {
        let server = self.server.get_or_try_init(EtcdServer::start).await;
        server.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn url(&self, lease: Duration) -> String {
        let server = self.server().await;
        let addr = self.proxy.first().map_or_else(|| server.addr(), FaultProxy::addr);
        // A renewal that nobody answers fails before its lease ends.
        let timeout = (lease / 2).min(Duration::from_secs(5));
        format!("etcd://me:{PASSWORD}@{addr}?ttl={}&command_timeout={}", option(lease), option(timeout))
    }
}

impl S3Harness {
    pub fn new(flavour: Flavour, server: Arc<OnceCell<S3Server>>) -> Self {
        Self { name: format!("s3::{flavour}"), flavour, server, proxy: Vec::new() }
    }

    async fn server(&self) -> &S3Server {
        let server = self.server.get_or_try_init(|| S3Server::start(target())).await;
        server.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn url(&self, lease: Duration) -> String {
        let server = self.server().await;
        let addr = self.proxy.first().map_or_else(|| server.addr(), FaultProxy::addr);
        // A renewal that nobody answers fails before its lease ends.
        let timeout = (lease / 2).min(Duration::from_secs(5));
        let url = S3Server::url(addr, "polylock");
        // Time: it serves two hundred requests a second.
        format!("{url}&poll=100ms&ttl={}&command_timeout={}", option(lease), option(timeout))
    }

    /// The bucket, without this library.
    async fn bucket(&self) -> AmazonS3 {
        let builder = AmazonS3Builder::new()
            .with_bucket_name("locks")
            .with_access_key_id("key")
            .with_secret_access_key("secret");
        let endpoint = format!("http://{}", self.server().await.addr());
        builder.with_endpoint(endpoint).with_allow_http(true).build().expect("the options are right")
    }
}

/// Where the packages of the server are.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target directory")
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
impl Harness for EtcdHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        // Time: the shortest that the store takes.
        capabilities("etcd", true, Duration::from_millis(500))
    }

    fn leaves_out(&self, _: &str) -> Option<&'static str> {
        static IS_MISSING: LazyLock<bool> = LazyLock::new(EtcdServer::is_missing);
        IS_MISSING.then_some("etcd is not installed")
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
        let values = self.server().await.values("polylock/lock/").await.expect("the server answers");
        let found = values.iter().filter(|(key, _)| key.contains(part));
        // Only here are clients cut off for longer than their waiters live.
        found.flat_map(|(key, value)| parties_but(key, value, is_dead)).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let deleted = self.server().await.delete(&format!("polylock/lock/{name}")).await;
        assert!(deleted.expect("the server answers"), "the lock is held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let proxy = FaultProxy::start(self.server().await.addr(), Protocol::Http2);
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

#[async_trait]
impl Harness for S3Harness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        // Time: the shortest that the store takes.
        capabilities("s3", true, Duration::from_secs(1))
    }

    fn longest_name(&self) -> usize {
        // A control character has three bytes in the name of an object.
        (1_024 - "polylock/lock/".len()) / 3
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        static IS_MISSING: LazyLock<bool> = LazyLock::new(|| S3Server::is_missing(target()));
        match case {
            _ if *IS_MISSING => Some("the Python packages of the server are not installed"),
            "a_restart_keeps_locks_and_tokens" => Some("the server keeps everything in memory"),
            "eight_processes_lose_no_update"
            | "permits_are_never_exceeded"
            | "processes_never_exceed_the_permits" => {
                Some("the server takes two hundred requests a second, too few for a crowd")
            }
            "a_reset_instead_of_a_reply_leaves_nothing" => Some("the proxy does not know requests of HTTP"),
            _ => None,
        }
    }

    fn short_lease(&self) -> Duration {
        // Time: a lease that ends is the subject of many cases.
        Duration::from_secs(5)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease).await).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease).await)
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        let bucket = self.bucket().await;
        let objects: Vec<_> = bucket.list(Some(&ObjectPath::from("polylock/lock"))).collect().await;
        let mut left = Vec::new();
        for object in objects {
            let location = object.expect("the server answers").location;
            if location.as_ref().contains(part) {
                let found = bucket.get(&location).await.expect("objects stay");
                let value = found.bytes().await.expect("the server answers");
                // Only here are clients cut off for longer than their waiters live.
                left.extend(parties_but(location.as_ref(), &value, is_dead));
            }
        }
        left
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let object = ObjectPath::from(format!("polylock/lock/{name}"));
        let bucket = self.bucket().await;
        assert!(bucket.head(&object).await.is_ok(), "the lock is held");
        bucket.delete(&object).await.expect("the server answers");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let proxy = FaultProxy::start(self.server().await.addr(), Protocol::Opaque);
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
        unreachable!("the server keeps everything in memory")
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
