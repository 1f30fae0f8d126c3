//! The servers that store the locks: one server, a master behind sentinels, or a cluster.

use std::{fmt, slice};

use lock_core::url::LockUrl;
use lock_core::{Error, ErrorKind, Password, Result};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::connect::credentials::Credentials;
use crate::connect::tls::Tls;

const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The servers that store the locks.
///
/// `Debug` and `Display` do not show passwords.
///
/// # Examples
///
/// ```
/// # use redis_link::redis::IntoConnectionInfo as _;
/// # use redis_link::topology::Topology;
/// let nodes = ["redis://h1:7000", "redis://h2:7000"].map(|url| url.into_connection_info());
/// let cluster = Topology::Cluster(nodes.into_iter().collect::<Result<_, _>>()?);
/// assert_eq!(cluster.to_string(), "h1:7000,h2:7000");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    Single(ConnectionInfo),
    /// A master behind sentinels.
    Sentinel(SentinelInfo),
    /// A Redis Cluster, given by some of its nodes; the others are discovered.
    Cluster(Vec<ConnectionInfo>),
}

/// Sentinels, and the master that they monitor.
///
/// # Examples
///
/// ```
/// # use redis_link::redis::IntoConnectionInfo as _;
/// # use redis_link::topology::{SentinelInfo, Topology};
/// let sentinels = ["redis://s1:26379", "redis://s2:26379"].map(|url| url.into_connection_info());
/// let sentinels = sentinels.into_iter().collect::<Result<_, _>>()?;
/// // Only the credentials and the database count: the sentinels name the address.
/// let master = "redis://me:s3cret@unused/2".into_connection_info()?;
/// let topology = Topology::Sentinel(SentinelInfo::new(sentinels, "mymaster", master));
/// assert_eq!(topology.to_string(), "mymaster of s1:26379,s2:26379");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SentinelInfo {
    /// Some of the sentinels; best all of them.
    pub sentinels: Vec<ConnectionInfo>,
    /// The name of the master in the configuration of the sentinels.
    pub name: String,
    /// Credentials, database and TLS of the master. Its address is ignored: the sentinels name it.
    pub master: ConnectionInfo,
}

impl SentinelInfo {
    /// The master `name` of these sentinels.
    #[must_use]
    pub fn new(sentinels: Vec<ConnectionInfo>, name: impl Into<String>, master: ConnectionInfo) -> Self {
        Self { sentinels, name: name.into(), master }
    }
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    kind: Kind,
    tls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

/// The options of a URL for passwords, TLS, the database and the sentinels.
#[derive(Default)]
pub struct Access {
    tls: Tls,
    db: Option<i64>,
    password_file: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    sentinel_password_file: Option<String>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("db", &self.db).finish_non_exhaustive()
    }
}

impl From<ConnectionInfo> for Topology {
    fn from(info: ConnectionInfo) -> Self {
        Self::Single(info)
    }
}

impl Topology {
    /// The servers that the configuration names.
    pub fn named(&self) -> &[ConnectionInfo] {
        match self {
            Self::Single(info) => slice::from_ref(info),
            Self::Sentinel(sentinel) => &sentinel.sentinels,
            Self::Cluster(seeds) => seeds,
        }
    }

    /// The servers and a prefix of keys, as a URL without credentials.
    #[must_use]
    pub fn identity(&self, prefix: &str) -> String {
        match self {
            Self::Single(info) => {
                identity(["redis", "rediss"], slice::from_ref(info), &database_of(info), prefix)
            }
            Self::Sentinel(SentinelInfo { sentinels, name, master }) => {
                let path = format!("/{}{}", encoded(name), database_of(master));
                identity(["redis+sentinel", "rediss+sentinel"], sentinels, &path, prefix)
            }
            Self::Cluster(seeds) => identity(["redis+cluster", "rediss+cluster"], seeds, "", prefix),
        }
    }
}

/// Servers and a prefix of keys, as a URL without credentials. The scheme is the second one with TLS. Servers may be named in
/// any order.
#[must_use]
pub fn identity(schemes: [&str; 2], servers: &[ConnectionInfo], path: &str, prefix: &str) -> String {
    let prefix = encoded(prefix);
    if let [info] = servers
        && let ConnectionAddr::Unix(socket) = info.addr()
    {
        let database = info.redis_settings().db();
        let database = if database == 0 { String::new() } else { format!("db={database}&") };
        return format!("redis+unix://{}?{database}prefix={prefix}", socket.display());
    }
    let mut hosts: Vec<String> = servers.iter().map(|info| host_and_port(info.addr())).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let is_tls = servers.iter().any(|info| matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
    format!("{}://{}{path}?prefix={prefix}", schemes[usize::from(is_tls)], hosts.join(","))
}

/// The database of a server, as the path of a URL; empty for the first one.
#[must_use]
pub fn database_of(info: &ConnectionInfo) -> String {
    match info.redis_settings().db() {
        0 => String::new(),
        database => format!("/{database}"),
    }
}

/// Host and port, or the path of a socket.
pub(crate) fn host_and_port(addr: &ConnectionAddr) -> String {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } if host.contains(':') => {
            format!("[{host}]:{port}")
        }
        addr => addr.to_string(),
    }
}

