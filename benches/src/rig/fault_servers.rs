//! The servers that faults are injected into, and the proxies between them and their clients.

mod database;
mod disturbance;
mod fault_server;
mod forgery;
mod journal;
mod outage;
mod secrets;

use std::slice;
use std::time::Duration;

use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{
    EtcdCluster, EtcdServer, FaultProxy, MariadbPair, MariadbServer, PostgresPair, PostgresServer, RedisFive,
    RedisSentinel, RedisServer, ZkEnsemble, ZooKeeper,
};
use tokio::time::{Instant, sleep, timeout};

use self::database::DISK_MB;
use self::fault_server::FaultServer;
pub(crate) use self::outage::Outage;
use self::secrets::Secrets;
use crate::data::{Data, Failure, Outcome, Site};
use crate::rig::proxies::Proxies;
use crate::rig::url;

/// The servers of one backend. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct FaultServers {
    servers: Servers,
    /// What they demand of clients, if anything.
    secrets: Option<Secrets>,
    routes: Vec<Route>,
    lease: Duration,
}

/// What a group of clients has between itself and the servers, so that a fault can hit this group alone.
#[derive(Debug)]
struct Route {
    /// One before each server, in the same order; none behind sentinels.
    proxies: Proxies,
    url: String,
}

#[derive(Debug)]
enum Servers {
    Redis(RedisServer),
    Sentinel(RedisSentinel),
    Five(RedisFive),
    ZooKeeper(ZkEnsemble),
    Postgres(PostgresServer),
    PostgresPair(PostgresPair),
    Etcd(EtcdCluster),
    Mysql(MariadbServer),
    MysqlPair(MariadbPair),
}

impl FaultServers {
    /// Starts servers that demand nothing of clients, with one route to them.
    pub(crate) async fn start(site: Site, data: Data) -> Outcome<Self> {
        Self::start_with(site, data, None).await
    }

    /// Starts servers that keep their data and demand a password, and certificates over TLS, with one route to them. PostgreSQL
    /// demands nothing, and has a journal; etcd and MariaDB demand nothing either.
    pub(crate) async fn start_for_soak(site: Site) -> Outcome<Self> {
        if site == Site::Postgres {
            return Self::with_one_route(Servers::Postgres(database::start_with_journal().await?), None)
                .await;
        }
        let secrets = match site {
            Site::Etcd | Site::Mysql => None,
            _ => Some(Secrets::new(site == Site::RedisTls)?),
        };
        Self::start_with(site, Data::Kept, secrets).await
    }

    async fn start_with(site: Site, data: Data, secrets: Option<Secrets>) -> Outcome<Self> {
        let redis = || match &secrets {
            Some(secrets) => secrets.of_redis(RedisServer::builder()),
            None => RedisServer::builder(),
        };
        let kept = || match data {
            // The kernel keeps what a killed process has written: fsync matters only in a power cut.
            Data::Kept => redis().appendonly(true).config("appendfsync", "no"),
            Data::Lost => redis(),
        };
        let servers = match site {
            Site::Redis | Site::RedisTls => Servers::Redis(kept().start().await?),
            Site::Sentinel => Servers::Sentinel(RedisSentinel::start_with(redis(), DOWN_AFTER).await?),
            Site::Redlock => Servers::Five(kept().start_n(5).await?),
            Site::Zk if secrets.is_some() => {
                Servers::ZooKeeper(Secrets::of_zookeeper(ZooKeeper::builder()).start_ensemble(3).await?)
            }
            Site::Zk => Servers::ZooKeeper(ZkEnsemble::start().await?),
            Site::LinkedZk => {
                Servers::ZooKeeper(ZooKeeper::builder().proxied_links().start_ensemble(3).await?)
            }
            Site::Postgres => Servers::Postgres(database::options().start().await?),
            Site::SmallDisk => Servers::Postgres(database::options().disk(DISK_MB).start().await?),
            Site::Standby => Servers::PostgresPair(PostgresPair::start().await?),
            Site::SynchronousStandby => Servers::PostgresPair(PostgresPair::start_synchronous().await?),
            Site::LinkedEtcd => Servers::Etcd(EtcdServer::builder().proxied_links().start_cluster().await?),
            Site::Etcd => {
                // Each swap is a value that it keeps: more of them than the usual quota has room for.
                let options = EtcdServer::builder().flag("--quota-backend-bytes=8589934592");
                let options =
                    options.flag("--auto-compaction-mode=periodic").flag("--auto-compaction-retention=1m");
                Servers::Etcd(options.start_cluster().await?)
            }
            Site::Mysql => {
                Servers::Mysql(MariadbServer::builder().flag("--max-connections=1000").start().await?)
            }
            Site::MysqlSmallDisk => Servers::Mysql(MariadbServer::builder().disk(DISK_MB).start().await?),
            Site::MysqlReplica => Servers::MysqlPair(MariadbPair::start().await?),
            Site::MysqlSemiSynchronous => Servers::MysqlPair(MariadbPair::start_semi_synchronous().await?),
        };
        Self::with_one_route(servers, secrets).await
    }

