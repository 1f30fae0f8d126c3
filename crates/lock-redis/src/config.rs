//! The options of the Redis backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use lock_core::timeouts::check_timeout;
use lock_core::url::LockUrl;
use lock_core::{Clock, Error, ErrorKind, Password, Result, TokenBlock};
use rand::Rng;
use redis_link::credentials::Credentials;
use redis_link::dial::Dial;
use redis_link::topology::{Access, Scheme, Topology};
use redis_link::wall_clock::WallClock;
use redis_link::wire::TokenTtl;

use crate::error::{BACKEND, check_ttl};
use crate::recipes::recipe::{Recipe, RedisRecipe};
use crate::recipes::set_nx_px::SetNxPx;
use crate::recipes::setnx_timestamp::{CLOCK_SKEW, RecipeUnit, SetnxTimestamp};

/// The default timeout for replicas.
const WAIT_REPLICAS_TIMEOUT: Duration = Duration::from_millis(100);
const LARGEST_SKEW: Duration = Duration::from_secs(24 * 3600);
/// The default of `leave_free_for`: longer than other clients sleep between two tries.
const FREE_FOR: Duration = Duration::from_millis(150);
const LONGEST_FREE: Duration = Duration::from_secs(2);
/// The shortest `token_ttl`: many times longer than clocks are stepped back by, and than proposed tokens are behind.
pub(crate) const SHORTEST_TOKEN_TTL: Duration = Duration::from_secs(3600);
const OPTIONS: [&str; 14] = [
    "ttl",
    "token_ttl",
    "prefix",
    "wait",
    "local_handovers",
    "leave_free",
    "leave_free_for",
    "recipe",
    "recipe_unit",
    "clock_skew",
    "connect_timeout",
    "command_timeout",
    "wait_replicas",
    "wait_replicas_timeout",
];

/// How to wait for a lock that another process holds.
///
/// # Examples
///
/// ```
/// use lock_redis::{RedisConfig, RedisWait};
///
/// let config = RedisConfig::from_url("redis://localhost")?.wait(RedisWait::Poll);
/// // The same as a URL option:
/// let config = RedisConfig::from_url("redis://localhost?wait=poll")?;
/// # let _ = config;
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisWait {
    /// Waiters queue up on the server, and a release hands the lock over to the first. Falls back to polling if the server
    /// refuses SUBSCRIBE or PUBLISH.
    #[default]
    Queue,
    /// A release is published, and all waiters ask at once. Falls back to polling if the server refuses SUBSCRIBE. Clients
    /// with another wait option, or without the right to PUBLISH, publish nothing: waiters notice their releases within
    /// two seconds.
    Notify,
    /// Waiters ask again at random intervals of 50 to 250 ms.
    Poll,
}

