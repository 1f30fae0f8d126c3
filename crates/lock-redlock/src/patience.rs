//! When a master that is late is waited for all the same.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Error;
use tokio::time::Instant;

use crate::master::Master;
use crate::quorum::{Wave, quorum};

/// A vote goes on without a minority that fails. When no quorum answers without those that are late, then it is rather
/// the host that is busy, or the network, and they are given as much time as any answer has; but not those of which the
/// last request failed, so that votes wait so long for masters that hang only until their requests have failed.
#[derive(Debug)]
pub(crate) struct Patience {
    masters: Arc<[Arc<Master>]>,
    late: Vec<usize>,
    at_last: Instant,
}

impl Patience {
    /// With a vote that begins now.
    pub(crate) fn new(masters: &Arc<[Arc<Master>]>) -> Self {
        let longest = masters.iter().map(|master| master.patience()).max().unwrap_or_default();
        Self { masters: Arc::clone(masters), late: Vec::new(), at_last: Instant::now() + longest }
    }

    /// With no more than this from now on.
    pub(crate) fn at_most(mut self, longest: Duration) -> Self {
        self.at_last = self.at_last.min(Instant::now() + longest);
        self
    }

    /// Notes that a master is late, and gives the error that this is as long as it does not answer.
    pub(crate) fn is_late(&mut self, number: usize) -> Error {
        let master = &self.masters[number];
        if !master.has_failed() && Instant::now() < self.at_last {
            self.late.push(number);
        }
        master.is_late()
    }

    /// Notes that a master has answered, perhaps after it was late.
    pub(crate) fn hears(&mut self, number: usize) {
        self.late.retain(|late| *late != number);
    }

    /// How many are still hoped for when so many have failed, with those that are late.
    pub(crate) fn hopes_for(&self, failed: usize) -> usize {
        let is_minority = failed <= self.masters.len() - quorum(self.masters.len());
        if is_minority { 0 } else { self.late.len() }
    }

    /// Waits on for those that are late, once nobody else is waited for and no quorum has answered.
    pub(crate) fn wait_on<T: Send + 'static>(&mut self, wave: &mut Wave<T>, failed: usize) {
        if wave.outstanding() == 0 && self.hopes_for(failed) > 0 {
            wave.wait_on(std::mem::take(&mut self.late), self.at_last);
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
        let mut patience = Patience::new(&masters);
        drop((masters[0].is_late(), masters[1].is_late(), masters[2].time().await));
        drop((0..3).map(|number| patience.is_late(number)).collect::<Vec<_>>());
        assert_eq!((patience.late.as_slice(), patience.hopes_for(3)), ([0, 1].as_slice(), 2));
    }

    #[tokio::test]
    async fn one_that_was_late_and_has_answered_is_not_waited_for_again() {
        let mut patience = Patience::new(&dead(3));
        drop((patience.is_late(0), patience.is_late(1)));
        assert_eq!((patience.hopes_for(1), patience.hopes_for(2)), (0, 2));
        patience.hears(0);
        assert_eq!(patience.hopes_for(2), 1);
    }
}
