//! The options of the PostgreSQL backend.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use lock_core::timeouts::check_timeout;
use lock_core::url::{LockUrl, OptionValue};
use lock_core::{Clock, Password, Result, TokenBlock};

use crate::connect::libpq::{Libpq, seconds};
use crate::connect::tls::Tls;
use crate::error::{BACKEND, check_ttl, invalid};
use crate::schema::Grants;

const DEFAULT_PORT: u16 = 5432;
/// Postgres cuts off longer names of schemas.
const LONGEST_SCHEMA: usize = 63;
const LARGEST_POOL: usize = 1000;
const OPTIONS: [&str; 22] = [
    "ttl",
    "schema",
    "owner",
    "sync",
    "install",
    "listen",
    "listen_host",
    "pool",
    "local_handovers",
    "password_file",
    "connect_timeout",
    "command_timeout",
    "host",
    "port",
    "application_name",
    "target_session_attrs",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "options",
];

/// What the server does before it says that a lock is granted: `synchronous_commit`, for the transactions of locks alone.
///
/// # Examples
///
/// ```
/// use lock_postgres::{PostgresConfig, PostgresSync};
///
/// let config = PostgresConfig::new("localhost").sync(PostgresSync::RemoteApply);
/// // The same as a URL option:
/// let config = PostgresConfig::from_url("postgres://localhost?sync=remote_apply")?;
/// # let _ = config;
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostgresSync {
    /// The grant is on the disk, and on that of the synchronous standbys, where there are some.
    #[default]
    On,
    /// The grant is on the disk of the primary.
    Local,
    /// The grant is on the disk, and queries on the synchronous standbys see it.
    RemoteApply,
    /// The grant is in memory: a server that crashes may lose the grants of its last second.
    Off,
}

impl PostgresSync {
    /// The value of `synchronous_commit`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Local => "local",
            Self::RemoteApply => "remote_apply",
            Self::Off => "off",
        }
    }
}

