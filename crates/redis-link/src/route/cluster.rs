//! A Redis Cluster: each request goes to the node that has its slot.
//!
//! The driver's own cluster client resends requests by itself, and an acquisition must never be in flight twice. This
//! one resends a request only after a node answered that it did not run it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{join, join_all};
use futures_util::stream::FuturesUnordered;
use lock_core::engine::Answered;
use lock_core::single_flight::SingleFlight;
use lock_core::{Error, ErrorKind, Result};
use redis::{ConnectionAddr, ConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use crate::connect::dial::Settings;
use crate::connect::greeting::info_field;
use crate::connect::link::{Link, Route};
use crate::connect::topology::at;
use crate::error::{Endpoint, Failure};
use crate::route::dispatch::Dispatch;
use crate::route::slot::slot_of;
use crate::scripts::script::Call;

/// A request that is redirected more often goes in a circle.
const MOST_REDIRECTS: usize = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// The nodes of a cluster, one connection to each.
pub(crate) struct Cluster {
    endpoint: Endpoint,
    settings: Settings,
    seeds: Vec<ConnectionInfo>,
    state: Mutex<State>,
    /// Only one task reads the slot map at a time.
    refreshing: SingleFlight,
    /// Incremented whenever a connection to any node is opened or dropped.
    epoch: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    map: SlotMap,
    links: HashMap<Node, Arc<Link>>,
    /// A node was unreachable, or its connection broke: other nodes may have its slots now.
    stale: bool,
    closed: bool,
}

/// Host and port of a node.
pub(crate) type Node = (String, u16);

/// Which node has which slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SlotMap {
    /// First and last slot, and the master.
    ranges: Vec<(u16, u16, Node)>,
    /// Slots that nodes redirected elsewhere since the map was read.
    moved: HashMap<u16, Node>,
}

/// The reason why a node did not run a request.
#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// Another node has the slot.
    Moved(Node),
    /// Another node has the key, while the slot migrates.
    Ask(Node),
    /// No node can run it, while the slot migrates.
    Wait,
    /// The node considers the cluster down: other nodes may have its slots.
    Down,
}

impl Cluster {
    pub(crate) fn new(endpoint: Endpoint, settings: Settings, seeds: Vec<ConnectionInfo>) -> Self {
        let refreshing = SingleFlight::at(settings.home.clone());
        Self { endpoint, settings, seeds, state: Mutex::default(), refreshing, epoch: Arc::default() }
    }

