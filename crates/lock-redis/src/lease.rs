//! The lease of a lock on one server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::migration::{Swapped, Tombstone};
use lock_core::pending_release::{PendingRelease, SentRelease};
use lock_core::renewal::{Renewal, Terms};
use lock_core::{
    AcquireRequest, BootInstant, Error, ErrorKind, GuardState, HandOver, Lease, LossReason, Mode, Outcome,
    OwnerId, Released, Result, Token, TokenBlock, Validity, ValidityCell,
};
use redis_link::acquisitions::Registration;
use redis_link::keys::Keys;

use crate::config::LeaveFree;
use crate::context::Context;
use crate::error::BACKEND;
use crate::renew::{Downgrading, HeldLock, Sharing};
use crate::request::{Ask, Extension, Hold, Release, Rotated};
use crate::rollback::RollbackGuard;
use crate::tombstone::lives_until;

/// The lease of a lock.
#[derive(Debug)]
pub(crate) struct RedisLease {
    context: Arc<Context>,
    held: Arc<HeldLock>,
    tokens: TokenBlock,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    pending: PendingRelease,
    /// Whether the acquisition had to wait. Then there are probably other waiters.
    contended: bool,
    /// Whether the release leaves the lock free for a moment, for clients without a queue entry.
    leaves_free: bool,
    /// Keeps a late grant to this owner from being returned.
    _registration: Option<Registration>,
}

impl RedisLease {
    /// Confirms a hand-over in the background: renews the lock for its full ttl now.
    pub(crate) fn confirm(&self) {
        self.held.notify_next();
        self.renewal.hasten();
    }

    /// Creates the lease of a lock that was requested at `sent` and is valid until `until`.
    pub(crate) fn begin(
        context: &Arc<Context>,
        keys: &Arc<Keys>,
        request: &AcquireRequest,
        (owner, token): (OwnerId, Token),
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let terms = Terms::of(&request.lease, context.ttl_of(&request.lease), sent);
        let cell = ValidityCell::new(context.clock.clone(), until.min(terms.hold_until));
        let held = HeldLock::new(keys, owner, Hold::of(request.mode));
        Self {
            context: Arc::clone(context),
            renewal: context.renewers.add(keys, Arc::clone(&held), terms, cell.clone()),
            held,
            tokens: TokenBlock::granted(token, context.local_handovers),
            validity: cell.validity(),
            cell,
            pending: PendingRelease::default(),
            contended: false,
            leaves_free: context.leave_free.is_some_and(LeaveFree::draw),
            _registration: None,
        }
    }

    /// Takes over the registration of its acquisition.
    pub(crate) fn registered(self, registration: Option<Registration>) -> Self {
        if let Some(registration) = &registration {
            registration.holds(self.validity.clone());
        }
        Self { _registration: registration, ..self }
    }

    pub(crate) fn contended(self, contended: bool) -> Self {
        Self { contended, ..self }
    }
}

#[async_trait]
impl Lease for RedisLease {
    fn token(&self) -> Token {
        self.tokens.token()
    }

    fn owner(&self) -> OwnerId {
        self.held.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        let ttl = self.context.without_skew(ttl)?;
        self.renewal.extend(ttl).await.deadline(BACKEND)
    }

    async fn verify(&self) -> Result<GuardState> {
        if !self.context.server.inspect(&self.held.keys, Some(self.held.owner)).await?.is_ours {
            self.cell.lose(LossReason::Removed);
        }
        Ok(self.validity.state())
    }

    async fn downgrade(&mut self) -> Result<()> {
        // As a renewal, so that no renewal in the exclusive mode is in flight at the same time.
        let downgrading = Downgrading::begin(&self.held);
        let renewed = self.renewal.renew().await;
        let sharing = downgrading.end();
        match renewed.deadline(BACKEND) {
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
        let sent = match self.begin_release() {
            Ok(sent) => sent,
            Err(known) => return Ok(known),
        };
        let (context, HeldLock { keys, owner, .. }) = (&self.context, &*self.held);
        let (how, now) = (self.how_to_release(), context.clock.now());
        let ours = context.server.release(keys, *owner, how).await?;
        if ours == Some(true) && how == Release::WANTED {
            context.kept.note(keys, now);
        }
        self.cell.lose(LossReason::Released);
        Ok(sent.outcome(ours != Some(false)))
    }

    fn pass_on(&mut self, _: bool) -> bool {
        self.can_stay() && self.tokens.advance(self.context.clock.now())
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        self.renewal.stop().await;
        if self.can_hand_over_to(next)
            && let Some(handed_over) = self.try_hand_over(next).await?
        {
            return Ok(handed_over);
        }
        Ok(HandOver::Released(self.release().await?))
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        let ttl = self.renewal.longest_ttl();
        match self.context.server.raise(&self.held.keys, self.held.owner, floor, ttl).await? {
            true => Ok(()),
            false => {
                self.cell.lose(LossReason::Removed);
                Err(Error::lost(BACKEND))
            }
        }
    }
}

impl RedisLease {
    fn how_to_release(&self) -> Release<'static> {
        match self.context.leave_free.filter(|_| self.leaves_free) {
            Some(LeaveFree { moment, .. }) => Release::LeaveFree(moment),
            None if self.contended => Release::ToNext,
            None if self.has_kept_token() => Release::Unwanted,
            None => Release::WANTED,
        }
    }

