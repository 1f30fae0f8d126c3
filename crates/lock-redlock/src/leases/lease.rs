//! The lease of a lock on a quorum.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renewal, Terms};
use lock_core::{
    AcquireRequest, BootInstant, Clock, Error, GuardState, Lease, LossReason, Outcome, OwnerId, Released,
    Result, Token, TokenBlock, Validity, ValidityCell,
};
use redis_link::wall_clock::WallClock;
use tokio::time::{Instant, sleep};

use crate::context::Context;
use crate::error::{BACKEND, check_floor, check_ttl, no_quorum};
use crate::leases::release::PendingRelease;
use crate::leases::renew::HeldLock;
use crate::servers::fan_out::FanOut;
use crate::servers::late_policy::LatePolicy;
use crate::servers::masters::{deadlines, skipped};
use crate::voting::claims::Claims;
use crate::voting::quorum::quorum;
use crate::voting::unanswered::Unanswered;

/// The pause before an extension is retried.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(320);

#[derive(Debug)]
pub(crate) struct RedlockLease {
    claims: Arc<Claims>,
    longest_ttl: Duration,
    wall_clock: WallClock,
    clock: Clock,
    tokens: TokenBlock,
    cell: ValidityCell,
    validity: Validity,
    renewal: Renewal,
    /// Only accessed through `&mut`; the mutex makes the lease `Sync`.
    pending: Mutex<Option<PendingRelease>>,
}

impl RedlockLease {
    /// Creates the lease of a lock that was requested at `sent` and is valid until `until`.
    pub(crate) fn begin(
        context: &Context,
        claims: Arc<Claims>,
        request: &AcquireRequest,
        token: Token,
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let terms = Terms::of(&request.lease, claims.ttl, sent);
        Self::begin_on(terms, context, claims, token, until)
    }

    /// The same for an acquisition that has not come to its end: the lease renews itself once it [is held](Self::is_held).
    pub(crate) fn begin_early(
        context: &Context,
        claims: Arc<Claims>,
        request: &AcquireRequest,
        token: Token,
        (sent, until): (BootInstant, BootInstant),
    ) -> Self {
        let mut terms = Terms::of(&request.lease, claims.ttl, sent);
        terms.auto = false;
        Self::begin_on(terms, context, claims, token, until)
    }

    fn begin_on(
        terms: Terms,
        context: &Context,
        claims: Arc<Claims>,
        token: Token,
        until: BootInstant,
    ) -> Self {
        let cell = ValidityCell::new(context.clock.clone(), until.min(terms.hold_until));
        if let Some(entry) = &claims.entry {
            entry.holds(cell.validity());
        }
        let (validity, unanswered) = (cell.validity(), Unanswered::default());
        let held = HeldLock { claims: Arc::clone(&claims), token, validity, unanswered };
        Self {
            renewal: context.renewer.add(Arc::new(held), terms, cell.clone()),
            longest_ttl: context.longest_ttl,
            wall_clock: context.wall_clock.clone(),
            clock: context.clock.clone(),
            claims,
            tokens: TokenBlock::granted(token, context.local_handovers),
            validity: cell.validity(),
            cell,
            pending: Mutex::default(),
        }
    }

    /// Confirms a hand-over in the background: renews the lock for its full ttl now, and puts it on masters that have not handed
    /// it over.
    pub(crate) fn confirm(&self) {
        self.renewal.hasten();
    }

    /// Notes that the acquisition has come to its end, and renews the lease from now on; `false` if it has ended meanwhile.
    pub(crate) fn is_held(&self) -> bool {
        self.renewal.renew_automatically();
        self.validity.is_valid()
    }
}

#[async_trait]
impl Lease for RedlockLease {
    fn token(&self) -> Token {
        self.tokens.token()
    }

