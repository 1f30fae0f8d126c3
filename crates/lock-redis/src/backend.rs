//! The Redis backend.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lock_core::backend::Support;
use lock_core::engine::{Engine, EngineOptions, OnEngine};
use lock_core::migration::MigrationSource;
use lock_core::{Capabilities, Lazy, LeaseKind, Locks, Result, runtime};
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::owner_cache::OwnerCache;
use redis_link::push::Pushes;
use redis_link::topology::Topology;

use crate::config::{RedisConfig, RedisWait, SHORTEST_TOKEN_TTL};
use crate::error::{BACKEND, MIN_TTL};
use crate::recent_names::RecentNames;
use crate::recipes::recipe::RedisRecipe;
use crate::recipes::set_nx_px::SCRIPTS;
use crate::recipes::setnx_timestamp::ONE_TIME;
use crate::server::Server;
use crate::store::RedisStore;

/// How long a lock that was granted to a waiter is kept at least until that confirms.
const SHORTEST_GRACE: Duration = Duration::from_secs(1);
/// How long a lock that was busy probably is: its holder and its waiters send requests all the time.
const BUSY: Duration = Duration::from_millis(100);
/// For which part of the shortest ttl a last token needs no care. A release leaves it half at least, and claims do not renew it.
/// Another client may have another ttl.
const KEPT: u32 = 7;

/// The backend for one Redis server, a master behind sentinels, or a cluster.
///
/// A lock is as durable as the server. After a failover, or a restart without data, two may hold it at once. Fencing tokens
/// still grow then, as they follow the server's clock: let the resource check them.
///
/// # Examples
///
/// ```no_run
/// use lock_core::Locks;
/// use lock_redis::{Redis, RedisConfig};
///
/// # async fn example() -> lock_core::Result<()> {
/// let redis = Redis::connect(RedisConfig::from_url("redis://localhost")?).await?;
/// let locks = Locks::new(redis);
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// [`RedisConfig::connect`] does the first two lines in one.
#[derive(Debug)]
pub struct Redis(Engine<RedisStore>);

impl Redis {
    /// Connects to the server, and warns if waiters will have to poll. A second connection tests that concurrently, and is
    /// closed afterwards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig),
    /// [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable), or
    /// [`ErrorKind::Denied`](lock_core::ErrorKind::Denied).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after `connect_timeout` at the latest.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        runtime::current(BACKEND)?;
        let capabilities = capabilities(&config);
        let (wait, requests) = (config.wait_by(), config.requests());
        if let Some(danger) = requests.danger() {
            tracing::warn!("{}; {}", danger.what, danger.advice);
        }
        let mut options = EngineOptions::new(config.command_timeout);
        (options.grace, options.local_handovers) = (SHORTEST_GRACE, config.handovers());
        (options.skew, options.clock) = (requests.skew(), config.clock.clone());
        let identity = config.topology.identity(&config.prefix);
        config.check_credentials().await?;
        let mut client = ClientOptions::new(BACKEND, SCRIPTS, config.topology);
        (client.pool, client.dial, client.clock) = (config.pool, config.dial, config.clock);
        (client.credentials, client.sentinel_credentials) = (config.credentials, config.sentinel_credentials);
        (client.connect_timeout, client.command_timeout) = (config.connect_timeout, config.command_timeout);
        let client = Arc::new(RedisClient::new(client)?);
        let says_the_end = requests.says_the_end();
        let server = Arc::new(Server::new(Arc::clone(&client), requests, config.token_ttl));
        let returns = Arc::clone(&server);
        let push = Pushes::new(client, config.connect_timeout, &Arc::default(), returns);
        let checking_rights = async {
            if wait != RedisWait::Poll {
                push.warn_if_polling(wait == RedisWait::Queue).await;
            }
            Ok(())
        };
        tokio::try_join!(server.client.connect(), checking_rights)?;
        let store = RedisStore {
            server,
            push: Arc::new(push),
            prefix: config.prefix,
            identity,
            wait,
            says_the_end,
            wait_replicas: config.wait_replicas,
            leave_free: config.leave_free,
            owners: OwnerCache::default(),
            busy: RecentNames::new(BUSY),
            kept: RecentNames::new(SHORTEST_TOKEN_TTL / KEPT),
            worked: AtomicU64::new(0),
        };
        Ok(Self(Engine::new(store, capabilities, options)?))
    }

    pub(crate) fn store(&self) -> &RedisStore {
        self.0.store()
    }
}

impl OnEngine for Redis {
    type Store = RedisStore;

    fn engine(&self) -> &Engine<RedisStore> {
        &self.0
    }

    fn migration_source(&self) -> Option<&dyn MigrationSource> {
        Some(self)
    }
}

impl RedisConfig {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// As [`Redis::connect`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after `connect_timeout` at the latest.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Redis::connect(self).await?))
    }

    /// The same locks without a connection: the first use connects, and returns the errors of connecting.
    ///
    /// For a service that starts before its server. This method needs no runtime; every use of the locks does.
    ///
    /// ```
    /// # use lock_redis::RedisConfig;
    /// let locks = RedisConfig::from_url("redis://localhost")?.connect_lazy()?;
    /// let mutex = locks.mutex("orders/42"); // nothing is sent before mutex.acquire()
    /// # let _ = mutex;
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad option.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.check()?;
        Ok(Locks::new(Lazy::new(capabilities(&self), move || Redis::connect(self.clone()))))
    }
}

fn capabilities(config: &RedisConfig) -> Capabilities {
    let times = LeaseKind::ttl(config.ttl, MIN_TTL + config.requests().skew());
    let mut capabilities = Capabilities::new(BACKEND, times);
    capabilities.answer_timeout = config.answer_timeout();
    capabilities.fifo = config.wait_by() == RedisWait::Queue;
    capabilities.counts_waiters = match config.wait_by() {
        RedisWait::Queue => true,
        // In a cluster, waiters may listen at another node than the one that is inspected.
        RedisWait::Notify => !matches!(config.topology, Topology::Cluster(_)),
        RedisWait::Poll => false,
    };
    let shared = match config.recipe {
        RedisRecipe::SetNxPx => Support::Yes,
        RedisRecipe::SetnxTimestamp => Support::No(ONE_TIME),
    };
    (capabilities.shared, capabilities.permits) = (shared, shared);
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities
}