    /// Connects to all masters. A master that is down is connected on first use.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<()> {
        self.refresh().await?;
        let nodes: Vec<Node> = self.state().map.nodes();
        let answers =
            join_all(nodes.iter().map(|node| async { self.link(node)?.connection().await.map(drop) }));
        let (good, bad): (Vec<_>, Vec<_>) = answers.await.into_iter().partition(|answer| answer.is_ok());
        let mut errors = bad.into_iter().filter_map(std::result::Result::err);
        let fatal = |error: &Error| good.is_empty() || error.kind() != ErrorKind::Unavailable;
        errors.find(fatal).map_or(Ok(()), Err)
    }

    /// Sends a call. A call that no node can run for the moment is resent until one can, or until the command timeout.
    pub(crate) async fn send(
        self: &Arc<Self>,
        call: &Call,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Value, Failure> {
        self.send_until(Instant::now() + self.settings.command_timeout, call, dispatch).await
    }

    async fn send_until(
        self: &Arc<Self>,
        until: Instant,
        call: &Call,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Value, Failure> {
        let slot = self.slot(call).map_err(Failure::Unreached)?;
        let (mut pause, mut redirects) = (FIRST_PAUSE, 0);
        let mut ask: Option<Node> = None;
        loop {
            let asking = ask.is_some();
            let link = match ask.take() {
                Some(node) => self.link(&node),
                None => self.home(slot).await,
            };
            let link = link.map_err(Failure::Unreached)?;
            let answer =
                if asking { link.send_asking(call, dispatch).await } else { link.send(call, dispatch).await };
            let error = match answer {
                Err(Failure::Refused(error)) => error,
                Err(Failure::Unreached(error)) => {
                    if redirects < MOST_REDIRECTS && self.has_moved(slot, &link).await {
                        redirects += 1;
                        continue;
                    }
                    return Err(Failure::Unreached(error));
                }
                Err(failure) => {
                    self.state().stale = true;
                    return Err(failure);
                }
                answer => return answer,
            };
            match redirect(&error, &self.host_of(&link)) {
                Some(Redirect::Moved(node)) if redirects < MOST_REDIRECTS => {
                    redirects += 1;
                    self.moved(slot, node).await;
                }
                Some(Redirect::Ask(node)) if redirects < MOST_REDIRECTS => {
                    redirects += 1;
                    ask = Some(node);
                }
                Some(wait @ (Redirect::Wait | Redirect::Down)) if Instant::now() < until => {
                    // The command timeout limits this loop, and each round may begin with a redirect.
                    redirects = 0;
                    // Not in every round: reading the map is expensive for a cluster in a failover.
                    let asks = wait == Redirect::Down && matches!(pause, FIRST_PAUSE | LAST_PAUSE);
                    if asks && self.has_moved(slot, &link).await {
                        continue;
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                Some(Redirect::Moved(_) | Redirect::Ask(_)) => {
                    return Err(Failure::Unreached(self.endpoint.slot_moves()));
                }
                _ => return Err(Failure::Refused(error)),
            }
        }
    }

    /// Sends the calls to their nodes concurrently, to each in one round trip, and passes on each answer as it comes: a node that
    /// hangs delays those of no other. A call that no node can run now fails at once.
    pub(crate) async fn run_each(self: &Arc<Self>, calls: &[Call], answered: &dyn Answered<Result<Value>>) {
        let is_known = |at: &usize| self.slot(&calls[*at]).is_ok_and(|slot| self.known(slot).is_some());
        // Those whose node is known do not wait for the map.
        let (known, unknown): (Vec<_>, Vec<_>) = (0..calls.len()).partition(is_known);
        join(self.run_these(calls, known, answered), self.run_these(calls, unknown, answered)).await;
    }

    /// The same with these of the calls, once their nodes are known.
    async fn run_these(
        self: &Arc<Self>,
        calls: &[Call],
        these: Vec<usize>,
        answered: &dyn Answered<Result<Value>>,
    ) {
        let homes = these.iter().map(|at| async {
            match self.slot(&calls[*at]) {
                Ok(slot) => self.home(slot).await,
                Err(error) => Err(error),
            }
        });
        let homes = join_all(homes).await;
        let mut shares: Vec<(Arc<Link>, Vec<usize>)> = Vec::new();
        for (at, home) in these.into_iter().zip(homes) {
            match home {
                Err(error) => answered(at, Err(error)),
                Ok(link) => match shares.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &link)) {
                    Some((_, share)) => share.push(at),
                    None => shares.push((link, vec![at])),
                },
            }
        }
        join_all(shares.iter().map(|(link, share)| self.run_share(calls, link, share, answered))).await;
    }

    /// Sends one node its share; what belongs elsewhere by its answers is sent there.
    async fn run_share(
        self: &Arc<Self>,
        calls: &[Call],
        link: &Arc<Link>,
        share: &[usize],
        answered: &dyn Answered<Result<Value>>,
    ) {
        let answers = match link.run_all(&share.iter().map(|at| &calls[*at]).collect::<Vec<_>>()).await {
            Ok(answers) => answers,
            Err(failure) => {
                self.state().stale = true;
                let error = self.endpoint.failed(failure);
                return share.iter().for_each(|at| answered(*at, Err(error.clone())));
            }
        };
        let settled = share.iter().zip(answers).map(|(at, answer)| async move {
            let call = &calls[*at];
            let answer = match answer {
                Err(error) if self.is_elsewhere(&error, call, link).await => {
                    self.send_until(Instant::now(), call, &Dispatch::urgent()).await
                }
                answer => answer.map_err(Failure::Refused),
            };
            answered(*at, answer.map_err(|failure| self.endpoint.failed(failure)));
        });
        join_all(settled).await;
    }

    /// Whether another node can run the call that this one refused.
    async fn is_elsewhere(self: &Arc<Self>, error: &RedisError, call: &Call, link: &Arc<Link>) -> bool {
        match (redirect(error, &self.host_of(link)), self.slot(call)) {
            (Some(Redirect::Moved(_) | Redirect::Ask(_)), _) => true,
            (Some(Redirect::Down), Ok(slot)) => self.has_moved(slot, link).await,
            _ => false,
        }
    }

    /// A number that changes whenever a connection is opened or dropped, or slots move. While it is unchanged, an earlier
    /// request went out on the connection that is in use now.
    pub(crate) fn generation(&self, key: &str) -> Option<u64> {
        let state = self.state();
        let node = state.map.node(slot_of(key.as_bytes()))?;
        let connected = state.links.get(node)?.generation().is_some();
        connected.then(|| self.epoch())
    }

    /// The name of the node that has the slot of this key, if it is known.
    pub(crate) fn node_name(&self, key: &str) -> Option<String> {
        self.state().map.node(slot_of(key.as_bytes())).map(name_of)
    }

    /// The address of the node with this name.
    pub(crate) async fn node_named(&self, name: &str) -> Result<ConnectionInfo> {
        let node = self.state().links.keys().find(|node| name_of(node) == name).cloned();
        match node {
            Some(node) => self.link(&node)?.at().await,
            None => Err(self
                .endpoint
                .error(ErrorKind::Unavailable, "the node has left the cluster")
                .with_hint("try again")),
        }
    }

    /// The links to all masters.
    pub(crate) async fn links(self: &Arc<Self>) -> Result<Vec<Arc<Link>>> {
        if self.state().map.ranges.is_empty() {
            self.refresh().await?;
        }
        let nodes = self.state().map.nodes();
        nodes.iter().map(|node| self.link(node)).collect()
    }

    /// The number behind [`generation`](Self::generation).
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Ensures a connection to the node of this key.
    pub(crate) async fn reach(self: &Arc<Self>, key: &str) -> Result<()> {
        let slot = slot_of(key.as_bytes());
        let link = self.home(slot).await?;
        match link.connection().await {
            Err(_) if self.has_moved(slot, &link).await => {
                self.home(slot).await?.connection().await.map(drop)
            }
            reached => reached.map(drop),
        }
    }

    /// The link to the node of this key.
    pub(crate) async fn link_of(self: &Arc<Self>, key: &str) -> Result<Arc<Link>> {
        self.home(slot_of(key.as_bytes())).await
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.links.values().for_each(|link| link.close());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn slot(&self, call: &Call) -> Result<u16> {
        let mut slots = call.keys().map(slot_of);
        let first = slots.next().unwrap_or_default();
        if slots.all(|slot| slot == first) {
            return Ok(first);
        }
        let lock = call.keys().next().map(String::from_utf8_lossy).unwrap_or_default();
        Err(self.endpoint.cross_slot(&lock))
    }

    /// The link to the node that has the slot; reads the map if the node is not known.
    async fn home(self: &Arc<Self>, slot: u16) -> Result<Arc<Link>> {
        if let Some(node) = self.known(slot) {
            return self.link(&node);
        }
        let read = self.refresh().await;
        let node = self.state().map.node(slot).cloned();
        match (node, read) {
            // An old map is better than none.
            (Some(node), _) => self.link(&node),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(self
                .endpoint
                .error(ErrorKind::Unavailable, &format!("no node of the cluster has slot {slot}"))
                .with_hint("try again; if it stays so, check the cluster (redis-cli --cluster check)")),
        }
    }

    /// The node that has the slot, unless the map may be stale. With a connected node it is not: such a node redirects
    /// requests for slots that it gave away.
    fn known(&self, slot: u16) -> Option<Node> {
        let state = self.state();
        let node = state.map.node(slot)?;
        let is_connected = || state.links.get(node).is_some_and(|link| link.generation().is_some());
        (!state.stale || is_connected()).then(|| node.clone())
    }

    fn link(&self, node: &Node) -> Result<Arc<Link>> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::closed(self.endpoint.backend));
        }
        let link = state.links.entry(node.clone()).or_insert_with(|| {
            let endpoint = Endpoint { address: name_of(node), ..self.endpoint.clone() };
            let route = Route::Fixed(at(&self.seeds[0], &node.0, node.1));
            Arc::new(Link::new(endpoint, self.settings.clone(), route, Arc::clone(&self.epoch)))
        });
        Ok(Arc::clone(link))
    }

    /// Reads the map again after a node was unreachable, and reports whether another node has the slot.
    async fn has_moved(self: &Arc<Self>, slot: u16, link: &Arc<Link>) -> bool {
        self.refresh().await.is_ok() && self.home(slot).await.is_ok_and(|home| !Arc::ptr_eq(&home, link))
    }

    /// Records a redirect to another node, and reads the map again.
    async fn moved(self: &Arc<Self>, slot: u16, node: Node) {
        // Without a new map, the redirect is enough for this request; the map is read later.
        let read = self.refresh().await;
        let mut state = self.state();
        state.stale = read.is_err();
        if state.map.node(slot) != Some(&node) {
            state.map.moved.insert(slot, node);
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Reads the map.
    pub(crate) async fn refresh(self: &Arc<Self>) -> Result<()> {
        let limit = self.settings.connect_timeout;
        let read = || {
            let cluster = Arc::clone(self);
            async move { cluster.read_map(limit).await }
        };
        let read = self.refreshing.join(limit + limit / 4, read).await;
        read.unwrap_or_else(|| Err(self.endpoint.connect_timeout(limit)))
    }

    /// Asks all known nodes concurrently, as some may be down. The first map from a node that sees the whole cluster is
    /// adopted. A partitioned node may have an old map, which is used only if there is none yet.
    async fn read_map(&self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        let known = self.state().map.nodes();
        let known: Vec<_> = known.iter().map(|(host, port)| at(&self.seeds[0], host, *port)).collect();
        let is_new = |seed: &&ConnectionInfo| known.iter().all(|node| node.addr() != seed.addr());
        let seeds = self.seeds.iter().filter(is_new);
        let mut asked: FuturesUnordered<_> =
            seeds.chain(&known).map(|info| self.ask_for_map(info.clone())).collect();
        let (mut partial, mut failed) = (None, None);
        while let Ok(Some(answer)) = timeout_at(until, asked.next()).await {
            match answer {
                Ok((map, true)) => {
                    self.adopt(map);
                    return Ok(());
                }
                Ok((map, false)) => partial = Some(map),
                Err(error) => failed = Some(error),
            }
        }
        match partial {
            Some(map) if self.state().map.ranges.is_empty() => {
                self.adopt(map);
                Ok(())
            }
            Some(_) => Err(self.endpoint.cluster_is_down()),
            None => Err(failed.unwrap_or_else(|| self.endpoint.connect_timeout(limit))),
        }
    }

    fn adopt(&self, map: SlotMap) {
        let mut state = self.state();
        if state.map != map {
            self.epoch.fetch_add(1, Ordering::AcqRel);
            let nodes = map.nodes();
            state.links.retain(|node, _| nodes.contains(node));
        }
        (state.map, state.stale) = (map, false);
    }

    /// Reads the slot map of one node, and whether that node sees the whole cluster.
    async fn ask_for_map(&self, node: ConnectionInfo) -> Result<(SlotMap, bool)> {
        let unreachable = |error: RedisError| self.endpoint.unreachable(&error);
        let mut connection = self.settings.dialer.commands(&node).await.map_err(unreachable)?;
        connection.set_response_timeout(self.settings.command_timeout);
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors().cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let answers: [RedisResult<Value>; 2] =
            pipeline.query_async(&mut connection).await.map_err(unreachable)?;
        let [slots, info] = answers;
        let slots = slots.map_err(unreachable)?;
        let map = SlotMap::read(&slots, &host(&node)).ok_or_else(|| self.endpoint.unexpected(&slots))?;
        if map.ranges.is_empty() {
            return Err(self
                .endpoint
                .error(ErrorKind::Unavailable, "a node of the cluster has no slot map")
                .with_hint(
                    "create the cluster (redis-cli --cluster create), or name other nodes in the URL",
                ));
        }
        // Without the right to CLUSTER INFO, assume that it does.
        let info = info.ok().and_then(|info| redis::from_redis_value::<String>(info).ok());
        let sees_all = info.is_none_or(|info| info_field(&info, "cluster_state") != Some("fail"));
        Ok((map, sees_all))
    }

    fn host_of(&self, link: &Link) -> String {
        match link.route() {
            Route::Fixed(info) => host(info),
            Route::Sentinel(_) => String::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotMap {
    /// Reads the answer to CLUSTER SLOTS; a node without a host is the one that was `asked`.
    fn read(answer: &Value, asked: &str) -> Option<Self> {
        let Value::Array(entries) = answer else { return None };
        let range = |entry: &Value| {
            let Value::Array(parts) = entry else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
                return None;
            };
            let [name, Value::Int(port), ..] = &master[..] else { return None };
            let name: Option<String> = redis::from_redis_value_ref(name).ok()?;
            let name = name.filter(|name| !name.is_empty() && name != "?");
            let node = (name.unwrap_or_else(|| asked.to_owned()), u16::try_from(*port).ok()?);
            Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, node))
        };
        let ranges = entries.iter().map(range).collect::<Option<_>>()?;
        Some(Self { ranges, moved: HashMap::new() })
    }

    fn node(&self, slot: u16) -> Option<&Node> {
        let range = || self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        self.moved.get(&slot).or_else(|| range().map(|(_, _, node)| node))
    }

    fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<Node> = self.ranges.iter().map(|(_, _, node)| node.clone()).collect();
        nodes.extend(self.moved.values().cloned());
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// Parses a redirect; `asked` is the host of the node that sent it.
fn redirect(error: &RedisError, asked: &str) -> Option<Redirect> {
    let node = || {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { asked } else { host };
        Some((host.to_owned(), port.parse().ok()?))
    };
    match error.kind() {
        redis::ErrorKind::Server(ServerErrorKind::Moved) => node().map(Redirect::Moved),
        redis::ErrorKind::Server(ServerErrorKind::Ask) => node().map(Redirect::Ask),
        redis::ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Redirect::Wait),
        redis::ErrorKind::Server(ServerErrorKind::ClusterDown) => Some(Redirect::Down),
        _ => None,
    }
}

fn host(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    }
}

fn name_of(node: &Node) -> String {
    format!("{}:{}", node.0, node.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), bulk("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn maps() {
        let answer = Value::Array(vec![
            entry(0, 99, bulk("a"), 1),
            entry(100, 200, Value::Nil, 2),
            entry(201, 300, bulk("a"), 1),
        ]);
        let mut map = SlotMap::read(&answer, "asked").unwrap();
        assert_eq!(map.node(99), Some(&("a".into(), 1)));
        assert_eq!(map.node(100), Some(&("asked".into(), 2)));
        assert_eq!(map.node(301), None);
        assert_eq!(map.nodes().len(), 2);
        map.moved.insert(99, ("b".into(), 3));
        assert_eq!(map.node(99), Some(&("b".into(), 3)));
        assert_eq!(SlotMap::read(&Value::Okay, "asked"), None);
    }
}
