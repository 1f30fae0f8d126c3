//! One Redis server, or five that know nothing of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::RedisServer;
use lock_testkit::conformance::{Fault, Handle, Harness};
use lock_testkit::proxy::{FaultProxy, Protocol};
use polylock::RedisRecipe;
use tokio::sync::OnceCell;

use super::{Flavour, PASSWORD, connect, option, set_fault, worker};

/// What is meant to stay on the server: the last tokens, and who had a lock of the recipe setnx-timestamp last.
pub(super) const TOKENS: [&str; 2] = ["polylock:fence", "polylock:tokens"];
/// The sharers of a lock, kept beside it.
pub(super) const HOLDERS: &str = "polylock:holders:";

/// Servers that are started when they are first needed.
pub type Servers = OnceCell<Vec<RedisServer>>;

/// The backends `redis` and `redlock`, and the recipe of `redis` that older fleets run.
#[derive(Debug)]
pub struct RedisHarness {
    name: String,
    scheme: &'static str,
    recipe: RedisRecipe,
    count: usize,
    flavour: Flavour,
    servers: Arc<Servers>,
    proxies: Vec<FaultProxy>,
    /// The locks that were deleted under their holders: these have no meaning, and end with their ttl.
    deleted: Mutex<BTreeSet<String>>,
}

impl RedisHarness {
    pub fn new(scheme: &'static str, count: usize, flavour: Flavour, servers: Arc<Servers>) -> Self {
        let (name, recipe) = (format!("{scheme}::{flavour}"), RedisRecipe::SetNxPx);
        let (proxies, deleted) = (Vec::new(), Mutex::default());
        Self { name, scheme, recipe, count, flavour, servers, proxies, deleted }
    }

    pub fn setnx(flavour: Flavour, servers: Arc<Servers>) -> Self {
        let name = format!("setnx::{flavour}");
        Self { name, recipe: RedisRecipe::SetnxTimestamp, ..Self::new("redis", 1, flavour, servers) }
    }

    /// The same on other servers, or over other connections.
    fn at(&self, servers: Arc<Servers>, proxies: Vec<FaultProxy>) -> Self {
        let (name, recipe) = (self.name.clone(), self.recipe);
        Self { name, recipe, proxies, ..Self::new(self.scheme, self.count, self.flavour, servers) }
    }

    async fn servers(&self) -> &[RedisServer] {
        let start = || async {
            let mut servers = Vec::new();
            for _ in 0..self.count {
                let started = RedisServer::builder().appendonly(true).password(PASSWORD).start().await;
                let server = started.unwrap_or_else(|error| panic!("{error}"));
                // Among new masters one without any key looks restarted to who connects while others have their first.
                server.command(&["SET", "polylock:tokens:used", "1"]).await.expect("the server answers");
                servers.push(server);
            }
            servers
        };
        self.servers.get_or_init(start).await
    }

    async fn url(&self, lease: Duration) -> String {
        let servers = self.servers().await;
        let addrs: Vec<_> = if self.proxies.is_empty() {
            servers.iter().map(|server| server.addr().to_string()).collect()
        } else {
            self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect()
        };
        // On a busy machine a server may be slow to answer, and is no less alive for it.
        let more = match (self.scheme, self.recipe) {
            ("redlock", _) => {
                // Masters that were restarted do not vote for so long.
                let longest = lease.max(Duration::from_secs(24));
                &format!("&master_timeout=500ms&longest_ttl={}", option(longest))
            }
            // All clients are on this host and have one clock.
            (_, RedisRecipe::SetnxTimestamp) => "&recipe=setnx-timestamp&clock_skew=20ms",
            _ => "",
        };
        format!("{}://:{PASSWORD}@{}?ttl={}{more}", self.scheme, addrs.join(","), option(lease))
    }
}

#[async_trait]
impl Harness for RedisHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        let times = LeaseKind::ttl(Duration::from_secs(30), Duration::from_millis(100));
        let mut capabilities = Capabilities::new(self.scheme, times);
        if self.scheme == "redis" && self.recipe == RedisRecipe::SetNxPx {
            (capabilities.fifo, capabilities.counts_waiters) = (true, true);
            (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        }
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities
    }

    fn short_lease(&self) -> Duration {
        Duration::from_millis(1600)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease).await).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease).await)
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        // What one lock leaves on several servers, or in two keys, is one thing.
        let deleted = self.deleted.lock().unwrap().clone();
        let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for server in self.servers().await {
            let keys = server.command(&["KEYS", &format!("*{part}*")]).await.expect("the server answers");
            for key in keys.array().unwrap_or_default() {
                let key = key.text().expect("a key is text");
                let lock = key.strip_prefix(HOLDERS).map_or(key, |lock| lock.trim_matches(['{', '}']));
                let meant_to_stay = TOKENS.iter().any(|kept| key.starts_with(kept));
                let means_nothing = key.starts_with(HOLDERS) && deleted.contains(lock);
                if !meant_to_stay && !means_nothing {
                    let lasts = server.command(&["PTTL", key]).await.expect("the server answers");
                    let lasts = format!("for {} ms on {}", lasts.int().unwrap_or_default(), server.addr());
                    left.entry(lock.to_owned()).or_default().push(lasts);
                }
            }
        }
        left.into_iter().map(|(key, servers)| format!("{key} {}", servers.join(", "))).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        self.deleted.lock().unwrap().insert(format!("lock:{name}"));
        let mut deleted = 0;
        for server in self.servers().await {
            let reply = server.command(&["DEL", &format!("lock:{name}")]).await.expect("the server answers");
            deleted += reply.int().unwrap_or_default();
        }
        assert!(deleted > 0, "{name} was not held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let servers = self.servers().await.iter();
        let start = |server: &RedisServer| FaultProxy::start(server.addr(), Protocol::Redis);
        let proxies = servers.map(start).collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"));
        Box::new(self.at(Arc::clone(&self.servers), proxies))
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(self.at(Arc::default(), Vec::new()))
    }

    async fn fault(&self, fault: Fault) {
        set_fault(&self.proxies, fault);
    }

    async fn restart(&self) {
        let servers = self.servers().await;
        for server in servers {
            server.kill();
        }
        for server in servers {
            server.start_again().await.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
