//! The options of the Redis backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use lock_core::url::LockUrl;
use lock_core::{Clock, Error, ErrorKind, Locks, Result};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::Redis;
use crate::backend::{BACKEND, check_ttl};
use crate::dial::{Dial, with_nodelay};

const OPTIONS: [&str; 5] = ["ttl", "prefix", "wait", "connect_timeout", "command_timeout"];
const DEFAULT_PORT: u16 = 6379;

/// How a lock that is held by another process is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitBy {
    /// A release is published, and who waits asks at once. Falls back to polling where the server
    /// allows no SUBSCRIBE.
    #[default]
    Notify,
    /// Who waits asks again and again, at random intervals of 50 to 250 ms.
    Poll,
}

/// The options of the Redis backend.
///
/// URL: `redis://[user:password@]host[:port][/database]`, followed by options as in `?ttl=10s`:
///
/// | option | default | |
/// |---|---|---|
/// | `ttl` | `30s` | how long a lock outlives a holder that died |
/// | `prefix` | `lock:` | what stands before the lock name in the key |
/// | `wait` | `notify` | how a lock is waited for: `notify` or `poll`, see [`WaitBy`] |
/// | `connect_timeout` | `1s` | how long to wait for a connection |
/// | `command_timeout` | `1s` | how long to wait for an answer |
///
/// `Debug` does not show the password.
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) info: ConnectionInfo,
    pub(crate) pool: Option<Pool>,
    pub(crate) dial: Option<Arc<dyn Dial>>,
    pub(crate) ttl: Duration,
    pub(crate) prefix: String,
    pub(crate) wait: WaitBy,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) clock: Clock,
}

impl RedisConfig {
    /// The defaults for this server.
    #[must_use]
    pub fn new(info: ConnectionInfo) -> Self {
        Self {
            info: with_nodelay(info),
            pool: None,
            dial: None,
            ttl: Duration::from_secs(30),
            prefix: String::from("lock:"),
            wait: WaitBy::default(),
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(1),
            clock: Clock::boot(),
        }
    }

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`].
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        let mut config = Self::new(connection_info(BACKEND, &url, &url.hosts)?);
        url.options(BACKEND, &OPTIONS, |key, value| {
            match key {
                "ttl" => config.ttl = value.duration()?,
                "prefix" => value.text().clone_into(&mut config.prefix),
                "wait" => {
                    config.wait = match value.text() {
                        "notify" => WaitBy::Notify,
                        "poll" => WaitBy::Poll,
                        _ => return Err(value.invalid("use notify or poll")),
                    }
                }
                "connect_timeout" => config.connect_timeout = value.duration()?,
                _ => config.command_timeout = value.duration()?,
            }
            Ok(())
        })?;
        config.check()?;
        Ok(config)
    }

    /// Takes the connection for commands from this pool. One is taken out for good; the pool may make
    /// a new one in its place. Timeouts of the pool apply as well as ours.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// What makes the connections, instead of the driver: for tests, and for transports of your own.
    /// A pool is not used then.
    #[must_use]
    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = Some(dial);
        self
    }

    /// How long a lock outlives a holder that died, when nothing else is said.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What stands before the lock name in the key. Every client that shares the locks needs the same.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How a lock that is held by another process is waited for.
    #[must_use]
    pub fn wait(mut self, wait: WaitBy) -> Self {
        self.wait = wait;
        self
    }

    /// How long to wait for a connection.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long to wait for an answer.
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], [`ErrorKind::Unavailable`], or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Redis::connect(self).await?))
    }

    /// The clock that leases are counted on.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        if self.connect_timeout.is_zero() || self.command_timeout.is_zero() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .message("a timeout is zero")
                .hint("give connect_timeout and command_timeout at least a few milliseconds"));
        }
        Ok(())
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("addr", &self.info.addr().to_string())
            .field("ttl", &self.ttl)
            .field("prefix", &self.prefix)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// The address of one host of a URL, with the URL's credentials and database.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`].
pub fn connection_info(backend: &'static str, url: &LockUrl, host: &str) -> Result<ConnectionInfo> {
    let invalid =
        |what: String, hint: &str| Error::new(ErrorKind::InvalidConfig, backend).message(what).hint(hint);
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => {
            let port = port.parse().map_err(|_| {
                invalid(
                    format!("the port in {host:?} is not valid"),
                    "write the host as host:port, such as 127.0.0.1:6379",
                )
            })?;
            (name, port)
        }
        _ => (host, DEFAULT_PORT),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() || name.contains(',') {
        return Err(invalid(
            format!("the URL names no single host but {host:?}"),
            "write it as redis://host:port",
        ));
    }
    let database = match url.path.trim_matches('/') {
        "" => 0,
        text => text.parse().map_err(|_| {
            invalid(format!("the database {text:?} is not a number"), "write it as redis://host:port/0")
        })?,
    };
    let mut settings = RedisConnectionInfo::default().set_db(database);
    if !url.user.is_empty() {
        settings = settings.set_username(&url.user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    let info = ConnectionAddr::Tcp(name.to_owned(), port).into_connection_info().map_err(|_| {
        invalid(format!("the address {host:?} is not valid"), "write it as redis://host:port")
    })?;
    Ok(info.set_redis_settings(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let config = RedisConfig::from_url("redis://me:s3cret@h:7/2?ttl=5s&prefix=&wait=poll").unwrap();
        assert_eq!(
            (config.ttl, config.prefix.as_str(), config.wait),
            (Duration::from_secs(5), "", WaitBy::Poll)
        );
        assert_eq!(config.info.addr().to_string(), "h:7");
        assert_eq!(config.info.redis_settings().db(), 2);
        assert!(!format!("{config:?}").contains("s3cret"));
        let plain = RedisConfig::from_url("redis://localhost").unwrap();
        assert_eq!(plain.info.addr().to_string(), "localhost:6379");
        assert_eq!(RedisConfig::from_url("redis://[::1]:7000").unwrap().info.addr().to_string(), "::1:7000");
    }

    #[test]
    fn bad_urls() {
        for url in [
            "redis://",
            "redis://h:port",
            "redis://h:1,h:2",
            "redis://h/db",
            "redis://h?ttl=0s",
            "redis://h?ttl=1ms",
            "redis://h?wait=queue",
            "redis://h?command_timeout=0s",
            "redis://h?tls=yes",
        ] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().starts_with("redis: "), "{error}");
        }
    }
}
