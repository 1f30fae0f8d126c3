//! The backend: acquire, wait, inspect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{MAX_LISTED, Support};
use lock_core::renewal::Terms;
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, DoctorReport, Error, ErrorKind,
    Finding, LeaseKind, LeasePolicy, LockName, LockState, OwnerId, Result, Token, ValidityCell, runtime,
};

use crate::config::{LeaveFree, RedisConfig, RedisWait};
use crate::inspect::state;
use crate::lease::{Held, RedisLease};
use crate::push::Pushes;
use crate::recipe::{RedisRecipe, danger};
use crate::renewers::Renewers;
use crate::server::{Hold, ServerOptions};
use crate::topology::Topology;
use crate::{Infos, Keys, Server, waiting};

pub(crate) const BACKEND: &str = "redis";
/// The shortest time to live: below it the drift margin and a round trip eat the lease up.
const MIN_TTL: Duration = Duration::from_millis(100);
/// Why a lock of [`RedisRecipe::SetnxTimestamp`] has one holder.
const ONE_TIME: &str = "the key of the recipe setnx-timestamp has room for the time of one holder";

/// The backend for one Redis server.
///
/// A lock is as durable as that server: after a failover, or a restart without its data, two may hold
/// it. Fencing tokens still grow then, as they follow the server's clock.
#[derive(Debug)]
pub struct Redis {
    capabilities: Capabilities,
    /// What is dangerous about the recipe.
    danger: Option<Finding>,
    shared: Arc<Shared>,
}

/// What acquisitions and leases share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) server: Arc<Server>,
    pub(crate) push: Pushes,
    pub(crate) renewers: Renewers,
    pub(crate) prefix: String,
    pub(crate) ttl: Duration,
    /// By how much less than its time to live a lease is believed in, as the clocks of clients differ.
    clock_skew: Duration,
    pub(crate) wait: RedisWait,
    pub(crate) local_handovers: u32,
    leave_free: Option<LeaveFree>,
    pub(crate) clock: Clock,
    pub(crate) infos: Infos,
    /// In microseconds.
    round_trip: AtomicU64,
}

impl Redis {
    /// Connects to the server, and warns when those who wait for locks will have to poll. That is found out on a
    /// second connection, at the same time, which is closed afterwards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], [`ErrorKind::Unavailable`], or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after `connect_timeout` at the latest.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        runtime::current(BACKEND)?;
        let (wait, local_handovers, clock_skew) = (config.wait_by(), config.handovers(), config.skew());
        let (capabilities, timestamps) = (capabilities(&config), config.timestamps());
        let danger = timestamps.is_some().then(danger);
        if let Some(danger) = &danger {
            tracing::warn!("{}; {}", danger.what, danger.advice);
        }
        let mut options = ServerOptions::new(BACKEND, config.topology);
        (options.pool, options.dial) = (config.pool, config.dial);
        (options.connect_timeout, options.command_timeout) = (config.connect_timeout, config.command_timeout);
        (options.clock, options.tells_free) = (config.clock.clone(), wait == RedisWait::Notify);
        (options.wait_replicas, options.timestamps) = (config.wait_replicas, timestamps.map(Arc::new));
        let server = Arc::new(Server::new(options)?);
        // No waiter has a turn on one server.
        let push = Pushes::new(Arc::clone(&server), config.connect_timeout, &Arc::default(), Duration::ZERO);
        let looking_ahead = async {
            if wait != RedisWait::Poll {
                push.look_ahead(wait).await;
            }
            Ok(())
        };
        tokio::try_join!(server.connect(), looking_ahead)?;
        let shared = Shared {
            push,
            renewers: Renewers::new(Arc::clone(&server), config.clock.clone()),
            server,
            prefix: config.prefix,
            ttl: config.ttl,
            clock_skew,
            wait,
            local_handovers,
            leave_free: config.leave_free,
            clock: config.clock,
            infos: Infos::default(),
            round_trip: AtomicU64::new(0),
        };
        Ok(Self { capabilities, danger, shared: Arc::new(shared) })
    }
}

