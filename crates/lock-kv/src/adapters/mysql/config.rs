//! The options of locks in MySQL and MariaDB, in code and from a URL.

use lock_core::url::{LockUrl, OptionValue};
use lock_core::{Lazy, Locks, Password, Result, runtime};

use super::{LONGEST_TABLE, Login, Mysql, NAME, Sessions, about};
use crate::adapters::host::Host;
use crate::adapters::options::{KvOptions, check_files, invalid, kv_setters};
use crate::backend::{Kv, KvConfig};

/// The table, unless the URL names another one.
const TABLE: &str = "polylock";
const DEFAULT_PORT: u16 = 3_306;
const FORM: &str = "write it as mysql://user:password@host:3306/DATABASE";
const OPTIONS: [&str; 7] =
    ["ttl", "command_timeout", "table", "password_file", "tls_ca", "tls_cert", "tls_key"];

/// The configuration of locks in MySQL 8, or MariaDB 10.6 or newer.
///
/// A lock is as durable as a commit of the server. URL:
/// `mysql://user[:password]@host[:port][,host[:port]...]/DATABASE[?option=value&...]`, or `mysqls://` for TLS (feature `tls`). All clients of
/// a lock use the same database and table. All requests go to one server, the first of those named that takes writes; a replica is
/// refused. Name several where another one may become the primary, in the same order in all clients.
///
/// The user needs SELECT, INSERT and UPDATE on the table, and CREATE if it is to be made. It has to be one that `read_only` stops:
/// without SUPER, `READ_ONLY ADMIN` and `CONNECTION_ADMIN`; `doctor` warns of others. Without TLS, MySQL 8 sends a password encrypted by a key that nobody has
/// vouched for: use `mysqls://` where others can change what is on the network.
///
/// | URL option | default | |
/// |---|---|---|
/// | `ttl` | `10s` | how long a lock lasts without its holder |
/// | `command_timeout` | `5s` | after this time a request ends without an answer; a statement and a connection have three tenths of it each. Below `4s` a row that others have locked may look like a server that does not answer |
/// | `table` | `polylock` | the table, which is made if it does not exist |
/// | `password_file` | none | file with the password, read at each connect |
/// | `tls_ca` | none | file with the certificates of authorities to trust besides those of the system, PEM |
/// | `tls_cert`, `tls_key` | none | files with the client certificate and its key, PEM |
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_kv::MysqlConfig;
/// # fn main() -> lock_core::Result<()> {
/// // As mysql://me:s3cret@db1:3306,db2:3306/app?ttl=5s
/// let config = MysqlConfig::new("db1:3306,db2:3306", "app").user("me", "s3cret").ttl(Duration::from_secs(5));
/// let locks = config.connect_lazy()?;
/// # let _ = locks;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlConfig {
    hosts: String,
    login: Login,
    kv: KvConfig,
}

impl MysqlConfig {
    /// Locks in this database of these servers, as `db1:3306,db2:3306`. They need a [user](Self::user).
    #[must_use]
    pub fn new(hosts: impl Into<String>, database: impl Into<String>) -> Self {
        let (user, database, table) = (String::new(), database.into(), TABLE.to_owned());
        let login = Login { user, password: None, database, table, tls: None };
        Self { hosts: hosts.into(), login, kv: KvConfig::new() }
    }

