//! The lease of a lock.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::blocked::{Pauses, until_free};
use super::renew::HeldLock;
use super::rollback::RollbackGuard;
use super::{Ask, Changed, Core, LeaseStore};
use crate::drift::valid_until;
use crate::pending_release::{PendingRelease, SentRelease};
use crate::renewal::{Renewal, Terms};
use crate::{
    AcquireRequest, BootInstant, Error, GuardState, HandOver, Lease, LossReason, Mode, Outcome, OwnerId,
    Released, Result, Token, TokenBlock, Validity, ValidityCell,
};

/// The lease of a lock in a store.
#[derive(Debug)]
pub(super) struct EngineLease<S: LeaseStore> {
    core: Arc<Core<S>>,
    held: Arc<HeldLock<S::Place>>,
    tokens: TokenBlock,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    pending: PendingRelease,
    /// Whether the lock is, or may have become, a share.
    may_be_shared: AtomicBool,
}

impl<S: LeaseStore> EngineLease<S> {
    /// Creates the lease of a lock that was requested at `sent` and is valid until `until`.
    pub(super) fn begin(
        core: &Arc<Core<S>>,
        place: &S::Place,
        request: &AcquireRequest,
        (owner, token): (OwnerId, Token),
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let terms = Terms::of(&request.lease, core.ttl_of(&request.lease), sent);
        let cell = ValidityCell::new(core.options.clock.clone(), until.min(terms.hold_until));
        let held = Arc::new(HeldLock { place: place.clone(), owner });
        let is_block = TokenBlock::start(token.get()) == token.get();
        let handovers = if is_block { core.options.local_handovers } else { 1 };
        Self {
            core: Arc::clone(core),
            renewal: core.renewer.add(Arc::clone(&held), terms, cell.clone()),
            held,
            tokens: TokenBlock::granted(token, handovers),
            validity: cell.validity(),
            cell,
            pending: PendingRelease::default(),
            may_be_shared: AtomicBool::new(request.mode != Mode::Exclusive),
        }
    }

    /// Confirms a grant in the background: renews the lock for its full ttl now.
    pub(super) fn confirm(&self) {
        self.renewal.hasten();
    }
}

#[async_trait]
impl<S: LeaseStore> Lease for EngineLease<S> {
    fn token(&self) -> Token {
        self.tokens.token()
    }

    fn owner(&self) -> OwnerId {
        self.core.store.shown(self.held.owner)
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.core.store.specific(&self.held.place)
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let capabilities = &self.core.capabilities;
        capabilities.check_ttl(ttl, capabilities.lease.min_ttl())?;
        self.renewal.extend(ttl).await.deadline(capabilities.backend)
    }

    async fn verify(&self) -> Result<GuardState> {
        if !self.core.store.holds(&self.held.place, self.held.owner).await? {
            self.cell.lose(LossReason::Removed);
        }
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        let (core, HeldLock { place, owner }) = (&*self.core, &*self.held);
        let ttl = self.renewal.longest_ttl();
        // Whatever becomes of the request: no other task of this process gets the lock as an exclusive one.
        self.may_be_shared.store(true, Ordering::Relaxed);
        let shared = until_free(core, place, || core.store.downgrade(place, *owner, ttl));
        shared.await?.ok_or_else(|| self.lost())
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let mut sent = match self.begin_release() {
            Ok(sent) => sent,
            Err(known) => return Ok(known),
        };
        let (Core { store, options, .. }, HeldLock { place, owner }) = (&*self.core, &*self.held);
        let mut pauses = Pauses::default();
        let found = loop {
            let on = store.order(place).await?;
            let released = store.release(&on, place, *owner).await;
            drop(on);
            match released {
                Ok(Changed::Done(())) => break true,
                Ok(Changed::NotHeld) => break false,
                // The lease has expired: nobody waits for this any more.
                Ok(Changed::Blocked) if sent.is_over(options.clock.now()) => break true,
                Ok(Changed::Blocked) => pauses.wait(&**store, place).await,
                // The server may just have closed the connection as idle.
                Err(error) if error.code() == "broken" && !sent.maybe_done => sent.maybe_done = true,
                Err(error) => return Err(error),
            }
        };
        self.cell.lose(LossReason::Released);
        Ok(sent.outcome(found))
    }

