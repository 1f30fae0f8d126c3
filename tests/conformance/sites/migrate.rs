//! A migration from one Redis server to one ZooKeeper server, with all clients on one rung or on several in turn.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::migration::{MigrationTarget, Tombstone};
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::conformance::{Fault, Handle, Harness};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{RedisServer, ZooKeeper, migration_url};
use polylock::migrate::Phase;
use polylock::{Record, Rung, Zk, ZkConfig};
use tokio::sync::OnceCell;
use zookeeper_client::Client;

use super::redis::{HOLDERS, TOKENS};
use super::{Flavour, connect, option, set_fault, worker};

/// The namespace of all migrations: what sets them apart is the prefix of their keys and the directory of their nodes.
const NAMESPACE: &str = "suite";

/// The servers of both stores.
#[derive(Debug)]
pub struct Stores {
    redis: RedisServer,
    zk: ZooKeeper,
}

/// Stores that are started when they are first needed.
pub type LazyStores = OnceCell<Stores>;

/// The backend `migrate`, on pinned rungs.
#[derive(Debug)]
pub struct MigrateHarness {
    name: String,
    /// The name of the backend, and of its keys and nodes.
    backend: &'static str,
    flavour: Flavour,
    /// Those of clients and workers, in turn.
    rungs: &'static [Rung],
    next: AtomicUsize,
    stores: Arc<LazyStores>,
    sealed: OnceCell<()>,
    /// Before Redis and before ZooKeeper, or none.
    proxies: Vec<FaultProxy>,
    /// The locks that were deleted under their holders: the notes about these have no meaning, and end with their ttl.
    deleted: Mutex<BTreeSet<String>>,
}

impl MigrateHarness {
    pub fn new(
        backend: &'static str,
        rungs: &'static [Rung],
        flavour: Flavour,
        stores: Arc<LazyStores>,
    ) -> Self {
        let (name, next, proxies) = (format!("{backend}::{flavour}"), AtomicUsize::new(0), Vec::new());
        let (sealed, deleted) = (OnceCell::new(), Mutex::default());
        Self { name, backend, flavour, rungs, next, stores, sealed, proxies, deleted }
    }

    /// The same on other servers, or over other connections.
    fn at(&self, stores: Arc<LazyStores>, proxies: Vec<FaultProxy>) -> Self {
        Self { proxies, ..Self::new(self.backend, self.rungs, self.flavour, stores) }
    }

    async fn stores(&self) -> &Stores {
        let start = || async {
            let (redis, zk) =
                tokio::join!(RedisServer::builder().appendonly(true).start(), ZooKeeper::start());
            let redis = redis.unwrap_or_else(|error| panic!("{error}"));
            Stores { redis, zk: zk.unwrap_or_else(|error| panic!("{error}")) }
        };
        let stores = self.stores.get_or_init(start).await;
        if self.rungs.contains(&Rung::New) {
            self.sealed.get_or_init(|| self.seal(&stores.zk)).await;
        }
        stores
    }

