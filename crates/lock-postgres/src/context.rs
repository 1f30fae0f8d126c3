//! The shared state of the acquisitions and leases of one backend.

use std::sync::Arc;
use std::time::Duration;

use lock_core::renewal::Renewer;
use lock_core::{BootInstant, Clock, LeasePolicy, LockName};

use crate::error::MIN_TTL;
use crate::inbox::Inbox;
use crate::renew::RenewOnServer;
use crate::server::Server;
use crate::stored_name::stored;
use crate::sweep::Sweeper;

/// The server, and the options of its locks.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) server: Arc<Server>,
    pub(crate) inbox: Inbox,
    pub(crate) renewer: Renewer<RenewOnServer>,
    pub(crate) sweeper: Sweeper,
    pub(crate) ttl: Duration,
    pub(crate) local_handovers: u32,
    pub(crate) clock: Clock,
    /// Whether waiters are to be notified.
    pub(crate) listens: bool,
}

impl Context {
    /// The name of a lock, as the database stores it.
    pub(crate) fn stored(name: &LockName) -> Arc<str> {
        stored(name.as_str()).into()
    }

    /// The initial ttl of a lease.
    pub(crate) fn ttl_of(&self, policy: &LeasePolicy) -> Duration {
        let ttl = policy.ttl.unwrap_or(self.ttl);
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL))
    }

    /// How long a lease may be treated as valid that was asked for at `sent`.
    pub(crate) fn valid_until(sent: BootInstant, ttl: Duration) -> BootInstant {
        lock_core::drift::valid_until(sent, ttl)
    }
}
