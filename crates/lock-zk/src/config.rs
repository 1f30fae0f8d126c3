//! The options of the ZooKeeper backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::url::LockUrl;
use lock_core::{Clock, Error, ErrorKind, Locks, Result};

use crate::ensemble::Driver;
use crate::{BACKEND, Ensemble, Layout, Zk};

/// The options of the ZooKeeper backend.
///
/// URL: `zk://[user:password@]host[:port][,host[:port]...][/chroot][?option=value&...]`, with the options
/// `session_timeout`, `connect_timeout`, `dir` and `layout`.
///
/// ```
/// # use std::time::Duration;
/// # use lock_zk::{Layout, ZkConfig};
/// let config = ZkConfig::from_url("zk://a:2181,b:2181,c:2181/app?session_timeout=10s")?;
/// let same = ZkConfig::new("a:2181,b:2181,c:2181").chroot("/app").session_timeout(Duration::from_secs(10));
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok::<_, lock_core::Error>(())
/// ```
///
/// The driver leaves Nagle's algorithm on, and there is no way to turn it off from here: over a network with a
/// round trip of `t`, an acquisition takes about `2 t` although its two requests are sent together.
#[derive(Clone)]
pub struct ZkConfig {
    hosts: String,
    chroot: String,
    credentials: Option<(String, String)>,
    session_timeout: Duration,
    connect_timeout: Option<Duration>,
    dir: String,
    layout: Layout,
    clock: Clock,
    ensemble: Option<Arc<dyn Ensemble>>,
}

impl ZkConfig {
    /// The shortest session timeout that can be asked for. A server gives no less than two of its ticks, which
    /// are 4 s unless configured otherwise.
    pub const MIN_SESSION_TIMEOUT: Duration = Duration::from_millis(100);

    /// The defaults for these servers (`host:port`, separated by commas; the port is 2181 if left out): no chroot,
    /// no credentials, a session timeout of 10 s, locks in `/locks` in [Curator's layout](Layout::Curator).
    #[must_use]
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            chroot: String::new(),
            credentials: None,
            session_timeout: Duration::from_secs(10),
            connect_timeout: None,
            dir: "/locks".to_owned(),
            layout: Layout::default(),
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
        let mut config = Self::new(&url.hosts).chroot(url.path.trim_end_matches('/'));
        config.credentials = match (&url.user, &url.password) {
            (user, Some(password)) => Some((user.clone(), password.clone())),
            (user, None) if user.is_empty() => None,
            _ => return Err(invalid("the URL has a user but no password", "write user:password@")),
        };
        url.options(BACKEND, &["session_timeout", "connect_timeout", "dir", "layout"], |key, value| {
            match key {
                "session_timeout" => config.session_timeout = value.duration()?,
                "connect_timeout" => config.connect_timeout = Some(value.duration()?),
                "dir" => value.text().clone_into(&mut config.dir),
                _ => config.layout = value.parse("use curator, plain or kazoo")?,
            }
            Ok(())
        })?;
        config.check()?;
        Ok(config)
    }

    /// The node that stands for the root of the tree; it must exist. Empty or `/` for the root itself.
    #[must_use]
    pub fn chroot(mut self, chroot: impl Into<String>) -> Self {
        self.chroot = chroot.into();
        if self.chroot == "/" {
            self.chroot.clear();
        }
        self
    }

    /// The user and password of the `digest` scheme, for servers whose ACLs ask for them.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// How long a lock outlives a holder that died, or that the servers cannot hear. The servers may give more or
    /// less than is asked for; [`Locks::capabilities`] tells what.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long connecting may take before the servers count as unreachable; as long as the session timeout if not
    /// said.
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
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The clock that sessions are counted on.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// What opens the sessions, instead of the driver: for tests, and for transports of your own. The hosts, the
    /// chroot and the credentials are then for it to know; here they only name the servers in errors.
    #[must_use]
    pub fn ensemble(mut self, ensemble: Arc<dyn Ensemble>) -> Self {
        self.ensemble = Some(ensemble);
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

    pub(crate) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() || self.hosts.split(',').any(|host| !is_host(host)) {
            return Err(invalid("the list of hosts is not valid", "write host:port[,host:port...]"));
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

    /// What the driver connects to.
    pub(crate) fn cluster(&self) -> String {
        format!("{}{}", self.hosts, self.chroot)
    }

    pub(crate) fn hosts(&self) -> &str {
        &self.hosts
    }

    pub(crate) fn chroot_path(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// What opens the sessions.
    pub(crate) fn opener(&self) -> Arc<dyn Ensemble> {
        let driver = || Driver { cluster: self.cluster(), digest: self.digest() };
        self.ensemble.clone().unwrap_or_else(|| Arc::new(driver()))
    }

    /// `user:password`, as the digest scheme wants it.
    fn digest(&self) -> Option<String> {
        self.credentials.as_ref().map(|(user, password)| format!("{user}:{password}"))
    }

    pub(crate) const fn asked_timeout(&self) -> Duration {
        self.session_timeout
    }

    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.session_timeout)
    }

    pub(crate) fn base(&self) -> &str {
        &self.dir
    }

    pub(crate) const fn node_layout(&self) -> Layout {
        self.layout
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
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("dir", &self.dir)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

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
    Error::new(ErrorKind::InvalidConfig, BACKEND).message(message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = "zk://me:p%40ss@a:2181,[::1]:2182,c/app/x?session_timeout=4s&connect_timeout=1s&dir=/l&layout=kazoo";
        let config = ZkConfig::from_url(url).unwrap();
        assert_eq!(config.cluster(), "a:2181,[::1]:2182,c/app/x");
        assert_eq!(config.digest().unwrap(), "me:p@ss");
        assert_eq!(
            (config.asked_timeout(), config.patience()),
            (Duration::from_secs(4), Duration::from_secs(1))
        );
        assert_eq!((config.base(), config.node_layout()), ("/l", Layout::Kazoo));
        assert!(!format!("{config:?}").contains("p@ss"), "{config:?}");
        let config = ZkConfig::from_url("zk://a/").unwrap();
        assert_eq!((config.cluster().as_str(), config.chroot_path(), config.base()), ("a", "/", "/locks"));
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
            ("zk://a?ttl=3s", "session_timeout"),
        ] {
            let error = ZkConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().contains(text), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
        }
    }
}
