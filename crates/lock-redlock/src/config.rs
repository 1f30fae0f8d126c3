//! The options of the Redlock backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::timeouts::check_timeout;
use lock_core::url::LockUrl;
use lock_core::{Clock, Error, ErrorKind, Password, Result, TokenBlock};
use redis_link::credentials::Credentials;
use redis_link::deadpool_redis::Pool;
use redis_link::dial::Dial;
use redis_link::redis::ConnectionInfo;
use redis_link::tls::Tls;
use redis_link::topology::{connection_info, database_of, identity};
use redis_link::wall_clock::WallClock;

use crate::error::{BACKEND, check_ttl};

const OPTIONS: [&str; 7] =
    ["ttl", "longest_ttl", "local_handovers", "password_file", "prefix", "connect_timeout", "master_timeout"];
const FEWEST: usize = 3;
/// The default of `longest_ttl`.
const LONGEST_TTL: Duration = Duration::from_secs(30);
/// The default of `master_timeout` is this part of the ttl: after a renewal on a dead connection, there is time for another
/// on a new one.
const PART: u32 = 5;
/// Long enough for a master on a busy host, or with a disk write for every command.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(200);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The configuration of the Redlock backend.
///
/// The masters must be independent: no replicas of each other, and on different hosts.
///
/// # Examples
///
/// ```no_run
/// use lock_redlock::RedlockConfig;
/// use std::time::Duration;
///
/// # async fn example() -> lock_core::Result<()> {
/// let config = RedlockConfig::from_url("redlock://h1:6379,h2:6379,h3:6379")?.ttl(Duration::from_secs(10));
/// let locks = config.connect().await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # URLs
///
/// `redlock://[user:password@]h1:p1,h2:p2,h3:p3,h4:p4,h5:p5[/database]`, with the same credentials and database for all
/// masters; with `redlocks`, over TLS. Options follow, as in `?ttl=10s`. [`Tls`] has those of TLS.
///
/// | option | default | |
/// |---|---|---|
/// | `ttl` | `30s` | how long a lock outlives a holder that died |
/// | `longest_ttl` | `30s`, or `ttl` if that is longer | the longest ttl that any client uses: a restarted master does not vote for that time |
/// | `local_handovers` | `16` | how many tasks of one process may hold the lock in a row, for 10 ms at most, before other processes get a chance; with 0 or 1 every task asks the masters |
/// | `password_file` | none | a file with the password, instead of one in the URL; read at each connect, see [`Password`] |
/// | `prefix` | `lock:` | prefix of the lock name in the key |
/// | `connect_timeout` | `1s` | how long to wait for a connection to one master |
/// | `master_timeout` | a fifth of `ttl`, from `200ms` to `1s` | how long to wait for the answer of one master before its connection is dropped |
///
/// `Debug` does not show the password.
#[derive(Clone)]
pub struct RedlockConfig {
    pub(crate) masters: Vec<MasterConfig>,
    pub(crate) ttl: Duration,
    longest_ttl: Option<Duration>,
    pub(crate) local_handovers: u32,
    pub(crate) prefix: String,
    pub(crate) connect_timeout: Duration,
    master_timeout: Option<Duration>,
    pub(crate) clock: Clock,
    pub(crate) wall_clock: WallClock,
}

/// The address of one master, and how to connect to it.
///
/// Each master may have its own credentials, database and TLS settings in its [`ConnectionInfo`], and its own pool. One with
/// certificates in its [`ConnectionInfo`] is like one with a [pool](Self::pool), as only the driver can read them.
///
/// `Debug` does not show the password.
///
/// # Examples
///
/// ```
/// use lock_redlock::redis::IntoConnectionInfo as _;
/// use lock_redlock::{MasterConfig, RedlockConfig};
///
/// let urls = ["redis://:one@h1", "redis://:two@h2", "redis://:three@h3"];
/// let masters = urls.map(|url| url.into_connection_info().map(MasterConfig::new));
/// let config = RedlockConfig::new(masters.into_iter().collect::<Result<Vec<_>, _>>()?);
/// # let _ = config;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MasterConfig {
    pub(crate) info: ConnectionInfo,
    pub(crate) credentials: Credentials,
    pub(crate) pool: Option<Pool>,
    pub(crate) dial: Option<Arc<dyn Dial>>,
}

impl MasterConfig {
    /// A master, with the default dialer.
    #[must_use]
    pub fn new(info: ConnectionInfo) -> Self {
        Self { info, credentials: Credentials::default(), pool: None, dial: None }
    }