/// A part of a URL that does not end it.
fn encoded(text: &str) -> String {
    const ENCODED: &AsciiSet =
        &CONTROLS.add(b' ').add(b'%').add(b'&').add(b'=').add(b'?').add(b'@').add(b'#');
    utf8_percent_encode(text, ENCODED).to_string()
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Sentinel(sentinel) = self {
            write!(f, "{} of ", sentinel.name)?;
        }
        for (at, info) in self.named().iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { "," }, info.addr())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Single(_) => "Single",
            Self::Sentinel(_) => "Sentinel",
            Self::Cluster(_) => "Cluster",
        };
        f.debug_tuple(name).field(&format_args!("{self}")).finish()
    }
}

impl fmt::Debug for SentinelInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Scheme {
    /// Parses the scheme of a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if it is not a scheme of Redis.
    pub fn of(backend: &'static str, url: &LockUrl) -> Result<Self> {
        let (kind, tls) = match url.scheme.as_str() {
            "redis" => (Kind::Single, false),
            "rediss" => (Kind::Single, true),
            "redis+unix" => (Kind::Unix, false),
            "redis+sentinel" => (Kind::Sentinel, false),
            "rediss+sentinel" => (Kind::Sentinel, true),
            "redis+cluster" => (Kind::Cluster, false),
            "rediss+cluster" => (Kind::Cluster, true),
            other => {
                return Err(invalid(backend, format!("the URL scheme {other}:// is not one of Redis"))
                    .with_hint(
                        "use redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://",
                    ));
            }
        };
        Ok(Self { kind, tls })
    }

    /// The options that this scheme has in addition to those of every Redis URL.
    pub fn options(self) -> Vec<&'static str> {
        let mut options: Vec<_> = if self.tls { Tls::OPTIONS.into() } else { Vec::new() };
        options.push("password_file");
        match self.kind {
            Kind::Unix => options.push("db"),
            Kind::Sentinel => {
                options.extend(["sentinel_user", "sentinel_password", "sentinel_password_file"]);
            }
            Kind::Single | Kind::Cluster => {}
        }
        options
    }

    /// The credentials that are read at each connect: of the servers that store locks, and of sentinels.
    pub fn credentials(
        self,
        backend: &'static str,
        url: &LockUrl,
        access: &Access,
    ) -> Result<(Credentials, Credentials)> {
        url.password_or_file(backend, access.password_file.as_deref())?;
        if access.sentinel_password.is_some() && access.sentinel_password_file.is_some() {
            let what = "the URL has a sentinel_password and a sentinel_password_file";
            return Err(invalid(backend, what.into()).with_hint("leave one of them out"));
        }
        let with = |file: &Option<String>| Credentials {
            password: file.as_ref().map(Password::file),
            tls: self.tls.then(|| access.tls.clone()),
        };
        Ok((with(&access.password_file), with(&access.sentinel_password_file)))
    }

    /// The servers that the URL names.
    pub fn topology(self, backend: &'static str, url: &LockUrl, access: &Access) -> Result<Topology> {
        match self.kind {
            Kind::Unix => Ok(Topology::Single(unix(backend, url, access.db.unwrap_or_default())?)),
            Kind::Single => {
                let settings = settings(url, database(backend, url.path.trim_matches('/'))?);
                self.info(backend, &url.hosts, DEFAULT_PORT, settings, access).map(Topology::Single)
            }
            Kind::Cluster => {
                let path = url.path.trim_matches('/');
                if database(backend, path)? != 0 {
                    return Err(invalid(backend, format!("a cluster has only database 0, not {path}"))
                        .with_hint(
                            "leave the database out, or use another prefix in the URL (?prefix=...)",
                        ));
                }
                let seed = |host| self.info(backend, host, DEFAULT_PORT, settings(url, 0), access);
                Ok(Topology::Cluster(url.hosts.split(',').map(seed).collect::<Result<_>>()?))
            }
            Kind::Sentinel => self.sentinel(backend, url, access).map(Topology::Sentinel),
        }
    }

    fn sentinel(self, backend: &'static str, url: &LockUrl, access: &Access) -> Result<SentinelInfo> {
        let path = url.path.trim_matches('/');
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(invalid(backend, "the URL does not name the master".into())
                .with_hint("write it as redis+sentinel://host:port,host:port/name"));
        }
        let mut own = RedisConnectionInfo::default();
        if let Some(user) = &access.sentinel_user {
            own = own.set_username(user);
        }
        if let Some(password) = &access.sentinel_password {
            own = own.set_password(password);
        }
        let sentinel = |host| self.info(backend, host, SENTINEL_PORT, own.clone(), access);
        let sentinels: Vec<_> = url.hosts.split(',').map(sentinel).collect::<Result<_>>()?;
        let settings = settings(url, database(backend, db)?);
        // The address is replaced by that of the master.
        let master = sentinels[0].clone().set_redis_settings(settings);
        Ok(SentinelInfo { sentinels, name: name.to_owned(), master })
    }

    fn info(
        self,
        backend: &'static str,
        host: &str,
        default_port: u16,
        settings: RedisConnectionInfo,
        access: &Access,
    ) -> Result<ConnectionInfo> {
        let info = server(backend, host, default_port)?.set_redis_settings(settings);
        if self.tls { access.tls.over(backend, info) } else { Ok(info) }
    }
}

