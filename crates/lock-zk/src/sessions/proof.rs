//! Which requests prove that a session is alive, and until when it is valid by them.
//!
//! Only what the quorum committed is a proof: a leader that commits is the only one, and the next leader gives every
//! session its whole timeout anew. A server that is cut off does not know it for up to `syncLimit` ticks, and goes on
//! answering, while the others may elect a leader that lets the session expire. A follower then answers reads, and a
//! leader also answers a `sync` and accepts sessions that move to it. So the heartbeat is a write that changes nothing: a
//! [check](SessionClient::multi), for one entry in the log of the ensemble. A failed check is logged as well, and proves as
//! much.
//!
//! Even a committed request proves nothing about itself. The leader ends sessions, and learns that one is alive only from
//! the server that the client is connected to: every half tick, which is at most a quarter of the session timeout, as a
//! session lasts two ticks at least (`doctor` warns if `minSessionTimeout` allows less). That server may die before its next
//! ping. So a request proves those that were answered a quarter of the timeout before it was sent. The opening of a
//! session goes through the quorum and proves itself; so does a move to another server, which goes through the leader.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::BootInstant;
use zookeeper_client::{self as zk, MultiWriteError, MultiWriteResult};

use crate::error::Fault;
use crate::sessions::ensemble::{Change, SessionClient};

/// The committed requests of a session, and the deadline that follows from them: one session timeout after the last
/// proven one was sent, minus a margin for clock drift, and never later than three quarters of a timeout after the last
/// answered one was sent.
#[derive(Debug)]
pub(crate) struct Proofs {
    timeout: Duration,
    /// When the last request was sent.
    last: BootInstant,
    /// When the last proven request was sent.
    proven: BootInstant,
    /// When the others were sent and answered, the oldest first.
    unproven: VecDeque<(BootInstant, BootInstant)>,
}

impl Proofs {
    /// A session whose opening began at this time.
    pub(crate) const fn opened(began: BootInstant, timeout: Duration) -> Self {
        Self { timeout, last: began, proven: began, unproven: VecDeque::new() }
    }

    /// The earliest time at which a request proves another one.
    pub(crate) fn next_proof(&self) -> BootInstant {
        self.unproven.front().map_or(self.last, |(_, at)| *at + self.timeout / 4)
    }

    /// When the next heartbeat is due, with this much validity left. With less than half of the timeout left, the session
    /// has survived a long silence, and is proven as soon as possible.
    pub(crate) fn next_heartbeat(&self, left: Duration) -> BootInstant {
        let regular = self.last + self.timeout / 6;
        if left < self.timeout / 2 { regular.min(self.next_proof()) } else { regular }
    }

    /// Whether a request sent at this time hardly moves the deadline.
    pub(crate) fn adds_little(&self, sent: BootInstant) -> bool {
        sent < self.last + self.timeout / 24 && sent < self.next_proof()
    }

    /// Adds a request that was answered `now`, and returns the new deadline.
    pub(crate) fn answered(&mut self, sent: BootInstant, now: BootInstant) -> BootInstant {
        let quarter = self.timeout / 4;
        while let Some(&(earlier, _)) = self.unproven.front().filter(|(_, at)| *at + quarter <= sent) {
            self.proven = self.proven.max(earlier);
            self.unproven.pop_front();
        }
        self.last = self.last.max(sent);
        self.unproven.push_back((sent, now));
        let drift = self.timeout / 100 + Duration::from_millis(2);
        (self.proven + (self.timeout - drift)).min(sent + (self.timeout - quarter))
    }
}

/// Checks a node, whatever the result: the leader logs even a failed check, and answers once a majority has it. A
/// refusal of the request as a whole comes from one server only.
pub(crate) async fn pass_quorum(client: &dyn SessionClient, path: &str) -> Result<(), zk::Error> {
    is_checked(client.multi(&[Change::Check { path, version: None }]).await)
}

