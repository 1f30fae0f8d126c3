//! What is asked of an ensemble, request by request, and how the driver asks it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::timeout;
#[cfg(feature = "sasl")]
use zookeeper_client::SaslOptions;
#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{
    Acls, Client, CreateMode, Error, MultiWriteError, MultiWriteResult, SessionState, Stat, StateWatcher,
    WatchedEvent,
};

use crate::NodeAcl;
use crate::gate::Gate;
#[cfg(feature = "tls")]
use crate::tls::install_provider;

/// Opens sessions with an ensemble: for tests, and for transports of your own.
///
/// Without one in [`ZkConfig::ensemble`](crate::ZkConfig::ensemble), the driver opens them.
#[async_trait]
pub trait Ensemble: fmt::Debug + Send + Sync + 'static {
    /// Opens a session, and asks for this session timeout. The caller limits the time that a call takes.
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error>;
}

/// One session with an ensemble, as a [`DriverSession`] keeps it.
///
/// # Contract
///
/// * A request is sent when the method is *called*, not when its future is polled first, and what was sent takes
///   effect even if the future is dropped. Requests reach the server, and are answered, in the order of the calls.
/// * A watch tells of a change before any answer arrives that shows the change.
/// * The session is kept alive and moves from server to server by itself. Requests wait while there is no connection,
///   and end with an error when theirs breaks, or with the session; watches live on across connections.
/// * When the last reference has been dropped, and no future of a request is left, the session is closed, and its
///   ephemeral nodes go.
pub trait SessionClient: Send + Sync + 'static {
    /// The number of the session, which its ephemeral nodes carry.
    fn id(&self) -> i64;

    /// The session timeout that was negotiated.
    fn timeout(&self) -> Duration;

    /// The path of the node that stands for the root, which the servers see before every path; empty if there is none.
    ///
    /// It counts: there is a limit to the bytes of paths that one session may watch.
    fn chroot(&self) -> &str {
        ""
    }

    /// The states of the session from now on.
    fn states(&self) -> Box<dyn States>;

    /// Creates a node and gives its path, to which the server appended ten digits if the mode is sequential. The stat
    /// may be [invalid](Stat::is_invalid) if the server does not tell it.
    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)>;

    /// Deletes a node, if it has this version.
    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()>;

    /// What the server knows about a node, if it is there.
    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>>;

    /// The same, and a watch for its creation, deletion and change.
    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)>;

    /// The data of a node.
    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)>;

    /// The same, and a watch for its deletion and change. There is no watch if there is no node.
    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)>;

    /// Replaces the data of a node, if it has this version.
    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat>;

    /// The names of the nodes below a node, and what the server says about that.
    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)>;

    /// Does all of this or nothing.
    ///
    /// An answer about the parts, be it that one [failed](MultiWriteError::OperationFailed), comes from the quorum: it is
    /// what a session is believed in by.
    fn multi<'a>(
        &'a self,
        changes: &'a [Change<'a>],
    ) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>>;
}

/// The answer to a request.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// A watch: what it tells, once. The end of the session is told as well, after a while. Dropping it before that
/// removes the watch from the server, which costs a request.
pub type Watching = BoxFuture<'static, WatchedEvent>;

/// The states of a session.
pub trait States: Send + Sync {
    /// Waits for the next state; those that pass while nobody waits are left out. After a state that ends the session
    /// there is none.
    fn changed(&mut self) -> BoxFuture<'_, SessionState>;

    /// The state now.
    fn now(&self) -> SessionState;
}

/// One part of a [multi](SessionClient::multi).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Nothing is done unless the node is there, and has this version if one is given.
    Check {
        /// The node.
        path: &'a str,
        /// Its version.
        version: Option<i32>,
    },
    /// Creates a node.
    Create {
        /// The node; the server appends ten digits if the mode is sequential.
        path: &'a str,
        /// Its data.
        data: &'a [u8],
        /// Its kind.
        mode: CreateMode,
        /// Who may do what with it.
        acl: Acls<'a>,
    },
    /// Replaces the data of a node.
    Set {
        /// The node.
        path: &'a str,
        /// Its new data.
        data: &'a [u8],
        /// The version that it must have.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// The node.
        path: &'a str,
        /// The version that it must have.
        version: Option<i32>,
    },
}

