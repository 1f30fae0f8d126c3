//! Decides when to wait for late masters after all.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Outcome, Result};
use tokio::time::Instant;

use crate::servers::fan_out::{FanOut, Reply};
use crate::servers::masters::Masters;
use crate::voting::quorum::{OfEach, quorum};

/// The masters that do not count in a vote, and the errors.
///
/// A vote is decided without a minority that fails or is late. If there is no quorum without the late masters, the host or
/// the network is more likely the slow part, and late masters get the full `master_timeout`. Masters whose last request
/// failed do not: so votes wait that long for a hung master only until its first request has failed, and once more if that was
/// over a connection that a router may have forgotten.
#[derive(Debug)]
pub(crate) struct LatePolicy {
    masters: Masters,
    /// The masters whose last request had failed before this vote.
    had_failed: OfEach<bool>,
    /// Whether to wait for these as for the others.
    waits_for_failed: bool,
    /// At most one entry for each master, as a master may be late twice.
    failed: Vec<(usize, Error)>,
    late: Vec<usize>,
    /// How long after its request a master is waited for.
    longest: Duration,
    /// Until when the late masters are.
    latest: Instant,
}

impl LatePolicy {
    /// The policy of a vote that begins now.
    pub(crate) fn new(masters: &Masters) -> Self {
        let longest = masters.iter().map(|master| master.answer_timeout()).max().unwrap_or_default();
        let had_failed = masters.iter().map(|master| master.has_failed()).collect();
        let (masters, latest) = (Arc::clone(masters), Instant::now());
        let (failed, late) = (Vec::new(), Vec::new());
        Self { masters, had_failed, waits_for_failed: false, failed, late, longest, latest }
    }

    /// Waits for masters whose last request failed as for the others: they have new connections.
    pub(crate) fn over_new_connections(mut self) -> Self {
        let longest = self.masters.iter().map(|master| master.client.command_timeout()).max();
        (self.waits_for_failed, self.longest) = (true, longest.unwrap_or_default());
        self
    }

    /// Whether a master gave no answer whose last request was answered: its connection may be forgotten.
    pub(crate) fn fell_silent(&self) -> bool {
        let is_silent = |error: &Error| error.outcome() == Outcome::Unknown;
        self.failed.iter().any(|(number, error)| is_silent(error) && !self.had_failed[*number])
    }

    /// Limits the wait for late masters to this, from now on.
    pub(crate) fn at_most(mut self, longest: Duration) -> Self {
        self.longest = self.longest.min(longest);
        self
    }

    /// Notes the reply of a master, and returns its answer if it counts.
    pub(crate) fn note<T>(&mut self, number: usize, reply: Reply<Result<T>>) -> Option<T> {
        match reply {
            Reply::Late(since) => self.note_late(number, since),
            Reply::Answer(Err(error)) => {
                self.note_answer(number);
                self.note_failure(number, error);
            }
            Reply::Answer(Ok(answer)) => {
                self.note_answer(number);
                return Some(answer);
            }
        }
        None
    }

    /// Notes that a master is late, which has had the request since then.
    pub(crate) fn note_late(&mut self, number: usize, since: Instant) {
        let master = Arc::clone(&self.masters[number]);
        let (is_awaited, until) = (self.waits_for_failed || !master.has_failed(), since + self.longest);
        if is_awaited && Instant::now() < until {
            self.late.push(number);
            self.latest = self.latest.max(until);
        }
        self.note_failure(number, master.note_late());
    }

    /// Notes that a master has answered, perhaps after it was late.
    pub(crate) fn note_answer(&mut self, number: usize) {
        self.late.retain(|late| *late != number);
        self.failed.retain(|(failed, _)| *failed != number);
    }

    /// Notes why a master does not count.
    pub(crate) fn note_failure(&mut self, number: usize, error: Error) {
        self.failed.retain(|(failed, _)| *failed != number);
        self.failed.push((number, error));
    }

    /// The number of masters that do not count, including late ones.
    pub(crate) fn failed(&self) -> usize {
        self.failed.len()
    }

    /// The reasons why those do not count.
    pub(crate) fn errors(&self) -> impl Iterator<Item = Error> {
        self.failed.iter().map(|(_, error)| error.clone())
    }

    /// The number of late masters that are still to be waited for.
    pub(crate) fn expected_late(&self) -> usize {
        let is_minority = self.failed() <= self.masters.len() - quorum(self.masters.len());
        if is_minority { 0 } else { self.late.len() }
    }

    /// Resumes the wait for late masters, once no other answer is outstanding and no quorum has answered.
    pub(crate) fn wait_on<T: Send + 'static>(&mut self, replies: &mut FanOut<T>) {
        if self.expected_late() > 0 {
            self.wait_for_the_late(replies);
        }
    }

    /// As [`wait_on`](Self::wait_on), even if a quorum has answered: for requests that a quorum has to confirm.
    pub(crate) fn wait_for_the_late<T: Send + 'static>(&mut self, replies: &mut FanOut<T>) {
        if replies.outstanding() == 0 {
            replies.wait_on(std::mem::take(&mut self.late), self.latest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::master::tests::dead;

    #[tokio::test]
    async fn a_late_master_is_waited_for_again_and_a_failed_one_is_not() {
        let masters = dead(3);
        let mut policy = LatePolicy::new(&masters);
        drop((masters[0].note_late(), masters[1].note_late(), masters[2].time().await));
        (0..3).for_each(|number| policy.note_late(number, Instant::now()));
        assert_eq!((policy.late.as_slice(), policy.expected_late()), ([0, 1].as_slice(), 2));
    }

    #[tokio::test]
    async fn a_master_that_falls_silent_gets_another_vote_and_one_that_had_failed_does_not() {
        let masters = dead(3);
        drop((masters[0].time().await, masters[1].time().await));
        let mut policy = LatePolicy::new(&masters);
        (0..2).for_each(|number| policy.note_late(number, Instant::now()));
        assert_eq!((policy.fell_silent(), policy.expected_late()), (false, 0));
        policy.note_late(2, Instant::now());
        assert!(policy.fell_silent());
        let mut policy = LatePolicy::new(&masters).over_new_connections();
        (0..2).for_each(|number| policy.note_late(number, Instant::now()));
        assert_eq!(policy.expected_late(), 2);
    }

    #[tokio::test]
    async fn a_late_master_that_has_answered_is_not_waited_for_again() {
        let mut policy = LatePolicy::new(&dead(3));
        policy.note_late(0, Instant::now());
        assert_eq!(policy.expected_late(), 0, "the others are a quorum");
        policy.note_late(1, Instant::now());
        assert_eq!(policy.expected_late(), 2);
        policy.note_answer(0);
        assert_eq!((policy.failed(), policy.expected_late()), (1, 0));
    }

    #[tokio::test]
    async fn a_master_that_is_late_twice_counts_once() {
        let mut policy = LatePolicy::new(&dead(3));
        policy.note_late(0, Instant::now());
        policy.note_late(0, Instant::now());
        assert_eq!((policy.failed(), policy.errors().count()), (1, 1));
        assert_eq!(policy.note(0, Reply::Answer(Ok(7))), Some(7));
        assert_eq!(policy.failed(), 0);
        let error = Error::new(lock_core::ErrorKind::Denied, crate::error::BACKEND);
        assert_eq!(policy.note::<()>(0, Reply::Answer(Err(error))), None);
        assert_eq!(policy.failed(), 1);
    }
}
