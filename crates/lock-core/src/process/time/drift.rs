//! The clock drift that leases and tokens allow for.

use std::time::Duration;

use crate::BootInstant;

/// How much faster than the other one the clock of a server or of a client may run: by one part in this many, 1 %.
pub const DRIFT: u32 = 100;

/// The end of a lease that was requested at `sent`: the ttl minus the drift margin. The server's clock may run faster than the
/// client's, and stores count in milliseconds.
///
/// Source: the drift of the Redlock algorithm, Redis documentation, "Distributed Locks with Redis".
#[must_use]
pub fn valid_until(sent: BootInstant, ttl: Duration) -> BootInstant {
    sent + ttl.saturating_sub(ttl / DRIFT + Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn a_lease_is_valid_for_its_ttl_less_a_hundredth_and_two_milliseconds() {
        let sent = Clock::boot().now();
        assert_eq!(valid_until(sent, Duration::from_secs(10)), sent + Duration::from_millis(9_898));
        assert_eq!(valid_until(sent, Duration::from_millis(2)), sent, "the margin is as long");
    }
}
