//! One Redis server, behind sentinels, in a cluster, or five that know nothing of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::slice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, ErrorKind, LeaseKind, Locks, Outcome};
use lock_testkit::conformance::{Credential, Fault, Handle, Harness, Refusal, Still};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{RedisCluster, RedisFive, RedisSentinel, RedisServer};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use super::{Flavour, Login, PASSWORD, PATIENT, TLS, connect, option, set_fault, worker};

/// What is meant to stay on the server: the last tokens, and who had a lock of the recipe setnx-timestamp last.
pub(super) const TOKENS: [&str; 2] = ["polylock:fence", "polylock:tokens"];
/// The sharers of a lock, kept beside it.
pub(super) const HOLDERS: &str = "polylock:holders:";

/// Servers that are started when they are first needed.
pub type Servers = OnceCell<Site>;

/// Servers that were started.
#[derive(Debug)]
pub enum Site {
    One(RedisServer),
    Five(RedisFive),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
}

impl Site {
    /// Those that have the locks.
    fn masters(&self) -> &[RedisServer] {
        match self {
            Self::One(server) => slice::from_ref(server),
            Self::Five(five) => five.servers(),
            Self::Sentinel(sentinel) => &sentinel.servers()[..1],
            Self::Cluster(cluster) => cluster.masters(),
        }
    }
}

/// How locks are kept on which servers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Single,
    /// The recipe that older fleets run.
    Setnx,
    /// Nobody is notified.
    Polling,
    Sentinel,
    Cluster,
    Redlock,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Single => "redis",
            Self::Setnx => "setnx",
            Self::Polling => "redis-polling",
            Self::Sentinel => "redis-sentinel",
            Self::Cluster => "redis-cluster",
            Self::Redlock => "redlock",
        }
    }

    async fn start(self, login: Option<&Login>) -> Site {
        let durable = || {
            let options = RedisServer::builder().appendonly(true).password(PASSWORD);
            match login {
                None => options,
                Some(Login::Certificates(certificates)) => options.tls(certificates, true),
                Some(login) => options.user(Login::USER, &rules(&login.password().unwrap_or_default())),
            }
        };
        let started = match self {
            Self::Sentinel => {
                // A busy machine is no reason for a failover.
                let started =
                    RedisSentinel::start_with(RedisServer::builder(), Duration::from_secs(60)).await;
                started.map(Site::Sentinel)
            }
            Self::Cluster => RedisCluster::start().await.map(Site::Cluster),
            Self::Redlock => durable().start_n(5).await.map(Site::Five),
            Self::Single | Self::Setnx | Self::Polling => durable().start().await.map(Site::One),
        };
        let site = started.unwrap_or_else(|error| panic!("{error}"));
        for server in site.masters() {
            if self == Self::Cluster {
                // As of sentinels.
                server.call(&["CONFIG", "SET", "cluster-node-timeout", "60000"]).await;
            }
            // Among new masters one without any key looks restarted to who connects while others have their first.
            server.command(&["SET", "polylock:tokens:used", "1"]).await.expect("the server answers");
        }
        site
    }

    /// Whether waiters take their turns: in a cluster, by channels that older releases do not have.
    fn is_fair(self) -> bool {
        match self {
            Self::Single | Self::Sentinel => true,
            Self::Cluster => !RedisServer::version().starts_with("Redis 6"),
            Self::Setnx | Self::Polling | Self::Redlock => false,
        }
    }
}

/// The backends `redis` and `redlock`, and what `redis` has in other [kinds](Kind).
#[derive(Debug)]
pub struct RedisHarness {
    name: String,
    kind: Kind,
    flavour: Flavour,
    servers: Arc<Servers>,
    login: Option<Login>,
    proxies: Vec<FaultProxy>,
    /// The locks that were deleted under their holders: these have no meaning, and end with their ttl.
    deleted: Mutex<BTreeSet<String>>,
}

impl RedisHarness {
    pub fn new(kind: Kind, flavour: Flavour, servers: Arc<Servers>) -> Self {
        let name = format!("{}::{flavour}", kind.name());
        Self { name, kind, flavour, servers, login: None, proxies: Vec::new(), deleted: Mutex::default() }
    }

    /// The same on other servers, or over other connections.
    fn at(&self, servers: Arc<Servers>, proxies: Vec<FaultProxy>) -> Self {
        Self { proxies, ..Self::new(self.kind, self.flavour, servers) }
    }

    async fn site(&self) -> &Site {
        self.servers.get_or_init(|| self.kind.start(self.login.as_ref())).await
    }

    async fn servers(&self) -> &[RedisServer] {
        self.site().await.masters()
    }

