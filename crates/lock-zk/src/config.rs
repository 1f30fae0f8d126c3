//! The options of the ZooKeeper backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::url::LockUrl;
use lock_core::{Clock, Error, ErrorKind, Lazy, Locks, Result};

use crate::backend::capabilities;
use crate::ensemble::Driver;
use crate::tls::TlsFiles;
use crate::{BACKEND, Ensemble, NodeAcl, Zk, ZkLayout, ZkRecipe};

/// The options of the ZooKeeper backend.
///
/// URL: `zk://[user:password@]host[:port][,host[:port]...][/chroot][?option=value&...]`, or `zks://` for TLS (feature
/// `tls`), with these options:
///
/// | option | default | |
/// |---|---|---|
/// | `session_timeout` | `10s` | how long a lock outlives a holder that died |
/// | `connect_timeout` | the session timeout | how long connecting may take |
/// | `create_chroot` | `false` | whether to create the chroot when it is missing |
/// | `dir` | `/locks` | the node below the chroot that has the directories of the locks |
/// | `layout` | `curator` | the names of the nodes: `curator`, `plain` or `kazoo` |
/// | `recipe` | `queue` | [how locks are taken](ZkRecipe): `queue` or `ephemeral` |
/// | `wait` | `watch` | how the recipe `ephemeral` waits: `watch` or `poll` |
/// | `auth` | `digest` | what user and password are for: ACLs of scheme `digest`, or `sasl` (DIGEST-MD5, feature `sasl`) |
/// | `acl` | `creator` with credentials, else `open` | [who may do what](NodeAcl): `creator`, `creator-and-readers` or `open` |
/// | `session` | `shared` | `private` for a session that no other connection of this process uses |
/// | `locks_per_session` | `5000` | when a further session is opened, at the [latest](Self::locks_per_session) |
/// | `tls_ca`, `tls_cert`, `tls_key` | none | PEM files: the authorities to trust (needed), our own certificate and its key |
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
/// A lock that is free is given back in one round trip, and taken in one as well when this session has had it within five
/// seconds and no other since: then it writes the directory of the lock, which is and stays empty. Otherwise, and where
/// somebody keeps data in the directory or an ACL does not let us write it, it takes a listing, and mostly a round trip, more.
#[derive(Clone)]
pub struct ZkConfig {
    hosts: String,
    chroot: String,
    credentials: Option<(String, String)>,
    auth: Auth,
    tls: Option<TlsFiles>,
    typed: Typed,
    create_chroot: bool,
    acl: Option<NodeAcl>,
    private: bool,
    locks_per_session: usize,
    session_timeout: Duration,
    connect_timeout: Option<Duration>,
    dir: String,
    layout: ZkLayout,
    recipe: ZkRecipe,
    clock: Clock,
    ensemble: Option<Arc<dyn Ensemble>>,
}

/// What user and password are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Auth {
    #[default]
    Digest,
    Sasl,
}

/// Options of the driver's own types, of which it cannot be told whether two are the same.
#[derive(Clone, Default)]
pub(crate) struct Typed {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<zookeeper_client::SaslOptions>,
}

impl Typed {
    const fn is_given(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return true;
        }
        #[cfg(feature = "sasl")]
        if self.sasl.is_some() {
            return true;
        }
        false
    }
}

/// What two connections must have in common to share their sessions.
#[derive(PartialEq, Eq)]
pub(crate) struct Sharing {
    hosts: String,
    chroot: String,
    create_chroot: bool,
    credentials: Option<(String, String)>,
    auth: Auth,
    tls: Option<TlsFiles>,
    acl: NodeAcl,
    times: (Duration, Duration),
    locks_per_session: usize,
}

impl ZkConfig {
    /// The shortest session timeout that can be asked for. A server gives no less than two of its ticks, which
    /// are 4 s unless configured otherwise.
    pub const MIN_SESSION_TIMEOUT: Duration = Duration::from_millis(100);

