//! One attempt to acquire a lock: its owner id, its requests and its roll-back.

use std::sync::Arc;
use std::time::Duration;

use super::lease::EngineLease;
use super::rollback::RollbackGuard;
use super::{Answer, Ask, Core, LeaseStore, Order, QueueUp};
use crate::process::time::drift::valid_until;
use crate::{AcquireRequest, BootInstant, Error, Outcome, Result, Token};

/// A store may refuse longer ones.
const LONGEST_GRACE: Duration = Duration::from_secs(600);

/// What an acquisition asks for.
pub(super) struct Acquisition<'a, S: LeaseStore> {
    pub(super) core: &'a Arc<Core<S>>,
    pub(super) place: S::Place,
    pub(super) request: &'a AcquireRequest,
    ttl: Duration,
}

/// An owner id and what is known of it. It is given up after the first request with an unknown outcome.
pub(super) struct Attempt<S: LeaseStore> {
    pub(super) rollback: RollbackGuard<S>,
    /// When the first request was sent: no grant is older.
    pub(super) since: Option<BootInstant>,
    /// How long a lock that was granted while it waits is kept until it confirms.
    pub(super) grace: Duration,
    /// Whether the store has said that it is in the queue.
    is_queued: bool,
}

impl<'a, S: LeaseStore> Acquisition<'a, S> {
    pub(super) fn new(core: &'a Arc<Core<S>>, request: &'a AcquireRequest) -> Result<Self> {
        core.capabilities.check_mode(request.mode)?;
        let place = core.store.place(&request.name)?;
        Ok(Self { core, place, request, ttl: core.ttl_of(&request.lease) })
    }

    /// A new attempt, with its own owner id.
    pub(super) fn attempt(&self) -> Attempt<S> {
        let rollback = RollbackGuard::new(self.core, &self.place, self.ttl);
        Attempt { rollback, since: None, grace: self.grace(), is_queued: false }
    }

    /// How long a grant has to be kept until it is confirmed, as slowly as the store answers now.
    pub(super) fn grace(&self) -> Duration {
        let longest = self.ttl.min(LONGEST_GRACE);
        self.core.options.grace.max(self.core.round_trip.get() * 4).min(longest)
    }
}

impl<S: LeaseStore> Attempt<S> {
    /// Asks for the lock, and queues up if it is busy, or confirms a grant. Returns the moment from which a lease counts.
    pub(super) async fn ask(
        &mut self,
        what: &Acquisition<'_, S>,
        is_confirmation: bool,
    ) -> (BootInstant, Result<Answer>) {
        let Acquisition { core, place, request, ttl } = what;
        // Before the roll-back is armed: nothing can be sent without it.
        let on = match core.store.order(place).await {
            Ok(on) => on,
            Err(error) => return (core.options.clock.now(), Err(error)),
        };
        let waits = !request.wait.is_expired();
        if waits && self.rollback.mailbox.is_none() {
            self.rollback.mailbox = core.store.mailbox(place);
        }
        self.rollback.arm(&on);
        let (asked, is_first) = (core.options.clock.now(), self.since.is_none());
        self.since.get_or_insert(asked);
        let mailbox = self.rollback.mailbox.as_ref();
        let queue = waits.then_some(QueueUp { grace: self.grace, mailbox });
        let (owner, mode) = (self.rollback.owner, request.mode);
        let ask = Ask { owner, mode, ttl: *ttl, info: &request.owner, is_first, is_confirmation, queue };
        // Boxed, to keep the future of an acquisition small.
        let answer = Box::pin(core.store.ask(&on, place, &ask)).await;
        if let Ok(Answer::Busy { ahead, .. }) = answer {
            self.is_queued |= ahead.is_some();
        }
        if let Ok(Answer::Busy { .. } | Answer::Blocked) = answer {
            self.rollback.answered(self.is_queued);
        }
        (on.counts_from(asked), answer)
    }

    /// The lease of a lock that was granted to a request sent at this moment.
    pub(super) fn granted(
        self,
        what: &Acquisition<'_, S>,
        sent: BootInstant,
        token: Token,
        is_contended: bool,
    ) -> Result<EngineLease<S>> {
        let until = valid_until(sent, what.ttl);
        if what.core.options.clock.now() >= until {
            return Err(Error::too_late(what.core.backend(), what.ttl));
        }
        let grant = (self.rollback.owner, token);
        let lease = EngineLease::begin(what.core, &what.place, what.request, grant, (sent, until));
        Ok(lease.contended(is_contended).keeping(self.rollback.disarm()))
    }

    /// Notes that a request failed, and reports whether the attempt can continue.
    pub(super) fn failed(&mut self, error: &Error) -> bool {
        let is_known = error.outcome() == Outcome::NotApplied;
        if is_known {
            // An entry of an earlier request may remain.
            self.rollback.answered(self.is_queued);
        }
        is_known
    }
}
