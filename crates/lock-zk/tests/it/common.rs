//! What the tests share: a server, a plain client beside the locks, and looks into the tree.

use std::net::TcpStream;
use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant};

use lock_core::{Guard, Locks, Released, Result};
use lock_testkit::proxy::{Direction, FaultProxy, Protocol, opcode, zk_opcode};
use lock_testkit::zookeeper::Borrowed;
use lock_testkit::{ZkEnsemble, ZooKeeper};
use lock_zk::zookeeper_client::{Acls, Client, CreateMode, Error};
use lock_zk::{ZkConfig, ZkLayout};
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Long enough for a noisy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);
/// Where expiry is the subject. A process that is not let run for three quarters of it loses its locks, rightly.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// Where an answer never comes: the driver notices it after a fifth, and we have given up after half of it.
pub(crate) const LONG: Duration = Duration::from_secs(8);
/// For what comes to pass sooner or later.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// For what is on its way to arrive, or not to.
pub(crate) const SETTLED: Duration = Duration::from_millis(150);
pub(crate) const LAYOUTS: [ZkLayout; 3] = [ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo];

/// Matches the requests by which a contender gets its place in the queue.
pub(crate) fn enters() -> impl Fn(&[u8]) -> bool + Send + Sync + 'static {
    let (creates, creates_and_writes) = (zk_opcode(opcode::CREATE2), transacts());
    move |request| creates(request) || creates_and_writes(request)
}

/// Matches transactions, but for [those](is_check) that may be heartbeats.
pub(crate) fn transacts() -> impl Fn(&[u8]) -> bool + Send + Sync + 'static {
    move |request| zk_opcode(opcode::MULTI)(request) && !is_check(request)
}

/// Whether this is a transaction that begins with a check, as a heartbeat does.
pub(crate) fn is_check(request: &[u8]) -> bool {
    zk_opcode(opcode::MULTI)(request) && request.get(12..16) == Some(&opcode::CHECK.to_be_bytes())
}

/// A server, locks through a proxy and beside it, and a plain client.
pub(crate) struct Scene {
    pub(crate) locks: Locks,
    pub(crate) other: Locks,
    pub(crate) client: Client,
    pub(crate) proxy: FaultProxy,
    // Looks whether the others have left anything.
    pub(crate) server: Server,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(TIMEOUT, ZkLayout::Curator).await
    }

    pub(crate) async fn with(timeout: Duration, layout: ZkLayout) -> Self {
        Self::at(server().await, timeout, layout).await
    }

    /// With a server of its own, which the test may configure anew.
    pub(crate) async fn restartable() -> Self {
        Self::at(ZooKeeper::start().await.unwrap().into(), TIMEOUT, ZkLayout::Curator).await
    }

    async fn at(server: Server, timeout: Duration, layout: ZkLayout) -> Self {
        let proxy = proxy(&server);
        let locks = opened(&through(&proxy).session_timeout(timeout).layout(layout)).await;
        let (other, client) = (connect(&server).await, client(&server).await);
        Self { locks, other, client, proxy, server }
    }

    pub(crate) fn black_hole(&self, on: bool) {
        black_hole(&self.proxy, on);
    }

    /// Whether nothing is left of `a`, so that the next one gets it.
    pub(crate) async fn is_clean(&self) {
        until_children(&self.client, "a", 0).await;
        // Not a mere try: a creation that was sent and given up may arrive only now, to be undone.
        let guard = self.other.mutex("a").try_acquire_for(Duration::from_secs(5)).await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        until_children(&self.client, "a", 0).await;
    }
}

/// A server that looks at the end of a test whether anything is left on it: a node that goes with its session, a watch,
/// a connection. The test must have dropped its clients by then, which it has if it made them later.
#[derive(Debug)]
pub(crate) enum Server {
    Own(ZooKeeper),
    /// The next test gets it, without the nodes of this one.
    Borrowed(Option<Borrowed>),
}