    fn owner(&self) -> OwnerId {
        self.claims.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        if !self.validity.is_valid() {
            return Err(Error::lost(BACKEND));
        }
        check_ttl(ttl, self.longest_ttl)?;
        let (mut pause, mut failed) = (FIRST_PAUSE, Error::lost(BACKEND));
        while self.validity.is_valid() {
            match self.renewal.extend(ttl).await.deadline(BACKEND) {
                // A failed extension releases nothing, and is retried until the lease ends.
                Err(error) if error.is_retryable() => failed = error,
                answered => return answered,
            }
            tokio::select! {
                _ = self.validity.lost() => return Err(failed),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
        Err(failed)
    }

    fn pass_on(&mut self, _: bool) -> bool {
        let is_released = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner).is_some();
        !is_released && self.tokens.advance(self.clock.now())
    }

    async fn verify(&self) -> Result<GuardState> {
        let masters = &self.claims.masters;
        let looks = masters.iter().enumerate().map(|(number, master)| {
            let (master, claims) = (Arc::clone(master), Arc::clone(&self.claims));
            async move {
                let asked = Instant::now();
                let seen = master.voter.inspect(&claims.keys).await;
                master.confirm(asked, seen, || claims.has_vote(number))
            }
        });
        let mut replies = FanOut::new(looks).until(deadlines(masters, self.renewal.longest_ttl()));
        let owner = self.claims.owner.to_string();
        let mut late = LatePolicy::new(masters);
        let (mut ours, mut not_ours) = (0, 0);
        while replies.outstanding() > 0 {
            let Some((master, reply)) = replies.next().await else { break };
            match late.note(master, reply) {
                Some(seen) if seen.value == owner => ours += 1,
                Some(_) => not_ours += 1,
                None => {}
            }
            if ours >= quorum(masters.len()) {
                return Ok(self.validity.state());
            }
            if not_ours > masters.len() - quorum(masters.len()) {
                self.cell.lose(LossReason::Removed);
                return Ok(self.validity.state());
            }
            late.wait_on(&mut replies);
        }
        Err(no_quorum(masters.len(), ours, late.errors()))
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        check_floor(floor, self.wall_clock.now())?;
        let (masters, ttl) = (&self.claims.masters, self.renewal.longest_ttl());
        let raises = skipped(masters).into_iter().enumerate().map(|(number, skipped)| {
            let claims = Arc::clone(&self.claims);
            async move {
                match skipped {
                    Some(error) => Err(error),
                    None => claims.raise(number, floor, ttl).await,
                }
            }
        });
        let mut replies = FanOut::new(raises).until(deadlines(masters, ttl));
        let mut late = LatePolicy::new(masters);
        let (mut raised, mut not_ours) = (0, 0);
        while replies.outstanding() > 0 {
            let Some((master, reply)) = replies.next().await else { break };
            match late.note(master, reply) {
                Some(true) => raised += 1,
                Some(false) => not_ours += 1,
                None => {}
            }
            // Every later quorum has a master of this one, which answers with a larger token.
            if raised >= quorum(masters.len()) {
                return Ok(());
            }
            if not_ours > masters.len() - quorum(masters.len()) {
                self.cell.lose(LossReason::Removed);
                return Err(Error::lost(BACKEND));
            }
            late.wait_for_the_late(&mut replies);
        }
        Err(no_quorum(masters.len(), raised, late.errors()))
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let (masters, ttl) = (&self.claims.masters, self.renewal.longest_ttl());
        let pending = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        if masters.iter().all(|master| master.client.is_closed()) {
            let closed = Error::closed(BACKEND);
            match pending {
                None => return Err(closed),
                Some(pending) if pending.is_decided() => {}
                // The masters may have carried the removals out.
                Some(_) => return Err(closed.with_outcome(Outcome::Unknown)),
            }
        }
        let pending = pending.get_or_insert_with(|| {
            PendingRelease::begin(self.validity.is_valid(), self.claims.remove_all(ttl))
        });
        let ours = pending.decide(masters, ttl).await?;
        let released = if ours && pending.was_valid() { Released::Released } else { Released::AlreadyLost };
        self.cell.lose(LossReason::Released);
        Ok(released)
    }
}
