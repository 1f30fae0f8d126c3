//! The Redlock backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::backend::Support;
use lock_core::migration::MigrationSource;
use lock_core::renewal::Renewer;
use lock_core::{
    AcquireRequest, Acquired, Backend, Capabilities, DoctorReport, Lazy, LeaseKind, LockName, LockState,
    Locks, Result, Token, runtime,
};
use redis_link::client::RedisClient;
use redis_link::owner_cache::OwnerCache;
use tokio::time::sleep;

use crate::config::RedlockConfig;
use crate::connect::{check_distance, connect_quorum};
use crate::context::Context;
use crate::error::{BACKEND, MIN_TTL, check_ttl};
use crate::leases::renew::RenewOnQuorum;
use crate::leases::wait::Waiting;
use crate::operate::doctor;
use crate::servers::master::Master;
use crate::servers::master_registry::MasterRegistry;
use crate::servers::masters::Masters;
use crate::voting::ballot::Voter;
use crate::voting::quorum::quorum;
use crate::voting::votes::{VoteCounters, Votes};

const NO_READERS: &str =
    "the masters have no common queue, so that a stream of readers would keep every writer out";
/// With two permits and five masters, three clients can have three votes each.
const NO_PERMITS: &str =
    "each master would choose its own holders, and more holders than permits could have a quorum";

/// The backend for a quorum of independent Redis servers.
///
/// It works while a minority of the masters is down; a master that does not answer delays it once. Two may hold a lock at
/// once if masters lose data unnoticed (FLUSHALL, eviction), or if clocks jump: let the resource check the fencing token.
/// Tokens grow if masters keep their data over restarts; if not, they grow as far as the clients' clocks agree.
///
/// `Guard::extend` without a quorum releases nothing, and is retried until the lease ends. Give it a timeout if the caller
/// cannot wait that long.
///
/// # Restarted masters
///
/// A restarted master may have lost its locks, and so may one that was a replica for a while. It does not vote until `longest_ttl`
/// has passed since the client first saw it; for a client that connects later, since its start. Meanwhile it confirms locks that it
/// had granted before, as long as that has not expired. Set `longest_ttl` alike for all clients, to the longest ttl that any of them
/// uses.
///
/// * While a minority restarts, locks are held and can be acquired. If a majority restarts within `longest_ttl`, no lock can be
///   acquired until fewer are in quarantine. Held locks are kept if the masters restart with their data, one by one.
/// * A client that connects for the first time recognises restarted masters by their uptime. If most masters are young, it
///   takes the fleet for a new one: then only masters without any key wait, if another master has keys. So it does not
///   notice a whole fleet that restarted and lost its data.
///
/// # Examples
///
/// ```no_run
/// use lock_core::Locks;
/// use lock_redlock::{Redlock, RedlockConfig};
///
/// # async fn example() -> lock_core::Result<()> {
/// let config = RedlockConfig::from_url("redlock://h1:6379,h2:6379,h3:6379")?;
/// let locks = Locks::new(Redlock::connect(config).await?);
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Redlock {
    capabilities: Capabilities,
    context: Arc<Context>,
}