    async fn with_one_route(servers: Servers, secrets: Option<Secrets>) -> Outcome<Self> {
        let lease = if matches!(servers, Servers::ZooKeeper(_)) { ZK_LEASE } else { TTL };
        if let Servers::ZooKeeper(ensemble) = &servers {
            eprintln!("    ZooKeeper {}", ensemble.nodes()[0].version().await?);
        }
        let mut started = Self { servers, secrets, routes: Vec::new(), lease };
        started.new_routes(1).await?;
        if matches!(started.servers, Servers::Five(_)) {
            // Otherwise a client that connects during the first grant of all takes masters without a key for restarted ones.
            for server in 0..started.len() {
                started.mark_data(server).await?;
            }
        }
        Ok(started)
    }

    /// Replaces the routes by this many new ones, without faults. Connections over the old ones end.
    pub(crate) async fn new_routes(&mut self, count: usize) -> Outcome<()> {
        self.routes.clear();
        let url = self.direct_url();
        let protocol = match self.servers {
            Servers::ZooKeeper(_) => Protocol::ZooKeeper,
            Servers::Postgres(_) | Servers::PostgresPair(_) => Protocol::Postgres,
            Servers::Mysql(_) | Servers::MysqlPair(_) => Protocol::Mysql,
            Servers::Etcd(_) => Protocol::Http2,
            _ if self.has_tls() => Protocol::Opaque,
            _ => Protocol::Redis,
        };
        for _ in 0..count {
            let proxies = match self.servers {
                Servers::Sentinel(_) => Proxies::default(),
                _ => Proxies::start_with(protocol, &url).await?,
            };
            self.routes.push(Route { url: proxies.url(&url), proxies });
        }
        Ok(())
    }

    /// How long a lock outlives its holder.
    pub(crate) const fn lease(&self) -> Duration {
        self.lease
    }

    /// How long a lock may be free after a fault, but for a slack. In a store that swaps a client is dead once it was watched for a
    /// lease: the holder, and then a waiter that was granted the lock meanwhile.
    pub(crate) fn longest_gap(&self) -> Duration {
        if self.patience_of_swaps().is_some() { self.lease * 2 } else { self.lease }
    }

    /// How long a client waits for the answer to a swap before it asks again; `None` if the servers know of locks.
    pub(crate) fn patience_of_swaps(&self) -> Option<Duration> {
        match self.servers {
            // Three tenths and six tenths of `command_timeout`.
            Servers::Etcd(_) => Some(self.lease * 3 / 20),
            Servers::Mysql(_) | Servers::MysqlPair(_) => Some(self.lease * 3 / 10),
            _ => None,
        }
    }

    /// The URL for clients on the first route whose locks have this lease.
    pub(crate) fn url(&self, lease: Duration) -> String {
        self.url_of(0, lease)
    }