    /// Parses a URL such as `mysql://me:s3cret@db:3306/app?ttl=5s`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a URL without a server, a user or a database, and for an unknown option;
    /// [`Unsupported`](lock_core::ErrorKind::Unsupported) for TLS in a build without it.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = LockUrl::parse(url)?;
        url.check_scheme(NAME, &["mysql", "mysqls"])?;
        let mut config = Self::new(&url.hosts, url.path.trim_start_matches('/'));
        let set = |_: &str, table: OptionValue<'_>| {
            table.text().clone_into(&mut config.login.table);
            Ok(())
        };
        let KvOptions { kv, password, tls } = KvOptions::of(&url, NAME, &OPTIONS, KvConfig::new(), set)?;
        (config.login.password, config.login.tls, config.kv) = (password, tls, kv);
        config.login.user.clone_from(&url.user);
        config.check()?;
        Ok(config)
    }

    /// Logs in as this user. A [`Password`] is a text, a file, or a function.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<Password>) -> Self {
        (self.login.user, self.login.password) = (name.into(), Some(password.into()));
        self
    }

    /// The table. Default `polylock`.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.login.table = table.into();
        self
    }

    /// Connects to the server that takes writes, and makes the table if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Kv::connect`]; [`Unavailable`](lock_core::ErrorKind::Unavailable) with the code `read_only` for a replica;
    /// [`Denied`](lock_core::ErrorKind::Denied) for a wrong password, and for a user without rights;
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a file that cannot be read, a database that does not exist, and a
    /// table of another engine or with other columns.
    ///
    /// # Cancel safety
    ///
    /// As [`Kv::connect`].
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(self.open().await?))
    }

    /// The same locks, connected at their first use.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a server, a table, a ttl or a timeout that cannot be used.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.check()?;
        let expected = self.kv.capabilities(&about())?;
        Ok(Locks::new(Lazy::new(expected, move || self.clone().open())))
    }

    async fn open(self) -> Result<Kv<Mysql>> {
        let hosts = self.check()?;
        self.kv.capabilities(&about())?;
        runtime::current(NAME)?;
        // The password is read by the thread of the store.
        check_files(NAME, None, self.login.tls.as_ref()).await?;
        let (table, limit) = (self.login.table.clone(), self.kv.timeout());
        let sessions = Sessions::new(hosts, self.login, limit);
        Kv::connect(Mysql::open(sessions, &table, limit).await?, self.kv).await
    }

    fn check(&self) -> Result<Vec<Host>> {
        if self.login.user.is_empty() {
            return Err(invalid(NAME, "there is no user", FORM));
        }
        if self.login.database.is_empty() || self.login.database.contains('/') {
            return Err(invalid(NAME, "the URL names no database", FORM));
        }
        let table = &self.login.table;
        let is_name = table.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name || !(1..=LONGEST_TABLE).contains(&table.len()) {
            let hint = "use letters, digits and underlines, 64 at most";
            return Err(invalid(NAME, "the name of the table cannot be used", hint));
        }
        Host::list(NAME, &self.hosts, DEFAULT_PORT, FORM)
    }
}

kv_setters!(MysqlConfig);

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_names_servers_a_user_a_database_and_options() {
        let config =
            MysqlConfig::from_url("mysql://me:s3cret@h1,h2:7,[::1]:8/app?table=locks&ttl=5s").unwrap();
        let login = &config.login;
        assert_eq!(
            (login.user.as_str(), login.database.as_str(), login.table.as_str()),
            ("me", "app", "locks")
        );
        assert_eq!(config.check().unwrap().len(), 3);
        assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
        assert_eq!(MysqlConfig::from_url("mysql://me@h/app").unwrap().login.table, TABLE);
        for url in [
            "mysql://",
            "mysql://me@/app",
            "mysql://h/app",
            "mysql://me@h",
            "mysql://me@h/",
            "mysql://me@h/app/b",
            "mysql://me@h1,,h2/app",
            "mysql://me@h:x/app",
            "mysql://me:s3cret@h/app?password_file=/x",
            "mysql://me@h/app?tls_ca=/x",
            "mysql://me@h/app?tabel=x",
            "mysql://me@h/app?table=",
            "mysql://me@h/app?table=a%60b",
            "mysql://me@h/app?table=a.b",
        ] {
            let error = MysqlConfig::from_url(url).unwrap_err();
            assert_eq!((error.kind(), error.backend()), (ErrorKind::InvalidConfig, NAME), "{url}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        for url in ["mysql://me@h/app?ttl=1ms", "mysql://me@h/app?command_timeout=0s"] {
            let error = MysqlConfig::from_url(url).and_then(MysqlConfig::connect_lazy).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        }
        // One of the driver's defaults has all rights.
        let error = MysqlConfig::new("h", "app").connect_lazy().unwrap_err();
        assert!(error.message().contains("no user"), "{error}");
    }
}
