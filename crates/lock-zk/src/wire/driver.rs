//! Sessions of the driver, `zookeeper-client`: how they are opened, without observers, and how they send requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::timeout;
use zookeeper_client::{
    Acl, Acls, Client, Connector, CreateMode, Error, MultiWriteError, MultiWriteResult, MultiWriter, Stat,
};

use crate::nodes::acl::NodeAcl;
use crate::operate::observers::Members;
use crate::sessions::connection::{Connection, Dialer};
use crate::sessions::ensemble::{Answer, Change, Ensemble, SessionClient, States, Watching};
use crate::sessions::link::Link;
use crate::sessions::owned_change::OwnedChange;
use crate::sessions::reconnect::Reconnection;
use crate::wire::driver_process::{FORKED, may_use_driver};
use crate::wire::login::Login;

/// A session of the driver, for an [`Ensemble`] with a [`Connector`] of its own.
///
/// It keeps the session timeout of its opening: it never moves to a server that grants less, and ends if all do.
///
/// ```no_run
/// # async fn open() -> Result<(), lock_zk::zookeeper_client::Error> {
/// use std::time::Duration;
///
/// use lock_zk::DriverSession;
///
/// let timeout = Duration::from_secs(10);
/// let session = DriverSession::open("a:2181,b:2181", timeout, |connector, host| async move {
///     connector.with_auth("digest", b"user:password").connect(&host).await
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DriverSession {
    id: i64,
    timeout: Duration,
    chroot: String,
    link: Arc<Link>,
}

impl DriverSession {
    /// Opens a session on the current tokio runtime, with the servers at these hosts: `host:port,...`.
    ///
    /// `connect` connects to one of them by this connector, which has the session and the timeouts. It is called for every
    /// connection, and for sessions that only show which timeout a server grants.
    ///
    /// # Errors
    ///
    /// Those of `connect`, and [`Error::UnexpectedError`] in a child of a process that has used the driver before the fork.
    pub async fn open<F>(
        hosts: &str,
        session_timeout: Duration,
        connect: impl Fn(Connector, String) -> F + Send + Sync + 'static,
    ) -> Result<Self, Error>
    where
        F: Future<Output = Result<Client, Error>> + Send + 'static,
    {
        let connect = Arc::new(move |connector, host| connect(connector, host).boxed());
        Self::by(Dialer::new(hosts, session_timeout, connect)).await
    }

    /// Opens a session with this dialer.
    async fn by(mut dialer: Dialer) -> Result<Self, Error> {
        if !may_use_driver() {
            return Err(Error::UnexpectedError(FORKED.to_owned()));
        }
        let requested = dialer.session_timeout;
        let mut connection = dialer.open().await?;
        let granted = connection.client.session_timeout();
        if granted.as_millis() != requested.as_millis() {
            // The driver derives its silence timeout from the requested session timeout.
            dialer.session_timeout = granted;
            connection = dialer.open().await?;
        }
        // Another server may have granted another timeout.
        dialer.session_timeout = connection.client.session_timeout();
        let client = &connection.client;
        let (id, chroot) = (client.session_id().0, client.path().to_owned());
        Ok(Self {
            id,
            timeout: dialer.session_timeout,
            chroot,
            link: Reconnection::start(dialer, connection),
        })
    }
}

/// The session is closed once all requests under way are dropped.
impl Drop for DriverSession {
    fn drop(&mut self) {
        self.link.leave();
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
    pub(crate) login: Login,
    /// How long connecting may take in all.
    pub(crate) connect_timeout: Duration,
}

#[async_trait]
impl Ensemble for Driver {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let mut session = self.connect(&self.hosts, session_timeout).await?;
        let config = session.link.send(async |on: Arc<Connection>| on.client.get_config().await).await;
        match config {
            // Servers have this node since version 3.5.
            Err(Error::NoNode) => return Err(Error::Unimplemented),
            Ok((config, _)) => {
                let members = Members::parse(&config);
                if members.have_observers() {
                    session = self.connect_to_voters(&session, session.timeout, &members).await?;
                }
            }
            Err(Error::NoAuth) => {}
            Err(error) => return Err(error),
        }
        if let Some(acl) = self.create_chroot.clone().filter(|_| !self.chroot.is_empty()) {
            session.create_chroot(acl).await?;
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
        let driver = self.clone();
        let connect = move |connector, host| driver.clone().connect_to_one(connector, host).boxed();
        let mut dialer = Dialer::new(hosts, session_timeout, Arc::new(connect));
        dialer.takes_addresses = !self.login.needs_names();
        DriverSession::by(dialer).await
    }