    /// The defaults for these servers (`host:port`, separated by commas; the port is 2181 if left out): no chroot,
    /// no credentials, a session timeout of 10 s, locks in `/locks` in [Curator's layout](ZkLayout::Curator).
    #[must_use]
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            chroot: String::new(),
            credentials: None,
            auth: Auth::default(),
            tls: None,
            typed: Typed::default(),
            create_chroot: false,
            acl: None,
            private: false,
            locks_per_session: 5_000,
            session_timeout: Duration::from_secs(10),
            connect_timeout: None,
            dir: "/locks".to_owned(),
            layout: ZkLayout::default(),
            recipe: ZkRecipe::default(),
            clock: Clock::boot(),
            ensemble: None,
        }
    }

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`].
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["zk", "zks"])?;
        let mut config = Self::new(&url.hosts).chroot(url.path.trim_end_matches('/'));
        config.credentials = match (&url.user, &url.password) {
            (user, Some(password)) => Some((user.clone(), password.clone())),
            (user, None) if user.is_empty() => None,
            _ => return Err(invalid("the URL has a user but no password", "write user:password@")),
        };
        let (mut tls, mut wait) = (TlsFiles::default(), None);
        url.options(BACKEND, &OPTIONS, |key, value| {
            let file = || Some(value.text().to_owned());
            match key {
                "session_timeout" => config.session_timeout = value.duration()?,
                "connect_timeout" => config.connect_timeout = Some(value.duration()?),
                "create_chroot" => config.create_chroot = value.parse("use true or false")?,
                "dir" => value.text().clone_into(&mut config.dir),
                "layout" => config.layout = value.parse("use curator, plain or kazoo")?,
                "recipe" => config.recipe = value.parse("use queue or ephemeral")?,
                "wait" => wait = Some(value.parse("use watch or poll")?),
                "auth" => {
                    config.auth = match value.text() {
                        "digest" => Auth::Digest,
                        "sasl" => Auth::Sasl,
                        _ => return Err(value.invalid("use digest or sasl")),
                    }
                }
                "acl" => config.acl = Some(value.parse("use creator, creator-and-readers or open")?),
                "session" => {
                    config.private = match value.text() {
                        "shared" => false,
                        "private" => true,
                        _ => return Err(value.invalid("use shared or private")),
                    }
                }
                "locks_per_session" => config.locks_per_session = value.parse("give a number")?,
                "tls_ca" => tls.ca = file(),
                "tls_cert" => tls.cert = file(),
                _ => tls.key = file(),
            }
            Ok(())
        })?;
        if url.scheme == "zks" {
            config.tls = Some(tls);
        } else if tls != TlsFiles::default() {
            return Err(invalid("options for TLS without TLS", "write zks:// instead of zk://"));
        }
        match (wait, &mut config.recipe) {
            (Some(wait), ZkRecipe::Ephemeral(by)) => *by = wait,
            (Some(_), ZkRecipe::Queue) => {
                return Err(invalid(
                    "wait means nothing to the recipe queue",
                    "leave it out; or name recipe=ephemeral, if an older fleet runs that",
                ));
            }
            (None, _) => {}
        }
        config.check()?;
        Ok(config)
    }

    /// The node that stands for the root of the tree; it must exist, unless it is to be
    /// [created](Self::create_chroot). Empty or `/` for the root itself.
    #[must_use]
    pub fn chroot(mut self, chroot: impl Into<String>) -> Self {
        self.chroot = chroot.into();
        if self.chroot == "/" {
            self.chroot.clear();
        }
        self
    }

    /// Whether to create the chroot, and what is missing above it, with the [ACL](Self::acl) of all nodes.
    #[must_use]
    pub const fn create_chroot(mut self, create: bool) -> Self {
        self.create_chroot = create;
        self
    }

    /// The user and password of the `digest` scheme, for servers whose ACLs ask for them.
    ///
    /// A server cannot tell a wrong password: it takes it for somebody else, who is refused by the ACLs.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// Proves who we are by SASL. With Kerberos, enable the feature `sasl-gssapi` of `zookeeper-client` as well.
    ///
    /// Two connections with options of this type never share a session.
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn sasl(mut self, options: impl Into<zookeeper_client::SaslOptions>) -> Self {
        self.typed.sasl = Some(options.into());
        self
    }

    /// Speaks TLS to all servers.
    ///
    /// Two connections with options of this type never share a session.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, options: zookeeper_client::TlsOptions) -> Self {
        self.typed.tls = Some(options);
        self
    }

    /// Who may do what with the nodes that we create: [`NodeAcl::Creator`] if not said and there are credentials.
    #[must_use]
    pub fn acl(mut self, acl: NodeAcl) -> Self {
        self.acl = Some(acl);
        self
    }

    /// Whether this connection has sessions of its own. By default all connections of a process with the same servers,
    /// chroot, credentials, timeouts and ACL share theirs, if they were made on the same tokio runtime, and the last
    /// one that is closed ends them. Connections with a [clock](Self::clock) or an [ensemble](Self::ensemble) of their
    /// own do not share.
    #[must_use]
    pub const fn private_session(mut self, private: bool) -> Self {
        self.private = private;
        self
    }

    /// How many locks, held or waited for, one session has at most before a further one is opened; 5000 if not said.
    ///
    /// It is opened sooner when the paths of a session's nodes have 120 KiB, as it cannot watch more: after some 1 700 locks
    /// with short names, and 380 with names of 250 bytes. Every session is a connection, of which a server allows
    /// `maxClientCnxns` from one host, 60 by default. Where no further session can be opened, locks are taken all the same,
    /// and a warning is logged: some of them are looked at every sixth of the session timeout instead of watched, so that
    /// waiters get their turn later.
    #[must_use]
    pub const fn locks_per_session(mut self, locks: usize) -> Self {
        self.locks_per_session = locks;
        self
    }

    /// How long a lock outlives a holder that died, or that the servers cannot hear. The servers may give more or
    /// less than is asked for; [`Locks::capabilities`] tells what.
    ///
    /// A session that writes nothing else costs the ensemble one entry in its log every sixth of this.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long connecting may take before the servers count as unreachable; as long as the session timeout if not
    /// said. A session whose opening took more than half of its timeout is proven before it is used, which takes half of
    /// the timeout more at most.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The node below the chroot in which every lock has its directory, `/locks` if not said. It is created when it
    /// is missing.
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

    /// How a lock stands in the tree; a [queue](ZkRecipe::Queue) if not said.
    #[must_use]
    pub fn recipe(mut self, recipe: ZkRecipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// The clock that sessions are counted on.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        (self.clock, self.private) = (clock, true);
        self
    }

    /// What opens the sessions, instead of the driver: for tests, and for transports of your own. The hosts, the
    /// chroot and the credentials are then for it to know; here they only name the servers in errors.
    #[must_use]
    pub fn ensemble(mut self, ensemble: Arc<dyn Ensemble>) -> Self {
        (self.ensemble, self.private) = (Some(ensemble), true);
        self
    }

    /// Connects, and checks that the chroot exists.
    ///
    /// The session lives on the tokio runtime that this is called on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad option or a missing chroot, [`ErrorKind::Unavailable`] when no server
    /// answers, [`ErrorKind::Denied`] when they refuse the credentials.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, a session that was just opened is closed again.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Zk::connect(self).await?))
    }

    /// The same locks without a connection yet: it is made by their first use, whose errors then tell what is wrong with it.
    ///
    /// For a service that starts before its server. Needs no runtime; every use does.
    ///
    /// ```
    /// # use lock_zk::ZkConfig;
    /// let locks = ZkConfig::from_url("zk://a:2181,b:2181,c:2181/app")?.connect_lazy()?;
    /// let mutex = locks.mutex("orders/42"); // nothing is sent before mutex.acquire()
    /// # let _ = mutex;
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad option.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.check()?;
        Ok(Locks::new(Lazy::new(capabilities(&self, self.session_timeout), move || {
            Zk::connect(self.clone())
        })))
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() || self.hosts.split(',').any(|host| !is_host(host)) {
            return Err(invalid("the list of hosts is not valid", "write host:port[,host:port...]"));
        }
        self.check_security()?;
        if self.locks_per_session == 0 {
            return Err(invalid("no session may have a lock", "give a larger locks_per_session"));
        }
        for (what, path) in [("chroot", &self.chroot), ("dir", &self.dir)] {
            let empty = path.is_empty() && what == "chroot" || path == "/";
            if !empty && !is_path(path) {
                return Err(invalid(
                    &format!("the {what} {path:?} is not a path"),
                    "start it with a slash, end it without one, and leave out . and .. and control characters",
                ));
            }
        }
        if self.chroot.is_empty() && (self.dir == "/zookeeper" || self.dir.starts_with("/zookeeper/")) {
            return Err(invalid(
                "the dir is in the tree that ZooKeeper keeps for itself",
                "choose another one",
            ));
        }
        if self.session_timeout < Self::MIN_SESSION_TIMEOUT {
            return Err(invalid(
                &format!("a session_timeout of {:?} is too short", self.session_timeout),
                &format!("use at least {:?}; servers give 4s or more by default", Self::MIN_SESSION_TIMEOUT),
            ));
        }
        if self.session_timeout.as_millis() > i32::MAX.unsigned_abs().into() {
            return Err(invalid("the session_timeout is too long", "use at most 24 days"));
        }
        if self.connect_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid("the connect_timeout is zero", "give a longer time or leave it out"));
        }
        Ok(())
    }

    fn check_security(&self) -> Result<()> {
        if let Some(tls) = &self.tls {
            tls.check()?;
        }
        if self.auth == Auth::Sasl {
            if !cfg!(feature = "sasl") {
                return Err(Error::new(ErrorKind::Unsupported, BACKEND)
                    .with_message("this build has no SASL")
                    .with_hint("enable the feature: cargo add polylock --features zk,sasl"));
            }
            if self.credentials.is_none() {
                return Err(invalid("auth=sasl without user and password", "write user:password@"));
            }
        }
        if self.node_acl().acls().is_empty() {
            return Err(invalid("the ACL is empty", "say who may do what"));
        }
        if self.node_acl().needs_credentials() && !self.proves_itself() {
            return Err(invalid(
                "the ACL is for those who have our credentials, and there are none",
                "write user:password@, or acl=open",
            ));
        }
        Ok(())
    }

    /// Whether the servers want TLS.
    pub(crate) fn speaks_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        let typed = self.typed.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let typed = false;
        typed || self.tls.is_some()
    }

    /// Whether a server can tell who we are.
    fn proves_itself(&self) -> bool {
        let certificate = self.tls.as_ref().is_some_and(|tls| tls.cert.is_some());
        #[cfg(feature = "tls")]
        let certificate = certificate || self.typed.tls.is_some();
        #[cfg(feature = "sasl")]
        let certificate = certificate || self.typed.sasl.is_some();
        // What another ensemble knows of us is not known here.
        certificate || self.credentials.is_some() || self.ensemble.is_some()
    }

    pub(crate) fn hosts(&self) -> &str {
        &self.hosts
    }

    pub(crate) fn chroot_path(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// What opens the sessions.
    pub(crate) fn opener(&self) -> Result<Arc<dyn Ensemble>> {
        match &self.ensemble {
            Some(ensemble) => Ok(Arc::clone(ensemble)),
            None => Ok(Arc::new(self.driver()?)),
        }
    }

    fn driver(&self) -> Result<Driver> {
        #[cfg(feature = "tls")]
        let tls = match (&self.typed.tls, &self.tls) {
            (Some(options), _) => Some(options.clone()),
            (None, files) => files.as_ref().map(TlsFiles::read).transpose()?,
        };
        #[cfg(not(feature = "tls"))]
        self.tls.as_ref().map_or(Ok(()), TlsFiles::check)?;
        Ok(Driver {
            patience: self.patience(),
            hosts: self.hosts.clone(),
            chroot: self.chroot.clone(),
            create_chroot: self.create_chroot.then(|| self.node_acl()),
            digest: self.digest(),
            #[cfg(feature = "sasl")]
            sasl: self.sasl_options(),
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// `user:password`, as the digest scheme wants it.
    fn digest(&self) -> Option<String> {
        let credentials = self.credentials.as_ref().filter(|_| self.auth == Auth::Digest);
        credentials.map(|(user, password)| format!("{user}:{password}"))
    }

    #[cfg(feature = "sasl")]
    fn sasl_options(&self) -> Option<zookeeper_client::SaslOptions> {
        use zookeeper_client::SaslOptions;

        let credentials = self.credentials.as_ref().filter(|_| self.auth == Auth::Sasl);
        let digest =
            credentials.map(|(user, password)| SaslOptions::digest_md5(user.clone(), password.clone()));
        self.typed.sasl.clone().or_else(|| digest.map(Into::into))
    }

    /// Who may do what with our nodes.
    pub(crate) fn node_acl(&self) -> NodeAcl {
        #[cfg(feature = "sasl")]
        let typed = self.typed.sasl.is_some();
        #[cfg(not(feature = "sasl"))]
        let typed = false;
        let default = if self.credentials.is_some() || typed { NodeAcl::Creator } else { NodeAcl::Open };
        self.acl.clone().unwrap_or(default)
    }

    /// What two connections must have in common to share their sessions; `None` if this one shares with nobody.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        (!self.private && !self.typed.is_given()).then(|| Sharing {
            hosts: self.hosts.clone(),
            chroot: self.chroot.clone(),
            create_chroot: self.create_chroot,
            credentials: self.credentials.clone(),
            auth: self.auth,
            tls: self.tls.clone(),
            acl: self.node_acl(),
            times: (self.session_timeout, self.patience()),
            locks_per_session: self.locks_per_session,
        })
    }

    pub(crate) const fn most_locks(&self) -> usize {
        self.locks_per_session
    }

    pub(crate) const fn requested_timeout(&self) -> Duration {
        self.session_timeout
    }

    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.session_timeout)
    }

    pub(crate) fn base(&self) -> &str {
        &self.dir
    }

    pub(crate) const fn node_layout(&self) -> ZkLayout {
        self.layout
    }

    pub(crate) const fn lock_recipe(&self) -> ZkRecipe {
        self.recipe
    }

    pub(crate) const fn lease_clock(&self) -> &Clock {
        &self.clock
    }
}