/// The configuration of the Redis backend.
///
/// # Examples
///
/// ```no_run
/// use lock_redis::RedisConfig;
/// use std::time::Duration;
///
/// # async fn example() -> lock_core::Result<()> {
/// let config = RedisConfig::from_url("redis://me:s3cret@localhost/2")?.ttl(Duration::from_secs(10));
/// let locks = config.connect().await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # URLs
///
/// With `redis` or, for TLS, `rediss`:
///
/// * `redis://[user:password@]host[:port][/database]`: one server.
/// * `redis+unix://[user:password@]/path/to/redis.sock[?db=0]`: one server, over its Unix socket.
/// * `redis+sentinel://[user:password@]s1:26379,s2:26379,s3:26379/name[/database]`: the master `name` of these sentinels.
///   The credentials are those of the master; the options `sentinel_user`, `sentinel_password` and `sentinel_password_file`
///   are for the sentinels.
/// * `redis+cluster://[user:password@]h1:p1,h2:p2`: a cluster, given by some of its nodes.
///
/// Options follow, as in `?ttl=10s`. [`Tls`](crate::Tls) has those of TLS.
///
/// | option | default | |
/// |---|---|---|
/// | `ttl` | `30s` | how long a lock outlives a holder that died |
/// | `token_ttl` | `7days` | how long the last token of a lock is kept after its last use, see [`token_ttl`](Self::token_ttl) |
/// | `password_file` | none | a file with the password, instead of one in the URL; read at each connect, see [`Password`] |
/// | `prefix` | `lock:` | prefix of the lock name in the key |
/// | `wait` | `queue` | how to wait for a lock: `queue`, `notify` or `poll`, see [`RedisWait`] |
/// | `local_handovers` | `16` | how many tasks of one process may hold the lock in a row, for 10 ms at most, before other processes get a chance; with 0 or 1 every task asks the server |
/// | `leave_free` | `0%` | how many releases leave the lock free for a moment, see [`leave_free`](Self::leave_free) |
/// | `leave_free_for` | `150ms` | how long that moment is |
/// | `recipe` | `set-nx-px` | the format of the key: `set-nx-px` or, for existing fleets only, `setnx-timestamp`, see [`RedisRecipe`] |
/// | `recipe_unit` | `ms` | the unit of the times of `setnx-timestamp`: `ms` or `s`, see [`RecipeUnit`] |
/// | `clock_skew` | `1s` | the largest assumed difference between the clocks of clients of `setnx-timestamp` |
/// | `connect_timeout` | `1s` | how long to wait for a connection |
/// | `command_timeout` | `1s` | how long to wait for an answer; an acquisition without one is made once more, over a new connection |
/// | `wait_replicas` | `0` | how many replicas must have a lock before it counts as granted, see [`wait_replicas`](Self::wait_replicas) |
/// | `wait_replicas_timeout` | `100ms` | how long to wait for them |
///
/// `Debug` does not show the password.
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) topology: Topology,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) pool: Option<Pool>,
    pub(crate) dial: Option<Arc<dyn Dial>>,
    pub(crate) ttl: Duration,
    pub(crate) token_ttl: TokenTtl,
    pub(crate) prefix: String,
    wait: Option<RedisWait>,
    local_handovers: Option<u32>,
    pub(crate) leave_free: Option<LeaveFree>,
    pub(crate) recipe: RedisRecipe,
    recipe_unit: Option<RecipeUnit>,
    clock_skew: Option<Duration>,
    wall_clock: WallClock,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) clock: Clock,
    pub(crate) wait_replicas: Option<(u32, Duration)>,
}

impl RedisConfig {
    /// The defaults for this server, these sentinels, or this cluster. A server with certificates in its
    /// [`ConnectionInfo`](redis::ConnectionInfo) is like one with a [pool](Self::pool), as only the driver can read them.
    #[must_use]
    pub fn new(topology: impl Into<Topology>) -> Self {
        Self {
            topology: topology.into(),
            credentials: Credentials::default(),
            sentinel_credentials: Credentials::default(),
            pool: None,
            dial: None,
            ttl: Duration::from_secs(30),
            token_ttl: TokenTtl::USUAL,
            prefix: String::from("lock:"),
            wait: None,
            local_handovers: None,
            leave_free: None,
            recipe: RedisRecipe::default(),
            recipe_unit: None,
            clock_skew: None,
            wall_clock: WallClock::default(),
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(1),
            clock: Clock::boot(),
            wait_replicas: None,
        }
    }

