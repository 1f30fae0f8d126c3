//! The capabilities of this backend.

use std::time::Duration;

use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind};

use crate::error::BACKEND;
use crate::recipes::recipe::ZkRecipe;

/// The capabilities of locks of this recipe in sessions with this timeout.
pub(crate) fn capabilities(recipe: ZkRecipe, timeout: Duration) -> Capabilities {
    let mut capabilities = limits(timeout);
    capabilities.answer_timeout = timeout;
    let is_queue = recipe == ZkRecipe::Queue;
    (capabilities.fifo, capabilities.counts_waiters) = (is_queue, is_queue);
    let shares = if is_queue { Support::Yes } else { Support::No(ONE_NODE) };
    (capabilities.shared, capabilities.permits) = (shares, shares);
    capabilities.revocation = Support::Yes;
    capabilities.names_sharers = true;
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities
}

/// The limits of a ttl in sessions with this timeout. The servers may grant a new session another timeout than the one
/// before.
pub(crate) const fn limits(timeout: Duration) -> Capabilities {
    Capabilities::new(BACKEND, LeaseKind::session(timeout))
}

const ONE_NODE: &str = "recipe=ephemeral has one node per lock, and so one holder";
