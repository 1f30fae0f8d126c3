//! What a migration can do: what both stores can.

use lock_core::Capabilities;
use lock_core::backend::{Backend, LeaseKind, Support};

use crate::error::BACKEND;

/// What both stores can do.
pub(crate) fn capabilities(from: &dyn Backend, to: &dyn Backend) -> Capabilities {
    let (old, new) = (from.capabilities(), to.capabilities());
    let timeout = new.lease.min_ttl().max(old.lease.min_ttl());
    let mut both = Capabilities::new(BACKEND, LeaseKind::session(timeout));
    // One that moves asks each of them several times.
    both.answer_timeout = old.answer_timeout.saturating_add(new.answer_timeout).saturating_mul(2);
    both.cross_process = old.cross_process && new.cross_process;
    both.fifo = old.fifo && new.fifo;
    both.counts_waiters = old.counts_waiters && new.counts_waiters;
    both.names_sharers = old.names_sharers && new.names_sharers;
    both.shared = and(old.shared, new.shared);
    both.permits = and(old.permits, new.permits);
    both.revocation = and(old.revocation, new.revocation);
    both.breaks_one = and(old.breaks_one, new.breaks_one);
    both.listing = and(old.listing, new.listing);
    both
}

const fn and(one: Support, other: Support) -> Support {
    match one {
        Support::Yes => other,
        no => no,
    }
}
