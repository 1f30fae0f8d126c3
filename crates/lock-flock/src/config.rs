//! The options, in code and from a URL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::backend::Support;
use lock_core::url::LockUrl;
use lock_core::{Capabilities, Error, ErrorKind, Lazy, LeaseKind, Locks, Result};

use crate::Flock;
use crate::directory::OWN_USER;
use crate::error::BACKEND;

/// The configuration of the flock backend.
///
/// | URL option | default | |
/// |---|---|---|
/// | `session_timeout` | `10s` | see [`session_timeout`](Self::session_timeout) |
/// | `mode` | `0600` | who may use the locks; see [`mode`](Self::mode) |
/// | `group` | that of the directory or the process | a name or a number; see [`group`](Self::group) |
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
    pub(crate) mode: u32,
    pub(crate) group: Option<String>,
}

impl FlockConfig {
    /// A shorter one is a mistake: the files are looked at three times in it.
    const MIN_TIMEOUT: Duration = Duration::from_millis(100);

    /// The locks whose files are in this directory. The first acquisition makes it if it does not exist.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), session_timeout: Duration::from_secs(10), mode: OWN_USER, group: None }
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
        url.options(BACKEND, &["session_timeout", "mode", "group"], |key, value| {
            match key {
                "mode" => {
                    let mode = u32::from_str_radix(value.text(), 8).map_err(|_| value.invalid(MODES))?;
                    config.mode = mode;
                }
                "group" => config.group = Some(value.text().to_owned()),
                _ => config.session_timeout = value.duration()?,
            }
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

    /// The permissions of the files that are made, as for `chmod`; the umask does not count. A directory that is made can be
    /// searched by those who may read its files.
    ///
    /// By default only the user of the process may use the locks. **Whoever may read a file can lock it**, and so keep the lock from
    /// everybody. With `0660` and a [`group`](Self::group), several users share the locks; with `0640`, the group can
    /// [inspect](lock_core::Locks::inspect) them. Files that exist keep their permissions: all processes need the same option.
    ///
    /// In a directory where all users may make files, such as `/tmp`, an acquisition refuses those of other users, unless the
    /// mode is `0666`.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// The group of what is made, by its name or its number. The user of the process has to be a member, or root.
    ///
    /// ```
    /// # use lock_flock::FlockConfig;
    /// // As flock:///var/lock/app?mode=0660&group=app
    /// let config = FlockConfig::new("/var/lock/app").mode(0o660).group("app");
    /// # drop(config);
    /// ```
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The directory of the locks.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Connects. It makes nothing: the first acquisition does.
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
    /// [`ErrorKind::InvalidConfig`] for a session timeout that is too short or too long, and for an invalid mode.
    pub fn connect_lazy(self) -> Result<Locks> {
        let expected = self.capabilities()?;
        Ok(Locks::new(Lazy::new(expected, move || Flock::connect(self.clone()))))
    }

    pub(crate) fn capabilities(&self) -> Result<Capabilities> {
        let mut capabilities = Capabilities::new(BACKEND, LeaseKind::session(self.session_timeout));
        capabilities.check_ttl(self.session_timeout, Self::MIN_TIMEOUT)?;
        check_mode(self.mode)?;
        (capabilities.cross_process, capabilities.names_sharers) = (true, true);
        (capabilities.shared, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities.breaks_one = Support::Yes;
        capabilities.permits = Support::No("flock(2) knows one holder or any number of readers");
        capabilities.revocation = Support::No("a file cannot notify its holders");
        Ok(capabilities)
    }
}

/// Refuses permissions by which the process itself, or those who may write, could not lock the files.
fn check_mode(mode: u32) -> Result<()> {
    let unreadable = mode & 0o222 & !(mode >> 1);
    if mode & !0o666 == 0 && mode & OWN_USER == OWN_USER && unreadable == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!("files of locks cannot have the mode {mode:04o}"))
        .with_hint(MODES))
}

const MODES: &str = "use 0600 for one user, 0660 for a group, or 0640 for one user and a group that inspects";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_directory_and_options() {
        let config = FlockConfig::from_url("flock:///var/lock/my%20app?session_timeout=5s").unwrap();
        assert_eq!(config.dir, PathBuf::from("/var/lock/my app"));
        assert_eq!((config.session_timeout, config.mode), (Duration::from_secs(5), 0o600));
        let config = FlockConfig::from_url("flock:///a?mode=0660&group=app").unwrap();
        assert_eq!((config.mode, config.group.as_deref()), (0o660, Some("app")));
        for url in [
            "flock://",
            "flock:///",
            "flock://host/var",
            "flock://me:pw@/var",
            "flock:///a?ttl=1s",
            "flock:///a?mode=rw",
            "flock:///a?mode=0666660",
            "flock:///a?mode=0440",
            "flock:///a?mode=0770",
            "flock:///a?mode=0620",
        ] {
            let error = FlockConfig::from_url(url).and_then(FlockConfig::connect_lazy).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidConfig, BACKEND), "{error}");
        }
    }
}
