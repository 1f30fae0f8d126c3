//! Rolls back an acquisition: removes what it may have left in the store.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{Changed, Core, LeaseStore, Order};
use crate::background::Counted;
use crate::{ErrorKind, OwnerId};

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
    /// `None` if there is nothing to remove.
    sent: Option<Sent<S::Order>>,
    /// How many requests may have left something.
    requests: u32,
    runtime: Option<Handle>,
}

/// What is known of the last request.
#[derive(Debug)]
enum Sent<O> {
    /// It was answered: at most an entry in the queue remains.
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
            sent: None,
            requests: 0,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Notes that a request is about to be sent in this order.
    pub(super) fn arm(&mut self, on: &S::Order) {
        self.sent = Some(Sent::InDoubt(on.clone()));
        self.requests += 1;
    }

    /// Notes that the last request was answered, and whether something of this owner may remain.
    pub(super) fn answered(&mut self, may_remain: bool) {
        self.sent = may_remain.then_some(Sent::Answered);
    }

    /// Ends the guard without a roll-back.
    pub(super) fn disarm(mut self) {
        self.sent = None;
    }

    /// Rolls back now with one request; if that is not enough, the rest runs in the background.
    pub(super) async fn now(mut self) {
        let (is_settled, on) = match self.sent.take() {
            None => return,
            Some(Sent::Answered) => (true, None),
            Some(Sent::InDoubt(on)) if on.is_open() => (true, Some(on)),
            // Given back before another one is waited for: there may be no more.
            Some(Sent::InDoubt(_) | Sent::Lost) => (false, None),
        };
        self.sent = Some(match &on {
            Some(on) => Sent::InDoubt(on.clone()),
            None if is_settled => Sent::Answered,
            None => Sent::Lost,
        });
        let store = &self.core.store;
        let on = match on {
            Some(on) => on,
            None => match store.order(&self.place).await {
                Ok(on) => on,
                Err(_) => return,
            },
        };
        match store.release(&on, &self.place, self.owner).await {
            Ok(Changed::Done(())) if self.requests == 1 => self.sent = None,
            Ok(Changed::Done(()) | Changed::NotHeld) if is_settled => self.sent = None,
            _ => {}
        }
    }
}

impl<S: LeaseStore> Drop for RollbackGuard<S> {
    fn drop(&mut self) {
        let (Some(sent), Some(runtime)) = (self.sent.take(), self.runtime.take()) else { return };
        let rollback = Rollback {
            core: Arc::clone(&self.core),
            place: self.place.clone(),
            owner: self.owner,
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
            let open = on.take().filter(Order::is_open);
            let is_in_order = open.is_some();
            let order = match open {
                Some(on) => Ok(on),
                None => store.order(&self.place).await,
            };
            let removed = match &order {
                Ok(on) => store.release(on, &self.place, self.owner).await,
                Err(error) => Err(error.clone()),
            };
            drop(order);
            let is_answer = match removed {
                Ok(Changed::Done(())) if self.is_alone => return,
                Ok(Changed::Done(()) | Changed::NotHeld) if is_settled || is_in_order => return,
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
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
            if options.clock.now() >= until {
                return;
            }
        }
    }
}