    /// The URL for clients on a route whose locks have this lease.
    pub(crate) fn url_of(&self, route: usize, lease: Duration) -> String {
        let lease = format!("{}ms", lease.as_millis());
        let url = self.routes[route].url.as_str();
        match self.servers {
            Servers::ZooKeeper(_) => url::with_option(url, "session_timeout", &lease),
            Servers::Five(_) => {
                // The default timeout follows the ttl, and is too short for a busy machine here: all connections would be
                // made anew.
                let options = [("ttl", lease.as_str()), ("longest_ttl", &lease), ("master_timeout", "1s")];
                options.iter().fold(url.to_owned(), |url, (name, value)| url::with_option(&url, name, value))
            }
            Servers::Redis(_) | Servers::Sentinel(_) | Servers::Postgres(_) | Servers::PostgresPair(_) => {
                url::with_option(url, "ttl", &lease)
            }
            // Half a ttl at most, or a lock may be lost before its guard is suspect.
            Servers::Etcd(_) | Servers::Mysql(_) | Servers::MysqlPair(_) => {
                let url = url::with_option(url, "ttl", &lease);
                url::with_option(&url, "command_timeout", &format!("{}ms", self.lease.as_millis() / 2))
            }
        }
    }

    pub(crate) fn direct_url(&self) -> String {
        let url = match &self.servers {
            Servers::Redis(server) if self.has_tls() => format!("redis://{}", server.tls_addr()),
            Servers::Redis(server) => server.url(),
            Servers::Sentinel(sentinel) => sentinel.url(),
            Servers::Five(five) => five.url(),
            Servers::ZooKeeper(ensemble) => ensemble.url(),
            Servers::Postgres(server) => server.url(),
            Servers::PostgresPair(pair) => pair.url(),
            Servers::Etcd(cluster) => cluster.url(),
            Servers::Mysql(server) => server.url(),
            Servers::MysqlPair(pair) => pair.url(),
        };
        match &self.secrets {
            Some(secrets) => secrets.add_to(&url),
            None => url,
        }
    }

    /// The number of servers that faults can address.
    pub(crate) fn len(&self) -> usize {
        self.proxies_of(0).len()
    }

    pub(crate) fn most_failing(&self) -> usize {
        match self.len() {
            0 => 0,
            1 => 1,
            all => (all - 1) / 2,
        }
    }

    pub(crate) async fn leader(&self) -> Option<usize> {
        match &self.servers {
            Servers::ZooKeeper(ensemble) => ensemble.leader().await,
            Servers::Etcd(cluster) => cluster.leader().await,
            _ => None,
        }
    }

    pub(crate) fn proxy_of(&self, route: usize, server: usize) -> &FaultProxy {
        &self.proxies_of(route)[server]
    }

    pub(crate) fn proxies_of(&self, route: usize) -> &[FaultProxy] {
        self.routes[route].proxies.all()
    }