#[async_trait]
impl Backend for Redis {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.capabilities.check_mode(request.mode)?;
        waiting::acquire(&self.shared, Arc::new(self.keys(&request.name)?), &request).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let keys = self.keys(name)?;
        Ok(state(&self.shared.server.look(&keys, None).await?))
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let keys = self.keys(name)?;
        match self.shared.server.break_lock(&keys).await?.as_str() {
            "string" => Ok(true),
            "none" => Ok(false),
            kind => Err(not_a_lock(BACKEND, kind)),
        }
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let keys = self.keys(name)?;
        let sight = self.shared.server.look(&keys, None).await?;
        if !matches!(sight.kind.as_str(), "string" | "none") {
            return Err(not_a_lock(BACKEND, &sight.kind));
        }
        let Some(owner) = sight.holder_with(token, BACKEND)? else { return Ok(false) };
        // It compares the owner, which no two acquisitions have in common. When the first of two sendings got no answer,
        // the lock was the owner's a moment ago and is not now.
        Ok(self.shared.server.release(&keys, owner, None).await?.unwrap_or(true))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let beginning = format!("{}{prefix}", self.shared.prefix);
        let keys = self.shared.server.keys_that_begin(&beginning, MAX_LISTED).await?;
        self.capabilities.check_listed(keys.len())?;
        Ok(Keys::names(&self.shared.prefix, keys))
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        let mut findings = self.shared.server.examine().await?;
        findings.extend(self.danger.clone());
        if self.shared.wait != RedisWait::Poll {
            findings.extend(self.shared.push.examine(self.shared.wait).await);
        }
        Ok(DoctorReport::new(findings))
    }

    async fn settle(&self) {
        self.shared.server.cleanup().settled().await;
    }

    async fn close(&self) -> Result<()> {
        self.shared.renewers.stop_all();
        self.shared.push.close();
        self.shared.server.close();
        Ok(())
    }
}

impl Redis {
    fn keys(&self, name: &LockName) -> Result<Keys> {
        let keys = Keys::new(&self.shared.prefix, name);
        keys.check(BACKEND).map(|()| keys)
    }
}

pub(crate) fn capabilities(config: &RedisConfig) -> Capabilities {
    let times = LeaseKind::ttl(config.ttl, MIN_TTL + config.skew());
    let mut capabilities = Capabilities::new(BACKEND, times);
    capabilities.fifo = config.wait_by() == RedisWait::Queue;
    capabilities.counts_waiters = match config.wait_by() {
        RedisWait::Queue => true,
        // In a cluster they may listen at another node than the one that is asked.
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

impl Shared {
    /// The time to live that a lease begins with, as far as it can be believed in.
    pub(crate) fn ttl_of(&self, policy: &LeasePolicy) -> Duration {
        let ttl = policy.ttl.unwrap_or(self.ttl).saturating_sub(self.clock_skew);
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL))
    }

    /// As much of a time to live as can be believed in.
    pub(crate) fn believed(&self, ttl: Duration) -> Result<Duration> {
        check_ttl(ttl, self.clock_skew)?;
        Ok(ttl.saturating_sub(self.clock_skew))
    }

    /// The lease of a lock that was asked for at `sent`, and is the owner's until then at least.
    pub(crate) fn lease(
        self: &Arc<Self>,
        keys: &Arc<Keys>,
        request: &AcquireRequest,
        (owner, token): (OwnerId, Token),
        (sent, until): (BootInstant, BootInstant),
    ) -> RedisLease {
        let hold_until = request.lease.max_hold.map_or(BootInstant::NEVER, |hold| sent + hold);
        let cell = ValidityCell::new(self.clock.clone(), until.min(hold_until));
        let mut terms = Terms::new(self.ttl_of(&request.lease));
        (terms.auto, terms.hold_until) = (request.lease.renewed, hold_until);
        let held = Held::new(keys, owner, Hold::of(request.mode));
        let renewal = self.renewers.add(keys, Arc::clone(&held), terms, cell.clone());
        let lease = RedisLease::new(Arc::clone(self), held, token, cell, renewal);
        lease.leaves_free(self.leave_free.and_then(LeaveFree::draw))
    }

    /// About how long a round trip takes; a busy server counts for a while.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    /// Notes how long an answer took that was asked for at `sent`.
    pub(crate) fn note_round_trip(&self, sent: BootInstant) {
        let took = self.clock.now().saturating_duration_since(sent).as_micros();
        let before = self.round_trip.load(Ordering::Relaxed);
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.round_trip.store(took.max(before - before / 8), Ordering::Relaxed);
    }
}

pub(crate) fn check_ttl(ttl: Duration, clock_skew: Duration) -> Result<()> {
    let min = MIN_TTL + clock_skew;
    Capabilities::new(BACKEND, LeaseKind::ttl(ttl, min)).check_ttl(ttl, min)
}

/// The error for a key that cannot be broken, as it is used for something else.
#[must_use]
pub fn not_a_lock(backend: &'static str, kind: &str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message(format!("the key holds a {kind}, which is no lock of this protocol"))
        .with_hint("remove it with the client that made it, or use another prefix in the URL (?prefix=...)")
}

pub(crate) fn too_late(ttl: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!(
            "the server granted the lock, but its answer took longer than the ttl of {ttl:?}"
        ))
        .with_hint("use a longer ttl; the lock is given back")
        .with_outcome(lock_core::Outcome::Applied)
}
