//! The release of a lock on all masters.

use std::time::Duration;

use lock_core::Result;
use tokio::time::Instant;

use crate::error::unconfirmed;
use crate::fan_out::{FanOut, Reply};
use crate::late_policy::LatePolicy;
use crate::masters::Masters;
use crate::quorum::quorum;

/// A release that was sent to all masters.
#[derive(Debug)]
pub(crate) struct Releasing {
    was_valid: bool,
    /// Until it is decided; from then on the rest of it runs in the background.
    replies: Option<FanOut<Option<bool>>>,
    /// The masters that have answered, one bit for each.
    answered: u64,
    ours: usize,
    not_ours: usize,
}

impl Releasing {
    /// A release whose requests are on their way.
    pub(crate) fn begin(was_valid: bool, replies: FanOut<Option<bool>>) -> Self {
        Self { was_valid, replies: Some(replies), answered: 0, ours: 0, not_ours: 0 }
    }

    /// Whether the lease was valid when its release began.
    pub(crate) const fn was_valid(&self) -> bool {
        self.was_valid
    }

    /// Whether the lock was ours on a quorum until now.
    pub(crate) async fn decide(&mut self, masters: &Masters, ttl: Duration) -> Result<bool> {
        let quorum = quorum(masters.len());
        let mut patience = LatePolicy::new(masters);
        if let Some(replies) = &mut self.replies {
            let is_open = |number: &usize| self.answered & (1 << number) == 0;
            for number in (0..masters.len()).filter(is_open) {
                replies.wait_on([number], Instant::now() + masters[number].deadline(ttl));
            }
        }
        while let Some(replies) = self.replies.as_mut().filter(|replies| replies.outstanding() > 0) {
            match replies.next().await {
                Some((number, Reply::Answer(removed))) => {
                    patience.hears(number);
                    self.answered |= 1 << number;
                    // In doubt it was one of our own requests that removed it.
                    let was_ours = removed != Some(false);
                    self.ours += usize::from(was_ours);
                    self.not_ours += usize::from(!was_ours);
                }
                Some((number, Reply::Late)) => patience.is_late(number),
                None => break,
            }
            if self.ours >= quorum || self.not_ours > masters.len() - quorum {
                // The rest of it goes on in the background.
                self.replies = None;
            } else {
                patience.wait_on(replies);
            }
        }
        let (ours, confirmed) = (self.ours, self.ours + self.not_ours);
        if self.replies.is_none() {
            Ok(ours >= quorum)
        } else if confirmed >= quorum {
            // The rest does not answer, but a quorum has nothing of ours any more.
            Ok(true)
        } else {
            Err(unconfirmed(confirmed, masters.len()))
        }
    }
}
