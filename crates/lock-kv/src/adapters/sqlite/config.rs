//! The options of locks in a SQLite file, in code and from a URL.

use std::path::PathBuf;

use lock_core::url::LockUrl;
use lock_core::{Lazy, Locks, Result, runtime};

use super::{NAME, Sqlite, about};
use crate::adapters::options::{KvOptions, invalid, kv_setters};
use crate::backend::{Kv, KvConfig};

/// The configuration of locks in a SQLite file.
///
/// The file is made if it does not exist, with a table `polylock`, which may stand beside others. It is in WAL mode then, which needs a
/// file system of this host, not one of the network. Containers mount its directory, as the files beside it belong to it. A lock is on the disk when it is granted. Whoever may write the file can change
/// locks.
///
/// | URL option | default | |
/// |---|---|---|
/// | `ttl` | `10s` | how long a lock lasts without its holder |
/// | `command_timeout` | `5s` | after this time a request ends without an answer |
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_kv::SqliteConfig;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("locks.db");
/// // As sqlite:///var/lib/app/locks.db?ttl=5s
/// let locks = SqliteConfig::new(path).ttl(Duration::from_secs(5)).connect().await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// locks.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    path: PathBuf,
    kv: KvConfig,
}

impl SqliteConfig {
    /// Locks in this file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), kv: KvConfig::new() }
    }

    /// Parses a URL such as `sqlite:///var/lib/app/locks.db?ttl=5s`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a URL without a file and for an unknown option.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(NAME, &[NAME])?;
        let is_local = url.hosts.is_empty() && url.user.is_empty() && url.password.is_none();
        if !is_local || url.path.trim_matches('/').is_empty() {
            let hint = "write it as sqlite:///var/lib/app/locks.db, with three slashes";
            return Err(invalid(NAME, "the URL names no file of this host", hint));
        }
        let kv = KvOptions::of(&url, NAME, &["ttl", "command_timeout"], KvConfig::new(), |_, _| Ok(()))?.kv;
        Ok(Self { path: url.path.into(), kv })
    }

    /// Opens the file, and makes it and its table if they do not exist.
    ///
    /// # Errors
    ///
    /// As [`Kv::connect`]; [`Denied`](lock_core::ErrorKind::Denied) for a file that cannot be made, or not be written.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the file may have been made.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(self.open().await?))
    }

    /// The same locks, opened at their first use.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a ttl or a timeout that is too short or too long.
    pub fn connect_lazy(self) -> Result<Locks> {
        let expected = self.kv.capabilities(&about())?;
        Ok(Locks::new(Lazy::new(expected, move || self.clone().open())))
    }

    async fn open(self) -> Result<Kv<Sqlite>> {
        self.kv.capabilities(&about())?;
        runtime::current(NAME)?;
        Kv::connect(Sqlite::open(&self.path, self.kv.timeout()).await?, self.kv).await
    }
}

kv_setters!(SqliteConfig);

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_names_a_file_and_options() {
        let config = SqliteConfig::from_url("sqlite:///var/lib/my%20app/locks.db?ttl=5s").unwrap();
        assert_eq!(config.path, PathBuf::from("/var/lib/my app/locks.db"));
        for url in [
            "sqlite://",
            "sqlite:///",
            "sqlite://host/a",
            "sqlite://me:pw@/a",
            "sqlite:///a?tll=5s",
            "sqlite:///a?ttl=1ms",
        ] {
            let error = SqliteConfig::from_url(url).and_then(SqliteConfig::connect_lazy).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidConfig, NAME), "{error}");
        }
    }
}
