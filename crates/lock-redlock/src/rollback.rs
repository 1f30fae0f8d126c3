//! The removal of what an acquisition left on the masters.

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

/// Why a claims is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// The holder gives the lock back: the next in the line is called.
    Released,
    /// There was no quorum. Who goes on waiting stands in the line again.
    Lost,
}

impl Claims {
    /// Removes it from every master, after the claim there has come to its end, and tells for each
    /// whether the key was ours. `ttl` is the longest that the keys were given.
    pub(crate) fn remove_all(self: &Arc<Self>, ttl: Duration, because: Because) -> FanOut<Option<bool>> {
        self.states().removed = true;
        if let Some(entry) = self.entry.as_ref().filter(|_| because == Because::Released) {
            entry.rise();
        }
        let for_all = self.entry.is_none().then(|| Arc::new(self.vacation(None, because)));
        FanOut::new((0..self.masters.len()).map(|number| {
            let (claims, for_all) = (Arc::clone(self), for_all.clone());
            let counted = Some(self.masters[number].voter.cleanup().count());
            Erasing { claims, number, ttl, because, for_all, counted }.run()
        }))
    }

    fn vacation(&self, waiter: Option<&Waiter>, because: Because) -> Request {
        // Who does not wait may have overtaken one who was called.
        let has_left = self.entry.as_ref().is_none_or(|entry| entry.has_left());
        let turn = (because == Because::Released || has_left).then_some(TURN);
        Request::vacate(&self.keys, self.owner, waiter, turn)
    }

    /// A holder may still stand in the line of a master that refused.
    fn may_be_called(&self, number: usize, because: Because) -> Option<Sent> {
        let stood = self.entry.as_ref().is_some_and(|entry| entry.has_stood(number));
        (stood && because == Because::Released).then_some(Sent::Answered)
    }
}

/// What is removed from one master.
struct Erasing {
    claims: Arc<Claims>,
    number: usize,
    ttl: Duration,
    because: Because,
    /// What is sent to all masters, if it is the same.
    for_all: Option<Arc<Request>>,
    /// Until the master has answered.
    counted: Option<Counted>,
}

impl Erasing {
    async fn run(mut self) -> Option<bool> {
        let counted = self.counted.take();
        let sent = self.claims.ended(self.number).await;
        let Some(sent) = sent.or_else(|| self.claims.may_be_called(self.number, self.because)) else {
            return Some(false);
        };
        let removed = self.remove(sent, counted).await;
        if removed == Some(true) && sent != Sent::Answered && self.claims.is_claimed_again(self.number) {
            self.go_on(sent);
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

    /// Of one who waits, or did.
    async fn vacate_from(&self, master: &Master) -> Result<Vacated> {
        let waiter = self.claims.waiter(self.number);
        master.voter.vacate(&self.claims.vacation(waiter.as_ref(), self.because)).await
    }

    /// Looks for the other claims, in the background, until none has been found for as long as one may take to arrive.
    fn go_on(self, sent: Sent) {
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

    /// Each acquisition has one for each master, and larger ones are slow to allocate.
    #[tokio::test]
    async fn a_claim_takes_little_memory() {
        let keys = Arc::new(Keys::new("", &LockName::new("a").unwrap()));
        let ttl = Duration::from_secs(30);
        let claims = Claims::new(&dead(3), &keys, ttl, &"{}".into(), 1, None, &Arc::default());
        let claim = claims.claim(0, ttl, Token::new(1), None, None);
        assert!(size_of_val(&claim) <= 768, "{}", size_of_val(&claim));
        let (number, because, for_all) = (0, Because::Released, None);
        let erasing = Erasing { claims, number, ttl, because, for_all, counted: None }.run();
        assert!(size_of_val(&erasing) <= 1024, "{}", size_of_val(&erasing));
    }
}