impl Redlock {
    /// Connects to the masters; a minority of them may be down.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::InvalidConfig`](lock_core::ErrorKind::InvalidConfig), also if two masters are one server, or the ttl is
    ///   too short for the round trips;
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable) without a quorum;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections are closed, after `connect_timeout` at the latest.
    pub async fn connect(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        runtime::current(BACKEND)?;
        config.check_credentials().await?;
        let (registry, longest_ttl) = (Arc::new(MasterRegistry::default()), config.longest_ttl_of_all());
        let (master_timeout, acquisitions) = (config.timeout_of_a_master(), Arc::default());
        let capabilities = capabilities(&config);
        let identity = config.identity();
        let masters = config.masters.into_iter().map(|master| {
            let mut options = Voter::options(master.info);
            (options.pool, options.dial, options.credentials) =
                (master.pool, master.dial, master.credentials);
            options.connect_timeout = config.connect_timeout;
            options.command_timeout = master_timeout;
            options.clock = config.clock.clone();
            let voter = Voter::new(Arc::new(RedisClient::new(options)?));
            Ok(Master::new(voter, config.connect_timeout, longest_ttl, &registry, &acquisitions))
        });
        let masters: Masters = masters.collect::<Result<Vec<_>>>()?.into();
        connect_quorum(&masters, longest_ttl).await?;
        check_distance(&masters, config.ttl, &config.wall_clock).await?;
        let renew = RenewOnQuorum { masters: Arc::clone(&masters), clock: config.clock.clone() };
        let context = Context {
            masters,
            renewer: Renewer::new(renew, config.clock.clone()),
            prefix: config.prefix,
            identity,
            ttl: config.ttl,
            longest_ttl,
            local_handovers: config.local_handovers,
            clock: config.clock,
            wall_clock: config.wall_clock,
            counters: VoteCounters::default(),
            owners: OwnerCache::default(),
            contention: Arc::default(),
            acquisitions,
        };
        Ok(Self { capabilities, context: Arc::new(context) })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The numbers of votes on all locks so far, by outcome. They only grow.
    #[must_use]
    pub fn votes(&self) -> Votes {
        self.context.counters.votes()
    }
}

#[async_trait]
impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.capabilities.check_mode(request.mode)?;
        let context = &self.context;
        check_ttl(context.ttl_of(&request.lease), context.longest_ttl)?;
        let keys = context.keys(&request.name)?;
        let mut waiting = Waiting::new(context, &keys, &request);
        loop {
            if let Some(lease) = waiting.ask().await? {
                return Ok(Acquired::Held(lease));
            }
            if request.wait.is_expired() || !waiting.wait().await {
                return waiting.give_up();
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.context.inspect(name).await
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        self.context.await_change(name, seen).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.context.break_lock(name).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.context.break_lock_if(name, token).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.context.list(prefix, &self.capabilities).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        Ok(doctor::examine(&self.context.masters, self.context.ttl, &self.context.wall_clock).await)
    }

    fn migration_source(&self) -> Option<&dyn MigrationSource> {
        Some(self)
    }

    async fn settle(&self) {
        let masters = &self.context.masters;
        let settled = join_all(masters.iter().map(|master| master.client.cleanup().settled()));
        // A key on a minority that is sick blocks no one. A majority may only be late for this client.
        let are_sick = || {
            let mut left = masters.iter().filter(|master| master.client.cleanup().under_way() > 0);
            left.clone().count() <= masters.len() - quorum(masters.len())
                && left.all(|master| master.is_sick())
        };
        tokio::select! {
            _ = settled => {}
            () = until(are_sick) => {}
        }
    }

    async fn close(&self) -> Result<()> {
        self.context.renewer.stop_all();
        self.context.masters.iter().for_each(|master| master.close());
        Ok(())
    }
}

impl RedlockConfig {
    /// Connects to the masters; a minority of them may be down.
    ///
    /// # Errors
    ///
    /// As [`Redlock::connect`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections are closed, after `connect_timeout` at the latest.
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Redlock::connect(self).await?))
    }

    /// The same locks without a connection: the first use connects, and returns the errors of connecting.
    ///
    /// For a service that starts before its servers. This method needs no runtime; every use of the locks does.
    ///
    /// ```
    /// # use lock_redlock::RedlockConfig;
    /// let locks = RedlockConfig::from_url("redlock://h1:6379,h2:6379,h3:6379")?.connect_lazy()?;
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
        Ok(Locks::new(Lazy::new(capabilities(&self), move || Redlock::connect(self.clone()))))
    }
}

fn capabilities(config: &RedlockConfig) -> Capabilities {
    let mut capabilities = Capabilities::new(BACKEND, LeaseKind::ttl(config.ttl, MIN_TTL));
    capabilities.answer_timeout = config.answer_timeout();
    (capabilities.shared, capabilities.permits) = (Support::No(NO_READERS), Support::No(NO_PERMITS));
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(20)).await;
    }
}
