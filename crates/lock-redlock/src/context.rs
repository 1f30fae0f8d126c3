//! The shared state of the acquisitions and leases of one backend.

use std::sync::Arc;
use std::time::Duration;

use lock_core::renewal::Renewer;
use lock_core::{Clock, LeasePolicy, LockName, Result, Token, TokenBlock};
use redis_link::acquisitions::Acquisitions;
use redis_link::keys::Keys;
use redis_link::owner_cache::OwnerCache;
use redis_link::wall_clock::WallClock;
use tokio::time::Instant;

use crate::error::{BACKEND, MIN_TTL};
use crate::leases::renew::RenewOnQuorum;
use crate::servers::masters::{Masters, votes_from};
use crate::voting::contention::Contention;
use crate::voting::votes::VoteCounters;

/// The masters, and the options of their locks.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) masters: Masters,
    pub(crate) renewer: Renewer<RenewOnQuorum>,
    pub(crate) prefix: String,
    /// The masters and the prefix, as a URL without credentials.
    pub(crate) identity: String,
    pub(crate) ttl: Duration,
    pub(crate) longest_ttl: Duration,
    pub(crate) local_handovers: u32,
    pub(crate) clock: Clock,
    pub(crate) wall_clock: WallClock,
    pub(crate) counters: VoteCounters,
    pub(crate) owners: OwnerCache,
    pub(crate) contention: Arc<Contention>,
    /// The waits that accept notifications, on all masters.
    pub(crate) acquisitions: Arc<Acquisitions>,
}

impl Context {
    /// The initial ttl of a lease.
    pub(crate) fn ttl_of(&self, policy: &LeasePolicy) -> Duration {
        let ttl = policy.ttl.unwrap_or(self.ttl);
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL))
    }

    /// The time since 1970 in microseconds.
    pub(crate) fn micros(&self) -> u64 {
        u64::try_from(self.wall_clock.now().as_micros()).unwrap_or(0)
    }

    /// The token to propose now: the block of the clock.
    pub(crate) fn proposal(&self) -> Token {
        Token::new(TokenBlock::start(self.micros()))
    }

    /// When a quorum can vote again, if restarted masters are the reason why it cannot now.
    pub(crate) fn votes_from(&self) -> Option<Instant> {
        votes_from(&self.masters)
    }

    pub(crate) fn keys(&self, name: &LockName) -> Result<Arc<Keys>> {
        let keys = Keys::new(&self.prefix, name);
        keys.check(BACKEND).map(|()| Arc::new(keys))
    }
}