    /// Whether the last token has a ttl, which a release need not care for.
    fn has_kept_token(&self) -> bool {
        let now = self.context.clock.now();
        self.held.hold() == Hold::Alone && self.context.kept.has(&self.held.keys, now)
    }

    /// Replaces the lock by a tombstone, and ends the lease.
    pub(crate) async fn swap(&self, tombstone: &Tombstone) -> Result<Swapped> {
        self.renewal.stop().await;
        let sent = self.context.clock.now();
        let swapped = self.context.swap(&self.held.keys, self.held.owner, tombstone).await?;
        self.cell.lose(if swapped { LossReason::Released } else { LossReason::Removed });
        Ok(if swapped { Swapped::Done { until: lives_until(sent, tombstone) } } else { Swapped::NotHeld })
    }

    /// Notes that a request that releases the lock is about to be sent; `Err` if the outcome is known without one.
    fn begin_release(&mut self) -> std::result::Result<SentRelease, Released> {
        let lasting = self.renewal.longest_ttl() + self.context.server.client.command_timeout();
        self.pending.begin(&self.validity, self.context.clock.now(), lasting)
    }

    /// Whether the server may be asked to hand the lock over within the process. After the configured number in a row, or some
    /// milliseconds, it chooses the next holder, as other processes may be waiting.
    fn can_hand_over_to(&self, next: &AcquireRequest) -> bool {
        next.mode == Mode::Exclusive && self.can_stay() && self.tokens.may_stay(self.context.clock.now())
    }

    /// Whether the lock may stay in this process: once, and only by a valid lease.
    fn can_stay(&self) -> bool {
        self.held.hold() == Hold::Alone
            && !self.leaves_free
            && !self.pending.is_sent()
            && self.validity.is_valid()
    }

    /// Hands the lock over in one request; `None` if the outcome is unknown and a release has to follow.
    async fn try_hand_over(&mut self, next: &AcquireRequest) -> Result<Option<HandOver>> {
        let Ok(release) = self.begin_release() else { return Ok(None) };
        let (context, keys) = (Arc::clone(&self.context), Arc::clone(&self.held.keys));
        let ttl = context.ttl_of(&next.lease);
        let info = context.owners.of(&next.owner);
        let mut rollback = RollbackGuard::new(&context.server, &keys, ttl);
        let dispatch = rollback.arm(context.server.client.generation(&keys));
        let sent = context.server.moment();
        let ask = Ask {
            keys: &keys,
            owner: rollback.owner,
            mode: next.mode,
            ttl,
            info: &info,
            entry: None,
            is_confirmation: false,
        };
        match context.server.rotate(self.held.owner, &ask, &dispatch).await {
            Ok(Rotated::HandedOver(token)) => {
                self.cell.lose(LossReason::Released);
                let sent = context.server.written(sent, &dispatch);
                let until = context.server.valid_until(sent, ttl);
                let lease =
                    Extension { keys: &keys, owner: rollback.owner, hold: Hold::Alone, ttl, shortens: false };
                let replicated = context.server.await_replicas(&lease).await;
                if replicated.is_err() || context.clock.now() >= until {
                    // The next task cannot use it: take it back.
                    rollback.now().await;
                    return Ok(Some(HandOver::Released(release.in_time())));
                }
                let lease = Self::begin(&context, &keys, next, (rollback.owner, token), (sent.at, until));
                let mut lease = lease.contended(self.contended).registered(rollback.disarm());
                lease.tokens = self.tokens.succeeded_by(token, context.clock.now());
                Ok(Some(HandOver::HandedOver(Box::new(lease))))
            }
            Ok(Rotated::NotOurs) => {
                rollback.answered();
                self.cell.lose(LossReason::Removed);
                Ok(Some(HandOver::Released(Released::AlreadyLost)))
            }
            Err(error) => {
                if error.outcome() == Outcome::NotApplied {
                    rollback.answered();
                    self.pending.not_applied(release);
                }
                tracing::debug!(%error, "the hand-over within the process failed; the lock is released");
                Ok(None)
            }
        }
    }
}