    /// The proxies of all routes.
    pub(crate) fn all_proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.routes.iter().flat_map(|route| route.proxies.all())
    }

    pub(crate) fn ensemble(&self) -> Option<&ZkEnsemble> {
        match &self.servers {
            Servers::ZooKeeper(ensemble) => Some(ensemble),
            _ => None,
        }
    }

    /// Cuts a leader off from its followers, and not from clients, or ends that.
    pub(crate) async fn cut_leader_off(&self, leader: usize, on: bool) -> Outcome<()> {
        match &self.servers {
            Servers::ZooKeeper(ensemble) => {
                for follower in (0..self.len()).filter(|&server| server != leader) {
                    let link = ensemble.link(follower, leader);
                    link.black_hole(Direction::ToServer, on);
                    link.black_hole(Direction::ToClient, on);
                }
                Ok(())
            }
            Servers::Etcd(cluster) => Ok(cluster.cut_off(leader, on).await?),
            _ => Err(Failure::new("there is no leader")),
        }
    }

    /// Whether a server answers that it does not lead. One of ZooKeeper that is elected without followers answers so, too.
    pub(crate) async fn denies_leading(&self, server: usize) -> bool {
        match &self.servers {
            Servers::Etcd(cluster) => !cluster.members()[server].leads().await,
            Servers::ZooKeeper(ensemble) => {
                let answer = ensemble.nodes()[server].four_letter("srvr").await.unwrap_or_default();
                !answer.is_empty() && !answer.contains("Mode: leader")
            }
            _ => false,
        }
    }

    /// Whether the servers elect a leader, and go on without a minority.
    pub(crate) const fn elects(&self) -> bool {
        matches!(self.servers, Servers::ZooKeeper(_) | Servers::Etcd(_))
    }

    /// Whether each of them serves, which takes a leader. After a majority was away, members of etcd may split their votes for seconds.
    pub(crate) async fn all_serve(&self) -> bool {
        for server in 0..self.len() {
            let serves = match &self.servers {
                Servers::ZooKeeper(ensemble) => ensemble.nodes()[server].mode().await.is_some(),
                _ => self.answers(server).await,
            };
            if !serves {
                return false;
            }
        }
        true
    }

    /// What the outages do to one of them.
    fn server(&self, server: usize) -> &dyn FaultServer {
        match &self.servers {
            Servers::ZooKeeper(ensemble) => &ensemble.nodes()[server],
            Servers::Postgres(_) | Servers::PostgresPair(_) => self.postgres(server),
            Servers::Etcd(cluster) => &cluster.members()[server],
            Servers::Mysql(alone) => alone,
            Servers::MysqlPair(pair) => &pair.servers()[server],
            Servers::Redis(_) | Servers::Sentinel(_) | Servers::Five(_) => self.redis(server),
        }
    }

    pub(crate) fn pid(&self, server: usize) -> u32 {
        self.server(server).pid()
    }

    /// Restarts a killed server with its data.
    async fn start_again(&self, server: usize) -> Outcome<()> {
        self.server(server).start_again().await?;
        match &self.secrets {
            // It has started with the first one.
            Some(secrets) if !self.all_redis().is_empty() => secrets.set_password(self.redis(server)).await,
            _ => Ok(()),
        }
    }

    /// Takes all memory from a Redis server, or gives it back.
    async fn fill_memory(&self, server: usize, full: bool) -> Outcome<()> {
        // 0 is no limit.
        let limit = if full { "1" } else { "0" };
        self.redis(server).command(&["CONFIG", "SET", "maxmemory", limit]).await?;
        Ok(())
    }

    /// The Redis servers that grant locks, behind sentinels the master.
    pub(crate) async fn masters(&self) -> Outcome<Vec<&RedisServer>> {
        let Servers::Sentinel(sentinel) = &self.servers else { return Ok(self.all_redis().iter().collect()) };
        let master = sentinel.master().await.ok_or_else(|| Failure::new("no sentinel knows a master"))?;
        Ok(vec![master])
    }

    /// Runs a script on a Redis server, which answers BUSY, until this future ends.
    pub(crate) async fn run_script(
        &self,
        server: &RedisServer,
        until: impl Future<Output = Outcome<()>>,
    ) -> Outcome<()> {
        // In ms; by default it says nothing for five seconds.
        server.command(&["CONFIG", "SET", "lua-time-limit", "100"]).await?;
        // It is killed, so its answer is an error, or late.
        let script = server.command(&["EVAL", SCRIPT, "0"]);
        let kill = async {
            until.await?;
            self.until("the script has ended", async || {
                server.command(&["SCRIPT", "KILL"]).await?;
                Ok(!server.command(&["PING"]).await?.is_error())
            })
            .await
        };
        tokio::join!(script, kill).1
    }

    /// Restarts a ZooKeeper server, which grants sessions no longer timeout than this from then on.
    pub(crate) async fn restart_with_limit(&self, server: usize, limit: Duration) -> Outcome<()> {
        let ensemble = self.ensemble().ok_or_else(|| Failure::new("there is no ensemble"))?;
        let node = &ensemble.nodes()[server];
        node.kill();
        node.reconfigure("maxSessionTimeout", &limit.as_millis().to_string())?;
        Ok(node.start_again().await?)
    }

    /// Cuts the clients of a server on the first route off from all servers, or ends that.
    pub(crate) fn strand_clients_of(&self, server: usize, on: bool) {
        for (other, proxy) in self.proxies_of(0).iter().enumerate() {
            if other == server {
                proxy.black_hole(Direction::ToServer, on);
                proxy.black_hole(Direction::ToClient, on);
            } else {
                proxy.refuse(on);
            }
        }
    }

    /// Whether a server answers within half a second.
    pub(crate) async fn answers(&self, server: usize) -> bool {
        timeout(ANSWER, self.server(server).answers()).await.unwrap_or(false)
    }

    /// Removes the data of killed servers that keep them: a Redis server without data has none.
    pub(crate) async fn remove_data(&self, servers: &[usize]) -> Outcome<()> {
        for &server in servers {
            match &self.servers {
                Servers::ZooKeeper(ensemble) => ensemble.nodes()[server].remove_data()?,
                Servers::Mysql(alone) => alone.remove_data().await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes something of our own to a server, so that a loss of its data shows.
    pub(crate) async fn mark_data(&self, server: usize) -> Outcome<()> {
        match &self.servers {
            Servers::ZooKeeper(_) | Servers::Etcd(_) | Servers::MysqlPair(_) => {}
            Servers::Mysql(alone) => {
                alone.sql("CREATE TABLE IF NOT EXISTS fault_mark (mark INT)").await?;
            }
            Servers::Postgres(_) | Servers::PostgresPair(_) => {
                self.postgres(server).sql(&["CREATE TABLE IF NOT EXISTS fault_mark ()"]).await?;
            }
            _ => drop(self.redis(server).command(&["SET", MARK, "1"]).await?),
        }
        Ok(())
    }

    /// Whether the server has that. Those of ZooKeeper and etcd get their data back from each other.
    pub(crate) async fn has_marked_data(&self, server: usize) -> Outcome<Option<bool>> {
        match &self.servers {
            Servers::ZooKeeper(_) | Servers::Etcd(_) | Servers::MysqlPair(_) => Ok(None),
            Servers::Mysql(alone) => Ok(Some(!alone.sql("SHOW TABLES LIKE 'fault_mark'").await?.is_empty())),
            Servers::Postgres(_) | Servers::PostgresPair(_) => {
                let found =
                    self.postgres(server).sql(&["SELECT to_regclass('fault_mark') IS NOT NULL"]).await?;
                Ok(Some(found == "t"))
            }
            _ => Ok(Some(self.redis(server).command(&["EXISTS", MARK]).await?.int() == Some(1))),
        }
    }

    /// Resets all connections to these servers; behind sentinels, those to the master. Returns how many there were on the first
    /// route; behind sentinels, that there was a master.
    pub(crate) async fn reset(&self, servers: &[usize]) -> Outcome<u64> {
        if let Servers::Sentinel(sentinel) = &self.servers {
            let master = sentinel.master().await.ok_or_else(|| Failure::new("no sentinel knows a master"))?;
            end_connections(master).await?;
            return Ok(1);
        }
        let on_first = servers.iter().map(|&server| self.proxy_of(0, server).connections() as u64).sum();
        for route in &self.routes {
            servers.iter().for_each(|&server| route.proxies.all()[server].rst());
        }
        Ok(on_first)
    }

    /// Has the sentinels promote the replica, and waits until all of them name the new master.
    ///
    /// `without_loss` pauses writes until then, so that the replica has them all, and turns the old master into a replica at
    /// once. The sentinels would do so some seconds later.
    pub(crate) async fn fail_over(&self, without_loss: bool) -> Outcome<()> {
        let sentinel = self.sentinel()?;
        let old = sentinel.master().await.ok_or_else(|| Failure::new("no sentinel knows a master"))?;
        let mut ordered: Option<Instant> = None;
        self.until("all sentinels name the new master", async || {
            // Sentinels abandon some failovers, such as one too soon after another.
            if ordered.is_none_or(|at| at.elapsed() > ORDER) {
                if without_loss {
                    let pause = PAUSE.as_millis().to_string();
                    old.command(&["CLIENT", "PAUSE", &pause, "WRITE"]).await?;
                }
                let order = ["SENTINEL", "FAILOVER", RedisSentinel::NAME];
                sentinel.sentinels()[0].command(&order).await?;
                ordered = Some(Instant::now());
            }
            for sentinel in sentinel.sentinels() {
                let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", RedisSentinel::NAME];
                let reply = sentinel.command(&ask).await?;
                let port = reply.array().and_then(|parts| parts.get(1)).and_then(|port| port.int());
                if port.is_none_or(|port| port == i64::from(old.port())) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await?;
        if without_loss {
            // Otherwise clients of the old master would use it until the sentinels announce the new one.
            let new = sentinel.servers().iter().find(|server| server.port() != old.port());
            let new = new.ok_or_else(|| Failure::new("there is no replica"))?.port().to_string();
            old.command(&["REPLICAOF", "127.0.0.1", &new]).await?;
            end_connections(old).await?;
            old.command(&["CLIENT", "UNPAUSE"]).await?;
        }
        Ok(())
    }

    /// Waits until the old master follows the new one.
    pub(crate) async fn settle(&self) -> Outcome<()> {
        let sentinel = self.sentinel()?;
        self.until("the old master follows the new one", async || {
            let Some(master) = sentinel.master().await else { return Ok(false) };
            for server in sentinel.servers().iter().filter(|server| server.port() != master.port()) {
                // A demoted server closes its connections.
                let reply = server.command(&["INFO", "replication"]).await;
                let up = |text: &str| text.contains("role:slave") && text.contains("master_link_status:up");
                if !reply.is_ok_and(|reply| reply.text().is_some_and(up)) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    pub(crate) async fn until(
        &self,
        what: &str,
        mut is_so: impl AsyncFnMut() -> Outcome<bool>,
    ) -> Outcome<()> {
        let deadline = Instant::now() + FAILOVER;
        while !is_so().await? {
            if Instant::now() > deadline {
                return Err(Failure::new(format!("waited {FAILOVER:?} until {what}")));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    pub(crate) fn sentinel(&self) -> Outcome<&RedisSentinel> {
        match &self.servers {
            Servers::Sentinel(sentinel) => Ok(sentinel),
            _ => Err(Failure::new("there are no sentinels")),
        }
    }

    pub(crate) fn redis(&self, server: usize) -> &RedisServer {
        match &self.servers {
            Servers::Redis(server) => server,
            Servers::Five(five) => &five.servers()[server],
            _ => {
                unreachable!("the caller has handled these")
            }
        }
    }

    /// All Redis servers that have locks, replicas included.
    fn all_redis(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Redis(server) => slice::from_ref(server),
            Servers::Sentinel(sentinel) => sentinel.servers(),
            Servers::Five(five) => five.servers(),
            _ => &[],
        }
    }

    fn has_tls(&self) -> bool {
        self.secrets.as_ref().is_some_and(Secrets::has_tls)
    }
}

async fn end_connections(server: &RedisServer) -> Outcome<()> {
    for kind in ["normal", "pubsub"] {
        server.command(&["CLIENT", "KILL", "TYPE", kind]).await?;
    }
    Ok(())
}

const TTL: Duration = Duration::from_secs(2);
const ZK_LEASE: Duration = Duration::from_secs(3);
/// Long: failovers are ordered. Another one, as a busy machine keeps a server from answering, would lose writes.
const DOWN_AFTER: Duration = Duration::from_secs(20);
/// Longer than it takes the sentinels to promote the replica.
const PAUSE: Duration = Duration::from_secs(30);
/// How long sentinels may take before the command is repeated.
const ORDER: Duration = Duration::from_secs(10);
const FAILOVER: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_millis(500);
const MARK: &str = "fault-mark";
/// It ends by itself when nobody kills it.
const SCRIPT: &str = "local ends = os.clock() + 60; while os.clock() < ends do end";
const LOOK: Duration = Duration::from_millis(20);
