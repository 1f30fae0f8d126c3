//! One ZooKeeper server.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::ZooKeeper;
use lock_testkit::conformance::{Credential, Fault, Handle, Harness};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::zookeeper::Borrowed;
use tokio::sync::OnceCell;
use zookeeper_client::Client;

use super::{Flavour, Login, PASSWORD, PATIENT, TLS, connect, option, set_fault, worker};

/// To whom the nodes belong.
const USER: &str = "locks";

/// What is there once for both recipes: the servers keep the nodes, and the core makes locks of these kinds of mutexes.
const OF_BOTH_RECIPES: [&str; 9] = [
    "a_restart_keeps_locks_and_tokens",
    "all_locks_are_acquired_or_none",
    "an_owner_acquires_again_and_others_are_excluded",
    "an_owner_that_lost_the_lock_acquires_nothing",
    "eight_processes_lose_no_update",
    "locks_in_opposite_orders_block_nobody",
    "one_lost_lock_loses_all",
    "tasks_of_one_owner_share_its_lock",
    "the_same_lock_by_two_connections_is_refused",
];

/// The recipes of the backend `zk`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Recipe {
    Queue,
    /// Every other client polls.
    Ephemeral,
}

/// A server that is started when it is first needed; the next case gets it when this one has ended.
#[derive(Debug, Default)]
pub struct Server {
    shared: OnceCell<Borrowed<ZooKeeper>>,
    /// For what its clients log in by.
    own: OnceCell<ZooKeeper>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(server) = self.shared.take()
            && !thread::panicking()
        {
            // Whatever is left on it has a name that no other case uses.
            server.give_back();
        }
    }
}

/// The backend `zk`, and its recipe of one node per lock.
#[derive(Debug)]
pub struct ZkHarness {
    name: String,
    recipe: Recipe,
    flavour: Flavour,
    server: Arc<Server>,
    login: Option<Login>,
    proxy: Option<FaultProxy>,
    clients: AtomicUsize,
}

impl ZkHarness {
    pub fn new(flavour: Flavour, server: Arc<Server>) -> Self {
        let (name, clients) = (format!("zk::{flavour}"), AtomicUsize::new(0));
        Self { name, recipe: Recipe::Queue, flavour, server, login: None, proxy: None, clients }
    }

    pub fn ephemeral(flavour: Flavour, server: Arc<Server>) -> Self {
        let name = format!("zk-ephemeral::{flavour}");
        Self { name, recipe: Recipe::Ephemeral, ..Self::new(flavour, server) }
    }

    /// The same on another server, or over another connection.
    fn at(&self, server: Arc<Server>, proxy: Option<FaultProxy>) -> Self {
        Self { name: self.name.clone(), recipe: self.recipe, proxy, ..Self::new(self.flavour, server) }
    }

    async fn server(&self) -> &ZooKeeper {
        let start = || async { ZooKeeper::borrow().await.unwrap_or_else(|error| panic!("{error}")) };
        match &self.login {
            None => self.server.shared.get_or_init(start).await,
            Some(login) => self.server.own.get_or_init(|| start_for(login)).await,
        }
    }

    async fn url(&self, lease: Duration) -> String {
        let server = self.server().await.addr();
        let addr = self.proxy.as_ref().map_or(server, FaultProxy::addr);
        let more = match self.recipe {
            Recipe::Queue => "",
            Recipe::Ephemeral if self.clients.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => {
                "&recipe=ephemeral&dir=/ephemeral"
            }
            Recipe::Ephemeral => "&recipe=ephemeral&dir=/ephemeral&wait=poll",
        };
        // Every client of the suite stands for a process of its own.
        let session = format!("session=private&session_timeout={}", option(lease));
        if let Some(login) = &self.login {
            let server = match login {
                Login::Password(_) => format!("zk://{}@{server}?auth=sasl", Login::USER),
                Login::Certificates(_) => format!("zks://{}?acl=creator", self.server().await.secure_addr()),
            };
            return format!("{server}&{session}{PATIENT}{}", login.options(TLS));
        }
        format!("zk://{USER}:{PASSWORD}@{addr}?{session}{more}")
    }

    /// The nodes that go with a session, which is what locks and their waiters are made of.
    async fn nodes(&self, part: &str) -> Vec<String> {
        let dump = self.server().await.four_letter("dump").await.expect("the server answers");
        let paths = dump.lines().map(str::trim).filter(|line| line.starts_with('/'));
        paths.filter(|path| path.contains(part)).map(str::to_owned).collect()
    }
}

async fn start_for(login: &Login) -> ZooKeeper {
    let options = match login {
        Login::Certificates(certificates) => ZooKeeper::builder().tls(certificates, true),
        login => ZooKeeper::builder().sasl(Login::USER, &login.password().unwrap_or_default()),
    };
    options.start().await.unwrap_or_else(|error| panic!("{error}"))
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
        let is_queue = self.recipe == Recipe::Queue;
        (capabilities.fifo, capabilities.counts_waiters) = (is_queue, is_queue);
        let shares = if is_queue { Support::Yes } else { Support::No("one node has one holder") };
        (capabilities.shared, capabilities.permits) = (shares, shares);
        capabilities.revocation = Support::Yes;
        capabilities.names_sharers = true;
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        match case {
            _ if self.recipe == Recipe::Queue => None,
            "signals_of_a_guard_end_before_its_release_is_answered" => {
                Some("a release looks at the node first: without answers the lock ends with its session")
            }
            case if OF_BOTH_RECIPES.contains(&case) => {
                Some("it does not depend on the recipe: the queue has it")
            }
            _ => None,
        }
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
        Box::new(self.at(Arc::clone(&self.server), proxy))
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(self.at(Arc::default(), None))
    }

    async fn fault(&self, fault: Fault) {
        set_fault(self.proxy.as_slice(), fault);
    }

    async fn restart(&self) {
        self.server().await.restart().await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn rotates(&self, _: &Credential) -> Result<(), &'static str> {
        match self.recipe {
            Recipe::Queue => Ok(()),
            Recipe::Ephemeral => Err("it connects as the queue does"),
        }
    }

    async fn secured(&self, credential: Credential) -> Box<dyn Harness> {
        Box::new(Self { login: Some(Login::new(credential)), ..self.at(Arc::default(), None) })
    }

    async fn rotate(&self, password: &str) {
        let server = self.server().await;
        match self.login.as_ref().and_then(Login::certificates) {
            None => server.set_sasl(Login::USER, password),
            Some(certificates) => certificates.replace().and_then(|()| server.set_certificates(certificates)),
        }
        .unwrap_or_else(|error| panic!("{error}"));
        self.restart().await;
    }
}
