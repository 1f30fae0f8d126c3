//! Releases a lock on all masters.

use std::time::Duration;

use lock_core::Result;
use tokio::time::Instant;

use crate::error::unconfirmed;
use crate::servers::fan_out::{FanOut, Reply};
use crate::servers::late_policy::LatePolicy;
use crate::servers::masters::Masters;
use crate::voting::quorum::quorum;

/// A release that was sent to all masters, and its answers so far.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    was_valid: bool,
    /// `None` once it is decided; the rest runs in the background then.
    replies: Option<FanOut<Option<bool>>>,
    /// The masters that have answered, as bits.
    answered: u64,
    ours: usize,
    not_ours: usize,
}

impl PendingRelease {
    /// A release whose requests were sent.
    pub(crate) fn begin(was_valid: bool, replies: FanOut<Option<bool>>) -> Self {
        Self { was_valid, replies: Some(replies), answered: 0, ours: 0, not_ours: 0 }
    }

    /// Whether the lease was valid when its release began.
    pub(crate) const fn was_valid(&self) -> bool {
        self.was_valid
    }

    /// Whether its outcome is known.
    pub(crate) const fn is_decided(&self) -> bool {
        self.replies.is_none()
    }

    /// Whether the owner held the lock on a quorum until now.
    pub(crate) async fn decide(&mut self, masters: &Masters, ttl: Duration) -> Result<bool> {
        let quorum = quorum(masters.len());
        let mut late = LatePolicy::new(masters);
        if let Some(replies) = &mut self.replies {
            let is_open = |number: &usize| self.answered & (1 << number) == 0;
            for number in (0..masters.len()).filter(is_open) {
                replies.wait_on([number], Instant::now() + masters[number].deadline(ttl));
            }
        }
        while let Some(replies) = self.replies.as_mut().filter(|replies| replies.outstanding() > 0) {
            match replies.next().await {
                Some((number, Reply::Answer(removed))) => {
                    late.note_answer(number);
                    self.answered |= 1 << number;
                    // If that is unknown, an earlier request of this release removed it.
                    let was_ours = removed != Some(false);
                    self.ours += usize::from(was_ours);
                    self.not_ours += usize::from(!was_ours);
                }
                Some((number, Reply::Late(since))) => late.note_late(number, since),
                None => break,
            }
            if self.ours >= quorum || self.not_ours > masters.len() - quorum {
                // The rest continues in the background.
                self.replies = None;
            } else {
                late.wait_on(replies);
            }
        }
        let (ours, confirmed) = (self.ours, self.ours + self.not_ours);
        if self.replies.is_none() {
            Ok(ours >= quorum)
        } else if confirmed >= quorum {
            // The other masters do not answer, but a quorum no longer has the lock.
            Ok(true)
        } else {
            Err(unconfirmed(confirmed, masters.len()))
        }
    }
}
