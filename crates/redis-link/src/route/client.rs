//! The client of one Redis server, a master behind sentinels, or the nodes of a cluster.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::Pool;
use lock_core::background::Background;
use lock_core::engine::Answered;
use lock_core::runtime::Home;
use lock_core::tls::no_tls;
use lock_core::{Clock, Error, ErrorKind, Finding, FindingLevel, Outcome, Result};
use redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use redis::{ConnectionAddr, ConnectionInfo, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::connect::credentials::{Credentials, WithCredentials};
use crate::connect::dial::{Dial, OwnDial, Settings};
use crate::connect::greeting::{Identity, info_field};
use crate::connect::link::{Link, Route};
use crate::connect::topology::Topology;
use crate::error::{Endpoint, Failure, wants_login};
use crate::operate::examination::durability;
use crate::route::cluster::Cluster;
use crate::route::commands::Commands;
use crate::route::dispatch::Dispatch;
use crate::scripts::keys::Keys;
use crate::scripts::lock_answer::LockAnswer;
use crate::scripts::script::{Call, ScriptList};
use crate::scripts::wire;

/// How to reach a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The name of the backend in errors.
    pub backend: &'static str,
    /// The scripts that are loaded with every new connection. Others are loaded when they are first used.
    pub scripts: ScriptList,
    /// The addresses of the servers.
    pub topology: Topology,
    /// The pool to take connections from; a private one when `None`.
    pub pool: Option<Pool>,
    /// The dialer; the default when `None`. With a dialer the pool is not used.
    pub dial: Option<Arc<dyn Dial>>,
    /// The credentials of the servers that store locks.
    pub credentials: Credentials,
    /// The credentials of sentinels.
    pub sentinel_credentials: Credentials,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long to wait for an answer.
    pub command_timeout: Duration,
    /// The clock of the leases.
    pub clock: Clock,
    /// Whether every new connection reads the [`identity`](RedisClient::identity) of the server.
    pub asks_identity: bool,
}

/// One Redis server over one connection that all its locks share, or the nodes of a cluster with one connection each.
pub struct RedisClient {
    endpoint: Endpoint,
    settings: Settings,
    nodes: Nodes,
    clock: Clock,
    cleanup: Background,
}

enum Nodes {
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

impl ClientOptions {
    /// The defaults: no pool, timeouts of one second, and a clock that advances while the host is suspended.
    #[must_use]
    pub fn new(backend: &'static str, scripts: ScriptList, topology: impl Into<Topology>) -> Self {
        Self {
            backend,
            scripts,
            topology: topology.into(),
            pool: None,
            dial: None,
            credentials: Credentials::default(),
            sentinel_credentials: Credentials::default(),
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(1),
            clock: Clock::boot(),
            asks_identity: false,
        }
    }
}

impl RedisClient {
    /// Creates a client, which connects on its first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the driver refuses the address.
    pub fn new(options: ClientOptions) -> Result<Self> {
        let ClientOptions {
            backend, scripts, topology, pool, dial, connect_timeout, command_timeout, ..
        } = options;
        let (clock, asks_identity) = (options.clock, options.asks_identity);
        let endpoint = Endpoint { backend, address: topology.to_string(), scripts, asks_identity };
        if topology.named().iter().any(|info| !info.addr().is_supported()) {
            let sockets = topology.named().iter().any(|info| matches!(info.addr(), ConnectionAddr::Unix(_)));
            return Err(if sockets { no_sockets(backend) } else { no_tls(backend) });
        }
        let dialer = |mut credentials: Credentials| {
            let dialer = dial.clone().unwrap_or_else(|| {
                let tls = credentials.tls.take().unwrap_or_default();
                Arc::new(OwnDial { pool: pool.clone(), tls, connect_timeout, command_timeout })
            });
            WithCredentials::over(dialer, credentials)
        };
        let settings = Settings {
            dialer: dialer(options.credentials),
            sentinel_dialer: dialer(options.sentinel_credentials),
            connect_timeout,
            command_timeout,
            clock: clock.clone(),
            home: Home::here(),
        };
        let one = |route| {
            Nodes::One(Arc::new(Link::new(endpoint.clone(), settings.clone(), route, Arc::default())))
        };
        let nodes = match topology {
            Topology::Single(info) => one(Route::Fixed(info)),
            Topology::Sentinel(sentinels) => one(Route::Sentinel(sentinels)),
            Topology::Cluster(seeds) => {
                Nodes::Cluster(Arc::new(Cluster::new(endpoint.clone(), settings.clone(), seeds)))
            }
        };
        Ok(Self { endpoint, settings, nodes, clock, cleanup: Background::default() })
    }

