//! The lease of a lock.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::pending_release::{PendingRelease, SentRelease};
use lock_core::renewal::{Renewal, Terms};
use lock_core::{
    AcquireRequest, BootInstant, Error, GuardState, HandOver, Lease, LossReason, Mode, Outcome, OwnerId,
    Released, Result, Token, TokenBlock, Validity, ValidityCell,
};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::error::{BACKEND, check_ttl};
use crate::fence::Fencing;
use crate::locked_row::{LockedRow, until_free};
use crate::renew::HeldLock;
use crate::rollback::RollbackGuard;
use crate::server::{Ask, Changed};

/// The lease of a lock in the database.
#[derive(Debug)]
pub(crate) struct PostgresLease {
    context: Arc<Context>,
    held: Arc<HeldLock>,
    tokens: TokenBlock,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    pending: PendingRelease,
    /// Whether the lock is, or may have become, a share.
    may_be_shared: AtomicBool,
}

impl PostgresLease {
    /// Creates the lease of a lock that was requested at `sent` and is valid until `until`.
    pub(crate) fn begin(
        context: &Arc<Context>,
        name: &Arc<str>,
        request: &AcquireRequest,
        (owner, token): (OwnerId, Token),
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let terms = Terms::of(&request.lease, context.ttl_of(&request.lease), sent);
        let cell = ValidityCell::new(context.clock.clone(), until.min(terms.hold_until));
        let held = Arc::new(HeldLock { name: Arc::clone(name), owner });
        Self {
            context: Arc::clone(context),
            renewal: context.renewer.add(Arc::clone(&held), terms, cell.clone()),
            held,
            tokens: TokenBlock::granted(token, context.local_handovers),
            validity: cell.validity(),
            cell,
            pending: PendingRelease::default(),
            may_be_shared: AtomicBool::new(request.mode != Mode::Exclusive),
        }
    }

    /// Confirms a grant in the background: renews the lock for its full ttl now.
    pub(crate) fn confirm(&self) {
        self.renewal.hasten();
    }
}

#[async_trait]
impl Lease for PostgresLease {
    fn token(&self) -> Token {
        self.tokens.token()
    }

    /// Its digest, as others see it: who knows the id itself can release the lock.
    fn owner(&self) -> OwnerId {
        digest(self.held.owner)
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let (server, name) = (Arc::clone(&self.context.server), Arc::clone(&self.held.name));
        Some(Arc::new(Fencing { server, name }))
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        check_ttl(ttl)?;
        self.renewal.extend(ttl).await.deadline(BACKEND)
    }

    async fn verify(&self) -> Result<GuardState> {
        if !self.context.server.holds(&self.held.name, self.held.owner).await? {
            self.cell.lose(LossReason::Removed);
        }
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        let (server, HeldLock { name, owner }) = (&self.context.server, &*self.held);
        let ttl = self.renewal.longest_ttl();
        // Whatever becomes of the request: no other task of this process gets the lock as an exclusive one.
        self.may_be_shared.store(true, Ordering::Relaxed);
        let shared =
            until_free(server, name, server.command_timeout(), || server.downgrade(name, *owner, ttl));
        match shared.await? {
            Some(()) => Ok(()),
            None => Err(self.lost()),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let mut sent = match self.begin_release() {
            Ok(sent) => sent,
            Err(known) => return Ok(known),
        };
        let (server, HeldLock { name, owner }) = (&self.context.server, &*self.held);
        let mut locked = LockedRow::default();
        let found = loop {
            let on = server.connection().await?;
            let released = server.release(&on, name, *owner).await;
            drop(on);
            match released {
                Ok(Changed::Done(())) => break true,
                Ok(Changed::NotHeld) => break false,
                // The lease has expired: nobody waits for this any more.
                Ok(Changed::Locked) if sent.is_over(self.context.clock.now()) => break true,
                Ok(Changed::Locked) => locked.wait(server, name).await,
                // The server may just have closed the connection as idle.
                Err(error) if error.code() == "broken" && !sent.maybe_done => sent.maybe_done = true,
                Err(error) => return Err(error),
            }
        };
        self.cell.lose(LossReason::Released);
        Ok(sent.outcome(found))
    }

    /// The fence knows the block of the last grant only, so it would accept a token that another task has passed on.
    fn pass_on(&mut self, is_token_known: bool) -> bool {
        !is_token_known && self.can_stay() && self.tokens.advance(self.context.clock.now())
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        self.renewal.stop().await;
        let now = self.context.clock.now();
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
        let (server, HeldLock { name, owner }) = (&self.context.server, &*self.held);
        let raised = until_free(server, name, server.command_timeout(), || server.raise(name, *owner, floor));
        match raised.await? {
            Some(()) => Ok(()),
            None => Err(self.lost()),
        }
    }
}

impl PostgresLease {
    fn lost(&self) -> Error {
        self.cell.lose(LossReason::Removed);
        Error::lost(BACKEND)
    }

    /// Notes that a request that releases the lock is about to be sent; `Err` if the outcome is known without one.
    fn begin_release(&mut self) -> std::result::Result<SentRelease, Released> {
        let lasting = self.renewal.longest_ttl() + self.context.server.command_timeout();
        self.pending.begin(&self.validity, self.context.clock.now(), lasting)
    }

    /// Whether the lock may stay in this process: once, and only by a valid lease.
    fn can_stay(&self) -> bool {
        !self.may_be_shared.load(Ordering::Relaxed) && !self.pending.is_sent() && self.validity.is_valid()
    }

    /// Hands the lock over in one request; `None` if a release has to follow.
    async fn try_hand_over(&mut self, next: &AcquireRequest) -> Result<Option<HandOver>> {
        let Ok(release) = self.begin_release() else { return Ok(None) };
        let (context, name) = (Arc::clone(&self.context), Arc::clone(&self.held.name));
        let Ok(on) = context.server.connection().await else {
            self.pending.not_applied(release);
            return Ok(None);
        };
        let (ttl, info) =
            (context.ttl_of(&next.lease), serde_json::to_string(&*next.owner).unwrap_or_default());
        let mut rollback = RollbackGuard::new(&context.server, &name, ttl);
        rollback.arm(&on);
        let sent = context.clock.now();
        let to = Ask { name: &name, owner: rollback.owner, mode: next.mode, ttl, info: &info, queue: None };
        match context.server.hand_over(&on, self.held.owner, &to).await {
            Ok(Changed::Done(token)) => {
                self.cell.lose(LossReason::Released);
                let until = Context::valid_until(sent, ttl);
                if context.clock.now() >= until {
                    // The next task cannot use it: take it back.
                    rollback.now().await;
                    return Ok(Some(HandOver::Released(release.in_time())));
                }
                let mut lease = Self::begin(&context, &name, next, (rollback.owner, token), (sent, until));
                lease.tokens = self.tokens.succeeded_by(token, context.clock.now());
                rollback.disarm();
                Ok(Some(HandOver::HandedOver(Box::new(lease))))
            }
            Ok(Changed::NotHeld) => {
                rollback.answered(false);
                self.cell.lose(LossReason::Removed);
                Ok(Some(HandOver::Released(Released::AlreadyLost)))
            }
            Ok(Changed::Locked) => {
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

/// The digest of an owner id, as the server makes it.
fn digest(owner: OwnerId) -> OwnerId {
    let bytes = u128::from_str_radix(&owner.to_string(), 16).unwrap_or_default().to_be_bytes();
    let digest: String = Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    OwnerId::decode(&digest).unwrap_or(owner)
}
