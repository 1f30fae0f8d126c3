//! The shared state of the acquisitions and leases of one backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{BootInstant, Clock, LeasePolicy, LockName, Result};
use redis_link::keys::Keys;
use redis_link::owner_cache::OwnerCache;
use redis_link::push::Pushes;

use crate::config::{LeaveFree, RedisWait};
use crate::error::{BACKEND, MIN_TTL, check_ttl};
use crate::recent_names::RecentNames;
use crate::renew::Renewers;
use crate::server::Server;

/// The server, and the options of its locks.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) server: Arc<Server>,
    pub(crate) push: Pushes,
    pub(crate) renewers: Renewers,
    pub(crate) prefix: String,
    /// The servers and the prefix, as a URL without credentials.
    pub(crate) identity: String,
    pub(crate) ttl: Duration,
    pub(crate) wait: RedisWait,
    pub(crate) local_handovers: u32,
    pub(crate) leave_free: Option<LeaveFree>,
    pub(crate) clock: Clock,
    pub(crate) owners: OwnerCache,
    /// Where a claim by plain commands would probably be in vain.
    pub(crate) busy: RecentNames,
    /// Whose last token has a ttl.
    pub(crate) kept: RecentNames,
    /// The generation of the last connection on which a script granted a lock.
    pub(crate) worked: AtomicU64,
    /// In microseconds.
    pub(crate) round_trip: AtomicU64,
}

impl Context {
    pub(crate) fn keys(&self, name: &LockName) -> Result<Keys> {
        let keys = Keys::new(&self.prefix, name);
        keys.check(BACKEND).map(|()| keys)
    }

    /// Whether a script has granted a lock on this connection. Who may not run scripts could acquire locks by plain
    /// commands, but never release them.
    pub(crate) fn scripts_work(&self, connection: u64) -> bool {
        connection == self.worked.load(Ordering::Relaxed)
    }

    /// Notes that a script has granted a lock.
    pub(crate) fn note_scripts_work(&self, connection: u64) {
        self.worked.store(connection, Ordering::Relaxed);
    }

    /// The initial ttl of a lease, minus the clock skew.
    pub(crate) fn ttl_of(&self, policy: &LeasePolicy) -> Duration {
        let ttl = policy.ttl.unwrap_or(self.ttl).saturating_sub(self.server.recipe().skew());
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL))
    }

    /// The ttl minus the clock skew.
    pub(crate) fn without_skew(&self, ttl: Duration) -> Result<Duration> {
        let skew = self.server.recipe().skew();
        check_ttl(ttl, skew).map(|()| ttl - skew)
    }

    /// The approximate round trip; slow answers count for a while.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    /// Notes the round trip of a request that was sent at `sent`.
    pub(crate) fn note_round_trip(&self, sent: BootInstant) {
        let took = self.clock.now().saturating_duration_since(sent).as_micros();
        let before = self.round_trip.load(Ordering::Relaxed);
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.round_trip.store(took.max(before - before / 8), Ordering::Relaxed);
    }
}
