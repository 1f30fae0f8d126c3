//! When a master that is late is waited for all the same.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Result};
use tokio::time::Instant;

use crate::fan_out::{FanOut, Reply};
use crate::masters::Masters;
use crate::quorum::quorum;

/// Which masters do not count, and why. A vote goes on without a minority that fails. When no quorum answers without those
/// that are late, then it is rather the host that is busy, or the network, and they are given as much time as any answer
/// has; but not those of which the last request failed, so that votes wait so long for masters that hang only until their
/// requests have failed.
#[derive(Debug)]
pub(crate) struct LatePolicy {
    masters: Masters,
    /// Once for each master: one that is waited for again may be late again.
    failed: Vec<(usize, Error)>,
    late: Vec<usize>,
    at_last: Instant,
}

impl LatePolicy {
    /// With a vote that begins now.
    pub(crate) fn new(masters: &Masters) -> Self {
        let longest = masters.iter().map(|master| master.patience()).max().unwrap_or_default();
        let (masters, at_last) = (Arc::clone(masters), Instant::now() + longest);
        Self { masters, failed: Vec::new(), late: Vec::new(), at_last }
    }

    /// With no more than this from now on.
    pub(crate) fn at_most(mut self, longest: Duration) -> Self {
        self.at_last = self.at_last.min(Instant::now() + longest);
        self
    }

    /// Notes what is heard of a master, and gives its answer if it counts.
    pub(crate) fn note<T>(&mut self, number: usize, heard: Reply<Result<T>>) -> Option<T> {
        match heard {
            Reply::Late => self.is_late(number),
            Reply::Answer(Err(error)) => {
                self.hears(number);
                self.fails(number, error);
            }
            Reply::Answer(Ok(answer)) => {
                self.hears(number);
                return Some(answer);
            }
        }
        None
    }

    /// Notes that a master is late.
    pub(crate) fn is_late(&mut self, number: usize) {
        let master = Arc::clone(&self.masters[number]);
        if !master.has_failed() && Instant::now() < self.at_last {
            self.late.push(number);
        }
        self.fails(number, master.is_late());
    }

    /// Notes that a master has answered, perhaps after it was late.
    pub(crate) fn hears(&mut self, number: usize) {
        self.late.retain(|late| *late != number);
        self.failed.retain(|(failed, _)| *failed != number);
    }

    /// Notes why a master does not count.
    pub(crate) fn fails(&mut self, number: usize, error: Error) {
        self.failed.retain(|(failed, _)| *failed != number);
        self.failed.push((number, error));
    }

    /// How many masters do not count, with those that are late.
    pub(crate) fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Why those do not count.
    pub(crate) fn errors(&self) -> impl Iterator<Item = Error> {
        self.failed.iter().map(|(_, error)| error.clone())
    }

    /// How many are still hoped for.
    pub(crate) fn hopes_for(&self) -> usize {
        let is_minority = self.failed() <= self.masters.len() - quorum(self.masters.len());
        if is_minority { 0 } else { self.late.len() }
    }

    /// Waits on for those that are late, once nobody else is waited for and no quorum has answered.
    pub(crate) fn wait_on<T: Send + 'static>(&mut self, replies: &mut FanOut<T>) {
        if self.hopes_for() > 0 {
            self.wait_for_the_late(replies);
        }
    }

    /// As [`wait_on`](Self::wait_on), also when a quorum has answered: for what a quorum has to agree on.
    pub(crate) fn wait_for_the_late<T: Send + 'static>(&mut self, replies: &mut FanOut<T>) {
        if replies.outstanding() == 0 {
            replies.wait_on(std::mem::take(&mut self.late), self.at_last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master::tests::dead;

    #[tokio::test]
    async fn one_that_was_late_before_is_waited_for_and_one_that_failed_is_not() {
        let masters = dead(3);
        let mut patience = LatePolicy::new(&masters);
        drop((masters[0].is_late(), masters[1].is_late(), masters[2].time().await));
        (0..3).for_each(|number| patience.is_late(number));
        assert_eq!((patience.late.as_slice(), patience.hopes_for()), ([0, 1].as_slice(), 2));
    }

    #[tokio::test]
    async fn one_that_was_late_and_has_answered_is_not_waited_for_again() {
        let mut patience = LatePolicy::new(&dead(3));
        patience.is_late(0);
        assert_eq!(patience.hopes_for(), 0, "the others are a quorum");
        patience.is_late(1);
        assert_eq!(patience.hopes_for(), 2);
        patience.hears(0);
        assert_eq!((patience.failed(), patience.hopes_for()), (1, 0));
    }

    #[tokio::test]
    async fn one_that_is_late_twice_has_failed_once() {
        let mut patience = LatePolicy::new(&dead(3));
        patience.is_late(0);
        patience.is_late(0);
        assert_eq!((patience.failed(), patience.errors().count()), (1, 1));
        assert_eq!(patience.note(0, Reply::Answer(Ok(7))), Some(7));
        assert_eq!(patience.failed(), 0);
        let error = Error::new(lock_core::ErrorKind::Denied, crate::error::BACKEND);
        assert_eq!(patience.note::<()>(0, Reply::Answer(Err(error))), None);
        assert_eq!(patience.failed(), 1);
    }
}
