//! A ZooKeeper ensemble.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::class_path::Release;
use super::{EnsembleMember, ZkOptions, ZooKeeper};
use crate::error::Result;
use crate::proxy::{FaultProxy, Protocol};
use crate::servers::port::Port;
use crate::servers::process::off_thread;
use crate::servers::server_process::{StartError, on_free_ports};

/// ZooKeeper servers that form a quorum; three by default.
#[derive(Debug)]
pub struct ZkEnsemble {
    // The processes go before the claims on their ports.
    nodes: Vec<ZooKeeper>,
    links: Links,
    _ports: Vec<MemberPorts>,
}

/// The proxies between followers and leaders, by the indices of both.
type Links = BTreeMap<(usize, usize), FaultProxy>;

impl ZkEnsemble {
    /// Starts three servers with default options and waits for their leader.
    ///
    /// # Errors
    ///
    /// As for [`ZooKeeper::start`]; when one server fails none stays.
    pub async fn start() -> Result<Self> {
        ZooKeeper::builder().start_ensemble(3).await
    }

    /// The servers, in the order of the URL. Each can be killed, stopped and restarted like a standalone server.
    pub fn nodes(&self) -> &[ZooKeeper] {
        &self.nodes
    }

    /// `zk://127.0.0.1:a,127.0.0.1:b,127.0.0.1:c`.
    pub fn url(&self) -> String {
        format!("zk://{}", self.connect_string())
    }

    /// The addresses of all servers, as ZooKeeper clients want them.
    pub fn connect_string(&self) -> String {
        self.nodes.iter().map(ZooKeeper::connect_string).collect::<Vec<_>>().join(",")
    }

    /// The connection over which `follower` follows `leader` while that one leads. The leader's messages go
    /// [`ToClient`](crate::proxy::Direction::ToClient).
    ///
    /// # Panics
    ///
    /// Without [`ZkOptions::proxied_links`], or unless these are two servers.
    pub fn link(&self, follower: usize, leader: usize) -> &FaultProxy {
        self.links.get(&(follower, leader)).expect("two servers with a proxy between them")
    }

    /// The index of the current leader; `None` while there is none.
    pub async fn leader(&self) -> Option<usize> {
        for (index, node) in self.nodes.iter().enumerate() {
            if node.mode().await.as_deref() == Some("leader") {
                return Some(index);
            }
        }
        None
    }

    /// Kills one server by SIGKILL.
    pub fn kill(&self, index: usize) {
        self.nodes[index].kill();
    }

    /// Kills one server by SIGKILL and restarts it with the same ports and data.
    ///
    /// # Errors
    ///
    /// As for [`ZooKeeper::start`].
    pub async fn restart(&self, index: usize) -> Result<()> {
        self.nodes[index].restart().await
    }
}

impl ZkOptions {
    /// Starts an ensemble of `n` servers and the [observers](Self::observers) in parallel, and waits for its leader. If
    /// the target directory has a release in `peers/zookeeper-server`, they are of that release.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start); when one server fails none stays.
    pub async fn start_ensemble(mut self, n: usize) -> Result<ZkEnsemble> {
        self.release = Release::ForEnsembles;
        assert!(n >= 2, "an ensemble has at least two servers: use `start` for a single one");
        off_thread(move || on_free_ports("zookeeper", || self.start_ensemble_blocking(n))).await
    }

    fn start_ensemble_blocking(&self, n: usize) -> Result<ZkEnsemble, StartError> {
        let ports =
            (0..n + self.observers).map(|id| MemberPorts::pick(id < n)).collect::<Result<Vec<_>>>()?;
        let links = if self.proxied_links { proxies(&ports)? } else { Links::new() };
        let nodes = (0..ports.len())
            .map(|index| {
                let member = EnsembleMember { id: server_id(index), config: config(index, &ports, &links) };
                self.prepare(Arc::clone(&ports[index].client), Some(member))
            })
            .collect::<Result<Vec<_>>>()?;
        for node in &nodes {
            node.launch()?;
        }
        for node in &nodes {
            node.wait_ready()?;
        }
        let nodes = nodes.into_iter().map(|node| ZooKeeper { inner: Arc::new(node) }).collect();
        Ok(ZkEnsemble { nodes, links, _ports: ports })
    }
}

/// The ports of one server: for the other servers, and for clients.
#[derive(Debug)]
struct MemberPorts {
    quorum: Port,
    election: Port,
    client: Arc<Port>,
    votes: bool,
}

impl MemberPorts {
    fn pick(votes: bool) -> Result<Self> {
        let pick = || Port::pick("zookeeper");
        Ok(Self { quorum: pick()?, election: pick()?, client: Arc::new(pick()?), votes })
    }
}

/// The id of a server in its ensemble.
///
/// The first id is 1, as ZooKeeper's manual demands. A leader counts a new connection as server 0, in sync, until its first
/// message says whose it is: with a server 0, a leader that has lost its followers would lead on.
const fn server_id(index: usize) -> usize {
    index + 1
}

/// What `zoo.cfg` of this server says about the ensemble.
fn config(own: usize, members: &[MemberPorts], links: &Links) -> String {
    let mut config = String::from("initLimit=50\nsyncLimit=10\n");
    for (index, MemberPorts { quorum, election, client, votes }) in members.iter().enumerate() {
        // A server follows the leader at the address in its own file, which may be that of a proxy.
        let quorum = links.get(&(own, index)).map_or_else(|| quorum.number(), FaultProxy::port);
        let role = if *votes { "participant" } else { "observer" };
        let (id, election, client) = (server_id(index), election.number(), client.number());
        let _ = writeln!(config, "server.{id}=127.0.0.1:{quorum}:{election}:{role};127.0.0.1:{client}");
    }
    if !members[own].votes {
        config.push_str("peerType=observer\n");
    }
    config
}

/// A proxy from every server to every other one.
fn proxies(members: &[MemberPorts]) -> Result<Links> {
    let all = 0..members.len();
    let pairs = all.clone().flat_map(|follower| all.clone().map(move |leader| (follower, leader)));
    pairs
        .filter(|(follower, leader)| follower != leader)
        .map(|pair| Ok((pair, FaultProxy::start(members[pair.1].quorum.addr(), Protocol::Opaque)?)))
        .collect()
}
