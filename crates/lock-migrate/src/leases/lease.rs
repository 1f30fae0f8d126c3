//! The lease of a lock that is held on both stores, or on the new one with a tombstone on the old one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, BootInstant, Error, Expiry, GuardState, Lease, LockName, OwnerId, Released, Result,
    Revocation, Token, Validity, ValidityCell,
};

use tokio::runtime::Handle;

use crate::context::Context;
use crate::error::BACKEND;
use crate::leases::half::Half;
use crate::leases::halves::{Halves, Watched};
use crate::leases::lead::LARGEST_LEAD;
use crate::leases::tombstones::Reliance;
use crate::rungs::process::CountedGuard;
use crate::rungs::rung::Rung;

/// The lease of a lock that is held on both stores, or on the new one alone: with a tombstone on the old one, or after the seal.
#[derive(Debug)]
pub(crate) struct LadderLease {
    halves: Arc<Halves>,
    name: LockName,
    owner: OwnerId,
    token: Token,
    /// That of all that the guard relies on.
    validity: Validity,
    revocation: Option<Revocation>,
    /// The lock of the new store lasts for as long as its session: it was acquired before the time of the guard began.
    expiry: Expiry,
    /// Whether the guard was valid when its release began, and nothing was found lost since.
    was_held: Option<bool>,
    context: Arc<Context>,
    /// On the tombstone, where there is one.
    #[allow(dead_code, reason = "it ends with the lease")]
    reliance: Option<Reliance>,
    _guard: CountedGuard,
}

impl LadderLease {
    /// A lock that is held on both stores: valid while both are.
    pub(crate) fn both(
        context: &Arc<Context>,
        rung: Rung,
        request: &AcquireRequest,
        new: Half,
        old: Half,
    ) -> Self {
        let token = new.token().max(old.token());
        context.process.note_token(old.token());
        // First of all, so that the loss of the other half, which follows, is not taken for the reason.
        let loss = ValidityCell::new(context.clock.clone(), BootInstant::NEVER);
        let lease = Self::begin(context, rung, request, (new, Some(old)), token, loss);
        context.held.add(&lease.halves);
        lease
    }

    /// A lock of the new store, which relies on the tombstone on the old one.
    pub(crate) fn moved(
        context: &Arc<Context>,
        rung: Rung,
        request: &AcquireRequest,
        new: Half,
        token: Token,
        reliance: Reliance,
    ) -> Self {
        let lease = Self::begin(context, rung, request, (new, None), token, reliance.cell.clone());
        reliance.of_halves(&lease.halves);
        Self { reliance: Some(reliance), ..lease }
    }

    /// A lock of the new store, which was awaited before the seal, and granted after it.
    pub(crate) fn sealed(context: &Arc<Context>, request: &AcquireRequest, new: Half) -> Self {
        let (token, loss) = (new.token(), ValidityCell::new(context.clock.clone(), BootInstant::NEVER));
        Self::begin(context, Rung::New, request, (new, None), token, loss)
    }

    fn begin(
        context: &Arc<Context>,
        rung: Rung,
        request: &AcquireRequest,
        (new, old): (Half, Option<Half>),
        token: Token,
        loss: ValidityCell,
    ) -> Self {
        let default_ttl = context.to.capabilities().lease.default_ttl();
        let expiry = Expiry::begin(&context.clock, request.lease, default_ttl);
        let mut validity = loss.validity().and(expiry.cell().validity()).and(new.validity().clone());
        if let Some(old) = &old {
            validity = validity.and(old.validity().clone());
        }
        let is_watched = old.is_some() || expiry.expires();
        let watched = is_watched.then(|| Watched { validity: validity.clone(), runtime: Handle::current() });
        let (owner, revocation, name) = (new.owner(), new.revocation().cloned(), request.name.clone());
        let halves = Halves::new(loss, new, old, watched);
        if is_watched {
            context.later.add(&halves);
        }
        Self {
            halves,
            name,
            owner,
            token,
            validity,
            revocation,
            expiry,
            was_held: None,
            context: Arc::clone(context),
            reliance: None,
            _guard: context.process.count(rung),
        }
    }
}

#[async_trait]
impl Lease for LadderLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        self.revocation.as_ref()
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        // Before one of both is asked that would honour it.
        self.context.check_ttl(ttl)?;
        let until = self.context.clock.now() + ttl;
        self.expiry.shorten(until);
        if let Some(old) = &*self.halves.old.lock().await {
            self.context.process.note_ttl(ttl);
            old.extend(ttl).await?;
        }
        match &*self.halves.new.lock().await {
            Some(new) => new.extend(ttl).await?,
            None => return Err(Error::lost(BACKEND)),
        };
        match self.expiry.extend(until) {
            true => Ok(self.validity.until()),
            false => Err(Error::lost(BACKEND)),
        }
    }

    async fn verify(&self) -> Result<GuardState> {
        if let Some(old) = &*self.halves.old.lock().await {
            old.verify().await?;
        }
        if let Some(new) = &*self.halves.new.lock().await {
            new.verify().await?;
        }
        Ok(self.validity.state())
    }

    async fn release(&mut self) -> Result<Released> {
        let mut was_held = *self.was_held.get_or_insert_with(|| self.validity.is_valid());
        let mut failed = None;
        // The reverse of the order of acquisition. One store that does not answer leaves nothing on the other.
        for half in [&self.halves.old, &self.halves.new] {
            let mut half = half.lock().await;
            let Some(lock) = &mut *half else { continue };
            match lock.release().await {
                Ok(released) => {
                    was_held &= released == Released::Released;
                    self.was_held = Some(was_held);
                    *half = None;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if was_held => Ok(Released::Released),
            None => Ok(Released::AlreadyLost),
        }
    }

    async fn downgrade(&mut self) -> Result<()> {
        // In the order of acquisition: while the old lock is exclusive, no reader of any rung enters.
        match &mut *self.halves.new.lock().await {
            Some(new) => new.downgrade().await?,
            None => return Err(Error::lost(BACKEND)),
        }
        match &mut *self.halves.old.lock().await {
            Some(old) => old.downgrade().await,
            None => Ok(()),
        }
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        // All locks of the new store get larger tokens than that. After the seal, no clock of the old store counts.
        if !self.context.process.is_sealed() {
            self.context.check_lead(&self.name, floor, LARGEST_LEAD).await?;
        }
        // The new store first: the seal only knows of its tokens.
        match &*self.halves.new.lock().await {
            Some(new) => new.raise_token(floor).await?,
            None => return Err(Error::lost(BACKEND)),
        }
        match &*self.halves.old.lock().await {
            Some(old) => old.raise_token(floor).await,
            None => Ok(()),
        }
    }
}
