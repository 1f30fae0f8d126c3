//! The clock drift that leases and tokens allow for.

use std::time::Duration;

use crate::BootInstant;

/// How much faster than the other one the clock of a server or of a client may run: by one part in this many, 1 %.
pub const DRIFT: u32 = 100;

/// The drift margin of a lease of this time to live: a hundredth of it, and 2 ms, as stores count in milliseconds.
///
/// Source: the drift of the Redlock algorithm, Redis documentation, "Distributed Locks with Redis".
#[must_use]
pub fn margin(ttl: Duration) -> Duration {
    ttl / DRIFT + Duration::from_millis(2)
}

/// The end of a lease that was requested at `sent`: the ttl less the drift margin.
#[must_use]
pub fn valid_until(sent: BootInstant, ttl: Duration) -> BootInstant {
    sent + ttl.saturating_sub(margin(ttl))
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
