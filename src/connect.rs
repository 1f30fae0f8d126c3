//! The connection to a backend by URL.

use std::ops::Deref;
use std::sync::Arc;

use lock_core::backend::{Backend, Layer};
use lock_core::observe::LockObserver;
use lock_core::url::{LockUrl, similar};
use lock_core::{Error, ErrorKind, MemoryConfig, Result};

use crate::backends::schemes;

/// Parses the URL as the configuration of its backend, and connects it.
macro_rules! with_config {
    ($url:expr, |$config:ident| $connect:expr) => {{
        let url: &str = $url;
        let scheme = LockUrl::parse(url)?.scheme;
        match scheme.as_str() {
            "memory" => MemoryConfig::from_url(url)?.connect(),
            #[cfg(all(feature = "flock", unix))]
            "flock" => {
                let $config = lock_flock::FlockConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster" => {
                let $config = lock_redis::RedisConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "redlock")]
            "redlock" | "redlocks" => {
                let $config = lock_redlock::RedlockConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let $config = lock_postgres::PostgresConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => {
                let $config = lock_kv::EtcdConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mysqls" => {
                let $config = lock_kv::MysqlConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "s3")]
            "s3" => {
                let $config = lock_kv::S3Config::from_url(url)?;
                $connect
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let $config = lock_kv::SqliteConfig::from_url(url)?;
                $connect
            }
            #[cfg(feature = "zk")]
            "zk" | "zks" => {
                let $config = lock_zk::ZkConfig::from_url(url)?;
                $connect
            }
            _ => Err(not_available(&scheme)),
        }
    }};
}

/// A connection to a store of locks. It dereferences to [`lock_core::Locks`], which has the methods.
///
/// Clones share the connection. Keep one for the whole process, or one for each tokio runtime: the runtime that made a
/// connection drives it, and a `current_thread` runtime runs only inside its `block_on`. Errors of a connection whose runtime
/// is paused say so.
///
/// # Examples
///
/// ```
/// # use polylock::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> polylock::Result<()> {
/// let locks = Locks::connect("memory://").await?; // or redis:// redlock:// zk://
/// let one = locks.mutex("orders/42").acquire().await?;
/// let readers = locks.rw("config").read().await?;
/// let permit = locks.semaphore("gpu", 2).acquire().await?;
/// # drop((one, readers, permit));
/// locks.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks(lock_core::Locks);

impl Locks {
    /// Connects to the store that the URL names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory://[NAME]` | this process, see [`MemoryConfig`] |
    /// | `flock:///DIRECTORY` | the processes of this host, by files in this directory; Unix only |
    /// | `redis://[user:password@]host[:port][/database]` | one Redis server; `rediss://` with TLS |
    /// | `redis+unix:///path` | one Redis server, by its Unix socket |
    /// | `redis+sentinel://s1:p1,s2:p2,s3:p3/name` | the Redis master that sentinels name |
    /// | `redis+cluster://h1:p1,h2:p2,h3:p3` | a Redis Cluster |
    /// | `redlock://h1:p1,h2:p2,h3:p3,h4:p4,h5:p5` | a quorum of independent Redis servers; `redlocks://` with TLS |
    /// | `zk://h1:p1,h2:p2[/chroot]` | a ZooKeeper ensemble; `zks://` with TLS |
    /// | `postgres://[user:password@]h1[:port],h2[:port][/database]` | a PostgreSQL database, of several servers the primary; `postgresql://` is the same |
    /// | `etcd://[user:password@]h1[:port],h2[:port],h3[:port][/prefix]` | an etcd cluster; `etcds://` with TLS |
    /// | `mysql://user[:password@]h1[:port],h2[:port]/DATABASE` | a table of MySQL or MariaDB, of several servers the primary; `mysqls://` with TLS |
    /// | `s3://BUCKET/PREFIX` | whoever may write a bucket of S3, or of a store that answers as it does |
    /// | `sqlite:///FILE` | the processes of this host, by a SQLite file |
    /// | `migrate://NAMESPACE?from=URL&to=URL` | both of these, while locks move from Redis to ZooKeeper |
    ///
    /// Options follow as in `?ttl=10s`; the configuration type of each backend lists its own.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::InvalidConfig`] for a malformed URL, an unknown scheme or an unknown option.
    /// * [`ErrorKind::Unsupported`] when the backend's feature is not enabled, or outside a tokio runtime.
    /// * [`ErrorKind::Unavailable`] and [`ErrorKind::Denied`] when the connection fails, with a [code](Error::code) for the
    ///   cause.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections are closed, at the latest after the connection timeout.
    #[allow(clippy::unused_async, reason = "without a feature there is no server to connect to")]
    pub async fn connect(url: &str) -> Result<Self> {
        #[cfg(feature = "zk")]
        if let Some((config, from, to)) = migration(url)? {
            let migration = config.open(Arc::clone(from.backend()), Arc::clone(to.backend())).await?;
            return Ok(Self(lock_core::Locks::new(migration)));
        }
        with_config!(url, |config| config.connect().await).map(Self)
    }

