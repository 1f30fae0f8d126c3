//! The clock drift that leases allow for.

use std::time::Duration;

use lock_core::BootInstant;

/// The end of a lease that was requested at `sent`: the ttl minus the drift margin. The server's clock may run 1 % faster
/// than the client's, and Redis counts in milliseconds.
///
/// Source: the drift of the Redlock algorithm, Redis documentation, "Distributed Locks with Redis".
#[must_use]
pub fn valid_until(sent: BootInstant, ttl: Duration) -> BootInstant {
    sent + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}
