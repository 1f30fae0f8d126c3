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
use crate::recipe::{Recipe, RecipeUnit, Timestamps, WallClock};

const OPTIONS: [&str; 9] = [
    "ttl",
    "prefix",
    "wait",
    "local_handovers",
    "recipe",
    "recipe_unit",
    "clock_skew",
    "connect_timeout",
    "command_timeout",
];
/// Hosts that follow NTP differ by a tenth of that; a leap second that only some of them smear makes it
/// this.
const CLOCK_SKEW: Duration = Duration::from_secs(1);
const LARGEST_SKEW: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_PORT: u16 = 6379;

/// How a lock that is held by another process is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitBy {
    /// Processes stand in a queue on the server, and a release hands the lock over to the first. Falls
    /// back to polling where the server allows no SUBSCRIBE or PUBLISH.
    #[default]
    Queue,
    /// A release is published, and all who wait ask at once. Falls back to polling where the server
    /// allows no SUBSCRIBE. Clients that wait in another way publish nothing: their releases are found
    /// out within two seconds.
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
/// | `wait` | `queue` | how a lock is waited for: `queue`, `notify` or `poll`, see [`WaitBy`] |
/// | `local_handovers` | `16` | how often in a row the lock goes from task to task of one process while other processes wait for it; 0 for never |
/// | `recipe` | `set-nx-px` | what is written into the key: `set-nx-px` or, for older fleets, `setnx-timestamp`, see [`Recipe`] |
/// | `recipe_unit` | `ms` | what the times of `setnx-timestamp` are counted in: `ms` or `s`, see [`RecipeUnit`] |
/// | `clock_skew` | `1s` | by how much the clocks of clients of `setnx-timestamp` are assumed to differ at most |
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
    wait: Option<WaitBy>,
    local_handovers: Option<u32>,
    recipe: Recipe,
    recipe_unit: Option<RecipeUnit>,
    clock_skew: Option<Duration>,
    wall_clock: WallClock,
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
            wait: None,
            local_handovers: None,
            recipe: Recipe::default(),
            recipe_unit: None,
            clock_skew: None,
            wall_clock: WallClock::default(),
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
                    config.wait = Some(match value.text() {
                        "queue" => WaitBy::Queue,
                        "notify" => WaitBy::Notify,
                        "poll" => WaitBy::Poll,
                        _ => return Err(value.invalid("use queue, notify or poll")),
                    });
                }
                "local_handovers" => {
                    config.local_handovers = Some(value.parse("give a number, such as 16")?);
                }
                "recipe" => {
                    config.recipe = match value.text() {
                        "set-nx-px" => Recipe::SetNxPx,
                        "setnx-timestamp" => Recipe::SetnxTimestamp,
                        _ => return Err(value.invalid("use set-nx-px or setnx-timestamp")),
                    };
                }
                "recipe_unit" => {
                    config.recipe_unit = Some(match value.text() {
                        "ms" => RecipeUnit::Millis,
                        "s" => RecipeUnit::Seconds,
                        _ => return Err(value.invalid("use ms or s")),
                    });
                }
                "clock_skew" => config.clock_skew = Some(value.duration()?),
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
        self.wait = Some(wait);
        self
    }

    /// How often in a row the lock may go from task to task of this process, in one round trip each,
    /// while other processes wait for it; 0 for never, so that every task queues up on the server.
    #[must_use]
    pub fn local_handovers(mut self, most: u32) -> Self {
        self.local_handovers = Some(most);
        self
    }

    /// What is written into the key of a lock. Another than the default is for fleets that run it already.
    #[must_use]
    pub fn recipe(mut self, recipe: Recipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// What the times of [`Recipe::SetnxTimestamp`] are counted in. Every client that shares the locks
    /// needs the same.
    #[must_use]
    pub fn recipe_unit(mut self, unit: RecipeUnit) -> Self {
        self.recipe_unit = Some(unit);
        self
    }

    /// By how much the clocks of the hosts of [`Recipe::SetnxTimestamp`] are assumed to differ at most. A
    /// holder believes in its lock for so much less than the ttl, and a lock that is over is left alone for
    /// so much longer.
    #[must_use]
    pub fn clock_skew(mut self, most: Duration) -> Self {
        self.clock_skew = Some(most);
        self
    }

    /// Where [`Recipe::SetnxTimestamp`] takes the time from: for tests.
    #[must_use]
    pub fn wall_clock(mut self, clock: WallClock) -> Self {
        self.wall_clock = clock;
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

    pub(crate) fn check(&self) -> Result<()> {
        self.check_recipe()?;
        check_ttl(self.ttl, self.timestamps().map_or(Duration::ZERO, |times| times.skew()))?;
        if self.connect_timeout.is_zero() || self.command_timeout.is_zero() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .message("a timeout is zero")
                .hint("give connect_timeout and command_timeout at least a few milliseconds"));
        }
        Ok(())
    }

    pub(crate) fn wait_by(&self) -> WaitBy {
        match self.recipe {
            Recipe::SetNxPx => self.wait.unwrap_or_default(),
            Recipe::SetnxTimestamp => WaitBy::Poll,
        }
    }

    pub(crate) fn handovers(&self) -> u32 {
        match self.recipe {
            Recipe::SetNxPx => self.local_handovers.unwrap_or(16),
            Recipe::SetnxTimestamp => 0,
        }
    }

    /// How times are written, if the recipe writes times.
    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        let (unit, skew) = (self.recipe_unit.unwrap_or_default(), self.clock_skew.unwrap_or(CLOCK_SKEW));
        let times = || Timestamps::new(unit, skew, self.wall_clock.clone());
        (self.recipe == Recipe::SetnxTimestamp).then(times)
    }

    /// Refuses options that the recipe cannot honour.
    fn check_recipe(&self) -> Result<()> {
        let invalid =
            |what, hint| Err(Error::new(ErrorKind::InvalidConfig, BACKEND).message(what).hint(hint));
        match self.recipe {
            Recipe::SetNxPx if self.recipe_unit.is_some() || self.clock_skew.is_some() => invalid(
                "recipe_unit and clock_skew mean nothing to the recipe set-nx-px, which writes no times",
                "leave them out; or name recipe=setnx-timestamp, if an older fleet runs that",
            ),
            Recipe::SetnxTimestamp if !matches!(self.wait, None | Some(WaitBy::Poll)) => invalid(
                "the recipe setnx-timestamp has no queue, and its clients tell nobody of a release",
                "leave wait out, or use wait=poll",
            ),
            Recipe::SetnxTimestamp if !matches!(self.local_handovers, None | Some(0)) => invalid(
                "a lock of the recipe setnx-timestamp is not passed on inside a process",
                "leave local_handovers out, or set it to 0",
            ),
            Recipe::SetnxTimestamp if self.clock_skew.is_some_and(|skew| skew > LARGEST_SKEW) => invalid(
                "a clock_skew of more than a day is none",
                "repair the clocks, or leave clock_skew out",
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("addr", &self.info.addr().to_string())
            .field("ttl", &self.ttl)
            .field("prefix", &self.prefix)
            .field("wait", &self.wait_by())
            .field("recipe", &self.recipe)
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
            (config.ttl, config.prefix.as_str(), config.wait_by()),
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
            "redis://h?wait=line",
            "redis://h?command_timeout=0s",
            "redis://h?tls=yes",
            "redis://h?recipe=setnx",
            "redis://h?recipe=setnx-timestamp&recipe_unit=us",
            "redis://h?recipe=setnx-timestamp&clock_skew=1",
            "redis://h?recipe=setnx-timestamp&clock_skew=2days",
            "redis://h?recipe=setnx-timestamp&ttl=1s",
            "redis://h?recipe=setnx-timestamp&wait=queue",
            "redis://h?wait=notify&recipe=setnx-timestamp",
            "redis://h?recipe=setnx-timestamp&local_handovers=16",
            "redis://h?clock_skew=1s",
            "redis://h?recipe=set-nx-px&recipe_unit=ms",
        ] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().starts_with("redis: "), "{error}");
        }
    }
}