    /// The password, instead of the one in the [`ConnectionInfo`]. Every connect reads it: it can be
    /// [a file](Password::file) or [a function](Password::callback), and change while the program runs.
    #[must_use]
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.credentials.password = Some(password.into());
        self
    }

    /// Takes the connection for commands from this pool, which may open another in its place. The connection is not
    /// returned. The timeouts of the pool apply in addition to those of the configuration; its passwords and certificates
    /// are its own. The number of requests that the master has at a time is not limited, and one that is given up is sent all the same.
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

    fn address(&self) -> String {
        self.info.addr().to_string()
    }
}

impl From<ConnectionInfo> for MasterConfig {
    fn from(info: ConnectionInfo) -> Self {
        Self::new(info)
    }
}

impl fmt::Debug for MasterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterConfig").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl RedlockConfig {
    /// The defaults for these masters, each a [`ConnectionInfo`] or a [`MasterConfig`].
    #[must_use]
    pub fn new<M: Into<MasterConfig>>(masters: impl IntoIterator<Item = M>) -> Self {
        Self {
            masters: masters.into_iter().map(Into::into).collect(),
            ttl: Duration::from_secs(30),
            longest_ttl: None,
            local_handovers: TokenBlock::USUAL_SERIES,
            prefix: String::from("lock:"),
            connect_timeout: Duration::from_secs(1),
            master_timeout: None,
            clock: Clock::boot(),
            wall_clock: WallClock::default(),
        }
    }

    /// Parses a [URL](Self#urls).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] with a hint, or [`ErrorKind::Unsupported`] for TLS in a build without it.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["redlock", "redlocks"])?;
        let secure = url.scheme == "redlocks";
        let (mut tls, mut password_file) = (Tls::default(), None);
        let mut config = Self::new::<MasterConfig>([]);
        let options = [&OPTIONS[..], if secure { &Tls::OPTIONS } else { &[] }].concat();
        url.options(BACKEND, &options, |key, value| {
            if tls.set(key, value)? {
                return Ok(());
            }
            match key {
                "ttl" => config.ttl = value.duration()?,
                "longest_ttl" => config.longest_ttl = Some(value.duration()?),
                "local_handovers" => {
                    config.local_handovers = value.parse("give a number, such as 16")?;
                }
                "password_file" => password_file = Some(value.text().to_owned()),
                "prefix" => value.text().clone_into(&mut config.prefix),
                "connect_timeout" => config.connect_timeout = value.duration()?,
                _ => config.master_timeout = Some(value.duration()?),
            }
            Ok(())
        })?;
        let password_file = password_file.as_deref();
        url.password_or_file(BACKEND, password_file)?;
        let credentials =
            Credentials { password: password_file.map(Password::file), tls: secure.then(|| tls.clone()) };
        for host in url.hosts.split(',').filter(|host| !host.is_empty()) {
            let info = connection_info(BACKEND, &url, host)?;
            let mut master = MasterConfig::new(if secure { tls.over(BACKEND, info)? } else { info });
            master.credentials = credentials.clone();
            config.masters.push(master);
        }
        config.check()?;
        Ok(config)
    }

    /// The default ttl: how long a lock outlives a holder that died.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The longest ttl that any client uses for a lock on these masters; longer leases are refused. A restarted master may
    /// have lost its locks, and does not vote for this time. All clients need the same.
    #[must_use]
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.longest_ttl = Some(ttl);
        self
    }

    /// Limits how many tasks of one process may hold the lock in a row, without asking the masters, before other processes get
    /// a chance; they get it after 10 ms in any case. Default 16. With 0 or 1 every task asks the masters.
    #[must_use]
    pub fn local_handovers(mut self, most: u32) -> Self {
        self.local_handovers = most;
        self
    }

    /// The prefix of the lock name in the key. All clients that share locks need the same.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long to wait for a connection to one master.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long to wait for the answer of one master before its connection is dropped. Votes usually do not wait for that
    /// long: they are decided without a master that is much slower than usual.
    #[must_use]
    pub fn master_timeout(mut self, timeout: Duration) -> Self {
        self.master_timeout = Some(timeout);
        self
    }

    /// The clock of the leases.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The wall clock: its time since 1970 is proposed as the fencing token.
    #[must_use]
    pub fn wall_clock(mut self, clock: WallClock) -> Self {
        self.wall_clock = clock;
        self
    }

    /// Refuses passwords and files that cannot be read, which may pass only later.
    pub(crate) async fn check_credentials(&self) -> Result<()> {
        for MasterConfig { credentials, .. } in &self.masters {
            credentials.check(BACKEND, self.connect_timeout).await?;
        }
        Ok(())
    }

    /// The masters and the prefix, as a URL without credentials.
    pub(crate) fn identity(&self) -> String {
        let masters: Vec<ConnectionInfo> = self.masters.iter().map(|master| master.info.clone()).collect();
        let database = masters.first().map(database_of).unwrap_or_default();
        identity(["redlock", "redlocks"], &masters, &database, &self.prefix)
    }

    pub(crate) fn longest_ttl_of_all(&self) -> Duration {
        self.longest_ttl.unwrap_or_else(|| LONGEST_TTL.max(self.ttl))
    }

    pub(crate) fn timeout_of_a_master(&self) -> Duration {
        self.master_timeout.unwrap_or_else(|| (self.ttl / PART).clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT))
    }

    /// The time for a connection, the votes, and a token that is written back.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.connect_timeout + 2 * self.timeout_of_a_master()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let longest = self.longest_ttl_of_all();
        check_ttl(self.ttl, longest)?;
        // The hint names the bound.
        check_ttl(longest, longest)?;
        let invalid = |what: String, hint: &str| {
            Err(Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(what).with_hint(hint))
        };
        let count = self.masters.len();
        if count < FEWEST {
            return invalid(
                format!("{count} masters are too few: with fewer than three, no failure is tolerated"),
                "name three, five or seven independent masters, or use redis:// for one server",
            );
        }
        if count.is_multiple_of(2) {
            return invalid(
                format!(
                    "an even number of masters ({count}) tolerates no more failures than {}, and votes can tie",
                    count - 1
                ),
                "add a master or leave one out",
            );
        }
        if count > MOST {
            return invalid(format!("{count} masters are too many"), "name three, five or seven");
        }
        for (at, master) in self.masters.iter().enumerate() {
            let address = master.address();
            if self.masters[..at].iter().any(|earlier| earlier.address() == address) {
                return invalid(
                    format!("the master {address} is named twice, and would vote twice"),
                    "name independent masters",
                );
            }
        }
        check_timeout(BACKEND, "connect_timeout", self.connect_timeout)?;
        check_timeout(BACKEND, "master_timeout", self.timeout_of_a_master())
    }
}