    /// The server that errors name.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The address for errors: host and port, the path of the socket, or what the configuration names.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.endpoint.address
    }

    /// The runtime that drives the connections.
    pub(crate) const fn home(&self) -> &Home {
        &self.settings.home
    }

    /// How long to wait for an answer.
    #[must_use]
    pub const fn command_timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    /// The clock of the leases.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The background tasks that remove what dropped acquisitions may have left.
    #[must_use]
    pub const fn cleanup(&self) -> &Background {
        &self.cleanup
    }

    /// Connects now, and warns if the server may lose locks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn connect(&self) -> Result<()> {
        match &self.nodes {
            Nodes::One(link) => link.connection().await.map(drop),
            Nodes::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Ensures a connection to the server that has the keys of a lock.
    ///
    /// # Errors
    ///
    /// When the connection fails. Nothing was sent then.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn reach(&self, keys: &Keys) -> Result<()> {
        match &self.nodes {
            Nodes::One(link) => link.connection().await.map(drop),
            Nodes::Cluster(cluster) => cluster.reach(keys.lock()).await,
        }
    }

    /// The name of the cluster node that has the keys of a lock, if it is known; empty outside a cluster.
    pub fn node_name(&self, keys: &Keys) -> Option<String> {
        self.cluster().map_or_else(|| Some(String::new()), |cluster| cluster.node_name(keys.lock()))
    }

    /// The names of all nodes that hold locks: the masters of a cluster, or one empty name.
    ///
    /// # Errors
    ///
    /// When no server is found.
    pub async fn node_names(&self) -> Result<Vec<String>> {
        let name = |link: &Arc<Link>| match self.only() {
            Some(_) => String::new(),
            None => link.endpoint.address.clone(),
        };
        Ok(self.links().await?.iter().map(name).collect())
    }

    /// The address of the node with this name.
    pub(crate) async fn node_named(&self, name: &str) -> Result<ConnectionInfo> {
        match &self.nodes {
            Nodes::One(link) => link.at().await,
            Nodes::Cluster(cluster) => cluster.node_named(name).await,
        }
    }

    /// Reports when requests may go to another server from now on; `None` in a cluster, where another server has another
    /// name.
    ///
    /// # Errors
    ///
    /// When requests reach no server.
    pub(crate) async fn moves(&self) -> Result<Option<watch::Receiver<()>>> {
        let Some(link) = self.only() else { return Ok(None) };
        // Their connection first: one that is made later is a move.
        link.connection().await?;
        Ok(Some(link.moves()))
    }

