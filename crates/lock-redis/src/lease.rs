//! A lock that is held on one server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renewal, Terms};
use lock_core::{
    AcquireRequest, BootInstant, Error, ErrorKind, GuardState, HandOver, Lease, LossReason, Mode, Outcome,
    OwnerId, Released, Result, Token, Validity, ValidityCell,
};
use redis_link::acquisitions::Registration;
use redis_link::keys::Keys;

use crate::config::LeaveFree;
use crate::context::Context;
use crate::error::BACKEND;
use crate::renew::{Downgrading, HeldLock, Sharing};
use crate::request::{Ask, Extension, Hold, Rotated};
use crate::rollback::RollbackGuard;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct RedisLease {
    context: Arc<Context>,
    held: Arc<HeldLock>,
    token: Token,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    releasing: Option<Releasing>,
    /// How often the lock was passed on inside this process before it came here.
    handovers: u32,
    /// Whether it had to be waited for, so that others most likely wait for it too.
    contended: bool,
    /// For how long its release leaves the lock free for clients that stand in no queue, if it does.
    leaves_free: Option<Duration>,
    /// As one that has waited in the queue: a grant that it is notified of is its own.
    _registration: Option<Registration>,
}

/// A release that was sent and is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Releasing {
    was_valid: bool,
    /// From then on the key has ended by itself.
    over: BootInstant,
    /// Whether an earlier request may have removed the key.
    maybe_done: bool,
}

impl RedisLease {
    /// Has the server keep the lock for the whole time to live, soon and in the background.
    pub(crate) fn confirm(&self) {
        self.held.notify_next();
        self.renewal.hasten();
    }

    /// The lease of a lock that was requested at `sent` and is the owner's until then at least.
    pub(crate) fn begin(
        context: &Arc<Context>,
        keys: &Arc<Keys>,
        request: &AcquireRequest,
        (owner, token): (OwnerId, Token),
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let hold_until = request.lease.max_hold.map_or(BootInstant::NEVER, |hold| sent + hold);
        let cell = ValidityCell::new(context.clock.clone(), until.min(hold_until));
        let mut terms = Terms::new(context.ttl_of(&request.lease));
        (terms.auto, terms.hold_until) = (request.lease.renewed, hold_until);
        let held = HeldLock::new(keys, owner, Hold::of(request.mode));
        Self {
            context: Arc::clone(context),
            renewal: context.renewers.add(keys, Arc::clone(&held), terms, cell.clone()),
            held,
            token,
            validity: cell.validity(),
            cell,
            releasing: None,
            handovers: 0,
            contended: false,
            leaves_free: context.leave_free.and_then(LeaveFree::draw),
            _registration: None,
        }
    }

    /// Has the registration of its acquisition from now on.
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
        self.token
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
        // As a renewal: none that knows only of the other form of the lock is on its way beside it.
        let downgrading = Downgrading::begin(&self.held);
        let renewed = self.renewal.renew().await;
        let sharing = downgrading.end();
        match renewed.deadline(BACKEND) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            // A renewal by itself may have done it meanwhile.
            Err(error) => Err(error.with_outcome(match sharing {
                Sharing::No => Outcome::NotApplied,
                Sharing::Asked | Sharing::Perhaps => Outcome::Unknown,
            })),
        }
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let sent = match self.begin_release() {
            Ok(sent) => sent,
            Err(known) => return Ok(known),
        };
        let (server, keys, owner) = (&self.context.server, &self.held.keys, self.held.owner);
        let ours = match (self.leaves_free, self.contended) {
            // Boxed, as what is rare here would make each release large.
            (Some(moment), _) => Box::pin(server.release_and_leave_free(keys, owner, moment)).await?,
            (None, true) => server.release_to_next(keys, owner).await?,
            (None, false) => server.release(keys, owner, None).await?,
        };
        self.cell.lose(LossReason::Released);
        let known_lost = ours == Some(false) && !sent.maybe_done;
        Ok(if known_lost { Released::AlreadyLost } else { sent.in_time() })
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
    /// Notes that a request leaves that may release the lock; or what is known without one.
    fn begin_release(&mut self) -> std::result::Result<Releasing, Released> {
        let standing = self.validity.state();
        if standing == GuardState::Lost(LossReason::Removed) {
            return Err(Released::AlreadyLost);
        }
        let now = self.context.clock.now();
        let over = now + self.renewal.longest_ttl() + self.context.server.command_timeout();
        let was_valid = !matches!(standing, GuardState::Lost(_));
        let sent = *self.releasing.get_or_insert(Releasing { was_valid, over, maybe_done: false });
        if now >= sent.over {
            return Err(sent.in_time());
        }
        self.releasing = Some(Releasing { maybe_done: true, ..sent });
        Ok(sent)
    }

    /// Only what is surely held is passed on, and it is tried once. After so many in a row the server
    /// decides who is next: others may wait there, in its queue or in ways of their own.
    fn can_hand_over_to(&self, next: &AcquireRequest) -> bool {
        next.mode == Mode::Exclusive
            && self.held.hold() == Hold::Alone
            && self.handovers + 1 < self.context.local_handovers
            && self.leaves_free.is_none()
            && self.releasing.is_none()
            && self.validity.is_valid()
    }

    /// Passes the lock on in one request; `None` when a release has to find out what became of it.
    async fn try_hand_over(&mut self, next: &AcquireRequest) -> Result<Option<HandOver>> {
        let Ok(releasing) = self.begin_release() else { return Ok(None) };
        let (context, keys) = (Arc::clone(&self.context), Arc::clone(&self.held.keys));
        let ttl = context.ttl_of(&next.lease);
        let info = context.owners.of(&next.owner);
        let mut rollback = RollbackGuard::new(&context.server, &keys, ttl);
        rollback.arm();
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
        match context.server.rotate(self.held.owner, &ask).await {
            Ok(Rotated::HandedOver(token)) => {
                self.cell.lose(LossReason::Released);
                let until = context.server.valid_until(sent, ttl);
                let lease = Extension { keys: &keys, owner: rollback.owner, hold: Hold::Alone, ttl };
                let replicated = context.server.await_replicas(&lease).await;
                if replicated.is_err() || context.clock.now() >= until {
                    // It is of no use to the next: it is taken back.
                    rollback.now().await;
                    return Ok(Some(HandOver::Released(releasing.in_time())));
                }
                let lease = Self::begin(&context, &keys, next, (rollback.owner, token), (sent.at, until));
                let mut lease = lease.contended(self.contended).registered(rollback.disarm());
                lease.handovers = self.handovers.saturating_add(1);
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
                    self.releasing = Some(releasing);
                }
                tracing::debug!(%error, "the lock is not passed on");
                Ok(None)
            }
        }
    }
}

impl Releasing {
    /// What a release that was in time answers.
    fn in_time(self) -> Released {
        if self.was_valid { Released::Released } else { Released::AlreadyLost }
    }
}
