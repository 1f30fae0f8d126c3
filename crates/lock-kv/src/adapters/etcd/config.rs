//! The options of locks in etcd, in code and from a URL.

use lock_core::tls::TlsFiles;
use lock_core::url::LockUrl;
use lock_core::{Lazy, Locks, Password, Result, runtime};

use super::{Etcd, Members, NAME, about};
use crate::adapters::host::Host;
use crate::adapters::options::{KvOptions, check_files, invalid, kv_setters};
use crate::backend::{Kv, KvConfig};

/// Before the names of locks, unless the URL has another one.
const PREFIX: &str = "polylock";
const DEFAULT_PORT: u16 = 2_379;
const FORM: &str = "write it as etcd://user:password@h1:2379,h2:2379,h3:2379/prefix";
const OPTIONS: [&str; 6] = ["ttl", "command_timeout", "password_file", "tls_ca", "tls_cert", "tls_key"];

/// The configuration of locks in etcd, 3.4 or newer.
///
/// A lock survives what etcd survives: the loss of any minority of the members. URL:
/// `etcd://[user:password@]host[:port][,host[:port]...][/prefix][?option=value&...]`, or `etcds://` for TLS (feature `tls`). A user needs a
/// role with `readwrite` on the prefix. Keys are `prefix/lock/NAME`; the prefix is `polylock` unless the URL has one. All clients of a lock
/// use the same prefix. Name each member: a name that stands for several addresses is one member.
///
/// **Start etcd with `--auto-compaction-mode=periodic --auto-compaction-retention=5m`.** It compacts nothing by default, and each renewal
/// is a value that it keeps: a hundred held locks fill its quota of 2 GB in two days, and one lock with 128 waiters in 90 minutes. A full
/// store refuses renewals, and so all locks are lost.
///
/// | URL option | default | |
/// |---|---|---|
/// | `ttl` | `10s` | how long a lock lasts without its holder |
/// | `command_timeout` | `5s` | after this time a request ends without an answer; a silent member is passed over after a third of it. Half a ttl at most, or a lock may be lost before its guard is suspect |
/// | `password_file` | none | file with the password, read at each login |
/// | `tls_ca` | the system's | file with the certificates of the authorities to trust, PEM |
/// | `tls_cert`, `tls_key` | none | files with the client certificate and its key, PEM |
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_kv::EtcdConfig;
/// # fn main() -> lock_core::Result<()> {
/// // As etcd://me:s3cret@h1:2379,h2:2379,h3:2379/app?ttl=5s
/// let config = EtcdConfig::new("h1:2379,h2:2379,h3:2379")
///     .user("me", "s3cret")
///     .prefix("app")
///     .ttl(Duration::from_secs(5));
/// let locks = config.connect_lazy()?;
/// # let _ = locks;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    members: String,
    user: Option<(String, Password)>,
    prefix: String,
    tls: Option<TlsFiles>,
    kv: KvConfig,
}

impl EtcdConfig {
    /// Locks in the cluster of these members, as `h1:2379,h2:2379`.
    #[must_use]
    pub fn new(members: impl Into<String>) -> Self {
        let members = members.into();
        Self { members, user: None, prefix: PREFIX.to_owned(), tls: None, kv: KvConfig::new() }
    }

    /// Parses a URL such as `etcd://me:s3cret@h1:2379,h2:2379,h3:2379/app?ttl=5s`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a URL that names no member, for a user without a password and
    /// for an unknown option;
    /// [`Unsupported`](lock_core::ErrorKind::Unsupported) for TLS in a build without it.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(NAME, &["etcd", "etcds"])?;
        let KvOptions { kv, password, tls } =
            KvOptions::of(&url, NAME, &OPTIONS, KvConfig::new(), |_, _| Ok(()))?;
        let mut config = Self { tls, kv, ..Self::new(&url.hosts) };
        let prefix = url.path.strip_prefix('/').unwrap_or_default();
        if !prefix.trim_matches('/').is_empty() {
            config = config.prefix(prefix);
        }
        match (url.user.is_empty(), password) {
            (true, None) => {}
            (false, Some(password)) => config = config.user(&url.user, password),
            _ => {
                let hint = "write it as etcd://user:password@host, or use password_file=";
                return Err(invalid(NAME, "a user or a password is missing", hint));
            }
        }
        config.check()?;
        Ok(config)
    }

    /// Logs in as this user. A [`Password`] is a text, a file, or a function.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<Password>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// What keys begin with, before a slash. Default `polylock`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Connects to a member that answers.
    ///
    /// # Errors
    ///
    /// As [`Kv::connect`]; [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a file that cannot be read;
    /// [`Denied`](lock_core::ErrorKind::Denied) for a wrong password, and for a user without rights on the prefix.
    ///
    /// # Cancel safety
    ///
    /// As [`Kv::connect`].
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(self.open().await?))
    }

    /// The same locks, connected at their first use.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a host, a prefix, a ttl or a timeout that cannot be used.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.check()?;
        let expected = self.kv.capabilities(&about())?;
        Ok(Locks::new(Lazy::new(expected, move || self.clone().open())))
    }

    async fn open(self) -> Result<Kv<Etcd>> {
        let members = self.check()?;
        self.kv.capabilities(&about())?;
        runtime::current(NAME)?;
        check_files(NAME, self.user.as_ref().map(|user| &user.1), self.tls.as_ref()).await?;
        let limit = self.kv.timeout();
        let members = Members::new(&self.members, members, self.tls, self.user, limit)?;
        let prefix = format!("{}/", self.prefix.trim_end_matches('/'));
        Kv::connect(Etcd::new(members, prefix), self.kv).await
    }

    fn check(&self) -> Result<Vec<Host>> {
        if self.prefix.trim_matches('/').is_empty() || self.prefix.contains(char::is_control) {
            return Err(invalid(NAME, "the prefix is empty", "give it a name, such as polylock"));
        }
        Host::list(NAME, &self.members, DEFAULT_PORT, FORM)
    }
}

kv_setters!(EtcdConfig);

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_names_members_a_prefix_and_options() {
        let config = EtcdConfig::from_url("etcd://me:s3cret@h1,h2:7,[::1]:8//app/locks?ttl=5s").unwrap();
        assert_eq!((config.prefix.as_str(), config.check().unwrap().len()), ("/app/locks", 3));
        assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
        assert_eq!(EtcdConfig::from_url("etcd://h/").unwrap().prefix, PREFIX);
        for url in [
            "etcd://",
            "etcd://h1,,h2",
            "etcd://h:x",
            "etcd://me@h",
            "etcd://:s3cret@h",
            "etcd://me:s3cret@h?password_file=/x",
            "etcd://h?password_file=/x",
            "etcd://h?tls_ca=/x",
            "etcd://h?tll=5s",
            "etcd://h/a%0Ab",
        ] {
            let error = EtcdConfig::from_url(url).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidConfig, NAME), "{url}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        for url in ["etcd://h?ttl=1ms", "etcd://h?command_timeout=0s"] {
            let error = EtcdConfig::from_url(url).and_then(EtcdConfig::connect_lazy).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        }
    }
}
