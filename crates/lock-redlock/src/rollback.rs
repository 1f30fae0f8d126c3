//! Rolls back an acquisition, or releases its lock, on all masters.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Result;
use lock_core::background::Counted;
use redis_link::take_back::{Sent, TakeBack};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::ballot::{Request, TURN, Vacated, Waiter};
use crate::claims::Claims;
use crate::fan_out::FanOut;
use crate::master::Master;

/// Why claims are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// The holder releases the lock: the next waiter is notified.
    Released,
    /// The vote was lost: a waiter joins the wait queue again.
    Lost,
}

impl Claims {
    /// Removes the claims from all masters, at each after its claim has ended, and reports for each whether the owner held the
    /// key. `ttl` is the longest ttl of the keys.
    pub(crate) fn remove_all(self: &Arc<Self>, ttl: Duration, reason: RemovalReason) -> FanOut<Option<bool>> {
        self.states().removed = true;
        if let Some(entry) = self.entry.as_ref().filter(|_| reason == RemovalReason::Released) {
            entry.end();
        }
        let for_all = self.entry.is_none().then(|| Arc::new(self.vacate_request(None, reason)));
        FanOut::new((0..self.masters.len()).map(|number| {
            let (claims, for_all) = (Arc::clone(self), for_all.clone());
            let counted = Some(self.masters[number].voter.cleanup().count());
            Removal { claims, number, ttl, reason, for_all, counted }.run()
        }))
    }

    fn vacate_request(&self, waiter: Option<&Waiter>, reason: RemovalReason) -> Request {
        // An acquisition without a queue entry may have overtaken a notified waiter: notify again.
        let has_left = self.entry.as_ref().is_none_or(|entry| entry.has_left());
        let turn = (reason == RemovalReason::Released || has_left).then_some(TURN);
        Request::vacate(&self.keys, self.owner, waiter, turn)
    }

    /// Whether the holder may still be in the wait queue of a master that refused, and has to be removed there.
    fn may_be_notified(&self, number: usize, reason: RemovalReason) -> Option<Sent> {
        let was_queued = self.entry.as_ref().is_some_and(|entry| entry.may_be_queued(number));
        (was_queued && reason == RemovalReason::Released).then_some(Sent::Answered)
    }
}

/// The removal from one master.
struct Removal {
    claims: Arc<Claims>,
    number: usize,
    ttl: Duration,
    reason: RemovalReason,
    /// The request, if it is the same for all masters.
    for_all: Option<Arc<Request>>,
    /// Counted as pending until the master has answered.
    counted: Option<Counted>,
}

impl Removal {
    async fn run(mut self) -> Option<bool> {
        let counted = self.counted.take();
        let sent = self.claims.ended(self.number).await;
        let Some(sent) = sent.or_else(|| self.claims.may_be_notified(self.number, self.reason)) else {
            return Some(false);
        };
        let removed = self.remove(sent, counted).await;
        if removed == Some(true) && sent != Sent::Answered && self.claims.is_claimed_again(self.number) {
            self.remove_the_rest(sent);
        }
        removed
    }

    async fn remove(&self, sent: Sent, counted: Option<Counted>) -> Option<bool> {
        let Self { claims, number, .. } = self;
        let master = &claims.masters[*number];
        let vacate = || async {
            let asked = Instant::now();
            let answer = match &self.for_all {
                Some(request) => master.voter.vacate(request).await,
                None => Box::pin(self.vacate_from(master)).await,
            };
            let vacated = master.noted(asked, answer)?;
            if vacated.is_wanted {
                claims.contention.note();
            }
            Ok(vacated.was_ours)
        };
        let mut terms = TakeBack::new(&claims.keys, self.ttl, sent).counted(counted);
        if sent != Sent::Answered {
            terms = terms.over_an_outage(master.voter.cleanup());
        }
        master.voter.take_back(terms, vacate).await
    }

    /// Removes a claim with a queue entry, whose request differs between masters.
    async fn vacate_from(&self, master: &Master) -> Result<Vacated> {
        let waiter = self.claims.waiter(self.number);
        master.voter.vacate(&self.claims.vacate_request(waiter.as_ref(), self.reason)).await
    }

    /// Removes further claims in the background, until none has been found for as long as one may take to arrive.
    fn remove_the_rest(self, sent: Sent) {
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move { while self.remove(sent, None).await == Some(true) {} }));
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_core::{LockName, Token};
    use redis_link::keys::Keys;

    use super::*;
    use crate::master::tests::dead;

    /// An acquisition allocates one for each master, and larger allocations are slow.
    #[tokio::test]
    async fn a_claim_takes_little_memory() {
        let keys = Arc::new(Keys::new("", &LockName::new("a").unwrap()));
        let ttl = Duration::from_secs(30);
        let claims = Claims::new(&dead(3), &keys, ttl, &"{}".into(), 1, None, &Arc::default());
        let claim = claims.claim(0, ttl, Token::new(1), None, None);
        assert!(size_of_val(&claim) <= 768, "{}", size_of_val(&claim));
        let (number, reason, for_all) = (0, RemovalReason::Released, None);
        let removal = Removal { claims, number, ttl, reason, for_all, counted: None }.run();
        assert!(size_of_val(&removal) <= 1024, "{}", size_of_val(&removal));
    }
}
