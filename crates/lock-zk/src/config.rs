//! The options of the ZooKeeper backend.

mod check;
mod security;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, Error, ErrorKind, Password, TokenBlock};

use crate::error::error;
use crate::nodes::acl::NodeAcl;
use crate::nodes::node_name::ZkLayout;
use crate::recipes::recipe::ZkRecipe;
use crate::sessions::ensemble::Ensemble;
use crate::wire::driver::Driver;
use crate::wire::login::Login;

/// The options of the ZooKeeper backend.
///
/// URL: `zk://[user:password@]host[:port][,host[:port]...][/chroot][?option=value&...]`, or `zks://` for TLS (feature
/// `tls`), with these options:
///
/// | option | default | meaning |
/// |---|---|---|
/// | `session_timeout` | `10s` | how long a lock outlives a holder that died |
/// | `connect_timeout` | the session timeout | how long connecting may take |
/// | `create_chroot` | `false` | whether to create a missing chroot |
/// | `dir` | `/locks` | the node below the chroot that has the directories of the locks |
/// | `layout` | `curator` | the names of the nodes: `curator`, `plain` or `kazoo` |
/// | `recipe` | `queue` | [how a lock is represented](ZkRecipe): `queue` or `ephemeral` |
/// | `local_handovers` | `16` | how many tasks of one process may hold the lock in a row, for 10 ms at most, before other processes get a chance; with 0 or 1 every task asks the ensemble |
/// | `wait` | `watch` | how the recipe `ephemeral` waits: `watch` or `poll` |
/// | `password_file` | none | a file with the password of the user, instead of one in the URL; read at each connect, see [`Password`] |
/// | `auth` | `digest` | how to authenticate as the user: ACLs of scheme `digest`, or `sasl` (DIGEST-MD5, feature `sasl`) |
/// | `acl` | `creator` with credentials, else `open` | [the ACL of created nodes](NodeAcl): `creator`, `creator-and-readers` or `open` |
/// | `session` | `shared` | `private` for a session that no other connection of this process uses |
/// | `locks_per_session` | `5000` | when a further session is opened, at the [latest](Self::locks_per_session) |
/// | `jute_maxbuffer` | `1048575` | the largest request that is sent, in bytes, see [`jute_maxbuffer`](Self::jute_maxbuffer) |
/// | `tls_ca`, `tls_cert`, `tls_key` | none | PEM files, read at each connect: the trusted authorities (required), the client certificate and its key |
///
/// ```
/// # use std::time::Duration;
/// # use lock_zk::{ZkLayout, ZkConfig};
/// let config = ZkConfig::from_url("zk://a:2181,b:2181,c:2181/app?session_timeout=10s")?;
/// let same = ZkConfig::new("a:2181,b:2181,c:2181").chroot("/app").session_timeout(Duration::from_secs(10));
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok::<_, lock_core::Error>(())
/// ```
///
/// # Cost
///
/// Releasing a lock takes one round trip. Acquiring a free lock also takes one if this session used the lock within the
/// last five seconds and no other session did since: the acquisition then writes the directory of the lock, which is and
/// stays empty. Otherwise it takes a listing, and mostly a round trip, more. So it does where the directory holds somebody's
/// data, or an ACL forbids writing it.
#[derive(Clone)]
pub struct ZkConfig {
    pub(crate) hosts: String,
    chroot: String,
    pub(crate) login: Login,
    create_chroot: bool,
    acl: Option<NodeAcl>,
    private: bool,
    pub(crate) locks_per_session: usize,
    pub(crate) jute_maxbuffer: usize,
    pub(crate) session_timeout: Duration,
    connect_timeout: Option<Duration>,
    pub(crate) dir: String,
    pub(crate) layout: ZkLayout,
    pub(crate) recipe: ZkRecipe,
    pub(crate) local_handovers: u32,
    pub(crate) clock: Clock,
    ensemble: Option<Arc<dyn Ensemble>>,
}

impl ZkConfig {
    /// The shortest session timeout that can be requested. Servers grant no less than two of their ticks, which are 4 s
    /// by default.
    pub const MIN_SESSION_TIMEOUT: Duration = Duration::from_millis(100);

    /// The largest request that servers read by default.
    pub const JUTE_MAXBUFFER: usize = 0xf_ffff;