impl fmt::Debug for RedlockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters: Vec<_> = self.masters.iter().map(MasterConfig::address).collect();
        f.debug_struct("RedlockConfig")
            .field("masters", &masters)
            .field("ttl", &self.ttl)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The answers of an attempt are stored as the bits of one word.
const MOST: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let config =
            RedlockConfig::from_url("redlock://me:s3cret@a:1,b:2,c:3/1?ttl=5s&master_timeout=50ms").unwrap();
        assert_eq!(config.masters.len(), 3);
        assert_eq!(config.masters[2].address(), "c:3");
        assert!(config.masters.iter().all(|master| master.info.redis_settings().db() == 1));
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn the_default_master_timeout_follows_the_ttl() {
        for (options, millis) in [
            ("", 1000),
            ("?ttl=3s", 600),
            ("?ttl=200ms", 200),
            ("?ttl=60s&master_timeout=50ms", 50),
            ("?master_timeout=5s&ttl=3s", 5000),
        ] {
            let config = RedlockConfig::from_url(&format!("redlock://a:1,b:2,c:3{options}")).unwrap();
            assert_eq!(config.timeout_of_a_master(), Duration::from_millis(millis), "{options}");
        }
    }

    #[test]
    fn bad_masters() {
        for (url, reason) in [
            ("redlock://", "too few"),
            ("redlock://a:1", "too few"),
            ("redlock://a:1,b:2", "too few"),
            ("redlock://a:1,b:2,c:3,d:4", "even number"),
            ("redlock://a:1,b:2,a:1", "a:1 is named twice"),
            ("redlock://a:1,b:2,c:x", "port"),
            ("redlock://a:1,b:2,c:3?ttl=1ms", "too short"),
            ("redlock://a:1,b:2,c:3?ttl=10s&longest_ttl=5s", "longer than longest_ttl"),
            ("redlock://a:1,b:2,c:3?wait=queue", "is unknown"),
            ("redlock://:s3cret@a:1,b:2,c:3?password_file=/x", "password_file"),
            ("redlock://a:1,b:2,c:3?longest_ttl=18446744073709551615s", "at most 365 days"),
            ("redlock://a:1,b:2,c:3?master_timeout=0s", "timeout is zero"),
            ("redlock://a:1,b:2,c:3?master_timeout=2h", "at most 3600s"),
            ("redlock://a:1,b:2,c:3?connect_timeout=18446744073709551615s", "at most 3600s"),
        ] {
            let error = RedlockConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(
                error.to_string().contains(reason) && error.to_string().starts_with("redlock: "),
                "{error}"
            );
        }
    }
}