    async fn connect_to_one(self, connector: Connector, host: String) -> Result<Client, Error> {
        let connector = self.login.add_to(connector, self.connect_timeout).await.map_err(|unreadable| {
            tracing::warn!(%unreadable, "cannot log in to ZooKeeper; trying again");
            Error::UnexpectedError(unreadable.to_string())
        })?;
        let host = format!("{host}{}", self.chroot);
        #[cfg(feature = "tls")]
        if self.login.speaks_tls() {
            lock_core::tls::install_provider();
            return connector.secure_connect(&host).await;
        }
        connector.connect(&host).await
    }
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

impl DriverSession {
    async fn create_chroot(&self, acl: NodeAcl) -> Result<(), Error> {
        let path = self.chroot.clone();
        self.link
            .send(async move |on: Arc<Connection>| {
                let above = on.client.clone().chroot("/").map_err(|_| Error::BadArguments(&"the chroot"))?;
                above.mkdir(&path, &CreateMode::Persistent.with_acls(acl.acls())).await
            })
            .await
    }
}

impl SessionClient for DriverSession {
    fn id(&self) -> i64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn chroot(&self) -> &str {
        &self.chroot
    }

    fn states(&self) -> Box<dyn States> {
        Box::new(self.link.states())
    }

    fn create<'a>(
        &'a self,
        path: &'a str,
        data: &'a [u8],
        mode: CreateMode,
        acl: Acls<'a>,
    ) -> Answer<'a, (String, Stat)> {
        let sequential = matches!(mode, CreateMode::EphemeralSequential | CreateMode::PersistentSequential);
        let (path, data, acl) = (path.to_owned(), data.to_owned(), acl.to_vec());
        self.link.send(move |on| async move {
            let (stat, sequence) = on.client.create(&path, &data, &mode.with_acls(Acls::new(&acl))).await?;
            Ok((if sequential { format!("{path}{sequence}") } else { path }, stat))
        })
    }

    fn delete<'a>(&'a self, path: &'a str, version: Option<i32>) -> Answer<'a, ()> {
        let path = path.to_owned();
        self.link.send(move |on| async move { on.client.delete(&path, version).await })
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<Stat>> {
        let path = path.to_owned();
        self.link.send(move |on| async move { on.client.check_stat(&path).await })
    }

    fn watch_stat<'a>(&'a self, path: &'a str) -> Answer<'a, (Option<Stat>, Watching)> {
        let path = path.to_owned();
        self.link.send(move |on| async move {
            let (stat, watcher) = on.client.check_and_watch_stat(&path).await?;
            Ok((stat, on.gate.watching(watcher)))
        })
    }

    fn data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.link.send(move |on| async move { on.client.get_data(&path).await })
    }

    fn watch_data<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<u8>, Stat, Watching)> {
        let path = path.to_owned();
        self.link.send(move |on| async move {
            let (data, stat, watcher) = on.client.get_and_watch_data(&path).await?;
            Ok((data, stat, on.gate.watching(watcher)))
        })
    }

    fn set_data<'a>(&'a self, path: &'a str, data: &'a [u8], version: Option<i32>) -> Answer<'a, Stat> {
        let (path, data) = (path.to_owned(), data.to_owned());
        self.link.send(move |on| async move { on.client.set_data(&path, &data, version).await })
    }

    fn children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Stat)> {
        let path = path.to_owned();
        self.link.send(move |on| async move { on.client.get_children(&path).await })
    }

    fn acl<'a>(&'a self, path: &'a str) -> Answer<'a, Vec<Acl>> {
        let path = path.to_owned();
        self.link.send(move |on| async move { Ok(on.client.get_acl(&path).await?.0) })
    }

    fn watch_children<'a>(&'a self, path: &'a str) -> Answer<'a, (Vec<String>, Watching)> {
        let path = path.to_owned();
        self.link.send(move |on| async move {
            let (names, watcher) = on.client.list_and_watch_children(&path).await?;
            Ok((names, on.gate.watching(watcher)))
        })
    }

    fn multi<'a>(
        &'a self,
        changes: &'a [Change<'a>],
    ) -> BoxFuture<'a, Result<Vec<MultiWriteResult>, MultiWriteError>> {
        let changes: Vec<_> = changes.iter().map(OwnedChange::of).collect();
        self.link.send(move |on| async move {
            let mut writer = on.client.new_multi_writer();
            for change in &changes {
                add(change.borrow(), &mut writer)?;
            }
            writer.commit().await
        })
    }
}