impl<'a> Change<'a> {
    /// The node that it is about.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        match self {
            Self::Check { path, .. }
            | Self::Create { path, .. }
            | Self::Set { path, .. }
            | Self::Delete { path, .. } => path,
        }
    }
}

/// A session that the driver keeps, for an [`Ensemble`] that connects by a
/// [`Connector`](zookeeper_client::Connector) of its own.
///
/// ```no_run
/// # async fn open() -> Result<(), lock_zk::zookeeper_client::Error> {
/// use lock_zk::DriverSession;
/// use lock_zk::zookeeper_client::Client;
///
/// let session = DriverSession::open(Client::connector().connect("localhost:2181")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DriverSession {
    client: Client,
    gate: Arc<Gate>,
}

impl DriverSession {
    /// Opens a session, on the current tokio runtime. Of several clients that `connecting` connects, it must return the
    /// last one.
    ///
    /// It is not enough to have a [`Client`] that is connected already: its watches panic when its runtime shuts down before
    /// them, unless they were prepared for that when the connection was made.
    ///
    /// # Errors
    ///
    /// Those of `connecting`.
    pub async fn open(connecting: impl Future<Output = Result<Client, Error>>) -> Result<Self, Error> {
        let (client, gate) = Gate::guard(connecting).await?;
        Ok(Self { client, gate })
    }
}

/// The driver's sessions with the servers of a configuration.
#[derive(Clone)]
pub(crate) struct Driver {
    /// `host:port,...`.
    pub(crate) hosts: String,
    /// Empty, or the path of the node that stands for the root.
    pub(crate) chroot: String,
    /// Whether to create that node, and who may do what with it.
    pub(crate) create_chroot: Option<NodeAcl>,
    /// `user:password`.
    pub(crate) digest: Option<String>,
    /// How long connecting may take in all.
    pub(crate) patience: Duration,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<SaslOptions>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsOptions>,
}

#[async_trait]
impl Ensemble for Driver {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let mut session = self.connect(&self.hosts, session_timeout).await?;
        let granted = session.timeout();
        if granted.as_millis() != session_timeout.as_millis() {
            // When a server is silent follows from what is asked for.
            session = self.connect(&self.hosts, granted).await?;
        }
        match session.client.get_config().await {
            // A server keeps its configuration there since version 3.5.
            Err(Error::NoNode) => return Err(Error::Unimplemented),
            Ok((config, _)) => {
                let members = Members::parse(&config);
                if members.have_observers() {
                    session = self.connect_to_voters(&session, granted, &members).await?;
                }
            }
            Err(Error::NoAuth) => {}
            Err(error) => return Err(error),
        }
        if let Some(acl) = self.create_chroot.as_ref().filter(|_| !self.chroot.is_empty()) {
            session.client.mkdir(&self.chroot, &CreateMode::Persistent.with_acls(acl.acls())).await?;
        }
        if !self.chroot.is_empty() {
            let below = session.client.chroot(self.chroot.clone());
            session.client = below.map_err(|_| Error::BadArguments(&"the chroot"))?;
        }
        Ok(Arc::new(session))
    }
}

impl Driver {
    /// A session that does not come to an observer. Which of the hosts are observers each tells by the session that it
    /// opens, as it may have other names in the configuration; of those that do not answer, their names there tell.
    async fn connect_to_voters(
        &self,
        first: &DriverSession,
        session_timeout: Duration,
        members: &Members,
    ) -> Result<DriverSession, Error> {
        // A host that is silent must not use up the time to connect.
        let patience = (session_timeout / 10).min(self.patience / 8);
        let asked = self.hosts.split(',').map(|host| async move {
            let observes = match timeout(patience, self.connect(host, session_timeout)).await {
                Ok(Ok(session)) => members.observe(opened_by(&session)),
                _ => members.are_observers_at(host),
            };
            (!observes).then_some(host)
        });
        let voters: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        if voters.is_empty() && members.observe(opened_by(first)) {
            return Err(Error::BadArguments(&ONLY_OBSERVERS));
        }
        if voters.is_empty() {
            // A name that stands for several servers has led to another one.
            return Err(Error::ConnectionLoss);
        }
        let session = self.connect(&voters.join(","), session_timeout).await?;
        if members.observe(opened_by(&session)) {
            // It has just come back.
            return Err(Error::ConnectionLoss);
        }
        Ok(session)
    }