impl Access {
    /// Sets an option, and reports whether it is one of these.
    pub fn set(&mut self, key: &str, value: lock_core::url::OptionValue<'_>) -> Result<bool> {
        let text = || Some(value.text().to_owned());
        match key {
            "db" => self.db = Some(value.parse("use the number of a database")?),
            "password_file" => self.password_file = text(),
            "sentinel_user" => self.sentinel_user = text(),
            "sentinel_password" => self.sentinel_password = text(),
            "sentinel_password_file" => self.sentinel_password_file = text(),
            _ => return self.tls.set(key, value),
        }
        Ok(true)
    }
}

/// One host of a URL, with the URL's credentials and database.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`] for a bad host or database.
pub fn connection_info(backend: &'static str, url: &LockUrl, host: &str) -> Result<ConnectionInfo> {
    let database = database(backend, url.path.trim_matches('/'))?;
    Ok(server(backend, host, DEFAULT_PORT)?.set_redis_settings(settings(url, database)))
}

/// The same connection settings with another host and port.
pub(crate) fn at(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

fn server(backend: &'static str, host: &str, default_port: u16) -> Result<ConnectionInfo> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => {
            let port = port.parse().map_err(|_| {
                // What stands in its place may be a password.
                invalid(backend, format!("the port of the host {name:?} is not a number up to 65535"))
                    .with_hint("write it as host:port, such as 127.0.0.1:6379, and a password as :password@host:port")
            })?;
            (name, port)
        }
        _ => (host, default_port),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() || name.contains([',', '=']) {
        return Err(invalid(backend, "the URL does not name exactly one host".into())
            .with_hint("write it as redis://host:port"));
    }
    ConnectionAddr::Tcp(name.to_owned(), port).into_connection_info().map_err(|_| {
        invalid(backend, format!("the address {host:?} is not valid"))
            .with_hint("write it as redis://host:port")
    })
}

fn unix(backend: &'static str, url: &LockUrl, database: i64) -> Result<ConnectionInfo> {
    if !url.hosts.is_empty() || url.path.len() < 2 {
        return Err(invalid(backend, "the URL does not name the path of a socket".into())
            .with_hint("write it as redis+unix:///path/to/redis.sock?db=0"));
    }
    let addr = ConnectionAddr::Unix(url.path.clone().into());
    let info = addr.into_connection_info().map_err(|_| {
        invalid(backend, "the path of the socket is not valid".into())
            .with_hint("write it as redis+unix:///path/to/redis.sock?db=0")
    })?;
    Ok(info.set_redis_settings(settings(url, database)))
}

fn settings(url: &LockUrl, database: i64) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(database);
    if !url.user.is_empty() {
        settings = settings.set_username(&url.user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    settings
}

fn database(backend: &'static str, text: &str) -> Result<i64> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        invalid(backend, "the database is not a number".into()).with_hint("write it as redis://host:port/0")
    })
}

fn invalid(backend: &'static str, what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, backend).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_url_show_no_password() {
        let access = Access { sentinel_password: Some("s3cret".into()), ..Access::default() };
        assert_eq!(format!("{access:?}"), "Access { db: None, .. }");
    }

    #[test]
    fn an_identity_has_no_credentials_and_no_order() {
        let identity = |url: &str, prefix: &str| {
            let (options, url) = (Access::default(), LockUrl::parse(url).unwrap());
            let topology = Scheme::of("redis", &url).unwrap().topology("redis", &url, &options).unwrap();
            topology.identity(prefix)
        };
        assert_eq!(identity("redis://me:s3cret@h", "lock:"), "redis://h:6379?prefix=lock:");
        assert_eq!(identity("redis://[::1]:7/3", "a b@"), "redis://[::1]:7/3?prefix=a%20b%40");
        assert_eq!(
            identity("redis+sentinel://u:s3cret@b:2,a:1/main/4", ""),
            "redis+sentinel://a:1,b:2/main/4?prefix="
        );
        assert_eq!(identity("redis+cluster://b,a,b", "lock:"), "redis+cluster://a:6379,b:6379?prefix=lock:");
        #[cfg(unix)]
        assert_eq!(identity("redis+unix:///run/r.sock", "lock:"), "redis+unix:///run/r.sock?prefix=lock:");
    }
}
