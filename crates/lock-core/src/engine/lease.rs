//! The lease of a lock.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::blocked::{Pauses, until_free};
use super::release::{PendingRelease, SentRelease};
use super::renew::{Downgrading, HeldLock, Sharing, is_blocked};
use super::rollback::RollbackGuard;
use super::{Ask, Changed, Core, Hold, Kept, LeaseStore, Mailbox, Order, Release};
use crate::process::time::drift::valid_until;
use crate::renewal::{Renewal, Terms};
use crate::{
    AcquireRequest, BootInstant, Error, ErrorKind, GuardState, HandOver, Lease, LossReason, Mode, Outcome,
    OwnerId, Released, Result, Token, TokenBlock, Validity, ValidityCell,
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
    /// Whether the acquisition had to wait. Then there are probably other waiters.
    is_contended: bool,
    _kept: Option<Box<dyn Kept>>,
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
        Self::begin_on(terms, core, place, request, (owner, token), until)
    }

    /// The same for an acquisition that has not come to its end: the lease renews itself once it [is held](Self::is_held).
    pub(super) fn begin_early(
        core: &Arc<Core<S>>,
        place: &S::Place,
        request: &AcquireRequest,
        grant: (OwnerId, Token),
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let mut terms = Terms::of(&request.lease, core.ttl_of(&request.lease), sent);
        terms.auto = false;
        Self::begin_on(terms, core, place, request, grant, until)
    }

    fn begin_on(
        terms: Terms,
        core: &Arc<Core<S>>,
        place: &S::Place,
        request: &AcquireRequest,
        (owner, token): (OwnerId, Token),
        until: BootInstant,
    ) -> Self {
        let cell = ValidityCell::new(core.options.clock.clone(), until.min(terms.hold_until));
        let held = Arc::new(HeldLock::new(place.clone(), owner, Hold::of(request.mode)));
        let is_block = TokenBlock::start(token.get()) == token.get();
        let handovers = if is_block { core.options.local_handovers } else { 1 };
        Self {
            core: Arc::clone(core),
            renewal: core.renewers.add(core.store.node(place), Arc::clone(&held), terms, cell.clone()),
            held,
            tokens: TokenBlock::granted(token, handovers),
            validity: cell.validity(),
            cell,
            pending: PendingRelease::default(),
            is_contended: false,
            _kept: None,
        }
    }

    pub(super) fn contended(self, is_contended: bool) -> Self {
        Self { is_contended, ..self }
    }

    /// Keeps what its acquisition has to keep as long as there is a lease.
    pub(super) fn keeping(self, mailbox: Option<S::Mailbox>) -> Self {
        let kept = mailbox.and_then(|mailbox| mailbox.held(&self.validity));
        Self { _kept: kept, ..self }
    }

    /// Confirms a grant in the background: renews the lock for its full ttl now.
    pub(super) fn confirm(&self) {
        self.held.confirm_next();
        self.renewal.hasten();
    }

    /// Notes that the acquisition has come to its end, and renews the lease from now on; `false` if it has ended meanwhile.
    pub(super) fn is_held(&self) -> bool {
        self.renewal.renew_automatically();
        self.validity.is_valid()
    }

    /// Ends the lease by this request: `None` if the owner did not have the lock.
    pub(super) async fn end<T, F: Future<Output = Result<Option<T>>>>(
        &self,
        request: impl FnOnce(S::Place, OwnerId) -> F,
    ) -> Result<Option<T>> {
        self.renewal.stop().await;
        let ended = request(self.held.place.clone(), self.held.owner).await?;
        self.cell.lose(if ended.is_some() { LossReason::Released } else { LossReason::Removed });
        Ok(ended)
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
        self.renewal.extend(self.core.without_skew(ttl)).await.deadline(capabilities.backend)
    }

    async fn leave(&self, ttl: Duration) -> Result<BootInstant> {
        self.held.leave();
        self.extend(ttl).await
    }

    async fn verify(&self) -> Result<GuardState> {
        if !self.core.store.holds(&self.held.place, self.held.owner).await? {
            self.cell.lose(LossReason::Removed);
        }
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        // As a renewal, so that no renewal in the exclusive mode is in flight at the same time.
        let downgrading = Downgrading::begin(&self.held);
        let backend = self.core.backend();
        let shared = until_free(&self.core, &self.held.place, || async {
            match self.renewal.renew().await.deadline(backend) {
                Ok(_) if downgrading.is_done() => Ok(Changed::Done(())),
                Ok(_) => Ok(Changed::Blocked),
                Err(error) if is_blocked(&error) => Ok(Changed::Blocked),
                Err(error) => Err(error),
            }
        });
        let shared = shared.await;
        let sharing = downgrading.end();
        match shared {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            // A background renewal may have downgraded it meanwhile.
            Err(error) => Err(error.with_outcome(match sharing {
                Sharing::No => Outcome::NotApplied,
                Sharing::Requested | Sharing::Possible => Outcome::Unknown,
            })),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let mut sent = match self.begin_release() {
            Ok(sent) => sent,
            Err(known) => return Ok(known),
        };
        let (Core { store, options, .. }, HeldLock { place, owner, .. }) = (&*self.core, &*self.held);
        let (hold, is_contended) = (self.held.hold(), self.is_contended);
        let mut pauses = Pauses::default();
        let found = loop {
            let on = store.order(place).await.map_err(|error| sent.doubted(error))?;
            let released = store.release(&on, place, *owner, Release::Lock { hold, is_contended }).await;
            drop(on);
            match released {
                Ok(Changed::Done(()) | Changed::NotHeldAnyMore) => break true,
                Ok(Changed::NotHeld) => break false,
                // The lease has expired: nobody waits for this any more.
                Ok(Changed::Blocked) if sent.is_over(options.clock.now()) => break true,
                Ok(Changed::Blocked) => pauses.wait(&**store, place).await,
                // The server may just have closed the connection as idle.
                Err(error) if error.code() == "broken" && !sent.maybe_done => sent.maybe_done = true,
                Err(error) => return Err(sent.doubted(error)),
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
        let (core, HeldLock { place, owner, .. }) = (&*self.core, &*self.held);
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
        self.held.hold() == Hold::Alone && !self.pending.is_sent() && self.validity.is_valid()
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
        let asked = core.options.clock.now();
        let to = Ask::new(rollback.owner, next.mode, ttl, &next.owner);
        match core.store.hand_over(&on, &place, self.held.owner, &to).await {
            Ok(Changed::Done(token)) => {
                self.cell.lose(LossReason::Released);
                let sent = on.counts_from(asked);
                let until = valid_until(sent, ttl);
                if core.options.clock.now() >= until {
                    return Ok(Some(taken_back(rollback, release).await));
                }
                let lease = Self::begin(&core, &place, next, (rollback.owner, token), (sent, until));
                let mut lease = lease.contended(self.is_contended).keeping(rollback.disarm());
                lease.tokens = self.tokens.succeeded_by(token, core.options.clock.now());
                Ok(Some(HandOver::HandedOver(Box::new(lease))))
            }
            Ok(Changed::NotHeld | Changed::NotHeldAnyMore) => {
                rollback.answered(false);
                self.cell.lose(LossReason::Removed);
                Ok(Some(HandOver::Released(Released::AlreadyLost)))
            }
            Ok(Changed::Blocked) => {
                rollback.answered(false);
                self.pending.not_applied(release);
                Ok(None)
            }
            Err(error) if error.outcome() == Outcome::Applied => {
                rollback.refused();
                self.cell.lose(LossReason::Released);
                Ok(Some(taken_back(rollback, release).await))
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

/// Takes a lock back that was handed over to a task that cannot use it.
async fn taken_back<S: LeaseStore>(rollback: RollbackGuard<S>, release: SentRelease) -> HandOver {
    let _ = rollback.now().await;
    HandOver::Released(release.in_time())
}
