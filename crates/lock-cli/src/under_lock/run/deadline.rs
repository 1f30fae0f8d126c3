//! When a command is stopped, so that it ends before the lock does.

use std::time::Duration;

use polylock::BootInstant;

/// The times before the deadline of a guard at which the command gets its signals.
///
/// ```text
///            renewed                                        term        kill   last   until
/// ──────────────┴───────────────────────────────────────────┴───────────┴──────┴──────┤
///                                                            grace ≤ ttl/3  margin
/// ```
///
/// The grace is at most a third of the ttl, so that a failed renewal is repeated before the command is stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    grace: Duration,
    /// The longest time to the deadline that was seen, about the ttl.
    longest: Duration,
}

impl Timing {
    pub(super) const fn new(grace: Duration) -> Self {
        Self { grace, longest: Duration::ZERO }
    }

    /// From SIGTERM to SIGKILL, where the deadline allows it.
    pub(super) const fn grace(&self) -> Duration {
        self.grace
    }

    /// Notes the time that is left to the deadline now.
    pub(super) fn note(&mut self, remaining: Duration) {
        self.longest = self.longest.max(remaining);
    }

    /// SIGTERM, unless the lock is renewed before.
    pub(super) fn term_at(&self, until: BootInstant) -> BootInstant {
        self.kill_at(until) - self.grace.min(self.longest / 3)
    }

    /// SIGKILL.
    pub(super) fn kill_at(&self, until: BootInstant) -> BootInstant {
        until - self.margin()
    }

    /// SIGKILL by the watchdog, if that of this process did not come.
    pub(super) fn last_resort_at(&self, until: BootInstant) -> BootInstant {
        until - self.margin() / 2
    }

    /// How often the deadline is looked at.
    pub(super) fn tick(&self) -> Duration {
        (self.longest / 20).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// What the end of a process takes.
    fn margin(&self) -> Duration {
        (self.longest / 20).clamp(Duration::from_millis(20), Duration::from_millis(250))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTIL: BootInstant = BootInstant::from_boot(Duration::from_secs(1000));

    fn before(at: BootInstant) -> Duration {
        UNTIL.saturating_duration_since(at)
    }

    fn timing(grace: u64, ttl_ms: u64) -> Timing {
        let mut timing = Timing::new(Duration::from_secs(grace));
        timing.note(Duration::from_millis(ttl_ms));
        timing.note(Duration::from_millis(10));
        timing
    }

    #[test]
    fn every_signal_comes_before_the_deadline_in_order() {
        for ttl in [30, 500, 1_000, 3_000, 30_000, 86_400_000] {
            for grace in [0, 5, 3_600] {
                let timing = timing(grace, ttl);
                let (term, kill) = (timing.term_at(UNTIL), timing.kill_at(UNTIL));
                assert!(term <= kill && kill < timing.last_resort_at(UNTIL), "{ttl} {grace}");
                assert!(timing.last_resort_at(UNTIL) < UNTIL, "{ttl} {grace}");
            }
        }
    }

    #[test]
    fn the_grace_is_that_of_the_user_or_a_third_of_the_ttl() {
        let margin = Duration::from_millis(250);
        assert_eq!(before(timing(5, 30_000).term_at(UNTIL)), Duration::from_secs(5) + margin);
        assert_eq!(before(timing(60, 30_000).term_at(UNTIL)), Duration::from_secs(10) + margin);
        assert_eq!(before(timing(0, 30_000).term_at(UNTIL)), margin);
    }
}