    /// Parses a [URL](Self#urls).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] with a hint, or [`ErrorKind::Unsupported`] for TLS in a build without it.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        let scheme = Scheme::of(BACKEND, &url)?;
        let mut access = Access::default();
        // Replaced below, when the options are known.
        let mut config = Self::new(Topology::Cluster(Vec::new()));
        let (mut replicas, mut replicas_timeout) = (0, WAIT_REPLICAS_TIMEOUT);
        let (mut percent, mut moment) = (0, FREE_FOR);
        let options = [&OPTIONS[..], &scheme.options()].concat();
        url.options(BACKEND, &options, |key, value| {
            if access.set(key, value)? {
                return Ok(());
            }
            match key {
                "ttl" => config.ttl = value.duration()?,
                "token_ttl" => config.token_ttl = TokenTtl(value.duration()?),
                "prefix" => value.text().clone_into(&mut config.prefix),
                "wait" => {
                    use RedisWait::{Notify, Poll, Queue};
                    config.wait =
                        Some(value.one_of([("queue", Queue), ("notify", Notify), ("poll", Poll)])?);
                }
                "local_handovers" => {
                    config.local_handovers = Some(value.parse("give a number, such as 16")?);
                }
                "leave_free" => {
                    let number = value.text().strip_suffix('%').and_then(|number| number.parse().ok());
                    percent =
                        number.ok_or_else(|| value.invalid("use a share of all releases, such as 10%"))?;
                }
                "leave_free_for" => moment = value.duration()?,
                "recipe" => {
                    use RedisRecipe::{SetNxPx, SetnxTimestamp};
                    let words = [("set-nx-px", SetNxPx), ("setnx-timestamp", SetnxTimestamp)];
                    config.recipe = value.one_of(words)?;
                }
                "recipe_unit" => {
                    let units = [("ms", RecipeUnit::Millis), ("s", RecipeUnit::Seconds)];
                    config.recipe_unit = Some(value.one_of(units)?);
                }
                "clock_skew" => config.clock_skew = Some(value.duration()?),
                "wait_replicas" => replicas = value.parse("use a number of replicas")?,
                "wait_replicas_timeout" => replicas_timeout = value.duration()?,
                "connect_timeout" => config.connect_timeout = value.duration()?,
                _ => config.command_timeout = value.duration()?,
            }
            Ok(())
        })?;
        config = config.wait_replicas(replicas, replicas_timeout).leave_free(percent, moment);
        config.topology = scheme.topology(BACKEND, &url, &access)?;
        (config.credentials, config.sentinel_credentials) = scheme.credentials(BACKEND, &url, &access)?;
        config.check()?;
        Ok(config)
    }

    /// The password of the servers, instead of the one in the topology. Every connect reads it: it can be
    /// [a file](Password::file) or [a function](Password::callback), and change while the program runs.
    ///
    /// ```
    /// # use lock_redis::RedisConfig;
    /// use lock_core::Password;
    ///
    /// let config = RedisConfig::from_url("redis://me@localhost")?
    ///     .password(Password::callback(|| async { Ok(std::env::var("REDIS_PASSWORD")?) }));
    /// # let _ = config;
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    #[must_use]
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.credentials.password = Some(password.into());
        self
    }

    /// The password of the sentinels, as [`password`](Self::password).
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<Password>) -> Self {
        self.sentinel_credentials.password = Some(password.into());
        self
    }

    /// Takes the connection for commands from this pool, which may open another in its place. The connection is not
    /// returned. The timeouts of the pool apply in addition to those here; its passwords and certificates are its own. The number of
    /// requests that the server has at a time is not limited, and one that is given up is sent all the same.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Opens the connections with this dialer, and not with the default or a pool: for tests, and for transports of your own.
    #[must_use]
    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = Some(dial);
        self
    }

    /// The default ttl: how long a lock outlives a holder that died.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long the last token of a lock is kept after its last use, or a hundred times the ttl if that is longer. Default a
    /// week, and at least an hour. A name that is used once costs the server some 200 bytes until then.
    ///
    /// When it is forgotten, tokens go on from the server's clock. So they grow as long as the clock of the server, or of the
    /// one that replaces it, is not behind by more than a third of this time. All clients that share locks need the same.
    #[must_use]
    pub fn token_ttl(mut self, ttl: Duration) -> Self {
        self.token_ttl = TokenTtl(ttl);
        self
    }

    /// The prefix of the lock name in the key. All clients that share locks need the same.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How to wait for a lock that another process holds.
    #[must_use]
    pub fn wait(mut self, wait: RedisWait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Limits how many tasks of this process may hold the lock in a row before other processes get a chance; they get it after
    /// 10 ms in any case. A hand-over between tasks on the same terms does not ask the server, up to 16 in a row; another one
    /// takes one round trip. Default 16. With 0 or 1 every task asks the server.
    #[must_use]
    pub fn local_handovers(mut self, most: u32) -> Self {
        self.local_handovers = Some(most);
        self
    }

    /// Leaves the lock free for a moment after this percentage of all releases that reach the server, chosen at random, so that
    /// clients of other libraries can acquire it. The default is 0.
    ///
    /// A release hands the lock over to the next waiter of this library, and the key is never free while there is one.
    /// Clients of other libraries, which poll, may never find it free. With this option, waiters of this library hold back
    /// for the `moment`. Choose a moment longer than the pause between two tries of the other clients: redis-py sleeps for
    /// 100 ms, node-redlock for 200 to 400 ms.
    ///
    /// During the moment no client of this library can acquire the lock, and `try_acquire` finds it busy. Use the same
    /// setting in all clients of this library, and only for locks that clients of other libraries share.
    #[must_use]
    pub fn leave_free(mut self, percent: u8, moment: Duration) -> Self {
        self.leave_free = (percent > 0).then_some(LeaveFree { percent, moment });
        self
    }

    /// The format of the key of a lock. Change it only for fleets that already use another one.
    #[must_use]
    pub fn recipe(mut self, recipe: RedisRecipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// The unit of the times of [`RedisRecipe::SetnxTimestamp`]. All clients that share locks need the same.
    #[must_use]
    pub fn recipe_unit(mut self, unit: RecipeUnit) -> Self {
        self.recipe_unit = Some(unit);
        self
    }

    /// The largest assumed difference between the clocks of the hosts of [`RedisRecipe::SetnxTimestamp`]. A lease is shorter
    /// than its ttl by this, and an expired lock is taken over later by this.
    #[must_use]
    pub fn clock_skew(mut self, most: Duration) -> Self {
        self.clock_skew = Some(most);
        self
    }

    /// The wall clock of [`RedisRecipe::SetnxTimestamp`]: for tests.
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

    /// Waits until this many replicas have a lock before it counts as granted (`WAIT`). If fewer have it within `timeout`,
    /// the lock is released and the acquisition fails with a retryable error. The default is 0.
    ///
    /// This shortens the time in which a failover loses a lock that was just granted. It is no guarantee: another replica
    /// may be promoted, and renewals do not wait for replicas. Let the resource check the fencing token.
    #[must_use]
    pub fn wait_replicas(mut self, replicas: u32, timeout: Duration) -> Self {
        self.wait_replicas = Some((replicas, timeout)).filter(|(replicas, _)| *replicas > 0);
        self
    }

    /// The clock of the leases.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.check_recipe()?;
        let skew = self.requests().skew();
        check_ttl(self.ttl, skew)?;
        if self.token_ttl.0 < SHORTEST_TOKEN_TTL {
            return invalid(
                "token_ttl is shorter than an hour: after a step of the clock tokens could fall",
                "use an hour or more",
            );
        }
        check_timeout(BACKEND, "connect_timeout", self.connect_timeout)?;
        check_timeout(BACKEND, "command_timeout", self.command_timeout)?;
        let lasts = self.ttl.saturating_sub(skew);
        if self.wait_replicas.is_some_and(|(_, timeout)| timeout.as_millis() == 0 || timeout >= lasts) {
            return invalid(
                "wait_replicas_timeout is zero, or not shorter than the lease",
                "give wait_replicas_timeout a few milliseconds, well below the ttl",
            );
        }
        if let Some(LeaveFree { percent, moment }) = self.leave_free {
            if percent > 100 || moment.as_millis() == 0 || moment > LONGEST_FREE {
                return invalid(
                    "leave_free is more than 100%, or leave_free_for is zero or longer than two seconds",
                    "try leave_free=10% and leave_free_for=150ms",
                );
            }
            if self.wait_by() != RedisWait::Queue {
                return invalid(
                    "leave_free needs waiters that queue up (wait=queue)",
                    "leave it out, or use wait=queue",
                );
            }
        }
        if self.topology.named().is_empty() {
            return invalid("the configuration names no server", "name at least one");
        }
        if self.sentinel_credentials.password.is_some() && !matches!(self.topology, Topology::Sentinel(_)) {
            return invalid("there is a password for sentinels, and there are none", "leave it out");
        }
        if self.pool.is_some() && !matches!(self.topology, Topology::Single(_)) {
            return invalid(
                "a pool leads to one server, not to sentinels or a cluster",
                "leave the pool out",
            );
        }
        Ok(())
    }

    /// Refuses passwords and files that cannot be read, which may pass only later.
    pub(crate) async fn check_credentials(&self) -> Result<()> {
        for credentials in [&self.credentials, &self.sentinel_credentials] {
            credentials.check(BACKEND, self.connect_timeout).await?;
        }
        Ok(())
    }

    pub(crate) fn wait_by(&self) -> RedisWait {
        match self.recipe {
            RedisRecipe::SetNxPx => self.wait.unwrap_or_default(),
            RedisRecipe::SetnxTimestamp => RedisWait::Poll,
        }
    }

    pub(crate) fn handovers(&self) -> u32 {
        match self.recipe {
            RedisRecipe::SetNxPx => self.local_handovers.unwrap_or(TokenBlock::USUAL_SERIES),
            RedisRecipe::SetnxTimestamp => 0,
        }
    }

    /// The time for a connection, an answer and, where they are asked, the replicas.
    pub(crate) fn answer_timeout(&self) -> Duration {
        let replicas = self.wait_replicas.map_or(Duration::ZERO, |(_, timeout)| timeout);
        self.connect_timeout + self.command_timeout + replicas
    }

    /// The requests of the recipe.
    pub(crate) fn requests(&self) -> Box<dyn Recipe> {
        match self.recipe {
            RedisRecipe::SetNxPx => Box::new(SetNxPx {
                publishes_free: self.wait_by() == RedisWait::Notify,
                token_ttl: self.token_ttl,
            }),
            RedisRecipe::SetnxTimestamp => {
                let unit = self.recipe_unit.unwrap_or_default();
                let skew = self.clock_skew.unwrap_or(CLOCK_SKEW);
                Box::new(SetnxTimestamp::new(unit, skew, self.wall_clock.clone(), self.token_ttl))
            }
        }
    }

    /// Rejects options that the recipe does not support.
    fn check_recipe(&self) -> Result<()> {
        match self.recipe {
            RedisRecipe::SetNxPx if self.recipe_unit.is_some() || self.clock_skew.is_some() => invalid(
                "recipe_unit and clock_skew do not apply to the recipe set-nx-px, which writes no times",
                "leave them out, or add recipe=setnx-timestamp for a fleet that uses it",
            ),
            RedisRecipe::SetnxTimestamp if !matches!(self.wait, None | Some(RedisWait::Poll)) => invalid(
                "the recipe setnx-timestamp has no queue, and its clients do not publish releases",
                "leave wait out, or use wait=poll",
            ),
            RedisRecipe::SetnxTimestamp if !matches!(self.local_handovers, None | Some(0)) => invalid(
                "the recipe setnx-timestamp has no hand-over within a process",
                "leave local_handovers out, or set it to 0",
            ),
            RedisRecipe::SetnxTimestamp if self.clock_skew.is_some_and(|skew| skew > LARGEST_SKEW) => {
                invalid("clock_skew is longer than a day", "correct the clocks, or leave clock_skew out")
            }
            _ => Ok(()),
        }
    }
}

