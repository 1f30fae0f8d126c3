//! Measures the round trip of one master, and derives its deadlines.

use std::time::Duration;

/// The shortest deadline, for busy hosts. It takes precedence over the maximum for a ttl of less than 400 ms.
const FLOOR: Duration = Duration::from_millis(20);
/// The longest deadline is this part of the ttl.
const PART: u32 = 20;
/// How often a deadline is doubled, at most.
const MOST_DOUBLED: u32 = 10;

/// The smoothed round trip of one master, and its variation.
///
/// Source: RFC 6298, "Computing TCP's Retransmission Timer", with another minimum. Late answers are measured too, as their
/// request is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
    varies_by: Duration,
    /// Deadlines that were missed in a row.
    missed: u32,
}

impl RoundTrip {
    /// Notes the round trip of an answer. No answer is waited for longer than for `longest`: what took longer was read late, by a
    /// process that was stopped meanwhile.
    pub(crate) fn note(&mut self, took: Duration, longest: Duration) {
        let took = took.min(longest);
        self.missed = 0;
        match self.smoothed {
            None => (self.smoothed, self.varies_by) = (Some(took), took / 2),
            Some(smoothed) => {
                self.varies_by = (self.varies_by * 3 + smoothed.abs_diff(took)) / 4;
                self.smoothed = Some((smoothed * 7 + took) / 8);
            }
        }
    }

    /// Notes a missed deadline, which doubles the next one.
    pub(crate) fn miss(&mut self) {
        self.missed = (self.missed + 1).min(MOST_DOUBLED);
    }

    /// How long a vote on a lock with this ttl waits for the next answer.
    pub(crate) fn deadline(&self, ttl: Duration, longest: Duration) -> Duration {
        let most = (ttl / PART).min(longest).max(FLOOR);
        let expected = self.smoothed.map_or(most, |smoothed| smoothed + self.varies_by * 4);
        (expected.max(FLOOR) * (1 << self.missed)).min(most)
    }

    /// The smoothed round trip; zero before the first answer.
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_deadline_follows_what_was_measured_between_floor_and_cap() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.deadline(LONG, 200 * MILLI), 200 * MILLI, "nothing was measured yet");
        trip.note(MILLI / 10, LONG);
        assert_eq!(trip.deadline(LONG, 200 * MILLI), FLOOR);
        for _ in 0..100 {
            trip.note(50 * MILLI, LONG);
        }
        let steady = trip.deadline(LONG, 200 * MILLI);
        assert!(steady >= 49 * MILLI && steady < 60 * MILLI, "{steady:?}");
        assert_eq!(trip.deadline(800 * MILLI, 200 * MILLI), 40 * MILLI, "5 % of the ttl");
        assert_eq!(trip.deadline(100 * MILLI, 200 * MILLI), FLOOR);
    }

    #[test]
    fn a_missed_deadline_doubles_the_next_until_an_answer_comes() {
        let mut trip = RoundTrip::default();
        trip.note(MILLI, LONG);
        let deadlines = [20, 40, 80, 160, 200, 200].map(|_| {
            let deadline = trip.deadline(LONG, 200 * MILLI);
            trip.miss();
            deadline.as_millis()
        });
        assert_eq!(deadlines, [20, 40, 80, 160, 200, 200]);
        trip.note(MILLI, LONG);
        assert_eq!(trip.deadline(LONG, 200 * MILLI), FLOOR);
    }

    #[test]
    fn a_pause_of_the_process_is_no_round_trip() {
        let mut trip = RoundTrip::default();
        trip.note(MILLI, 200 * MILLI);
        trip.note(Duration::from_secs(3600), 200 * MILLI);
        assert!(trip.smoothed() <= 26 * MILLI, "{:?}", trip.smoothed());
    }
}
