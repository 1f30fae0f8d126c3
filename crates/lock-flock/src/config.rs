//! The options, in code and from a URL.

use std::path::PathBuf;
use std::time::Duration;

use lock_core::backend::Support;
use lock_core::url::LockUrl;
use lock_core::{Capabilities, Error, ErrorKind, Lazy, LeaseKind, Locks, Result};

use crate::Flock;
use crate::error::BACKEND;

/// The configuration of the flock backend.
///
/// | URL option | default | |
/// |---|---|---|
/// | `session_timeout` | `10s` | see [`session_timeout`](Self::session_timeout) |
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_flock::FlockConfig;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let dir = dir.path();
/// // As flock:///var/lock/app?session_timeout=5s
/// let locks = FlockConfig::new(dir).session_timeout(Duration::from_secs(5)).connect().await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// locks.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FlockConfig {
    pub(crate) dir: PathBuf,
    pub(crate) session_timeout: Duration,
}

impl FlockConfig {
    /// A shorter one is a mistake: the files are looked at three times in it.
    const MIN_TIMEOUT: Duration = Duration::from_millis(100);

    /// The locks whose files are in this directory. It is made if it does not exist.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), session_timeout: Duration::from_secs(10) }
    }

    /// Parses a URL such as `flock:///var/lock/app?session_timeout=5s`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a URL without a directory and for an unknown option.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["flock"])?;
        let is_local = url.hosts.is_empty() && url.user.is_empty() && url.password.is_none();
        if !is_local || url.path.trim_matches('/').is_empty() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message("the URL names no directory of this host")
                .with_hint("write it as flock:///var/lock/app, with three slashes"));
        }
        let mut config = Self::new(&url.path);
        url.options(BACKEND, &["session_timeout"], |_, value| {
            config.session_timeout = value.duration()?;
            Ok(())
        })?;
        Ok(config)
    }

    /// How long a guard is valid after the last look at its file, which is taken three times in this span.
    ///
    /// The kernel keeps the lock as long as the process lives, so the looks find two things only: an operator broke or
    /// deleted the lock, or the process was paused for that long and cannot know.
    #[must_use]
    pub fn session_timeout(mut self, session_timeout: Duration) -> Self {
        self.session_timeout = session_timeout;
        self
    }

    /// Connects: makes the directory, and finds out whether files can be locked there.
    ///
    /// # Errors
    ///
    /// As [`Flock::connect`].
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Flock::connect(self).await?))
    }

    /// The same locks, connected at their first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a session timeout that is too short or too long.
    pub fn connect_lazy(self) -> Result<Locks> {
        let expected = self.capabilities()?;
        Ok(Locks::new(Lazy::new(expected, move || Flock::connect(self.clone()))))
    }

    pub(crate) fn capabilities(&self) -> Result<Capabilities> {
        let mut capabilities = Capabilities::new(BACKEND, LeaseKind::session(self.session_timeout));
        capabilities.check_ttl(self.session_timeout, Self::MIN_TIMEOUT)?;
        (capabilities.cross_process, capabilities.names_sharers) = (true, true);
        (capabilities.shared, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities.permits = Support::No("flock(2) knows one holder or any number of readers");
        capabilities.revocation = Support::No("a file cannot notify its holders");
        capabilities.breaks_one = Support::No("a broken file is broken for all its holders");
        Ok(capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_directory_and_options() {
        let config = FlockConfig::from_url("flock:///var/lock/my%20app?session_timeout=5s").unwrap();
        assert_eq!(config.dir, PathBuf::from("/var/lock/my app"));
        assert_eq!(config.session_timeout, Duration::from_secs(5));
        for url in ["flock://", "flock:///", "flock://host/var", "flock://me:pw@/var", "flock:///a?ttl=1s"] {
            let error = FlockConfig::from_url(url).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidConfig, BACKEND), "{error}");
        }
    }
}