/// The configuration of the PostgreSQL backend.
///
/// # Examples
///
/// ```no_run
/// use lock_postgres::PostgresConfig;
/// use std::time::Duration;
///
/// # async fn example() -> lock_core::Result<()> {
/// let config = PostgresConfig::from_url("postgres://me:s3cret@localhost/shop")?.ttl(Duration::from_secs(10));
/// let locks = config.connect().await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # URLs
///
/// As libpq has them, with `postgres` or `postgresql`:
///
/// * `postgres://[user[:password]@]host[:port][,host[:port]...][/database]`: of several servers, the primary. They are asked in this
///   order, and the next one also when one is slow, so a primary that stands still keeps no client from its successor.
/// * `postgres://[user@]/[database]?host=/run/postgresql[&port=5432]`: a server, over its Unix socket.
///
/// Options follow, as in `?ttl=10s`.
///
/// | option | default | |
/// |---|---|---|
/// | `ttl` | `30s` | how long a lock outlives a holder that died |
/// | `schema` | `polylock` | the schema of the tables and functions; all clients that share locks need the same |
/// | `owner` | none | the role that owns the schema, if it is none that is trusted anyhow: a superuser, the owner of the database, or the role of this client. Whoever owns it can run functions as this client |
/// | `sync` | `on` | what a grant waits for: `on`, `local`, `remote_apply` or `off`, see [`PostgresSync`] |
/// | `install` | `auto` | `auto` creates or upgrades the schema when that is needed and allowed; `off` never |
/// | `listen` | `on` | `on`: a connection of its own notifies waiters; `off`: waiters ask again, after 2 s at most |
/// | `listen_host` | none | `host[:port]` of the server for that connection, past a pooler |
/// | `pool` | `4` | the most connections for requests, of this process; one more renews locks while all of them are in use |
/// | `local_handovers` | `16` | how many tasks of one process may hold the lock in a row, for 10 ms at most, before other processes get a chance; with 0 or 1 every task asks the server |
/// | `password_file` | none | a file with the password, instead of one in the URL; read at each connect, see [`Password`] |
/// | `connect_timeout` | `2s` | how long to wait for a connection; a number without a unit is one of seconds, and 0 the default |
/// | `command_timeout` | `2s` | how long to wait for an answer |
/// | `application_name` | `polylock` | the name in `pg_stat_activity`; the connection that listens has one of its own |
/// | `target_session_attrs` | `read-write` with several hosts, else `any` | `read-write` or `any` |
/// | `sslmode` | `disable`, or `require` if one of the files below is named | `require`, `verify-ca` and `verify-full` are the same: TLS, and the certificate and its host name are checked |
/// | `sslrootcert` | `system` | file with the certificates of the authorities to trust, PEM; `system` for those of this host |
/// | `sslcert`, `sslkey` | none | files with the client certificate and its key, PEM |
/// | `options` | none | settings of the sessions, as `-c name=value` |
///
/// Providers put more words of libpq into their URLs. `prefer` and `allow` as `sslmode` are refused, as they secure nothing.
///
/// | option | |
/// |---|---|
/// | `channel_binding` | `disable`, `prefer` (the default) or `require`, which needs TLS: the login is by scram-sha-256, and bound to the certificate |
/// | `sslnegotiation` | `postgres` (the default) or `direct`, which needs TLS and PostgreSQL 17 |
/// | `hostaddr` | the addresses of the hosts, which are not looked up; a certificate is still checked for the host |
/// | `load_balance_hosts` | `disable` (the default) or `random`: the order in which hosts are asked |
/// | `keepalives`, `keepalives_idle`, `keepalives_interval`, `keepalives_count` | TCP keep-alive: `0` or `1`, seconds (default 15), seconds and a number; 0 is the default |
/// | `tcp_user_timeout` | how long data may be unacknowledged before the kernel gives a connection up, in milliseconds |
/// | `fallback_application_name` | the `application_name` of a URL without one |
/// | `client_encoding` | `UTF8` and `auto` change nothing, others are refused |
/// | `gssencmode` | `disable` and `prefer` change nothing; `require` is refused: there is no encryption by GSSAPI |
/// | `require_auth` | is refused: the server chooses how to log in; use `channel_binding=require` |
///
/// The files of TLS are read at each connect, so certificates can be replaced without a restart. `Debug` does not show the password.
#[derive(Clone)]
pub struct PostgresConfig {
    hosts: String,
    port: Option<u16>,
    user: Option<String>,
    password: Option<Password>,
    database: Option<String>,
    session_options: Option<String>,
    pub(crate) application_name: String,
    read_write: Option<bool>,
    pub(crate) tls: Tls,
    libpq: Libpq,
    pub(crate) ttl: Duration,
    pub(crate) schema: String,
    pub(crate) owner: Option<String>,
    pub(crate) grants: Grants,
    pub(crate) sync: PostgresSync,
    pub(crate) install: bool,
    pub(crate) listen: bool,
    listen_host: Option<String>,
    pub(crate) pool: usize,
    pub(crate) local_handovers: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) clock: Clock,
}

impl PostgresConfig {
    /// The defaults for these servers (`host`, `host:port` or `/directory`, separated by commas; the default port is 5432).
    #[must_use]
    pub fn new(hosts: impl Into<String>) -> Self {
        Self {
            hosts: hosts.into(),
            port: None,
            user: None,
            password: None,
            database: None,
            session_options: None,
            application_name: String::from("polylock"),
            read_write: None,
            tls: Tls::default(),
            libpq: Libpq::default(),
            ttl: Duration::from_secs(30),
            schema: String::from("polylock"),
            owner: None,
            grants: Grants::default(),
            sync: PostgresSync::default(),
            install: true,
            listen: true,
            listen_host: None,
            pool: 4,
            local_handovers: TokenBlock::USUAL_SERIES,
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(2),
            clock: Clock::boot(),
        }
    }