    /// Connects at the first use: for services that may start before their server.
    ///
    /// The URL is as for [`connect`](Self::connect). The first use connects, and reports what is wrong with the connection;
    /// the next use tries again. This call needs no tokio runtime; every use does.
    ///
    /// ```
    /// # use polylock::{ErrorKind, Locks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> polylock::Result<()> {
    /// let locks = Locks::connect_lazy("memory://")?; // or redis:// redlock:// zk://
    /// let guard = locks.mutex("orders/42").acquire().await?;
    /// # guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] and [`ErrorKind::Unsupported`] as for [`connect`](Self::connect).
    pub fn connect_lazy(url: &str) -> Result<Self> {
        #[cfg(feature = "zk")]
        if let Some((config, from, to)) = migration(url)? {
            return config.open_lazy(Arc::clone(from.backend()), Arc::clone(to.backend())).map(Self);
        }
        with_config!(url, |config| config.connect_lazy()).map(Self)
    }

    /// Locks in a store of your own that can compare and swap, with the usual options; [`KvConfig`](crate::KvConfig) has others.
    ///
    /// ```
    /// # use polylock::{Locks, Registers, Result};
    /// async fn connect(my_registers: impl Registers) -> Result<Locks> {
    ///     Locks::on(my_registers).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Kv::connect`](crate::kv::Kv::connect), which tries whether the store refuses a swap on an old version.
    ///
    /// # Cancel safety
    ///
    /// As [`Kv::connect`](crate::kv::Kv::connect).
    #[cfg(feature = "kv")]
    pub async fn on(registers: impl lock_kv::Registers) -> Result<Self> {
        lock_kv::KvConfig::new().connect(registers).await.map(Self)
    }

    /// The same locks with a layer: one of `polylock::layers`, or [one of your own](Layer).
    ///
    /// ```
    /// # #[cfg(all(feature = "layers-prefix", feature = "layers-tracing"))]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> polylock::Result<()> {
    /// use polylock::Locks;
    /// use polylock::layers::{PrefixLayer, TracingLayer};
    ///
    /// let locks = Locks::connect("memory://").await?.layer(TracingLayer::new()).layer(PrefixLayer::new("shop/")?);
    /// let guard = locks.mutex("orders/42").acquire().await?; // the lock "shop/orders/42" of the store
    /// # guard.release().await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(all(feature = "layers-prefix", feature = "layers-tracing")))]
    /// # fn main() {}
    /// ```
    ///
    /// With a layer that is a backend, they have wait queues of their own: do not use clones that you made before beside them.
    /// Closing one closes the connection of both.
    #[must_use]
    pub fn layer(self, layer: impl Layer) -> Self {
        Self(self.0.layer(layer))
    }

    /// The same locks, with an observer of what happens to those that are acquired by them.
    #[must_use]
    pub fn observe(self, observer: impl LockObserver) -> Self {
        Self(self.0.observe(observer))
    }
}

impl Deref for Locks {
    type Target = lock_core::Locks;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The locks of a backend of your own, or of one that you also use directly.
impl From<Arc<dyn Backend>> for Locks {
    fn from(backend: Arc<dyn Backend>) -> Self {
        Self(lock_core::Locks::from_dyn(backend))
    }
}

impl From<lock_core::Locks> for Locks {
    fn from(locks: lock_core::Locks) -> Self {
        Self(locks)
    }
}

impl From<Locks> for lock_core::Locks {
    fn from(locks: Locks) -> Self {
        locks.0
    }
}

/// The options of a migration, and both stores, which connect when they are needed; none for another URL.
#[cfg(feature = "zk")]
fn migration(url: &str) -> Result<Option<(lock_migrate::MigrationConfig, Locks, Locks)>> {
    if LockUrl::parse(url)?.scheme != "migrate" {
        return Ok(None);
    }
    let (config, from, to) = lock_migrate::MigrationConfig::from_url(url)?;
    Ok(Some((config, Locks::connect_lazy(&from)?, Locks::connect_lazy(&to)?)))
}

fn not_available(scheme: &str) -> Error {
    if let Some((_, Some(feature))) = schemes().find(|(known, _)| *known == scheme) {
        return Error::new(ErrorKind::Unsupported, "polylock")
            .with_message(format!("this build has no support for {scheme}:// URLs"))
            .with_hint(format!("enable the feature: cargo add polylock --features {feature}"));
    }
    let known: Vec<_> = schemes().map(|(known, _)| format!("{known}://")).collect();
    let meant = similar(scheme, schemes().map(|(known, _)| known));
    let meant = meant.map(|meant| format!("; did you mean {meant}://?")).unwrap_or_default();
    Error::new(ErrorKind::InvalidConfig, "polylock")
        .with_message(format!("the URL scheme {scheme}:// is unknown{meant}"))
        .with_hint(format!("use one of {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_is_refused_with_the_known_ones() {
        let error = Locks::connect("consul://localhost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.to_string().contains(
                "memory://, flock://, redis://, redlock://, zk://, postgres://, etcd://, s3://, mysql://, sqlite://"
            ),
            "{error}"
        );
        let error = Locks::connect("redsi://localhost").await.unwrap_err();
        assert!(error.to_string().contains("did you mean redis://?"), "{error}");
    }

    #[cfg(all(
        unix,
        feature = "etcd",
        feature = "flock",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "redlock",
        feature = "s3",
        feature = "sqlite",
        feature = "zk",
        feature = "tls"
    ))]
    #[tokio::test]
    async fn every_scheme_reaches_its_backend() {
        for (scheme, _) in schemes().filter(|(scheme, _)| *scheme != "memory") {
            let error = Locks::connect(&format!("{scheme}://")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert_ne!(error.backend(), "polylock", "{error}");
        }
    }

    #[test]
    fn a_missing_feature_is_reported() {
        let error = not_available("rediss");
        assert!(error.to_string().contains("--features redis,tls"), "{error}");
        let error = not_available("zk");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("--features zk"), "{error}");
    }
}
