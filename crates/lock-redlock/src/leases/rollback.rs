//! Rolls back an acquisition, or releases its lock, on all masters.

use std::sync::Arc;
use std::time::Duration;

use lock_core::background::Counted;
use lock_core::{Result, Token};
use redis_link::dispatch::Dispatch;
use redis_link::take_back::{Sent, TakeBack};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::servers::fan_out::FanOut;
use crate::servers::master::Master;
use crate::voting::ballot::{Entry, Request, Vacated};
use crate::voting::claims::Claims;
use crate::voting::quorum::OfEach;

impl Claims {
    /// Removes the claims from all masters, at each after its claim has ended, and reports for each whether the owner held the
    /// key. A lock that is free then goes to the next waiter. `ttl` is the longest ttl of the keys.
    pub(crate) fn remove_all(self: &Arc<Self>, ttl: Duration) -> FanOut<Option<bool>> {
        self.states().removed = true;
        self.withdraw();
        if let Some(entry) = &self.entry {
            entry.ends();
        }
        let proposal = self.proposal();
        let for_all = self.entry.is_none().then(|| Arc::new(self.vacate_request(proposal, None)));
        let dispatches: OfEach<_> = self.masters.iter().map(|master| master.client.dispatch()).collect();
        let removals = dispatches.iter().enumerate().map(|(number, dispatch)| {
            let (claims, for_all, dispatch) = (Arc::clone(self), for_all.clone(), Arc::clone(dispatch));
            let counted = Some(self.masters[number].client.cleanup().count());
            Removal { claims, number, ttl, proposal, for_all, dispatch, counted }.run()
        });
        FanOut::new(removals).dispatched(dispatches.clone())
    }

    fn vacate_request(&self, proposal: Token, entry: Option<&Entry>) -> Request {
        Request::vacate(&self.keys, self.owner, proposal, entry)
    }
}

/// The removal from one master.
struct Removal {
    claims: Arc<Claims>,
    number: usize,
    ttl: Duration,
    /// The token for the next waiter, the same on all masters.
    proposal: Token,
    /// The request, if it is the same for all masters.
    for_all: Option<Arc<Request>>,
    dispatch: Arc<Dispatch>,
    /// Counted as pending until the master has answered.
    counted: Option<Counted>,
}

impl Removal {
    async fn run(mut self) -> Option<bool> {
        let counted = self.counted.take();
        let Some(sent) = self.claims.ended(self.number).await else { return Some(false) };
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
            let begun = Instant::now();
            let answer = match &self.for_all {
                Some(request) => Box::pin(master.voter.vacate(request, &self.dispatch)).await,
                None => Box::pin(self.vacate_from(master)).await,
            };
            let vacated = master.noted(begun, answer)?;
            if vacated.is_wanted {
                claims.contention.note();
            }
            Ok(vacated.was_ours)
        };
        let mut terms = TakeBack::new(&claims.keys, self.ttl, sent).counted(counted);
        if sent != Sent::Answered {
            terms = terms.over_an_outage(master.client.cleanup());
        }
        master.client.take_back(terms, vacate).await
    }

    /// Removes a claim with a queue entry, whose request differs between masters.
    async fn vacate_from(&self, master: &Master) -> Result<Vacated> {
        let entry = self.claims.entry.as_ref().and_then(|entry| entry.queued_at(self.number));
        let request = self.claims.vacate_request(self.proposal, entry.as_deref());
        master.voter.vacate(&request, &self.dispatch).await
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
    use crate::servers::master::tests::dead;

    /// An acquisition allocates one for each master, and larger allocations are slow.
    #[tokio::test]
    async fn a_claim_takes_little_memory() {
        let keys = Arc::new(Keys::new("", &LockName::new("a").unwrap()));
        let ttl = Duration::from_secs(30);
        let claims = Claims::new(&dead(3), &keys, ttl, &"{}".into(), 1, None, &Arc::default());
        let claim = claims.claim(0, ttl, Token::new(1), None, None);
        assert!(size_of_val(&claim) <= 1024, "{}", size_of_val(&claim));
        let (number, proposal, for_all) = (0, Token::new(1), None);
        let dispatch = claims.masters[0].client.dispatch();
        let removal = Removal { claims, number, ttl, proposal, for_all, dispatch, counted: None }.run();
        assert!(size_of_val(&removal) <= 1024, "{}", size_of_val(&removal));
    }
}