impl From<ZooKeeper> for Server {
    fn from(server: ZooKeeper) -> Self {
        Self::Own(server)
    }
}

impl Deref for Server {
    type Target = ZooKeeper;

    fn deref(&self) -> &ZooKeeper {
        match self {
            Self::Own(server) => server,
            Self::Borrowed(server) => server.as_ref().expect("it is returned when this is dropped"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !is_alive(self) {
            return;
        }
        look_what_is_left(&[self]);
        if let Self::Borrowed(server) = self
            && let Some(server) = server.take()
            && !thread::panicking()
        {
            let is_as_new = in_a_thread(async {
                let has_removed_all = remove_nodes(&server).await;
                nothing_is_left(&server).await;
                has_removed_all
            });
            if is_as_new {
                server.give_back();
            }
        }
    }
}

/// Servers of one ensemble, of which those that run are looked at in the same way, unless too few do.
#[derive(Debug)]
pub(crate) struct Servers(ZkEnsemble);

impl Servers {
    pub(crate) async fn start() -> Self {
        ZkEnsemble::start().await.unwrap().into()
    }
}

impl From<ZkEnsemble> for Servers {
    fn from(ensemble: ZkEnsemble) -> Self {
        Self(ensemble)
    }
}

impl Deref for Servers {
    type Target = ZkEnsemble;

    fn deref(&self) -> &ZkEnsemble {
        &self.0
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let alive: Vec<_> = self.0.nodes().iter().filter(|node| is_alive(node)).collect();
        if alive.len() > self.0.nodes().len() / 2 {
            look_what_is_left(&alive);
        }
    }
}

fn is_alive(server: &ZooKeeper) -> bool {
    TcpStream::connect(server.addr()).is_ok()
}

fn look_what_is_left(servers: &[&ZooKeeper]) {
    if thread::panicking() {
        return;
    }
    let one_thread =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
    assert!(
        !one_thread,
        "what is to be gone goes in the background: give the test a runtime of several threads"
    );
    in_a_thread(async {
        for server in servers {
            nothing_is_left(server).await;
        }
    });
}

/// Runs this beside the test's own runtime, which may be blocked meanwhile.
fn in_a_thread<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let work = || Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    thread::scope(|scope| scope.spawn(work).join()).unwrap()
}

/// Removes all nodes, but for those that belong to somebody else; returns whether there are none.
async fn remove_nodes(server: &ZooKeeper) -> bool {
    let client = client(server).await;
    let mut paths = vec![String::new()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        let Ok(children) = client.list_children(if path.is_empty() { "/" } else { &path }).await else {
            return false;
        };
        paths.extend(
            children.iter().map(|child| format!("{path}/{child}")).filter(|path| path != "/zookeeper"),
        );
        next += 1;
    }
    for path in paths[1..].iter().rev() {
        if !matches!(client.delete(path, None).await, Ok(()) | Err(Error::NoNode)) {
            return false;
        }
    }
    true
}

pub(crate) async fn nothing_is_left(server: &ZooKeeper) {
    let start = Instant::now();
    loop {
        // It may be electing a leader.
        let counters = server.mntr().await.unwrap_or_default();
        let left = [
            ("zk_ephemerals_count", "0"),
            ("zk_watch_count", "0"),
            // This question.
            ("zk_num_alive_connections", "1"),
        ]
        .map(|(name, none)| (name, counters.get(name).cloned(), none));
        if left.iter().all(|(_, count, none)| count.as_deref() == Some(none)) {
            return;
        }
        // Sessions that were cut off end by themselves.
        assert!(
            start.elapsed() < TIMEOUT * 5,
            "the test has left something: {left:?}\n{}",
            server.four_letter("dump").await.unwrap_or_default()
        );
        sleep(Duration::from_millis(10)).await;
    }
}

/// A server as new.
pub(crate) async fn server() -> Server {
    Server::Borrowed(Some(ZooKeeper::borrow().await.unwrap()))
}

pub(crate) fn proxy(server: &ZooKeeper) -> FaultProxy {
    FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap()
}

/// A client that stands for a process of its own.
pub(crate) fn config(server: &ZooKeeper) -> ZkConfig {
    ZkConfig::new(server.connect_string()).session_timeout(TIMEOUT).private_session(true)
}

pub(crate) fn through(proxy: &FaultProxy) -> ZkConfig {
    ZkConfig::new(proxy.addr().to_string()).session_timeout(TIMEOUT).private_session(true)
}

pub(crate) async fn connect(server: &ZooKeeper) -> Locks {
    opened(&config(server)).await
}

/// Connects. A noisy machine may need longer for it than a short session lasts.
pub(crate) async fn opened(config: &ZkConfig) -> Locks {
    let start = Instant::now();
    loop {
        match config.clone().connect().await {
            Err(error) if error.is_retryable() && start.elapsed() < TIMEOUT * 4 => {}
            connected => return connected.unwrap(),
        }
    }
}

/// A client of the test's own.
pub(crate) async fn client(server: &ZooKeeper) -> Client {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(20));
    connector.connect(&server.connect_string()).await.unwrap()
}