fn invalid(what: &str, hint: &str) -> Result<()> {
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(what).with_hint(hint))
}

/// How often a release leaves the lock free for other clients, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaveFree {
    percent: u8,
    pub(crate) moment: Duration,
}

impl LeaveFree {
    /// Draws at random whether a release leaves the lock free.
    pub(crate) fn draw(self) -> bool {
        lock_core::random::rng().random_range(0..100) < self.percent
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("topology", &self.topology)
            .field("ttl", &self.ttl)
            .field("prefix", &self.prefix)
            .field("wait", &self.wait_by())
            .field("recipe", &self.recipe)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(topology: &Topology) -> i64 {
        match topology {
            Topology::Sentinel(sentinel) => sentinel.master.redis_settings().db(),
            _ => topology.named()[0].redis_settings().db(),
        }
    }

    #[test]
    fn urls() {
        let config = RedisConfig::from_url("redis://me:s3cret@h:7/2?ttl=5s&prefix=&wait=poll").unwrap();
        assert_eq!(
            (config.ttl, config.prefix.as_str(), config.wait_by()),
            (Duration::from_secs(5), "", RedisWait::Poll)
        );
        assert_eq!((config.topology.to_string().as_str(), database(&config.topology)), ("h:7", 2));
        assert!(!format!("{config:?}").contains("s3cret"));
        let plain = RedisConfig::from_url("redis://localhost").unwrap();
        assert_eq!(plain.topology.to_string(), "localhost:6379");
        assert_eq!(RedisConfig::from_url("redis://[::1]:7000").unwrap().topology.to_string(), "::1:7000");
    }

    #[test]
    fn some_releases_leave_the_lock_free() {
        let read = |options: &str| RedisConfig::from_url(&format!("redis://h?{options}")).unwrap().leave_free;
        let every = |percent| Some(LeaveFree { percent, moment: FREE_FOR });
        assert_eq!([read(""), read("leave_free=0%"), read("leave_free=10%")], [None, None, every(10)]);
        assert_eq!(read("leave_free=10%25"), every(10), "percent-encoded");
        let half = LeaveFree { percent: 50, moment: Duration::from_millis(300) };
        assert_eq!(read("leave_free=50%&leave_free_for=300ms"), Some(half));
        let drawn = (0..10_000).filter(|_| half.draw()).count();
        assert!((4_000..6_000).contains(&drawn), "{drawn} of 10 000");
        assert!(every(100).unwrap().draw());
    }

    #[test]
    fn urls_of_other_topologies() {
        let read = |url: &str| RedisConfig::from_url(url).unwrap().topology;
        let unix = read("redis+unix://me:s3cret@/run/redis.sock?db=3");
        assert_eq!((unix.to_string().as_str(), database(&unix)), ("/run/redis.sock", 3));
        let sentinel = read("redis+sentinel://me:s3cret@a,b:7/main/4?sentinel_password=an0ther");
        assert_eq!((sentinel.to_string().as_str(), database(&sentinel)), ("main of a:26379,b:7", 4));
        assert_eq!(sentinel.named()[0].redis_settings().password(), Some("an0ther"));
        assert!(!format!("{sentinel:?}").contains("s3cret") && !format!("{sentinel:?}").contains("an0ther"));
        let Topology::Sentinel(info) = sentinel else { panic!("not a sentinel") };
        assert_eq!(info.master.redis_settings().password(), Some("s3cret"));
        assert_eq!(read("redis+cluster://a:1,b:2").to_string(), "a:1,b:2");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_names_it() {
        let error = RedisConfig::from_url("rediss://h").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(",tls"), "{error}");
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
            "redis://h?command_timeout=2h",
            "redis://h?connect_timeout=18446744073709551615s",
            "redis://h?wait_replicas=-1",
            "redis://h?wait_replicas=1&wait_replicas_timeout=0s",
            "redis://h?wait_replicas=1&wait_replicas_timeout=1m",
            "redis://h?leave_free=101%",
            "redis://h?leave_free=0.1",
            "redis://h?leave_free=10%&leave_free_for=3s",
            "redis://h?leave_free=10%&leave_free_for=0s",
            "redis://h?leave_free=10%&wait=notify",
            "redis://h?leave_free=10%&recipe=setnx-timestamp",
            "redis://h?tls=yes",
            "redis://:s3cret@h?password_file=/x",
            "redis+sentinel://h/main?sentinel_password=s3cret&sentinel_password_file=/x",
            "redis://h?tls_ca=x",
            "zk://h",
            "redis+unix://h/path",
            "redis+unix://",
            "redis+sentinel://h",
            "redis+sentinel://h/main/first",
            "redis+cluster://a:1,b:2/1",
            "redis+cluster://a:1,,b:2",
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
            "redis://h?recipe=setnx-timestamp&ttl=2s&wait_replicas=1&wait_replicas_timeout=1s",
        ] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.to_string().starts_with("redis: "), "{error}");
        }
    }
}