/// Whether the quorum committed a check, by its answer.
pub(crate) fn is_checked(answer: Result<Vec<MultiWriteResult>, MultiWriteError>) -> Result<(), zk::Error> {
    match answer {
        Ok(_) => Ok(()),
        Err(MultiWriteError::OperationFailed { source, .. })
            if matches!(Fault::of(source.clone()), Fault::Refused(_)) =>
        {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the quorum committed a write, or its refusal. A server that throttles, or is cut off and read-only, refuses it
/// by itself.
pub(crate) fn is_committed<T>(answer: &Result<T, Fault>) -> bool {
    match answer {
        Ok(_) => true,
        Err(Fault::Refused(error)) => {
            matches!(error, zk::Error::NoNode | zk::Error::NodeExists | zk::Error::NotEmpty)
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_one_server_proves_nothing() {
        use zk::Error as E;
        let passed = |error| is_committed::<()>(&Err(Fault::of(error)));
        assert!(is_committed(&Ok(())) && passed(E::NoNode) && passed(E::NodeExists) && passed(E::NotEmpty));
        for error in [E::Throttled, E::NotReadOnly, E::NoAuth, E::ConnectionLoss, E::SessionExpired] {
            assert!(!passed(error.clone()), "{error}");
        }
    }

    #[test]
    fn a_request_proves_those_answered_a_quarter_of_the_timeout_earlier() {
        let at = |ms: u64| BootInstant::from_boot(Duration::from_millis(1_000_000 + ms));
        let mut proofs = Proofs::opened(at(0), Duration::from_secs(8));
        // 8 s minus the margin for clock drift.
        let full = 8_000 - 82;
        assert_eq!(proofs.answered(at(10), at(20)), at(10 + 6_000));
        // After a pause: the server may die before its next ping, and only the opening is proven.
        assert_eq!(proofs.answered(at(5_000), at(5_010)), at(10 + full));
        assert_eq!(proofs.answered(at(6_000), at(6_010)), at(10 + full));
        assert_eq!(proofs.answered(at(7_009), at(7_020)), at(10 + full));
        assert_eq!(proofs.answered(at(7_010), at(7_030)), at(5_000 + full));
        // A late answer is proven later.
        assert_eq!(proofs.answered(at(8_010), at(12_000)), at(6_000 + full));
        assert_eq!(proofs.answered(at(13_000), at(13_010)), at(7_010 + full));
        assert_eq!(proofs.answered(at(14_000), at(14_010)), at(8_010 + full));
        // Under load, the answers count.
        for ms in (14_100..30_000).step_by(350) {
            let deadline = proofs.answered(at(ms), at(ms + 10));
            let soon = ms < 17_000 || deadline >= at(ms + 5_500);
            assert!(soon && deadline <= at(ms + 6_000), "{ms}: {deadline:?}");
        }
        assert!(proofs.unproven.len() < 10, "proven requests are dropped");
    }

    #[test]
    fn a_session_is_proven_in_time_after_a_silence() {
        let (timeout, latency) = (Duration::from_secs(12), Duration::from_millis(400));
        // A silence begins at any time between two heartbeats, and ends at the last moment.
        for began in 0..2_000 {
            let mut now = BootInstant::from_boot(Duration::from_secs(1_000));
            let silent_from = now + Duration::from_millis(30_000 + began);
            let mut proofs = Proofs::opened(now, timeout);
            let mut until = proofs.answered(now, now);
            let (mut silent, mut beats) = (false, 0);
            while beats < 10 {
                let due = proofs.next_heartbeat(until.saturating_duration_since(now)).max(now);
                let mut answered = due + latency;
                if answered >= silent_from && !silent {
                    // The request in flight is lost, and the session moves.
                    (silent, answered) = (true, until - Duration::from_millis(1));
                    now = answered - latency;
                } else {
                    now = due;
                }
                // Slack for a loaded machine.
                let spare = if silent && beats > 0 { timeout / 25 } else { Duration::ZERO };
                assert!(answered + spare < until, "{began}: over at {until:?}, and answered at {answered:?}");
                until = proofs.answered(now, answered);
                now = answered;
                beats += u32::from(silent);
            }
        }
    }
}
