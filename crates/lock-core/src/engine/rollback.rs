//! Rolls back an acquisition: removes what it may have left in the store.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{Changed, Core, LeaseStore, Mailbox, Order, Release};
use crate::process::tasks::background::Counted;
use crate::{ErrorKind, OwnerId, Result};

/// How long a roll-back waits for a store that does not answer.
const MAX_OUTAGE: Duration = Duration::from_secs(600);
/// How many roll-backs may wait out an outage; more than these are tried for a shorter time.
const MAX_OVER_AN_OUTAGE: usize = 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// Rolls back one acquisition when it is dropped: removes its lock and its queue entry.
#[derive(Debug)]
pub(super) struct RollbackGuard<S: LeaseStore> {
    core: Arc<Core<S>>,
    place: S::Place,
    pub(super) owner: OwnerId,
    ttl: Duration,
    /// Where the owner is notified, if it waits.
    pub(super) mailbox: Option<S::Mailbox>,
    /// What the requests before the last one may have left; `None` if they left nothing.
    sent: Option<Sent<S::Order>>,
    /// The order of the last request, until that is answered.
    last: Option<S::Order>,
    /// How many requests may have left something.
    requests: usize,
    runtime: Option<Handle>,
}

/// What is known of the last request.
#[derive(Debug)]
enum Sent<O> {
    /// It was answered: at most an entry in the queue remains, or what the answer said.
    Answered,
    /// It was sent in this order, and not answered. What follows it there is executed after it.
    InDoubt(O),
    /// The same, and that order has ended: what it kept is given back.
    Lost,
}