    /// Parses a [URL](Self#urls).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) with a hint, or
    /// [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported) for TLS in a build without it.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(BACKEND, &["postgres", "postgresql"])?;
        let mut config = Self::new(&url.hosts);
        let (mut host, mut password_file, mut application_name) = (None, None, None);
        let known = [&OPTIONS[..], &Libpq::OPTIONS[..]].concat();
        url.options(BACKEND, &known, |key, value| {
            match key {
                "host" => host = Some(value.text().to_owned()),
                "password_file" => password_file = Some(value.text().to_owned()),
                "application_name" => application_name = Some(value.text().to_owned()),
                _ => config.set(key, value)?,
            }
            Ok(())
        })?;
        config.hosts = match (host, config.hosts.is_empty()) {
            (Some(_), false) => {
                return Err(invalid("the URL names hosts, and has host=", "leave one of them out"));
            }
            (Some(host), true) => host,
            (None, true) => config.libpq.hosts().unwrap_or_default(),
            (None, false) => config.hosts,
        };
        let fallback = config.libpq.application_name().map(str::to_owned);
        config.application_name = application_name.or(fallback).unwrap_or(config.application_name);
        config.user = Some(url.user.clone()).filter(|user| !user.is_empty());
        config.password = url.password_or_file(BACKEND, password_file.as_deref())?;
        config.database = Some(url.path.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
        config.check()?;
        Ok(config)
    }

    fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<()> {
        let text = || value.text().to_owned();
        match key {
            "ttl" => self.ttl = value.duration()?,
            "schema" => self.schema = text(),
            "owner" => self.owner = Some(text()),
            "sync" => {
                let all =
                    [PostgresSync::On, PostgresSync::Local, PostgresSync::RemoteApply, PostgresSync::Off];
                self.sync = value.one_of(all.map(|sync| (sync.as_str(), sync)))?;
            }
            "install" => self.install = value.one_of([("auto", true), ("off", false)])?,
            "listen" => self.listen = value.one_of([("on", true), ("off", false)])?,
            "listen_host" => self.listen_host = Some(text()),
            "pool" => self.pool = value.parse("give a number of connections, such as 4")?,
            "local_handovers" => self.local_handovers = value.parse("give a number, such as 16")?,
            "port" => self.port = Some(value.parse("give a number up to 65535")?),
            "target_session_attrs" => {
                self.read_write = Some(match value.text() {
                    "read-write" | "primary" => true,
                    "any" => false,
                    _ => return Err(value.invalid("use read-write or any: locks need a primary")),
                });
            }
            "sslmode" | "sslnegotiation" | "sslrootcert" | "sslcert" | "sslkey" => {
                self.tls.set(key, value)?;
            }
            "options" => self.session_options = Some(text()),
            // libpq has seconds without a unit.
            "connect_timeout" if value.text().bytes().all(|byte| byte.is_ascii_digit()) => {
                self.connect_timeout = seconds(value)?.unwrap_or(self.connect_timeout);
            }
            "connect_timeout" => self.connect_timeout = value.duration()?,
            "command_timeout" => self.command_timeout = value.duration()?,
            _ => {
                self.libpq.set(key, value)?;
            }
        }
        Ok(())
    }

    /// The role to log in as. The default is the user of the process.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password. Every connect reads it: it can be [a file](Password::file) or [a function](Password::callback), and
    /// change while the program runs.
    ///
    /// ```
    /// # use lock_postgres::PostgresConfig;
    /// use lock_core::Password;
    ///
    /// let config = PostgresConfig::from_url("postgres://me@localhost")?
    ///     .password(Password::callback(|| async { Ok(std::env::var("PGPASSWORD")?) }));
    /// # let _ = config;
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    #[must_use]
    pub fn password(mut self, password: impl Into<Password>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The database. The default is the one with the name of the user.
    #[must_use]
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// The default ttl: how long a lock outlives a holder that died.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The schema of the tables and functions. All clients that share locks need the same.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The role that owns the schema, if it is none that is trusted anyhow: a superuser, the owner of the database, or the role of this
    /// client. Whoever owns the schema can run functions as this client.
    #[must_use]
    pub fn owner(mut self, role: impl Into<String>) -> Self {
        self.owner = Some(role.into());
        self
    }

    /// The roles that may use the locks, besides the owner of the schema. An installation grants it to them.
    #[must_use]
    pub fn grants(mut self, grants: Grants) -> Self {
        self.grants = grants;
        self
    }

    /// What a grant waits for.
    #[must_use]
    pub fn sync(mut self, sync: PostgresSync) -> Self {
        self.sync = sync;
        self
    }

    /// Whether to create or upgrade the schema when that is needed and allowed. Default true.
    #[must_use]
    pub fn install(mut self, install: bool) -> Self {
        self.install = install;
        self
    }

    /// Whether a connection of its own notifies waiters. Default true. Without it, as behind a pooler in transaction mode,
    /// waiters ask again, after 2 s at most.
    #[must_use]
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    /// Where to listen, as `host[:port]`: the server itself, where requests go through a pooler.
    #[must_use]
    pub fn listen_host(mut self, host: impl Into<String>) -> Self {
        self.listen_host = Some(host.into());
        self
    }

    /// The most connections for requests. Default 4: commits that come together share one write to the disk.
    #[must_use]
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool = connections;
        self
    }