    /// Whether it is a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.only().is_none()
    }

    /// Opens a separate RESP3 connection to a node, which passes every push message to `on_push`;
    /// `None` if the server refuses RESP3.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn pushes(
        &self,
        node: &ConnectionInfo,
        on_push: Arc<dyn AsyncPushSender>,
    ) -> Result<Option<MultiplexedConnection>> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, self.settings.dialer.pushes(node, on_push)).await {
            Ok(Ok(made)) => Ok(Some(made)),
            // What the driver makes of the answer of Redis 6.2 to a HELLO that it does not know.
            Ok(Err(error)) if error.kind() == redis::ErrorKind::RESP3NotSupported => Ok(None),
            Ok(Err(error)) => {
                let passes = wants_login(&error);
                let error = self.endpoint.unreachable(&error);
                if passes || error.kind() == ErrorKind::Unavailable { Err(error) } else { Ok(None) }
            }
            Err(_) => Err(self.endpoint.connect_timeout(limit)),
        }
    }

    /// Opens a separate RESP2 connection to a node, for subscriptions.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn messages(&self, node: &ConnectionInfo) -> Result<PubSub> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, self.settings.dialer.messages(node)).await {
            Ok(made) => made.map_err(|error| self.endpoint.unreachable(&error)),
            Err(_) => Err(self.endpoint.connect_timeout(limit)),
        }
    }

    /// Of a request whose lease counts by the clock of this client.
    #[must_use]
    pub fn dispatch(&self) -> Arc<Dispatch> {
        Dispatch::new(&self.clock)
    }

    /// Sends a call, once.
    ///
    /// # Errors
    ///
    /// The reason why there is no answer.
    pub async fn send(&self, call: &Call, dispatch: &Arc<Dispatch>) -> Result<Value, Failure> {
        match &self.nodes {
            Nodes::One(link) => link.send(call, dispatch).await,
            Nodes::Cluster(cluster) => Box::pin(cluster.send(call, dispatch)).await,
        }
    }

    /// Sends a call, and once more if the connection breaks. Returns the answer, and whether the call was sent twice. For
    /// idempotent calls only.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] the call may have been carried out.
    pub async fn run(&self, call: &Call, dispatch: &Arc<Dispatch>) -> Result<(Value, bool)> {
        match self.send(call, dispatch).await {
            // Whatever the second answer is, the first call may have been carried out.
            Err(Failure::Dropped) => match Box::pin(self.send(call, dispatch)).await {
                Err(failure) => Err(self.endpoint.failed(failure).with_outcome(Outcome::Unknown)),
                Ok(answer) => Ok((answer, true)),
            },
            answer => answer.map(|answer| (answer, false)).map_err(|failure| self.endpoint.failed(failure)),
        }
    }

    /// [Runs](Self::run) a call, and reads its answer.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and for an unexpected answer.
    pub async fn read<T>(&self, call: &Call, read: impl FnOnce(&Value) -> Option<T>) -> Result<T> {
        let (answer, _) = self.run(call, &self.dispatch()).await?;
        read(&answer).ok_or_else(|| self.endpoint.unexpected(&answer))
    }

    /// Sends a call once, and reads its answer. For calls that must not be carried out twice.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] the call may have been carried out.
    pub async fn read_once<T>(
        &self,
        call: &Call,
        dispatch: &Arc<Dispatch>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        let answer = self.send(call, dispatch).await.map_err(|failure| self.endpoint.failed(failure))?;
        read(&answer).ok_or_else(|| self.endpoint.unexpected(&answer))
    }

    /// Sends a request for a lock once: with two copies in flight, a rollback could miss one. `on_answer` sees the answer.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] the lock may have been granted.
    pub async fn request_lock(
        &self,
        call: &Call,
        dispatch: &Arc<Dispatch>,
        on_answer: impl FnOnce(&Value),
    ) -> Result<LockAnswer> {
        match self.send(call, dispatch).await {
            Ok(answer) => {
                on_answer(&answer);
                LockAnswer::read(&answer).ok_or_else(|| self.endpoint.unexpected(&answer))
            }
            Err(Failure::Dropped) => Ok(LockAnswer::Broken),
            Err(failure) => Err(self.endpoint.failed(failure)),
        }
    }

    /// Sends calls in one round trip, before what is less urgent, and reads the answer to each.
    ///
    /// # Errors
    ///
    /// With [`Outcome::Unknown`] any of them may have been carried out.
    pub async fn read_all<T: Send>(
        &self,
        calls: &[Call],
        read: fn(&Value) -> Option<T>,
    ) -> Result<Vec<Result<T>>> {
        let answers = Mutex::new(calls.iter().map(|_| None).collect::<Vec<_>>());
        let note = |at: usize, answer| {
            answers.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(answer);
        };
        self.read_each(calls, read, note).await?;
        let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
        let missing = || Err(self.endpoint.dropped());
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect())
    }

    /// The same, but passes on each answer as it comes: one node of a cluster does not wait for another.
    ///
    /// # Errors
    ///
    /// If no call was answered. With [`Outcome::Unknown`] any of them may have been carried out.
    pub async fn read_each<T>(
        &self,
        calls: &[Call],
        read: fn(&Value) -> Option<T>,
        answered: impl Answered<Result<T>>,
    ) -> Result<()> {
        let read = |answer: Value| read(&answer).ok_or_else(|| self.endpoint.unexpected(&answer));
        let answered = |at, answer: Result<Value>| answered(at, answer.and_then(read));
        match &self.nodes {
            Nodes::One(link) => {
                let answers = link.run_all(&calls.iter().collect::<Vec<_>>()).await;
                let answers = answers.map_err(|failure| self.endpoint.failed(failure))?;
                let refused = |error: RedisError| self.endpoint.refused(&error);
                let answers = answers.into_iter().map(|answer| answer.map_err(refused));
                answers.enumerate().for_each(|(at, answer)| answered(at, answer));
            }
            Nodes::Cluster(cluster) => cluster.run_each(calls, &answered).await,
        }
        Ok(())
    }

    /// Sends plain commands to one server in one round trip; `None` in a cluster, where nothing is sent. The server may
    /// run commands of other clients between them.
    ///
    /// # Errors
    ///
    /// The reason why there is no answer.
    pub async fn send_each(
        &self,
        commands: &Pipeline,
        dispatch: &Arc<Dispatch>,
    ) -> Option<Result<Vec<Value>, Failure>> {
        Some(self.only()?.send_each(commands, dispatch).await)
    }

    /// Sends the plain commands that are made from a lower bound of the server's clock, in microseconds since 1970, in one
    /// round trip. `None` if nothing is sent: without commands, in a cluster, without a connection, or if nothing is known of
    /// the clock, or nothing recent. Then the next request asks for it. The server may run commands of other clients between them.
    ///
    /// # Errors
    ///
    /// The reason why there is no answer.
    pub async fn send_by_clock(
        &self,
        commands: impl FnOnce(u64) -> Option<Commands> + Send,
        dispatch: &Arc<Dispatch>,
    ) -> Option<Result<Vec<Value>, Failure>> {
        self.only()?.send_by_clock(commands, dispatch).await
    }

    /// Sends a call about a lock, and waits until this many replicas have applied it (`WAIT`). Returns the answer, and how
    /// many replicas have.
    ///
    /// # Errors
    ///
    /// When the call fails, or the server refuses `WAIT`.
    pub async fn replicate(
        &self,
        keys: &Keys,
        call: &Call,
        replicas: u32,
        wait_timeout: Duration,
    ) -> Result<(Value, u32)> {
        let link = self.link_of(keys).await?;
        link.replicate(call, replicas, wait_timeout).await.map_err(|failure| match failure {
            // Following the redirect would wait for the replicas of another master.
            Failure::Refused(error) if error.is_cluster_error() => {
                self.endpoint.slot_moves().with_outcome(Outcome::Applied)
            }
            failure => self.endpoint.failed(failure).with_outcome(Outcome::Unknown),
        })
    }

    /// How many replicas are connected to the master that has the keys of a lock.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses `INFO`.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn connected_replicas(&self, keys: &Keys) -> Result<u32> {
        let link = self.link_of(keys).await?;
        let answer = link.query(redis::cmd("INFO").arg("replication")).await;
        let answer = answer.map_err(|failure| self.endpoint.failed(failure))?;
        let info = wire::text(&answer).ok_or_else(|| self.endpoint.unexpected(&answer))?;
        Ok(info_field(&info, "connected_slaves").and_then(|count| count.parse().ok()).unwrap_or_default())
    }

    /// The link to the only server; `None` for a cluster.
    const fn only(&self) -> Option<&Arc<Link>> {
        match &self.nodes {
            Nodes::One(link) => Some(link),
            Nodes::Cluster(_) => None,
        }
    }

    const fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.nodes {
            Nodes::One(_) => None,
            Nodes::Cluster(cluster) => Some(cluster),
        }
    }

    /// The link to the server that has the keys of a lock.
    async fn link_of(&self, keys: &Keys) -> Result<Arc<Link>> {
        match &self.nodes {
            Nodes::One(link) => Ok(Arc::clone(link)),
            Nodes::Cluster(cluster) => cluster.link_of(keys.lock()).await,
        }
    }

    /// The links to all masters, as far as the slot map of a cluster is known.
    pub(crate) async fn links(&self) -> Result<Vec<Arc<Link>>> {
        match &self.nodes {
            Nodes::One(link) => Ok(vec![Arc::clone(link)]),
            Nodes::Cluster(cluster) => cluster.links().await,
        }
    }

    /// The links to all masters, by the present slot map of a cluster.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Link>>> {
        if let Some(cluster) = self.cluster() {
            cluster.refresh().await?;
        }
        self.links().await
    }

    /// The [generation](Self::generation) of the connection of this link.
    pub(crate) fn generation_of(&self, link: &Link) -> Option<u64> {
        link.generation().map(|own| self.cluster().map_or(own, |cluster| cluster.epoch()))
    }

    /// Sends commands that change nothing in one round trip, once more if the connection breaks, and returns the answer to
    /// each.
    pub(crate) async fn query_each(
        &self,
        link: &Arc<Link>,
        commands: &Pipeline,
    ) -> Result<Vec<RedisResult<Value>>> {
        let answers = match link.query_each(commands).await {
            Err(Failure::Dropped) => link.query_each(commands).await,
            answers => answers,
        };
        answers.map_err(|failure| link.endpoint.failed(failure))
    }

    /// Examines the server, or each master of a cluster, for the doctor.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        if let Some(link) = self.only() {
            return link.examine().await;
        }
        let mut findings = Vec::new();
        for link in self.links().await? {
            match link.examine().await {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(Finding::new(
                    FindingLevel::Warning,
                    link.endpoint.address.clone(),
                    format!("a master of the cluster is unreachable: {error}"),
                    "bring it or its replica back: until then its locks cannot be acquired",
                )),
            }
        }
        Ok(findings)
    }

    /// Reports what may lose the tombstones of locks that have moved, on each master: they have to last for weeks, where a
    /// lock lasts for seconds.
    ///
    /// # Errors
    ///
    /// When a master cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn examine_durability(&self) -> Result<Vec<Finding>> {
        let mut commands = Pipeline::new();
        commands.cmd("INFO").cmd("CONFIG").arg("GET").arg("save");
        let mut findings = Vec::new();
        for link in self.masters().await? {
            findings.extend(durability(&link.endpoint.address, self.query_each(&link, &commands).await?));
        }
        Ok(findings)
    }

    /// The identity of the server, as read with the last connection; `None` for a cluster, if it [was not
    /// requested](ClientOptions::asks_identity), or if the server refused.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.only()?.identity()
    }

    /// Reads the server's clock, as the time since 1970: one round trip. Not for a cluster.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn time(&self) -> Result<Duration> {
        match self.only() {
            Some(link) => self.time_at(link).await,
            None => Err(self.endpoint.error(ErrorKind::Unsupported, "a cluster has no clock of its own")),
        }
    }

    /// The clock of the server that has these keys, since 1970. Users without a right to write may ask for it.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    pub async fn time_of(&self, keys: &Keys) -> Result<Duration> {
        self.time_at(&self.link_of(keys).await?).await
    }

    async fn time_at(&self, link: &Arc<Link>) -> Result<Duration> {
        let answer =
            link.query(&redis::cmd("TIME")).await.map_err(|failure| self.endpoint.failed(failure))?;
        wire::time(&answer).ok_or_else(|| self.endpoint.unexpected(&answer))
    }

    /// The error for a [broken](crate::scripts::lock_answer::LockAnswer::Broken) connection.
    #[must_use]
    pub fn broken(&self) -> Error {
        self.endpoint.dropped()
    }

    /// The generation of the connection that a lock uses, `None` without one; for [`take_back`](Self::take_back).
    #[must_use]
    pub fn generation(&self, keys: &Keys) -> Option<u64> {
        match &self.nodes {
            Nodes::One(link) => link.generation(),
            Nodes::Cluster(cluster) => cluster.generation(keys.lock()),
        }
    }

    /// Closes the connections for good.
    pub fn close(&self) {
        match &self.nodes {
            Nodes::One(link) => link.close(),
            Nodes::Cluster(cluster) => cluster.close(),
        }
    }

    /// Whether the connections were closed for good.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match &self.nodes {
            Nodes::One(link) => link.is_closed(),
            Nodes::Cluster(cluster) => cluster.is_closed(),
        }
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").field("address", &self.endpoint.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions").field("topology", &self.topology).finish_non_exhaustive()
    }
}

/// The error of a platform without Unix sockets.
fn no_sockets(backend: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message("this platform has no Unix sockets")
        .with_hint("connect to the server by its host and port, as in redis://host:6379")
}
