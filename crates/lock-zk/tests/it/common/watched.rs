//! Servers for one test after the other, which are looked at when a test ends.

use std::net::TcpStream;
use std::ops::Deref;
use std::thread;

use lock_testkit::proxy::FaultProxy;
use lock_testkit::zookeeper::Borrowed;
use lock_testkit::{ZkEnsemble, ZooKeeper};
use lock_zk::zookeeper_client::Error;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::time::{Duration, Instant, sleep};

use crate::common::{LASTING, client};

/// Servers that are looked at in the end of a test: an ephemeral node, a watch or a connection must not be left. The test must
/// have dropped its clients by then, which it has if it made them later.
#[derive(Debug)]
pub(crate) enum Watched<S: Servers> {
    Own(S),
    /// The next test gets them, without the nodes of this one.
    Borrowed(Option<Borrowed<S>>),
}

pub(crate) type Server = Watched<ZooKeeper>;
pub(crate) type Ensemble = Watched<ZkEnsemble>;

/// One server, or the servers of an ensemble.
pub(crate) trait Servers: Sized {
    fn nodes(&self) -> &[ZooKeeper];
    fn heal(&self) {}
    fn return_to_others(borrowed: Borrowed<Self>);
}

impl Servers for ZooKeeper {
    fn nodes(&self) -> &[ZooKeeper] {
        std::slice::from_ref(self)
    }

    fn return_to_others(borrowed: Borrowed<Self>) {
        borrowed.give_back();
    }
}

impl Servers for ZkEnsemble {
    fn nodes(&self) -> &[ZooKeeper] {
        self.nodes()
    }

    fn heal(&self) {
        (0..3).for_each(|server| links_of(self, server).iter().for_each(|link| link.heal()));
    }

    fn return_to_others(borrowed: Borrowed<Self>) {
        borrowed.give_back();
    }
}

impl<S: Servers> From<S> for Watched<S> {
    fn from(servers: S) -> Self {
        Self::Own(servers)
    }
}

impl<S: Servers> Deref for Watched<S> {
    type Target = S;

    fn deref(&self) -> &S {
        match self {
            Self::Own(servers) => servers,
            Self::Borrowed(servers) => servers.as_ref().expect("they are returned when this is dropped"),
        }
    }
}

impl<S: Servers> Drop for Watched<S> {
    fn drop(&mut self) {
        let all = Servers::nodes(&**self);
        let alive: Vec<_> = all.iter().filter(|node| TcpStream::connect(node.addr()).is_ok()).collect();
        let (is_whole, has_quorum) = (alive.len() == all.len(), alive.len() > all.len() / 2);
        if thread::panicking() || !has_quorum {
            return;
        }
        let one_thread = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
        assert!(
            !one_thread,
            "what is to be gone goes in the background: give the test a runtime of several threads"
        );
        let returns = is_whole && matches!(self, Self::Borrowed(_));
        if returns {
            self.heal();
        }
        let is_as_new = in_a_thread(async {
            for node in &alive {
                nothing_is_left(node).await;
            }
            let is_as_new = returns && remove_nodes(alive[0]).await;
            if is_as_new {
                nothing_is_left(alive[0]).await;
            }
            is_as_new
        });
        if let Self::Borrowed(servers) = self
            && let Some(servers) = servers.take()
            && is_as_new
        {
            S::return_to_others(servers);
        }
    }
}

/// Runs this beside the test's own runtime, which may be blocked meanwhile.
fn in_a_thread<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let work = || Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    thread::scope(|scope| scope.spawn(work).join()).unwrap()
}

/// Removes all nodes, but for those that belong to somebody else; returns whether there are none.
async fn remove_nodes(server: &ZooKeeper) -> bool {
    let client = client(server).await;
    // The users of these tests.
    for user in ["me:Pa55", "me:two"] {
        let _ = client.auth("digest", user.as_bytes()).await;
    }
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

async fn nothing_is_left(server: &ZooKeeper) {
    let start = Instant::now();
    loop {
        // It may be electing a leader.
        let counters = server.mntr().await.unwrap_or_default();
        // One connection is that of this question.
        let none = [("zk_ephemerals_count", "0"), ("zk_watch_count", "0"), ("zk_num_alive_connections", "1")];
        if none.iter().all(|(name, none)| counters.get(*name).is_some_and(|count| count == none)) {
            return;
        }
        // Sessions that were cut off end by themselves.
        assert!(
            start.elapsed() < 2 * LASTING,
            "the test has left something: {:?}\n{}",
            none.map(|(name, _)| counters.get(name)),
            server.four_letter("dump").await.unwrap_or_default()
        );
        sleep(Duration::from_millis(10)).await; // Time: until the server is asked again.
    }
}

/// A server as new.
pub(crate) async fn server() -> Server {
    Watched::Borrowed(Some(ZooKeeper::borrow().await.unwrap()))
}

/// Three servers as new, with a proxy in each of their links. One that is silent is not dropped for half a minute.
pub(crate) async fn ensemble() -> Ensemble {
    Watched::Borrowed(Some(ZkEnsemble::borrow().await.unwrap()))
}

/// All ways on which one server follows the others, or they follow it.
pub(crate) fn links_of(ensemble: &ZkEnsemble, server: usize) -> Vec<&FaultProxy> {
    let others = (0..ensemble.nodes().len()).filter(|other| *other != server);
    others.flat_map(|other| [ensemble.link(other, server), ensemble.link(server, other)]).collect()
}
