//! One ZooKeeper server.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::ZooKeeper;
use lock_testkit::conformance::{Fault, Handle, Harness};
use lock_testkit::proxy::{FaultProxy, Protocol};
use tokio::sync::OnceCell;
use zookeeper_client::Client;

use super::{Flavour, PASSWORD, connect, option, set_fault, worker};

/// To whom the nodes belong.
const USER: &str = "locks";

/// The backend `zk`.
#[derive(Debug)]
pub struct ZkHarness {
    name: String,
    flavour: Flavour,
    server: Arc<OnceCell<ZooKeeper>>,
    proxy: Option<FaultProxy>,
}

impl ZkHarness {
    pub fn new(flavour: Flavour, server: Arc<OnceCell<ZooKeeper>>) -> Self {
        Self { name: format!("zk::{flavour}"), flavour, server, proxy: None }
    }

    async fn server(&self) -> &ZooKeeper {
        let start = || async { ZooKeeper::start().await.unwrap_or_else(|error| panic!("{error}")) };
        self.server.get_or_init(start).await
    }

    async fn url(&self, lease: Duration) -> String {
        let server = self.server().await.addr();
        let addr = self.proxy.as_ref().map_or(server, FaultProxy::addr);
        // Every client of the suite stands for a process of its own.
        format!("zk://{USER}:{PASSWORD}@{addr}?session=private&session_timeout={}", option(lease))
    }

    /// The nodes that go with a session, which is what locks and their waiters are made of.
    async fn nodes(&self, part: &str) -> Vec<String> {
        let dump = self.server().await.four_letter("dump").await.expect("the server answers");
        let paths = dump.lines().map(str::trim).filter(|line| line.starts_with('/'));
        paths.filter(|path| path.contains(part)).map(str::to_owned).collect()
    }
}

#[async_trait]
impl Harness for ZkHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("zk", LeaseKind::session(Duration::from_secs(10)));
        (capabilities.fifo, capabilities.counts_waiters) = (true, true);
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        capabilities.revocation = Support::Yes;
        capabilities.names_sharers = true;
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities
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
        self.nodes(part).await
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let login = format!("{USER}:{PASSWORD}");
        let connector = Client::connector().with_auth("digest", login.as_bytes());
        let operator = connector.connect(&self.server().await.connect_string()).await;
        let operator = operator.expect("the server answers");
        let nodes = self.nodes(name).await;
        assert!(!nodes.is_empty(), "{name} is not held");
        for node in nodes {
            operator.delete(&node, None).await.expect("the node can be deleted");
        }
    }

    async fn link(&self) -> Box<dyn Harness> {
        let proxy = FaultProxy::start(self.server().await.addr(), Protocol::ZooKeeper);
        let proxy = Some(proxy.unwrap_or_else(|error| panic!("{error}")));
        Box::new(Self { proxy, ..Self::new(self.flavour, Arc::clone(&self.server)) })
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.flavour, Arc::default()))
    }

    async fn fault(&self, fault: Fault) {
        set_fault(self.proxy.as_slice(), fault);
    }

    async fn restart(&self) {
        self.server().await.restart().await.unwrap_or_else(|error| panic!("{error}"));
    }
}