    /// Limits how many tasks of this process may hold the lock in a row before other processes get a chance; they get it after
    /// 10 ms in any case. Default 16. With 0 or 1 every task asks the server.
    #[must_use]
    pub fn local_handovers(mut self, most: u32) -> Self {
        self.local_handovers = most;
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

    /// The clock of the leases.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        check_timeout(BACKEND, "connect_timeout", self.connect_timeout)?;
        check_timeout(BACKEND, "command_timeout", self.command_timeout)?;
        self.tls.check()?;
        self.libpq.check(&self.tls)?;
        self.targets()?;
        self.listen_targets()?;
        if self.schema.is_empty() || self.schema.len() > LONGEST_SCHEMA || self.schema.contains('\0') {
            let hint = format!("give it a name of at most {LONGEST_SCHEMA} bytes, such as polylock");
            return Err(invalid("schema= names no schema", hint));
        }
        if self.pool == 0 || self.pool > LARGEST_POOL {
            return Err(invalid(
                format!("a pool of {} connections is not possible", self.pool),
                format!("use 1 to {LARGEST_POOL}; 4 serve most processes"),
            ));
        }
        if !self.listen && self.listen_host.is_some() {
            return Err(invalid("listen_host= has no use with listen=off", "leave one of them out"));
        }
        Ok(())
    }

    pub(crate) fn password_source(&self) -> Option<&Password> {
        self.password.as_ref()
    }