pub(crate) async fn children(client: &Client, name: &str) -> Vec<String> {
    let mut children = client.list_children(&format!("/locks/{name}")).await.unwrap_or_default();
    children.sort_unstable_by_key(|child| child[child.len().saturating_sub(10)..].to_owned());
    children
}

/// Waits until the directory of the lock has this many nodes.
pub(crate) async fn until_children(client: &Client, name: &str, count: usize) {
    let start = Instant::now();
    loop {
        let children = children(client, name).await;
        if children.len() == count {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{children:?} and not {count} nodes");
        sleep(Duration::from_millis(5)).await;
    }
}

/// How many watches there are for the nodes of locks. Every session that takes locks has another for the base of tokens.
pub(crate) async fn lock_watches(server: &ZooKeeper) -> usize {
    let by_path = server.four_letter("wchp").await.unwrap();
    let mut of_locks = false;
    let watches = by_path.lines().filter(|line| {
        let session = line.starts_with(char::is_whitespace);
        of_locks = if session { of_locks } else { !line.ends_with("!token-base") };
        session && of_locks
    });
    watches.count()
}

/// Creates a node and what is missing above it.
pub(crate) async fn mkdir(client: &Client, path: &str) {
    client.mkdir(path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
}

/// Creates a node of another library in the directory of the lock `a`, and returns its path.
pub(crate) async fn foreign(client: &Client, prefix: &str) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client.create(&format!("/locks/a/{prefix}"), b"", &options).await.unwrap();
    format!("/locks/a/{prefix}{sequence}")
}

pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < SOON, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for the lock `a`.
pub(crate) fn wait(locks: &Locks) -> JoinHandle<Result<Guard>> {
    let mutex = locks.mutex("a");
    tokio::spawn(async move { mutex.acquire().await })
}

/// Waits for the lock `a`, and has its position in the queue: its directory has this many nodes.
pub(crate) async fn queue_up(locks: &Locks, client: &Client, count: usize) -> JoinHandle<Result<Guard>> {
    let waiter = wait(locks);
    until_children(client, "a", count).await;
    waiter
}

pub(crate) async fn soon<T>(waiter: JoinHandle<Result<T>>) -> T {
    timeout(SOON, waiter).await.expect("its turn comes").unwrap().unwrap()
}

pub(crate) async fn give_back(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

/// Whether nothing passes this proxy, and no end of a connection is seen.
pub(crate) fn black_hole(proxy: &FaultProxy, on: bool) {
    proxy.black_hole(Direction::ToServer, on);
    proxy.black_hole(Direction::ToClient, on);
}