impl<S: LeaseStore> RollbackGuard<S> {
    /// A guard with a fresh owner id, before its first request.
    pub(super) fn new(core: &Arc<Core<S>>, place: &S::Place, ttl: Duration) -> Self {
        Self {
            core: Arc::clone(core),
            place: place.clone(),
            owner: OwnerId::random(),
            ttl,
            mailbox: None,
            sent: None,
            last: None,
            requests: 0,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Notes that a request is about to be sent in this order.
    pub(super) fn arm(&mut self, on: &S::Order) {
        self.sent = self.take_sent();
        self.last = Some(on.clone());
    }

    /// Notes that the last request was answered, and whether something of this owner may remain.
    pub(super) fn answered(&mut self, may_remain: bool) {
        if self.count_last().is_some() {
            self.sent = may_remain.then_some(Sent::Answered);
        }
    }

    /// Notes that the last request was answered, and has left something all the same.
    pub(super) fn refused(&mut self) {
        self.sent = self.take_sent().map(|_| Sent::Answered);
    }

    /// Ends the guard without a roll-back, and returns where its owner was notified.
    pub(super) fn disarm(mut self) -> Option<S::Mailbox> {
        (self.sent, self.last) = (None, None);
        self.mailbox.take()
    }

    /// Rolls back now with one request, and reports whether that is enough; else the rest runs in the background.
    ///
    /// # Errors
    ///
    /// When nothing can be sent.
    pub(super) async fn now(mut self) -> Result<bool> {
        let (is_answered, on) = match self.take_sent() {
            None => return Ok(true),
            Some(Sent::Answered) => (true, None),
            Some(Sent::InDoubt(on)) if on.is_open() => (false, Some(on)),
            // Given back before another one is waited for: there may be no more.
            Some(Sent::InDoubt(_) | Sent::Lost) => (false, None),
        };
        self.sent = Some(match &on {
            Some(on) => Sent::InDoubt(on.clone()),
            None if is_answered => Sent::Answered,
            None => Sent::Lost,
        });
        let store = &self.core.store;
        let order = match &on {
            Some(on) => on.clone(),
            None => store.order(&self.place).await?,
        };
        let what = Release::Acquisition(self.mailbox.as_ref());
        let removed = store.release(&order, &self.place, self.owner, what).await;
        let is_settled = is_answered || on.is_some_and(|on| on.is_open());
        match removed {
            Ok(Changed::Done(())) if is_settled || self.requests == 1 => self.sent = None,
            Ok(Changed::NotHeld | Changed::NotHeldAnyMore) if is_settled => self.sent = None,
            _ => {}
        }
        Ok(self.sent.is_none())
    }

    /// What may have left something; `None` if nothing did.
    fn take_sent(&mut self) -> Option<Sent<S::Order>> {
        let last = self.count_last();
        last.map(Sent::InDoubt).or_else(|| self.sent.take())
    }

    /// Counts the last request, if it was sent, and returns its order.
    fn count_last(&mut self) -> Option<S::Order> {
        let last = self.last.take()?;
        let requests = last.requests();
        self.requests += requests;
        (requests > 0).then_some(last)
    }
}

impl<S: LeaseStore> Drop for RollbackGuard<S> {
    fn drop(&mut self) {
        if let Some(last) = &self.last {
            last.withdraw();
        }
        let (Some(sent), Some(runtime)) = (self.take_sent(), self.runtime.take()) else { return };
        let mut mailbox = self.mailbox.take();
        if let Some(mailbox) = &mut mailbox {
            mailbox.given_up(!matches!(sent, Sent::Answered));
        }
        let rollback = Rollback {
            core: Arc::clone(&self.core),
            place: self.place.clone(),
            owner: self.owner,
            mailbox,
            ttl: self.ttl,
            is_alone: self.requests == 1,
        };
        // Counted before the task starts, as the locks may be closed first.
        let counted = self.core.cleanup.count();
        drop(runtime.spawn(rollback.run(sent, counted)));
    }
}

struct Rollback<S: LeaseStore> {
    core: Arc<Core<S>>,
    place: S::Place,
    owner: OwnerId,
    mailbox: Option<S::Mailbox>,
    ttl: Duration,
    /// Whether the acquisition sent one request only: what was found once does not come again.
    is_alone: bool,
}

impl<S: LeaseStore> Rollback<S> {
    /// In the order of a request in doubt, one removal is enough. If that order has ended, the request may still be in flight: the
    /// removal is repeated for the ttl and one command timeout. A request that the store executes even later leaves a lock that
    /// expires. It counts as under way until the store has answered once.
    async fn run(self, sent: Sent<S::Order>, counted: Counted) {
        let Core { store, options, cleanup, .. } = &*self.core;
        let lasting = self.ttl.saturating_add(options.command_timeout);
        let mut counted = Some(counted);
        let mut is_settled = matches!(sent, Sent::Answered);
        let mut on = match sent {
            Sent::InDoubt(on) => Some(on),
            Sent::Answered | Sent::Lost => None,
        };
        let outage = if cleanup.under_way() <= MAX_OVER_AN_OUTAGE { MAX_OUTAGE } else { Duration::ZERO };
        let (mut until, mut has_answered) = (options.clock.now() + lasting.saturating_add(outage), false);
        let mut pause = FIRST_PAUSE;
        loop {
            // One that has ended is given back first: there may be no more.
            on = on.filter(Order::is_open);
            let order = match &on {
                Some(on) => Ok(on.clone()),
                None => store.order(&self.place).await,
            };
            let what = Release::Acquisition(self.mailbox.as_ref());
            let removed = match &order {
                Ok(order) => store.release(order, &self.place, self.owner, what).await,
                Err(error) => Err(error.clone()),
            };
            drop(order);
            let is_in_order = on.as_ref().is_some_and(Order::is_open);
            let is_answer = match removed {
                Ok(Changed::Done(())) if self.is_alone => return,
                Ok(Changed::Done(()) | Changed::NotHeld | Changed::NotHeldAnyMore)
                    if is_settled || is_in_order =>
                {
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(error) => error.kind() != ErrorKind::Unavailable,
                Ok(Changed::Blocked) => {
                    // Nothing was removed, for as long as something else has the record. But what came before it is over.
                    is_settled |= is_in_order;
                    false
                }
                Ok(_) => true,
            };
            if is_answer {
                is_settled |= is_in_order;
                drop(counted.take());
                if !mem::replace(&mut has_answered, true) {
                    until = until.min(options.clock.now() + lasting);
                }
            }
            if is_settled {
                on = None;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            if options.clock.now() >= until {
                return;
            }
        }
    }
}