    /// The time for a connection and an answer.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.connect_timeout + self.command_timeout
    }

    /// The servers, as errors show them.
    pub(crate) fn servers(&self) -> String {
        self.hosts.clone()
    }

    /// What the driver connects to for requests, one of them; the password is read at each connect.
    pub(crate) fn targets(&self) -> Result<Vec<tokio_postgres::Config>> {
        self.targets_at(&self.hosts, self.libpq.addresses(self.hosts.split(',').count())?)
    }

    /// What the driver connects to for notifications.
    pub(crate) fn listen_targets(&self) -> Result<Vec<tokio_postgres::Config>> {
        match &self.listen_host {
            Some(host) => self.targets_at(host, &[]),
            None => self.targets(),
        }
    }

    fn targets_at(&self, hosts: &str, addresses: &[IpAddr]) -> Result<Vec<tokio_postgres::Config>> {
        let hosts: Vec<_> = hosts.split(',').collect();
        let mut targets = Vec::with_capacity(hosts.len());
        for host in &hosts {
            targets.push(self.target_at(host, hosts.len() > 1)?);
        }
        for (target, address) in targets.iter_mut().zip(addresses) {
            target.hostaddr(*address);
        }
        Ok(targets)
    }

    fn target_at(&self, host: &str, is_one_of_several: bool) -> Result<tokio_postgres::Config> {
        let mut target = tokio_postgres::Config::new();
        let (name, port) = self.host_and_port(host)?;
        if name.starts_with('/') && self.tls.is_required() {
            return Err(invalid(
                "a Unix socket has no TLS",
                "leave sslmode= and its files out, or name a host",
            ));
        }
        target.host(name).port(port);
        if let Some(user) = &self.user {
            target.user(user);
        }
        if let Some(database) = &self.database {
            target.dbname(database);
        }
        if let Some(options) = &self.session_options {
            target.options(options);
        }
        if self.read_write.unwrap_or(is_one_of_several) {
            target.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        }
        target.application_name(&self.application_name).connect_timeout(self.connect_timeout);
        self.tls.apply(&mut target);
        self.libpq.apply(&mut target);
        Ok(target)
    }

    fn host_and_port<'h>(&self, host: &'h str) -> Result<(&'h str, u16)> {
        let default = self.port.unwrap_or(DEFAULT_PORT);
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains([']', '/']) => {
                let port = port.parse().map_err(|_| {
                    // What stands in its place may be a password.
                    invalid(
                        format!("the port of the host {name:?} is not a number up to 65535"),
                        "write it as host:port, and a password as user:password@host:port",
                    )
                })?;
                (name, port)
            }
            _ => (host, default),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if name.is_empty() || name.contains(['=', '%']) {
            return Err(invalid(
                "the URL does not name the server",
                "write it as postgres://host:port/database, or postgres:///database?host=/directory for a Unix socket",
            ));
        }
        Ok((name, port))
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("hosts", &self.hosts)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("schema", &self.schema)
            .field("ttl", &self.ttl)
            .field("sync", &self.sync)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;
    use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, TargetSessionAttrs};
    #[cfg(feature = "tls")]
    use tokio_postgres::config::{SslMode, SslNegotiation};

    use super::*;

    #[test]
    fn urls() {
        let config = PostgresConfig::from_url(
            "postgres://me:s3cret@h1,[::1]:7/shop?ttl=5s&schema=locks&sync=off&install=off&listen=off&pool=2",
        )
        .unwrap();
        assert_eq!((config.ttl, config.schema.as_str()), (Duration::from_secs(5), "locks"));
        assert_eq!(
            (config.sync, config.install, config.listen, config.pool),
            (PostgresSync::Off, false, false, 2)
        );
        let targets = config.targets().unwrap();
        for (target, host, port) in [(&targets[0], "h1", 5432), (&targets[1], "::1", 7)] {
            assert_eq!(
                (target.get_hosts(), target.get_ports()),
                (&[Host::Tcp(host.into())][..], &[port][..])
            );
            assert_eq!((target.get_user(), target.get_dbname()), (Some("me"), Some("shop")));
            assert_eq!(target.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert!(!format!("{config:?} {target:?}").contains("s3cret"));
        }
        let socket = PostgresConfig::from_url("postgresql:///?host=/run/pg&port=5433").unwrap();
        let socket = socket.targets().unwrap().remove(0);
        assert_eq!(
            (socket.get_hosts(), socket.get_ports()),
            (&[Host::Unix("/run/pg".into())][..], &[5433][..])
        );
        assert_eq!(socket.get_target_session_attrs(), TargetSessionAttrs::Any);
        let past = PostgresConfig::from_url("postgres://pooler:6432?listen_host=db").unwrap();
        assert_eq!(past.listen_targets().unwrap()[0].get_ports(), [5432]);
    }

    #[test]
    fn urls_of_providers() {
        let options = "connect_timeout=10&channel_binding=prefer&gssencmode=disable&client_encoding=UTF8&keepalives=1\
                       &keepalives_idle=60&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=30000\
                       &load_balance_hosts=random&sslnegotiation=postgres&fallback_application_name=app";
        let config = PostgresConfig::from_url(&format!("postgres://me@h/shop?{options}")).unwrap();
        assert_eq!(
            (config.connect_timeout, config.application_name.as_str()),
            (Duration::from_secs(10), "app")
        );
        let target = config.targets().unwrap().remove(0);
        assert!(target.get_keepalives());
        assert_eq!(target.get_keepalives_idle(), Duration::from_secs(60));
        assert_eq!(target.get_keepalives_interval(), Some(Duration::from_secs(5)));
        assert_eq!(target.get_keepalives_retries(), Some(3));
        assert_eq!(target.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
        assert_eq!(target.get_load_balance_hosts(), LoadBalanceHosts::Random);
        assert_eq!(target.get_channel_binding(), ChannelBinding::Prefer);

        let defaults =
            "connect_timeout=0&keepalives_idle=0&keepalives_interval=0&keepalives_count=0&tcp_user_timeout=0";
        let names = "fallback_application_name=app&application_name=mine";
        let config = PostgresConfig::from_url(&format!("postgres://h?{names}&{defaults}")).unwrap();
        assert_eq!(
            (config.connect_timeout, config.application_name.as_str()),
            (Duration::from_secs(2), "mine")
        );
        let (target, usual) =
            (config.targets().unwrap().remove(0), PostgresConfig::new("h").targets().unwrap().remove(0));
        assert_eq!(target.get_keepalives_idle(), usual.get_keepalives_idle());
        assert_eq!(target.get_keepalives_idle(), Duration::from_secs(15));
        assert_eq!((target.get_keepalives_interval(), target.get_keepalives_retries()), (None, None));
        assert_eq!(target.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
        let config = PostgresConfig::from_url("postgres://h?keepalives=0").unwrap();
        assert!(!config.targets().unwrap()[0].get_keepalives());
    }

    #[test]
    fn addresses_of_hosts_are_not_looked_up_and_are_not_those_of_the_listener() {
        let url = "postgres://h1,h2:7?hostaddr=10.0.0.1,fd00::1&listen_host=h3";
        let config = PostgresConfig::from_url(url).unwrap();
        for (target, (host, address)) in
            config.targets().unwrap().iter().zip([("h1", "10.0.0.1"), ("h2", "fd00::1")])
        {
            assert_eq!(target.get_hosts(), [Host::Tcp(host.into())]);
            assert_eq!(target.get_hostaddrs(), [address.parse::<IpAddr>().unwrap()]);
        }
        assert!(config.listen_targets().unwrap()[0].get_hostaddrs().is_empty());
        let config = PostgresConfig::from_url("postgres:///shop?hostaddr=fd00::1&port=7").unwrap();
        let target = config.targets().unwrap().remove(0);
        assert_eq!((target.get_hosts(), target.get_ports()), (&[Host::Tcp("fd00::1".into())][..], &[7][..]));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn options_that_need_tls() {
        for mode in ["require", "verify-ca", "verify-full"] {
            let url = format!("postgres://h?sslmode={mode}&channel_binding=require&sslnegotiation=direct");
            let target = PostgresConfig::from_url(&url).unwrap().targets().unwrap().remove(0);
            assert_eq!(target.get_ssl_mode(), SslMode::Require);
            assert_eq!(target.get_channel_binding(), ChannelBinding::Require);
            assert_eq!(target.get_ssl_negotiation(), SslNegotiation::Direct);
        }
    }

    #[test]
    fn bad_urls() {
        for url in [
            "postgres://",
            "postgres://h:port",
            "postgres://h1,,h2",
            "postgres://%2Frun/db",
            "postgres://h?host=/run",
            "postgres://h?ttl=0s",
            "postgres://h?ttl=1ms",
            "postgres://h?sync=maybe",
            "postgres://h?install=on",
            "postgres://h?listen=auto",
            "postgres://h?listen=off&listen_host=x",
            "postgres://h?listen_host=x:y",
            "postgres://h?pool=0",
            "postgres://h?pool=100000",
            "postgres://h?schema=",
            "postgres://h?port=x",
            "postgres://h?target_session_attrs=standby",
            "postgres://h?sslmode=prefer",
            "postgres://h?sslmode=allow",
            "postgres://h?sslmode=disable&sslrootcert=/x",
            "postgres://h?sslcert=/x",
            "postgres://h?sslkey=/x",
            "postgres:///?host=/run/pg&sslmode=require",
            "postgres://h?command_timeout=0s",
            "postgres://h?connect_timeout=2h",
            "postgres://h?connect_timeout=7200",
            "postgres://h?connect_timeout=0s",
            "postgres://h?connect_timeout=-1",
            "postgres://h?connect_timeout=",
            "postgres://h?channel_binding=require",
            "postgres://h?channel_binding=maybe",
            "postgres:///?host=/run/pg&channel_binding=require",
            "postgres://h?sslnegotiation=direct",
            "postgres://h?sslnegotiation=x",
            "postgres://h?gssencmode=require",
            "postgres://h?require_auth=scram-sha-256",
            "postgres://h?client_encoding=LATIN1",
            "postgres://h?keepalives=2",
            "postgres://h?keepalives_idle=10s",
            "postgres://h?keepalives_count=-1",
            "postgres://h?tcp_user_timeout=10s",
            "postgres://h?load_balance_hosts=round",
            "postgres://h?hostaddr=h",
            "postgres://h1,h2?hostaddr=10.0.0.1",
            "postgres://me:s3cret@h?password_file=/x",
            "postgres://h?shema=x",
            "redis://h",
        ] {
            let error = PostgresConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
            assert!(
                error.to_string().starts_with("postgres: ") && !error.to_string().contains("s3cret"),
                "{error}"
            );
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_tls_names_it() {
        let error = PostgresConfig::from_url("postgres://h?sslmode=require").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(",tls"), "{error}");
    }
}