impl fmt::Debug for ZkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkConfig")
            .field("hosts", &self.hosts)
            .field("chroot", &self.chroot)
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("create_chroot", &self.create_chroot)
            .field("acl", &self.node_acl())
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("dir", &self.dir)
            .field("layout", &self.layout)
            .field("recipe", &self.recipe)
            .finish_non_exhaustive()
    }
}

const OPTIONS: [&str; 14] = [
    "session_timeout",
    "connect_timeout",
    "create_chroot",
    "dir",
    "layout",
    "recipe",
    "wait",
    "auth",
    "acl",
    "session",
    "locks_per_session",
    "tls_ca",
    "tls_cert",
    "tls_key",
];

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, port)) => (name, Some(port.strip_prefix(':').unwrap_or("?"))),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let port_is_fine = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@[]".contains(&byte);
    !name.is_empty() && name.bytes().all(plain) && port_is_fine
}

fn is_path(path: &str) -> bool {
    let levels = path.strip_prefix('/').map(|path| path.split('/'));
    levels.is_some_and(|mut levels| {
        levels.all(|level| {
            let plain = |c: char| {
                !c.is_control() && !matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{10ffff}')
            };
            !matches!(level, "" | "." | "..") && level.chars().all(plain)
        })
    })
}

fn invalid(message: &str, hint: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ZkWait;

    #[test]
    fn urls() {
        let url = "zk://me:p%40ss@a:2181,[::1]:2182,c/app/x?session_timeout=4s&connect_timeout=1s&dir=/l&layout=kazoo";
        let config = ZkConfig::from_url(url).unwrap();
        assert_eq!((config.hosts(), config.chroot_path()), ("a:2181,[::1]:2182,c", "/app/x"));
        assert_eq!(config.digest().unwrap(), "me:p@ss");
        assert_eq!(
            (config.requested_timeout(), config.patience()),
            (Duration::from_secs(4), Duration::from_secs(1))
        );
        assert_eq!((config.base(), config.node_layout()), ("/l", ZkLayout::Kazoo));
        assert!(!format!("{config:?}").contains("p@ss"), "{config:?}");
        let config = ZkConfig::from_url("zk://a/?wait=poll&recipe=ephemeral").unwrap();
        assert_eq!(config.lock_recipe(), ZkRecipe::Ephemeral(ZkWait::Poll));
        let config = ZkConfig::from_url("zk://a/").unwrap();
        assert_eq!(config.lock_recipe(), ZkRecipe::Queue);
        assert_eq!((config.hosts(), config.chroot_path(), config.base()), ("a", "/", "/locks"));
    }

    #[test]
    fn bad_urls_are_told_without_the_password() {
        for (url, text) in [
            ("zk://", "hosts"),
            ("zk:///app", "hosts"),
            ("zk://me:secret@a,,b", "hosts"),
            ("zk://me:secret@a:0", "hosts"),
            ("zk://a:99999", "hosts"),
            ("zk://me@a", "no password"),
            ("zk://me:secret@a//x", "chroot"),
            ("zk://a/x/../y", "chroot"),
            ("zk://a?dir=locks", "dir"),
            ("zk://a?dir=/locks/", "dir"),
            ("zk://a?dir=/zookeeper/locks", "ZooKeeper keeps"),
            ("zk://a?session_timeout=0s", "session_timeout"),
            ("zk://a?session_timeout=1ms", "session_timeout"),
            ("zk://a?session_timeout=90days", "session_timeout"),
            ("zk://a?connect_timeout=0s", "connect_timeout"),
            ("zk://a?layout=maven", "curator, plain or kazoo"),
            ("zk://a?recipe=persistent", "queue or ephemeral"),
            ("zk://a?recipe=ephemeral&wait=queue", "watch or poll"),
            ("zk://a?wait=poll", "recipe=ephemeral"),
            ("zk://a?ttl=3s", "session_timeout"),
            ("zk://a?create_chroot=maybe", "true or false"),
            ("zk://a?auth=kerberos", "digest or sasl"),
            #[cfg(feature = "sasl")]
            ("zk://a?auth=sasl", "sasl"),
            ("zk://a?acl=creator", "credentials"),
            ("zk://me:secret@a?acl=nobody", "creator"),
            ("zk://a?session=mine", "shared or private"),
            ("zk://a?locks_per_session=0", "locks_per_session"),
            ("zk://a?tls_ca=/x", "zks://"),
        ] {
            let error = ZkConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().contains(text), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
        }
    }
}