    async fn url(&self, lease: Duration) -> String {
        let ttl = option(lease);
        let addrs = match self.site().await {
            Site::Sentinel(sentinel) => return format!("{}?ttl={ttl}", sentinel.url()),
            // One node is enough to find the others.
            Site::Cluster(cluster) => {
                return format!("redis+cluster://{}?ttl={ttl}", cluster.masters()[2].addr());
            }
            site if self.proxies.is_empty() => {
                let addr =
                    |server: &RedisServer| if self.is_tls() { server.tls_addr() } else { server.addr() };
                site.masters().iter().map(|server| addr(server).to_string()).collect::<Vec<_>>()
            }
            _ => self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect(),
        };
        let more = match self.kind {
            // Masters that were restarted do not vote for the longest ttl.
            Kind::Redlock => {
                // Time: on a busy machine a server may be slow to answer, and is no less alive for it.
                &format!("&master_timeout=500ms&longest_ttl={}", option(lease.max(Duration::from_secs(24))))
            }
            // All clients are on this host and have one clock.
            Kind::Setnx => "&recipe=setnx-timestamp&clock_skew=20ms",
            Kind::Polling => "&wait=poll",
            _ => "",
        };
        let login =
            self.login.as_ref().map(|login| PATIENT.to_owned() + &login.options(TLS)).unwrap_or_default();
        let user = match &self.login {
            Some(Login::Password(_)) => Login::USER.to_owned(),
            _ => format!(":{PASSWORD}"),
        };
        let tls = if self.is_tls() { "s" } else { "" };
        format!("{}{tls}://{user}@{}?ttl={ttl}{more}{login}", self.scheme(), addrs.join(","))
    }

    fn is_tls(&self) -> bool {
        self.login.as_ref().is_some_and(|login| login.certificates().is_some())
    }

    fn scheme(&self) -> &'static str {
        if self.kind == Kind::Redlock { "redlock" } else { "redis" }
    }
}

/// Five masters that were started together become old one after the other: for a second, a new client takes the young ones for masters
/// that were restarted.
async fn until_masters_vote(locks: &Locks) {
    let probe = locks.mutex("who-votes");
    loop {
        match probe.try_acquire().await {
            // Time: they are asked again.
            Err(error) if error.to_string().contains("votes again") => sleep(LOOK).await,
            Ok(Some(guard)) => return drop(guard.release().await),
            _ => return,
        }
    }
}

/// Time: between two questions.
const LOOK: Duration = Duration::from_millis(50);

/// What a user may do, who has this password.
fn rules(password: &str) -> String {
    format!("on >{password} ~* &* +@all")
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
        // Time: the shortest lease.
        let times = LeaseKind::ttl(Duration::from_secs(30), Duration::from_millis(100));
        let mut capabilities = Capabilities::new(self.scheme(), times);
        let is_fair = self.kind.is_fair();
        (capabilities.fifo, capabilities.counts_waiters) = (is_fair, is_fair);
        if !matches!(self.kind, Kind::Setnx | Kind::Redlock) {
            (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        }
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities
    }

    fn short_lease(&self) -> Duration {
        // Time: it ends while nobody extends it.
        Duration::from_millis(1600)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        let locks = connect(self.flavour, self.url(lease).await).await?;
        if self.kind == Kind::Redlock {
            until_masters_vote(&locks).await;
        }
        Ok(locks)
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
        assert!(!matches!(self.kind, Kind::Sentinel | Kind::Cluster), "they name servers, and no proxy");
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

    fn rotates(&self, credential: &Credential) -> Result<(), &'static str> {
        match (self.kind, credential) {
            (Kind::Single | Kind::Redlock, Credential::Password(_)) => Ok(()),
            (Kind::Single | Kind::Redlock, Credential::Certificates) if RedisServer::lacks_tls() => {
                Err("the release has no TLS")
            }
            (Kind::Single | Kind::Redlock, Credential::Certificates) => Ok(()),
            _ => Err("it connects as `redis` does"),
        }
    }

    async fn secured(&self, credential: Credential) -> Box<dyn Harness> {
        Box::new(Self { login: Some(Login::new(credential)), ..self.at(Arc::default(), Vec::new()) })
    }

    async fn rotate(&self, password: &str) {
        let certificates = self.login.as_ref().and_then(Login::certificates);
        let commands = match certificates {
            None => vec![format!("ACL SETUSER {} resetpass {}", Login::USER, rules(password))],
            Some(certificates) => {
                certificates.replace().expect("they can be made");
                let (cert, key) = certificates.server();
                let (cert, key) = (cert.display(), key.display());
                let ca = certificates.ca();
                // It reads the files again.
                vec![
                    format!("CONFIG SET tls-ca-cert-file {}", ca.display()),
                    format!("CONFIG SET tls-cert-file {cert} tls-key-file {key}"),
                ]
            }
        };
        for server in self.servers().await {
            let ends = ["CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub"].map(str::to_owned);
            for command in commands.iter().chain(&ends) {
                server.call(&command.split(' ').collect::<Vec<_>>()).await;
            }
        }
    }

    fn refusal(&self) -> Result<Refusal, &'static str> {
        // Who polls has to write the lock.
        let polls = matches!(self.kind, Kind::Setnx | Kind::Polling);
        let still = if polls { Still::Renews } else { Still::HandsOver };
        // Without a majority Redlock knows nothing.
        let is_known = self.kind != Kind::Redlock;
        let outcome = if is_known { Outcome::NotApplied } else { Outcome::Unknown };
        Ok(Refusal { kind: ErrorKind::Exhausted, advice: "raise maxmemory", outcome, still })
    }

    async fn refuse_writes(&self, refuses: bool) {
        for server in self.servers().await {
            let limit = if refuses { "1" } else { "0" };
            server.command(&["CONFIG", "SET", "maxmemory", limit]).await.expect("the server answers");
        }
    }
}