    /// Writes the record of a migration that is finished.
    async fn seal(&self, zk: &ZooKeeper) {
        let url = format!("{}?session=private&dir={}", zk.url(), self.dir());
        let target = Zk::connect(ZkConfig::from_url(&url).expect("the URL is valid")).await;
        let target = target.unwrap_or_else(|error| panic!("{error}"));
        let mut record = Record::new(NAMESPACE, "redis://gone", target.identity());
        record.phase = Phase::Sealed;
        record.set(Rung::New, "*");
        // Another flavour may have written it.
        target.write_record(&record.to_bytes(), None).await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn prefix(&self) -> String {
        format!("{}:", self.backend)
    }

    fn dir(&self) -> String {
        format!("/{}", self.backend)
    }

    /// The URL of the next client.
    async fn url(&self, lease: Duration) -> String {
        let Stores { redis, zk } = self.stores().await;
        let [from, to] = match &self.proxies[..] {
            [redis, zk] => [redis.addr(), zk.addr()],
            _ => [redis.addr(), zk.addr()],
        };
        let (lease, rung) =
            (option(lease), self.rungs[self.next.fetch_add(1, Ordering::Relaxed) % self.rungs.len()]);
        let from = format!("redis://{from}?ttl={lease}&prefix={}", self.prefix());
        // Every client of the suite stands for a process of its own.
        let to = format!("zk://{to}?session=private&session_timeout={lease}&dir={}", self.dir());
        migration_url(NAMESPACE, &from, &to, &format!("&rung={rung}"))
    }

    /// The keys of locks and waiters; a tombstone is meant to stay.
    async fn keys(&self, part: &str) -> BTreeSet<String> {
        let redis = &self.stores().await.redis;
        let deleted = self.deleted.lock().unwrap().clone();
        let keys = redis.command(&["KEYS", &format!("*{part}*")]).await.expect("the server answers");
        let mut left = BTreeSet::new();
        for key in keys.array().unwrap_or_default() {
            let key = key.text().expect("a key is text");
            let lock = key.strip_prefix(HOLDERS).map_or(key, |lock| lock.trim_matches(['{', '}']));
            let means_nothing = key.starts_with(HOLDERS) && deleted.contains(lock);
            let meant_to_stay = key.starts_with(CLAIM)
                || TOKENS.iter().any(|kept| key.starts_with(kept))
                || self.has_moved(key).await;
            if !meant_to_stay && !means_nothing {
                left.insert(lock.to_owned());
            }
        }
        left
    }

    async fn has_moved(&self, key: &str) -> bool {
        let value = self.stores().await.redis.command(&["GET", key]).await.expect("the server answers");
        value.text().is_some_and(Tombstone::is_one)
    }

    /// The nodes that go with a session, which is what locks and their waiters are made of.
    async fn nodes(&self, part: &str) -> Vec<String> {
        let dump = self.stores().await.zk.four_letter("dump").await.expect("the server answers");
        let paths = dump.lines().map(str::trim).filter(|line| line.starts_with('/'));
        let locks = paths.filter(|path| !path.contains("/!migration/"));
        locks.filter(|path| path.contains(part)).map(str::to_owned).collect()
    }
}

#[async_trait]
impl Harness for MigrateHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("migrate", LeaseKind::session(Duration::from_secs(10)));
        // Clients of different rungs have different queues.
        let is_mixed = self.rungs.len() > 1;
        (capabilities.fifo, capabilities.counts_waiters) = (!is_mixed, !is_mixed);
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities.revocation = Support::No("holders on the old store cannot be notified");
        capabilities
    }

    fn parts(&self) -> &[&'static str] {
        &["redis", "zk"]
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        let is_old = self.rungs.iter().any(|&rung| rung < Rung::Dual);
        let moves = self.rungs.contains(&Rung::Move);
        match case {
            "a_forgotten_guard_ends_with_its_session" if is_old => {
                Some("below the rung dual a lock is kept by its ttl on the old store")
            }
            "all_readers_that_try_at_once_get_the_lock" | "all_clients_that_try_at_once_get_a_permit"
                if is_old && moves =>
            {
                Some(
                    "a mover has the old lock as a whole for a moment, and clients below the rung dual know nothing of it",
                )
            }
            _ => None,
        }
    }

    fn shows_own_tokens(&self) -> bool {
        // A mover has the token of Redis if that was ahead. Its node shows what ZooKeeper's tokens were raised to.
        !self.rungs.contains(&Rung::Move)
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease).await).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease).await)
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        // What one lock leaves on both stores is one thing.
        let (mut keys, mut nodes) = (self.keys(part).await.into_iter(), self.nodes(part).await.into_iter());
        let mut left = Vec::new();
        loop {
            match (keys.next(), nodes.next()) {
                (None, None) => return left,
                (key, node) => left.push(format!("{} {}", key.unwrap_or_default(), node.unwrap_or_default())),
            }
        }
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let Stores { redis, zk } = self.stores().await;
        let key = format!("{}{name}", self.prefix());
        self.deleted.lock().unwrap().insert(key.clone());
        let nodes = self.nodes(name).await;
        let operator = Client::connect(&zk.connect_string()).await.expect("the server answers");
        for node in &nodes {
            operator.delete(node, None).await.expect("the node can be deleted");
        }
        let mut deleted = 0;
        if !self.has_moved(&key).await {
            let reply = redis.command(&["DEL", &key]).await.expect("the server answers");
            deleted = reply.int().unwrap_or_default();
        }
        assert!(!nodes.is_empty() || deleted > 0, "{name} is not held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let Stores { redis, zk } = self.stores().await;
        let stores = [(redis.addr(), Protocol::Redis), (zk.addr(), Protocol::ZooKeeper)];
        let proxies = stores.map(|(addr, protocol)| FaultProxy::start(addr, protocol));
        let proxies = proxies.into_iter().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"));
        Box::new(self.at(Arc::clone(&self.stores), proxies))
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(self.at(Arc::default(), Vec::new()))
    }

    async fn fault(&self, fault: Fault) {
        set_fault(&self.proxies, fault);
    }

    async fn restart(&self) {
        let Stores { redis, zk } = self.stores().await;
        redis.kill();
        redis.start_again().await.unwrap_or_else(|error| panic!("{error}"));
        zk.restart().await.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Which migration the locks take part in.
const CLAIM: &str = "polylock:migration:";