fn add(change: Change<'_>, writer: &mut MultiWriter<'_>) -> Result<(), Error> {
    match change {
        Change::Check { path, version } => writer.add_check_version(path, version.unwrap_or(-1)),
        Change::Create { path, data, mode, acl } => writer.add_create(path, data, &mode.with_acls(acl)),
        Change::Set { path, data, version } => writer.add_set_data(path, data, version),
        Change::Delete { path, version } => writer.add_delete(path, version),
    }
}

const ONLY_OBSERVERS: &str = "all of these servers are observers, and locks need a server that votes";

#[cfg(test)]
mod tests {
    use super::*;
    use lock_testkit::ZooKeeper;
    use lock_testkit::proxy::{FaultProxy, Protocol};
    use zookeeper_client::SessionState;

    /// A session whose connections lead through the proxy.
    async fn session() -> (ZooKeeper, FaultProxy, DriverSession) {
        let server = ZooKeeper::start().await.unwrap();
        let proxy = FaultProxy::start(server.addr(), Protocol::ZooKeeper).unwrap();
        let connect = |connector: Connector, host: String| async move { connector.connect(&host).await };
        let session =
            DriverSession::open(&proxy.addr().to_string(), Duration::from_secs(8), connect).await.unwrap();
        (server, proxy, session)
    }

    #[tokio::test]
    async fn requests_wait_for_a_connection_in_their_order() {
        let (_server, proxy, session) = session().await;
        let mut states = session.states();
        let (_, watching) = session.watch_stat("/n0000000000").await.unwrap();
        proxy.refuse(true);
        proxy.rst();
        assert_eq!(states.changed().await, SessionState::Disconnected);
        assert!(!watching.await.path.starts_with('/'), "its node may have changed");

        let create = || session.create("/n", b"", CreateMode::PersistentSequential, Acls::anyone_all());
        let (first, given_up, second, listing) = (create(), create(), create(), session.children("/"));
        drop(given_up);
        proxy.refuse(false);
        let (names, _) = listing.await.unwrap();
        assert_eq!(names.iter().filter(|name| name.starts_with('n')).count(), 2);
        assert_eq!(second.await.unwrap().0, "/n0000000001");
        assert_eq!(first.await.unwrap().0, "/n0000000000");
        assert_eq!(states.now(), SessionState::SyncConnected);
    }

    #[tokio::test]
    async fn a_request_upon_the_loss_of_a_connection_waits_for_the_next() {
        let (_server, proxy, session) = session().await;
        let (_, watching) = session.watch_stat("/n").await.unwrap();
        let created = tokio::spawn(async move {
            watching.await;
            session.create("/n", b"", CreateMode::Ephemeral, Acls::anyone_all()).await
        });
        proxy.rst();
        created.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_session_is_closed_although_it_has_no_connection() {
        let (server, proxy, session) = session().await;
        let mut states = session.states();
        session.create("/e", b"", CreateMode::Ephemeral, Acls::anyone_all()).await.unwrap();
        proxy.refuse(true);
        proxy.rst();
        assert_eq!(states.changed().await, SessionState::Disconnected);
        drop(session);
        proxy.refuse(false);
        assert_eq!(states.changed().await, SessionState::Closed);
        assert_eq!(server.mntr().await.unwrap()["zk_ephemerals_count"], "0");
    }
}