    async fn connect(&self, hosts: &str, session_timeout: Duration) -> Result<DriverSession, Error> {
        let mut connector = Client::connector()
            .with_session_timeout(session_timeout)
            .with_connection_timeout(silence(session_timeout))
            .with_fail_eagerly();
        if let Some(digest) = &self.digest {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        #[cfg(feature = "sasl")]
        if let Some(sasl) = &self.sasl {
            connector = connector.with_sasl(sasl.clone());
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            install_provider();
            return DriverSession::open(connector.with_tls(tls.clone()).secure_connect(hosts)).await;
        }
        DriverSession::open(connector.connect(hosts)).await
    }
}

/// After how long a server is taken for silent, and a connection for one that is not made.
///
/// When one has fallen silent the driver goes through all servers in any order, and may come to it once more; a session that
/// two silences ended would take its locks along, and callers wait for half of its timeout. So it is a fifth, and not the
/// two fifths of the driver; but a busy server may be slow for a second.
fn silence(session_timeout: Duration) -> Duration {
    (session_timeout / 5).max((session_timeout * 2 / 5).min(Duration::from_secs(1)))
}

/// The servers of an ensemble, as its configuration names them.
#[derive(Debug, PartialEq, Eq)]
struct Members(Vec<Member>);

#[derive(Debug, PartialEq, Eq)]
struct Member {
    number: i64,
    votes: bool,
    /// The names of its machine.
    hosts: Vec<String>,
    /// The port for clients. Where every server reads a file of its own, only that one knows it.
    port: Option<u16>,
}

impl Members {
    fn parse(config: &[u8]) -> Self {
        Self(String::from_utf8_lossy(config).lines().filter_map(Member::parse).collect())
    }

    fn have_observers(&self) -> bool {
        self.0.iter().any(|member| !member.votes)
    }

    /// Whether the server of this number is an observer.
    fn observe(&self, number: i64) -> bool {
        self.0.iter().any(|member| member.number == number && !member.votes)
    }

    /// Whether this host (`host[:port]`) is surely that of an observer.
    fn are_observers_at(&self, host: &str) -> bool {
        let mut there = self.0.iter().filter(|member| member.may_be_at(host)).peekable();
        there.peek().is_some() && there.all(|member| !member.votes)
    }
}

impl Member {
    /// Reads `server.5=host:port:port[:role][|host:port:port...][;[host:]port]`.
    fn parse(line: &str) -> Option<Self> {
        let (number, server) = line.strip_prefix("server.")?.split_once('=')?;
        let (addresses, client) = server.split_once(';').unwrap_or((server, ""));
        let (client_host, port) = client.rsplit_once(':').unwrap_or(("", client));
        let any = ["", "0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"].contains(&client_host);
        let quorum_hosts = addresses.split('|').map(host_of);
        Some(Self {
            number: number.parse().ok()?,
            votes: !addresses.ends_with(":observer"),
            hosts: quorum_hosts.chain((!any).then_some(client_host)).map(str::to_lowercase).collect(),
            port: port.parse().ok(),
        })
    }

    fn may_be_at(&self, host: &str) -> bool {
        let name = host_of(host);
        let port = host[name.len()..].strip_prefix(':').map_or(Ok(DEFAULT_PORT), str::parse);
        let same_port = self.port.is_none_or(|own| port == Ok(own));
        same_port && self.hosts.contains(&name.to_lowercase())
    }
}

/// What stands before the first port. An IPv6 address is in brackets.
fn host_of(address: &str) -> &str {
    let end = address.find(']').map_or_else(|| address.find(':'), |at| Some(at + 1));
    &address[..end.unwrap_or(address.len())]
}

/// The number of the server that opened this session: it is the highest byte of the session's.
fn opened_by(session: &DriverSession) -> i64 {
    session.id() >> 56 & 0xff
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("hosts", &self.hosts)
            .field("chroot", &self.chroot)
            .finish_non_exhaustive()
    }
}

impl SessionClient for DriverSession {
    fn id(&self) -> i64 {
        self.client.session_id().0
    }

    fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn chroot(&self) -> &str {
        self.client.path()
    }

