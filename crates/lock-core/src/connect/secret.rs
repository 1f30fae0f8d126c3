//! Passwords and files that are read at each connect, so that they can change while the program runs.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::spawn_blocking;

use crate::{Error, ErrorKind};

/// A password: a text, a file, or a function that returns it.
///
/// A file is read, and a function called, at each connect. So a password can be changed without a restart: connections that
/// are open stay open, and the next one uses the new password. The newline at the end of a file is no part of the password.
///
/// `Debug` does not show a password.
///
/// # Examples
///
/// ```
/// use lock_core::Password;
///
/// let text = Password::from("s3cret");
/// let file = Password::file("/run/secrets/redis");
/// let vault = Password::callback(|| async { Ok(std::env::var("REDIS_PASSWORD")?) });
/// assert_eq!(format!("{text:?} {file:?}"), "Password(***) Password(\"/run/secrets/redis\")");
/// # let _ = vault;
/// ```
#[derive(Clone)]
pub struct Password(Source);

#[derive(Clone)]
enum Source {
    Text(String),
    File(PathBuf),
    Callback(Arc<Callback>),
}

type Callback = dyn Fn() -> BoxFuture<'static, Result<String, Failed>> + Send + Sync;
type Failed = Box<dyn StdError + Send + Sync>;

impl Password {
    /// The contents of this file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// What this function returns. The time to connect includes its time; it may be dropped before it returns. A session of
    /// ZooKeeper that moves to another server allows it a fifth of the session timeout.
    #[must_use]
    pub fn callback<F>(read: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, Failed>> + Send + 'static,
    {
        Self(Source::Callback(Arc::new(move || read().boxed())))
    }

    /// Reads the password.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is empty, or the function fails.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    #[doc(hidden)]
    pub async fn read(&self) -> Result<String, Unreadable> {
        match &self.0 {
            Source::Text(text) => Ok(text.clone()),
            Source::File(path) => {
                let text = String::from_utf8(read_file(path).await?);
                let text = text.map_err(|_| Unreadable::file(path, "it is not UTF-8"))?;
                let text = text.strip_suffix('\n').unwrap_or(&text);
                let text = text.strip_suffix('\r').unwrap_or(text);
                // As while it is written anew.
                if text.is_empty() {
                    return Err(Unreadable::file(path, "it is empty"));
                }
                Ok(text.to_owned())
            }
            Source::Callback(read) => {
                // It runs in the tasks of connections, which must outlive its panics.
                let read = AssertUnwindSafe(async { read().await }).catch_unwind().await;
                let read = read.unwrap_or_else(|_| Err("the function panicked".into()));
                read.map_err(|error| Unreadable(format!("no password was returned: {error}")))
            }
        }
    }

    /// The error of a server that refuses this password, with the file that it was read from.
    #[doc(hidden)]
    #[must_use]
    pub fn refused(&self, error: Error) -> Error {
        let Source::File(path) = &self.0 else { return error };
        let message = format!("{}; the password is that in {path:?}", error.message());
        error.with_message(message)
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(Source::Text(text))
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// Whether both have the same source.
impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Source::Text(one), Source::Text(other)) => one == other,
            (Source::File(one), Source::File(other)) => one == other,
            (Source::Callback(one), Source::Callback(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Password {}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::File(path) => f.debug_tuple("Password").field(path).finish(),
            Source::Text(_) | Source::Callback(_) => f.write_str("Password(***)"),
        }
    }
}

/// Why a password or a file could not be read. The text names the file.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Unreadable(String);

impl Unreadable {
    /// With this text.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    fn file(path: &Path, why: impl fmt::Display) -> Self {
        Self(format!("cannot read {path:?}: {why}"))
    }

    /// The error of this kind: [`ErrorKind::InvalidConfig`] before the first connection, and [`ErrorKind::Unavailable`] later,
    /// as it may pass.
    #[must_use]
    pub fn error(&self, kind: ErrorKind, backend: &'static str) -> Error {
        Error::new(kind, backend)
            .with_code("no_credentials")
            .with_message(self.to_string())
            .with_hint("correct it; it is read again at each connect")
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Unreadable {}

/// Reads a file on a thread that may block.
///
/// # Errors
///
/// When it cannot be read, or is a pipe or a terminal, which could be read only once.
///
/// # Cancel safety
///
/// This function is cancel safe.
#[doc(hidden)]
pub async fn read_file(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let read = {
        let path = path.to_owned();
        spawn_blocking(move || {
            if !std::fs::metadata(&path)?.is_file() {
                return Err(io::Error::other("it is no file that can be read again"));
            }
            std::fs::read(path)
        })
        .await
    };
    match read {
        Ok(read) => read.map_err(|error| Unreadable::file(path, error)),
        Err(error) => Err(Unreadable::file(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_file_is_read_each_time() {
        let path = std::env::temp_dir().join(format!("password-{}", crate::OwnerId::random()));
        let password = Password::file(&path);
        assert!(password.read().await.unwrap_err().to_string().contains("password-"));
        for (contents, read) in [("one\n", Some("one")), ("tw o\r\n", Some("tw o")), ("\n", None), ("", None)]
        {
            fs::write(&path, contents).unwrap();
            assert_eq!(password.read().await.ok().as_deref(), read, "{contents:?}");
        }
        fs::remove_file(&path).unwrap();
        let once = Password::file("/dev/null").read().await.unwrap_err();
        assert!(once.to_string().contains("read again"), "{once}");
    }

    #[tokio::test]
    async fn a_function_is_called_each_time_and_may_fail() {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let password = Password::callback(move || {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move {
                match call {
                    1 => Err("sealed".into()),
                    3 => panic!("no vault"),
                    _ => Ok(format!("s3cret-{call}")),
                }
            }
        });
        assert_eq!(password.read().await.unwrap(), "s3cret-0");
        assert!(password.read().await.unwrap_err().to_string().contains("sealed"));
        assert_eq!(password.read().await.unwrap(), "s3cret-2");
        assert!(password.read().await.unwrap_err().to_string().contains("panicked"));
        assert!(password == password.clone() && password != Password::from("s3cret-0"));
    }
}
