//! What the tests share: locks and a plain client on a server, looks into its tree, and waiting.

pub(crate) mod meddler;
mod watched;

use std::panic::Location;
use std::time::Duration;

use lock_core::Locks;
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::{Direction, FaultProxy, Protocol, Then, opcode, zk_opcode};
pub(crate) use lock_testkit::{acquiring, come, give_back, hand_over, queue_up, soon, take, until};
use lock_zk::zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};
use lock_zk::{ZkConfig, ZkLayout, ZkRecipe, ZkWait};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub(crate) use self::watched::*;

/// A session that a busy machine keeps alive.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
// Time: a session whose end is waited for. A process that is not let run for three quarters of it loses its locks, rightly.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// Where an answer never comes: the driver notices it after a fifth, and we have given up after half of it.
pub(crate) const LONG: Duration = Duration::from_secs(8);
/// A session that outlives what a test waits for.
pub(crate) const LASTING: Duration = Duration::from_secs(60);

pub(crate) const LAYOUTS: [ZkLayout; 3] = [ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo];
pub(crate) const EPHEMERAL: ZkRecipe = ZkRecipe::Ephemeral(ZkWait::Watch);
pub(crate) const RECIPES: [ZkRecipe; 2] = [ZkRecipe::Queue, EPHEMERAL];

/// Waits for what does not come.
pub(crate) async fn settled() {
    // Time: no server can be asked for what will not happen.
    sleep(Duration::from_millis(150)).await;
}

/// Demands that these go on.
#[track_caller]
pub(crate) fn still_wait<T>(waiters: &[&JoinHandle<T>]) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        settled().await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "one has ended: {caller}");
    }
}

/// How a request is lost: before it arrives, or with its answer.
pub(crate) const LOSSES: [Option<Then>; 4] = [None, Some(Then::Reset), Some(Then::Fin), Some(Then::Hang)];

/// Loses the next of these requests; then [`FaultProxy::fired`] is 1.
pub(crate) fn lose(
    proxy: &FaultProxy,
    loss: Option<Then>,
    request: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) {
    proxy.reset_counters();
    match loss {
        None => proxy.cut_when(request),
        Some(then) => proxy.swallow_when(request, then),
    }
}

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

/// Locks through a proxy and beside it, and a plain client, all on one server.
pub(crate) struct Scene {
    pub(crate) locks: Locks,
    pub(crate) other: Locks,
    pub(crate) client: Client,
    // Looks whether the others have left anything; for that their sessions are closed, through the proxy.
    pub(crate) server: Server,
    pub(crate) proxy: FaultProxy,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.proxy.heal();
    }
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::of(TIMEOUT, |config| config).await
    }

    pub(crate) async fn with(timeout: Duration, layout: ZkLayout) -> Self {
        Self::of(timeout, |config| config.layout(layout)).await
    }

    /// Both locks are of this kind; those through the proxy have a session of this timeout.
    pub(crate) async fn of(timeout: Duration, kind: impl Fn(ZkConfig) -> ZkConfig) -> Self {
        Self::at(server().await, timeout, kind).await
    }

    pub(crate) async fn at(server: Server, timeout: Duration, kind: impl Fn(ZkConfig) -> ZkConfig) -> Self {
        let proxy = proxy(&server);
        let locks = opened(&kind(through(&proxy).session_timeout(timeout))).await;
        let (other, client) = (opened(&kind(config(&server))).await, client(&server).await);
        Self { locks, other, client, server, proxy }
    }

    /// Another client beside the proxy.
    pub(crate) async fn connect(&self) -> Locks {
        connect(&self.server).await
    }

    pub(crate) fn black_hole(&self, on: bool) {
        black_hole(&self.proxy, on);
    }

    /// Ends the connections, and lets nobody connect.
    pub(crate) fn cut(&self) {
        self.proxy.refuse(true);
        self.proxy.rst();
    }

    /// Whether nothing is left of `a`, so that the next one gets it.
    pub(crate) async fn is_clean(&self) {
        until_children(&self.client, "a", 0).await;
        // Not a mere try: a creation that was sent and given up may arrive only now, to be undone.
        give_back(take(&self.other, "a").await).await;
        until_children(&self.client, "a", 0).await;
    }
}

pub(crate) fn proxy(server: &ZooKeeper) -> FaultProxy {
    FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap()
}

/// A client that stands for a process of its own.
pub(crate) fn config(server: &ZooKeeper) -> ZkConfig {
    config_of(server.connect_string())
}

pub(crate) fn through(proxy: &FaultProxy) -> ZkConfig {
    config_of(proxy.addr().to_string())
}

pub(crate) fn config_of(hosts: String) -> ZkConfig {
    ZkConfig::new(hosts).session_timeout(TIMEOUT).private_session(true)
}

pub(crate) async fn connect(server: &ZooKeeper) -> Locks {
    opened(&config(server)).await
}

/// Connects. A noisy machine may need longer for it than a short session lasts.
pub(crate) async fn opened(config: &ZkConfig) -> Locks {
    let start = Instant::now();
    loop {
        match config.clone().connect().await {
            Err(error) if error.is_retryable() && start.elapsed() < LASTING / 2 => {}
            connected => return connected.unwrap(),
        }
    }
}

/// A client of the test's own.
pub(crate) async fn client(server: &ZooKeeper) -> Client {
    let connector = Client::connector().with_session_timeout(LASTING);
    connector.connect(&server.connect_string()).await.unwrap()
}

/// The nodes in the directory of a lock, in the order of their numbers.
pub(crate) async fn children(client: &Client, name: &str) -> Vec<String> {
    let mut children = client.list_children(&format!("/locks/{name}")).await.unwrap_or_default();
    children.sort_unstable_by_key(|child| child[child.len().saturating_sub(10)..].to_owned());
    children
}

/// The path of this node of the lock `a`: 0 is that of the holder.
pub(crate) async fn node(client: &Client, at: usize) -> String {
    format!("/locks/a/{}", children(client, "a").await[at])
}

/// Deletes this node of the lock `a`, as an operator would.
pub(crate) async fn delete_node(client: &Client, at: usize) {
    client.delete(&node(client, at).await, None).await.unwrap();
}

/// Leaves everybody these rights on the directory of the lock `a`.
pub(crate) async fn allow(scene: &Scene, rights: Permission) {
    let acl = [Acl::new(rights | Permission::ADMIN, AuthId::anyone())];
    scene.client.set_acl("/locks/a", &acl, None).await.unwrap();
}

/// Waits until the directory of the lock has this many nodes.
pub(crate) async fn until_children(client: &Client, name: &str, count: usize) {
    until(&format!("{count} nodes"), async || children(client, name).await.len() == count).await;
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

pub(crate) async fn until_lock_watches(server: &ZooKeeper, count: usize) {
    until(&format!("{count} watches"), async || lock_watches(server).await == count).await;
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

/// Creates an ephemeral node of this very name in the directory of the lock `a`.
pub(crate) async fn fixed(client: &Client, name: &str) {
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create(&format!("/locks/a/{name}"), b"", &options).await.unwrap();
}

/// Whether nothing passes this proxy, and no end of a connection is seen.
pub(crate) fn black_hole(proxy: &FaultProxy, on: bool) {
    proxy.black_hole(Direction::ToServer, on);
    proxy.black_hole(Direction::ToClient, on);
}