    /// The defaults for these servers (`host:port`, separated by commas; the default port is 2181): no chroot, no
    /// credentials, a session timeout of 10 s, locks in `/locks` in [Curator's layout](ZkLayout::Curator).
    #[must_use]
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            chroot: String::new(),
            login: Login::default(),
            create_chroot: false,
            acl: None,
            private: false,
            locks_per_session: 5_000,
            jute_maxbuffer: Self::JUTE_MAXBUFFER,
            session_timeout: Duration::from_secs(10),
            connect_timeout: None,
            dir: "/locks".to_owned(),
            layout: ZkLayout::default(),
            recipe: ZkRecipe::default(),
            local_handovers: TokenBlock::USUAL_SERIES,
            clock: Clock::boot(),
            ensemble: None,
        }
    }

    /// The node that all paths start from. It must exist, or be [created](Self::create_chroot). Empty or `/` for the root.
    #[must_use]
    pub fn chroot(mut self, chroot: impl Into<String>) -> Self {
        self.chroot = chroot.into();
        if self.chroot == "/" {
            self.chroot.clear();
        }
        self
    }

    /// Whether to create the chroot, and missing nodes above it, with the [ACL](Self::acl) of all nodes.
    #[must_use]
    pub const fn create_chroot(mut self, create: bool) -> Self {
        self.create_chroot = create;
        self
    }

    /// The user and password of the `digest` scheme, for servers whose ACLs require them.
    ///
    /// A server does not recognize a wrong password: it takes it for another user, whom the ACLs refuse.
    ///
    /// Every connect reads the password: it can be [a file](Password::file) or [a function](Password::callback), and change
    /// while the program runs. As a new password is a new user, create the nodes for both of them beforehand
    /// ([`NodeAcl::Custom`]), and grant the new one its rights on the directories that exist.
    ///
    /// ```
    /// # use lock_zk::ZkConfig;
    /// use lock_core::Password;
    ///
    /// let config = ZkConfig::new("a:2181").credentials("shop", Password::file("/run/secrets/zookeeper"));
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<Password>) -> Self {
        self.login.credentials = Some((user.into(), password.into()));
        self
    }

    /// The user and password of SASL (DIGEST-MD5). Every connect reads the password, as with [`credentials`](Self::credentials).
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn sasl_credentials(mut self, user: impl Into<String>, password: impl Into<Password>) -> Self {
        self = self.credentials(user, password);
        self.login.auth = crate::wire::login::Auth::Sasl;
        self
    }

    /// Authenticates by SASL. For Kerberos, also enable the feature `sasl-gssapi` of `zookeeper-client`.
    ///
    /// Connections with options of this type never share a session.
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn sasl(mut self, options: impl Into<zookeeper_client::SaslOptions>) -> Self {
        self.login.typed.sasl = Some(options.into());
        self
    }

    /// Connects to all servers by TLS.
    ///
    /// Connections with options of this type never share a session.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, options: zookeeper_client::TlsOptions) -> Self {
        self.login.typed.tls = Some(options);
        self
    }

    /// The ACL of the nodes that this client creates. The default is [`NodeAcl::Creator`] with credentials and
    /// [`NodeAcl::Open`] without.
    #[must_use]
    pub fn acl(mut self, acl: NodeAcl) -> Self {
        self.acl = Some(acl);
        self
    }

    /// Whether this connection has sessions of its own.
    ///
    /// By default the connections of a process share their sessions if they have the same servers, chroot, credentials,
    /// timeouts and ACL, and were made on the same tokio runtime. The last one to be closed ends the sessions. A
    /// connection with its own [clock](Self::clock) or [ensemble](Self::ensemble) never shares.
    #[must_use]
    pub const fn private_session(mut self, private: bool) -> Self {
        self.private = private;
        self
    }

    /// The maximum number of locks, held or waited for, of one session; then a further one is opened. The default is 5000.
    ///
    /// A further session is opened sooner when the paths of a session's nodes reach 120 KiB, as it cannot watch more: after
    /// some 1 700 locks with short names, or 380 with names of 250 bytes. Every session is a connection, of which a server
    /// allows `maxClientCnxns` from one host, 60 by default.
    ///
    /// Where no further session can be opened, locks share full sessions, and a warning is logged. Some nodes are then
    /// polled every sixth of the session timeout instead of watched, so waiters get their turn later.
    #[must_use]
    pub const fn locks_per_session(mut self, locks: usize) -> Self {
        self.locks_per_session = locks;
        self
    }

    /// The largest request that is sent, in bytes: no more than the property `jute.maxbuffer` of each server. A server does not
    /// answer a larger one but ends the connection, which the locks of the session share. So it is refused before it is sent, as a
    /// [fenced write](crate::FencedWriter::commit) of a large value.
    #[must_use]
    pub const fn jute_maxbuffer(mut self, bytes: usize) -> Self {
        self.jute_maxbuffer = bytes;
        self
    }

    /// How long a lock outlives a holder that died or is cut off from the servers. The servers may grant more or less
    /// than requested; [`Locks::capabilities`](lock_core::Locks::capabilities) has the granted value.
    ///
    /// A session that writes nothing else costs the ensemble one log entry every sixth of this time.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long connecting may take before the servers count as unreachable; the default is the session timeout. A
    /// session whose opening took more than half of its timeout is proven before it is used, which takes up to half of
    /// the timeout more.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The node below the chroot in which every lock has its directory; the default is `/locks`. It is created if it does
    /// not exist.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<String>) -> Self {
        self.dir = dir.into();
        self
    }

    /// The names of the nodes.
    #[must_use]
    pub fn layout(mut self, layout: ZkLayout) -> Self {
        self.layout = layout;
        self
    }

    /// How a lock is represented in the tree; the default is a [queue](ZkRecipe::Queue).
    #[must_use]
    pub fn recipe(mut self, recipe: ZkRecipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// Limits how many tasks of one process may hold the lock in a row, without asking the ensemble, before other processes
    /// get a chance; they get it after 10 ms in any case. Default 16. With 0 or 1 every task asks the ensemble.
    #[must_use]
    pub fn local_handovers(mut self, most: u32) -> Self {
        self.local_handovers = most;
        self
    }

    /// The clock that measures the validity of sessions.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        (self.clock, self.private) = (clock, true);
        self
    }

    /// Opens the sessions instead of the driver: for tests, and for custom transports. It decides itself which hosts,
    /// chroot and credentials to use; those given here only appear in errors.
    #[must_use]
    pub fn ensemble(mut self, ensemble: Arc<dyn Ensemble>) -> Self {
        (self.ensemble, self.private) = (Some(ensemble), true);
        self
    }

    pub(crate) fn chroot_path(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// Whether the sessions are those of the driver, with the servers at the hosts.
    pub(crate) const fn has_driver(&self) -> bool {
        self.ensemble.is_none()
    }

    /// The ensemble that opens the sessions.
    pub(crate) fn opener(&self) -> Arc<dyn Ensemble> {
        match &self.ensemble {
            Some(ensemble) => Arc::clone(ensemble),
            None => Arc::new(self.driver()),
        }
    }

    fn driver(&self) -> Driver {
        Driver {
            connect_timeout: self.connect_limit(),
            hosts: self.hosts.clone(),
            chroot: self.chroot.clone(),
            create_chroot: self.create_chroot.then(|| self.node_acl()),
            login: self.login.clone(),
        }
    }

    /// Whether this connection may share its sessions with others.
    pub(crate) const fn may_share(&self) -> bool {
        !self.private && !self.login.typed.is_given()
    }

    /// Whether two connections that may share agree in all options of their sessions.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        let timeouts = (self.session_timeout, self.connect_limit());
        timeouts == (other.session_timeout, other.connect_limit())
            && (&self.hosts, &self.chroot, self.create_chroot, self.locks_per_session)
                == (&other.hosts, &other.chroot, other.create_chroot, other.locks_per_session)
            && self.jute_maxbuffer == other.jute_maxbuffer
            && self.login.is_same(&other.login)
            && self.node_acl() == other.node_acl()
    }

    pub(crate) fn connect_limit(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.session_timeout)
    }
}

impl fmt::Debug for ZkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkConfig")
            .field("hosts", &self.hosts)
            .field("chroot", &self.chroot)
            .field("user", &self.login.credentials.as_ref().map(|(user, _)| user))
            .field("auth", &self.login.auth)
            .field("tls", &self.login.tls)
            .field("create_chroot", &self.create_chroot)
            .field("acl", &self.node_acl())
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("dir", &self.dir)
            .field("layout", &self.layout)
            .field("recipe", &self.recipe)
            .field("local_handovers", &self.local_handovers)
            .finish_non_exhaustive()
    }
}

fn invalid(message: &str, hint: &str) -> Error {
    error(ErrorKind::InvalidConfig, message, hint)
}