    fn states(&self) -> Box<dyn States> {
        Box::new(self.client.state_watcher())
    }

    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)> {
        let sequential = matches!(mode, CreateMode::EphemeralSequential | CreateMode::PersistentSequential);
        let created = self.client.create(path, data, &mode.with_acls(acl));
        Box::pin(async move {
            let (stat, sequence) = created.await?;
            Ok((if sequential { format!("{path}{sequence}") } else { path.to_owned() }, stat))
        })
    }

    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()> {
        Box::pin(self.client.delete(path, version))
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>> {
        Box::pin(self.client.check_stat(path))
    }

    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)> {
        let answer = self.client.check_and_watch_stat(path);
        Box::pin(answer.map(|answer| answer.map(|(stat, watcher)| (stat, self.gate.watching(watcher)))))
    }

    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)> {
        Box::pin(self.client.get_data(path))
    }

    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)> {
        let answer = self.client.get_and_watch_data(path);
        let watching = |(data, stat, watcher)| (data, stat, self.gate.watching(watcher));
        Box::pin(answer.map(move |answer| answer.map(watching)))
    }

    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat> {
        Box::pin(self.client.set_data(path, data, version))
    }

    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)> {
        Box::pin(self.client.get_children(path))
    }

    fn multi<'a>(
        &'a self,
        changes: &'a [Change<'a>],
    ) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>> {
        let mut writer = self.client.new_multi_writer();
        for change in changes {
            let added = match *change {
                Change::Check { path, version } => writer.add_check_version(path, version.unwrap_or(-1)),
                Change::Create { path, data, mode, acl } => {
                    writer.add_create(path, data, &mode.with_acls(acl))
                }
                Change::Set { path, data, version } => writer.add_set_data(path, data, version),
                Change::Delete { path, version } => writer.add_delete(path, version),
            };
            if let Err(source) = added {
                return Box::pin(std::future::ready(Err(MultiWriteError::RequestFailed { source })));
            }
        }
        Box::pin(writer.commit())
    }
}

impl States for StateWatcher {
    fn changed(&mut self) -> BoxFuture<'_, SessionState> {
        Box::pin(Self::changed(self))
    }

    fn now(&self) -> SessionState {
        self.peek_state()
    }
}

const DEFAULT_PORT: u16 = 2181;
const ONLY_OBSERVERS: &str = "all of these servers are observers, through which no lock is taken";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_silences_fit_into_half_of_a_timeout_that_is_long_enough() {
        let silences = [1_000, 2_500, 4_000, 5_000, 10_000, 40_000]
            .map(|millis| silence(Duration::from_millis(millis)).as_millis());
        assert_eq!(silences, [400, 1_000, 1_000, 1_000, 2_000, 8_000]);
    }

    const CONFIG: &[u8] = b"server.1=a:2888:3888:participant;0.0.0.0:2181\nserver.2=a:2889:3889;2182\n\
        server.3=b:2888:3888:observer;0.0.0.0:2181\nserver.14=c:1:2|[::2]:1:2:observer;d:2183\nversion=0\nserver.x=:observer";

    #[test]
    fn observers_are_told_from_those_who_vote() {
        let members = Members::parse(CONFIG);
        let observers = (0..20).filter(|number| members.observe(*number));
        assert_eq!(observers.collect::<Vec<_>>(), [3, 14]);
        assert!(members.have_observers() && !Members::parse(b"server.1=a:1:2;3").have_observers());
        assert_eq!(Members::parse(b""), Members(Vec::new()));
    }

    #[test]
    fn observers_are_known_by_their_hosts() {
        let members = Members::parse(CONFIG);
        for host in ["b:2181", "b", "B", "c:2183", "[::2]:2183", "d:2183"] {
            assert!(members.are_observers_at(host), "{host}");
        }
        for host in ["a:2181", "a:2182", "a", "b:2182", "c", "d", "0.0.0.0:2181", "elsewhere"] {
            assert!(!members.are_observers_at(host), "{host}");
        }
        // Who does not know the ports knows an observer only by a machine of its own.
        let members = Members::parse(b"server.1=a:1:2\nserver.2=a:3:4:observer\nserver.3=b:1:2:observer");
        assert!(members.are_observers_at("b:2181") && !members.are_observers_at("a:2181"));
    }
}
