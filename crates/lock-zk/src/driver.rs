//! Sessions of the driver, `zookeeper-client`: how they are opened, without observers, and how they send requests.

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
};

use crate::acl::NodeAcl;
use crate::ensemble::{Answer, Change, Ensemble, SessionClient, States, Watching};
use crate::observers::Members;
use crate::shutdown_gate::ShutdownGate;
#[cfg(feature = "tls")]
use crate::tls::install_provider;

/// A session of the driver, for an [`Ensemble`] with a [`Connector`](zookeeper_client::Connector) of its own.
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
    gate: Arc<ShutdownGate>,
}

impl DriverSession {
    /// Opens a session on the current tokio runtime. If `connecting` connects several clients, it must return the last
    /// one.
    ///
    /// It takes the future, not a connected [`Client`]: the watches of a client panic when its runtime shuts down before
    /// them, and only while connecting can the driver's task be wrapped to prevent that.
    ///
    /// # Errors
    ///
    /// Those of `connecting`.
    pub async fn open(connecting: impl Future<Output = Result<Client, Error>>) -> Result<Self, Error> {
        let (client, gate) = ShutdownGate::guard(connecting).await?;
        Ok(Self { client, gate })
    }
}

/// Opens sessions of the driver with the servers of a configuration.
#[derive(Clone)]
pub(crate) struct Driver {
    /// `host:port,...`.
    pub(crate) hosts: String,
    /// Empty if there is none.
    pub(crate) chroot: String,
    /// The ACL to create the chroot with, if it is to be created.
    pub(crate) create_chroot: Option<NodeAcl>,
    /// `user:password`.
    pub(crate) digest: Option<String>,
    /// How long connecting may take in all.
    pub(crate) connect_timeout: Duration,
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
            // The driver derives its silence timeout from the requested session timeout.
            session = self.connect(&self.hosts, granted).await?;
        }
        match session.client.get_config().await {
            // Servers have this node since version 3.5.
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
    /// Opens a session that never moves to an observer.
    ///
    /// A host may have other names in the configuration, so it is recognized by the session that it opens. Only a host
    /// that does not answer is looked up by its name.
    async fn connect_to_voters(
        &self,
        first: &DriverSession,
        session_timeout: Duration,
        members: &Members,
    ) -> Result<DriverSession, Error> {
        // A silent host must not use up the time to connect.
        let per_host = (session_timeout / 10).min(self.connect_timeout / 8);
        let hosts = self.hosts.split(',').map(|host| async move {
            let observes = match timeout(per_host, self.connect(host, session_timeout)).await {
                Ok(Ok(session)) => members.observe(opened_by(&session)),
                _ => members.are_observers_at(host),
            };
            (!observes).then_some(host)
        });
        let voters: Vec<_> = join_all(hosts).await.into_iter().flatten().collect();
        if voters.is_empty() && members.observe(opened_by(first)) {
            return Err(Error::BadArguments(&ONLY_OBSERVERS));
        }
        if voters.is_empty() {
            // A name with several addresses led to another server.
            return Err(Error::ConnectionLoss);
        }
        let session = self.connect(&voters.join(","), session_timeout).await?;
        if members.observe(opened_by(&session)) {
            // The observer has just come back.
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

/// How long a server may be silent, and a connection attempt take, before the driver tries the next server.
///
/// The driver then tries all servers in any order, and may reach the silent one a second time. Two silences must fit into
/// the validity of the session and into the time that a caller waits, half of the session timeout. So this is a fifth and
/// not the driver's two fifths; at least a second where that fits, as a busy server may be slow.
fn silence(session_timeout: Duration) -> Duration {
    (session_timeout / 5).max((session_timeout * 2 / 5).min(Duration::from_secs(1)))
}

/// The number of the server that opened this session: the highest byte of the session id.
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

    fn watch_children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Watching)> {
        let answer = self.client.list_and_watch_children(path);
        let watching = |(names, watcher)| (names, self.gate.watching(watcher));
        Box::pin(answer.map(move |answer| answer.map(watching)))
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
const ONLY_OBSERVERS: &str = "all of these servers are observers, and locks need a server that votes";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_silences_fit_into_half_of_a_timeout_that_is_long_enough() {
        let silences = [1_000, 2_500, 4_000, 5_000, 10_000, 40_000]
            .map(|millis| silence(Duration::from_millis(millis)).as_millis());
        assert_eq!(silences, [400, 1_000, 1_000, 1_000, 2_000, 8_000]);
    }
}