    fn pass_on(&mut self, is_token_known: bool) -> bool {
        let Core { options, .. } = &*self.core;
        (options.passes_on_shown_tokens || !is_token_known)
            && self.can_stay()
            && self.tokens.advance(options.clock.now())
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        self.renewal.stop().await;
        let now = self.core.options.clock.now();
        if next.mode == Mode::Exclusive
            && self.can_stay()
            && self.tokens.may_stay(now)
            && let Some(handed_over) = self.try_hand_over(next).await?
        {
            return Ok(handed_over);
        }
        Ok(HandOver::Released(self.release().await?))
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        let (core, HeldLock { place, owner }) = (&*self.core, &*self.held);
        let raised = until_free(core, place, || core.store.raise(place, *owner, floor));
        raised.await?.ok_or_else(|| self.lost())
    }
}

impl<S: LeaseStore> EngineLease<S> {
    fn lost(&self) -> Error {
        self.cell.lose(LossReason::Removed);
        Error::lost(self.core.backend())
    }

    /// Notes that a request that releases the lock is about to be sent; `Err` if the outcome is known without one.
    fn begin_release(&mut self) -> std::result::Result<SentRelease, Released> {
        let options = &self.core.options;
        let lasting = self.renewal.longest_ttl().saturating_add(options.command_timeout);
        self.pending.begin(&self.validity, options.clock.now(), lasting)
    }

    /// Whether the lock may stay in this process: once, and only by a valid lease.
    fn can_stay(&self) -> bool {
        !self.may_be_shared.load(Ordering::Relaxed) && !self.pending.is_sent() && self.validity.is_valid()
    }

    /// Hands the lock over in one request; `None` if a release has to follow.
    async fn try_hand_over(&mut self, next: &AcquireRequest) -> Result<Option<HandOver>> {
        let Ok(release) = self.begin_release() else { return Ok(None) };
        let (core, place) = (Arc::clone(&self.core), self.held.place.clone());
        let Ok(on) = core.store.order(&place).await else {
            self.pending.not_applied(release);
            return Ok(None);
        };
        let ttl = core.ttl_of(&next.lease);
        let mut rollback = RollbackGuard::new(&core, &place, ttl);
        rollback.arm(&on);
        let sent = core.options.clock.now();
        let to = Ask { owner: rollback.owner, mode: next.mode, ttl, info: &next.owner, queue: None };
        match core.store.hand_over(&on, &place, self.held.owner, &to).await {
            Ok(Changed::Done(token)) => {
                self.cell.lose(LossReason::Released);
                let until = valid_until(sent, ttl);
                if core.options.clock.now() >= until {
                    // The next task cannot use it: take it back.
                    rollback.now().await;
                    return Ok(Some(HandOver::Released(release.in_time())));
                }
                let mut lease = Self::begin(&core, &place, next, (rollback.owner, token), (sent, until));
                lease.tokens = self.tokens.succeeded_by(token, core.options.clock.now());
                rollback.disarm();
                Ok(Some(HandOver::HandedOver(Box::new(lease))))
            }
            Ok(Changed::NotHeld) => {
                rollback.answered(false);
                self.cell.lose(LossReason::Removed);
                Ok(Some(HandOver::Released(Released::AlreadyLost)))
            }
            Ok(Changed::Blocked) => {
                rollback.answered(false);
                self.pending.not_applied(release);
                Ok(None)
            }
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    rollback.answered(false);
                    self.pending.not_applied(release);
                }
                tracing::debug!(%error, "the hand-over within the process failed; the lock is released");
                Ok(None)
            }
        }
    }
}
