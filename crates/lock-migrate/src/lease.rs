//! The lease of a lock that is held on both stores, or on the new one with a tombstone on the old one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    BootInstant, Error, GuardState, Lease, OwnerId, Released, Result, Revocation, Token, Validity,
    ValidityCell,
};
use tokio::sync::Mutex;

use crate::context::Context;
use crate::half::Half;
use crate::process::CountedGuard;
use crate::record::BACKEND;
use crate::rung::Rung;
use crate::tombstones::Reliance;

/// The lease of a lock that is held on both stores, or on the new one with a tombstone on the old one.
#[derive(Debug)]
pub(crate) struct LadderLease {
    halves: Arc<Halves>,
    owner: OwnerId,
    token: Token,
    /// That of all that the guard relies on.
    validity: Validity,
    revocation: Option<Revocation>,
    /// Whether the guard was valid when its release began, and nothing was found lost since.
    was_held: Option<bool>,
    context: Arc<Context>,
    /// On the tombstone, where there is one.
    _reliance: Option<Reliance>,
    _guard: CountedGuard,
}

/// The locks of a guard, until they are released.
#[derive(Debug)]
struct Halves {
    new: Mutex<Option<Half>>,
    /// The lock of the old store; none where a tombstone is in its place.
    old: Mutex<Option<Half>>,
}

impl LadderLease {
    /// A lock that is held on both stores: valid while both are.
    pub(crate) fn both(context: &Arc<Context>, rung: Rung, new: Half, old: Half) -> Self {
        // First, so that the loss of the other half, which follows, is not taken for the reason.
        let loss = ValidityCell::new(context.clock.clone(), BootInstant::NEVER);
        let validity = loss.validity().and(new.validity().clone()).and(old.validity().clone());
        let token = new.token().max(old.token());
        let lease = Self::of(context, rung, (new, Some(old)), token, validity.clone());
        // The renewal of one would keep it for as long as the guard lives, though the other is lost.
        let halves = Arc::downgrade(&lease.halves);
        context.runtime.spawn(async move {
            loss.lose(validity.lost().await);
            if let Some(halves) = halves.upgrade() {
                halves.give_back().await;
            }
        });
        lease
    }

    /// A lock of the new store, which relies on the tombstone on the old one.
    pub(crate) fn moved(
        context: &Arc<Context>,
        rung: Rung,
        new: Half,
        token: Token,
        reliance: Reliance,
    ) -> Self {
        let validity = new.validity().clone().and(reliance.cell.validity());
        Self { _reliance: Some(reliance), ..Self::of(context, rung, (new, None), token, validity) }
    }

    fn of(
        context: &Arc<Context>,
        rung: Rung,
        (new, old): (Half, Option<Half>),
        token: Token,
        validity: Validity,
    ) -> Self {
        let (owner, revocation) = (new.owner(), new.revocation().cloned());
        let halves = Arc::new(Halves { new: Mutex::new(Some(new)), old: Mutex::new(old) });
        let (context, guard) = (Arc::clone(context), context.process.count(rung));
        let (was_held, _reliance, _guard) = (None, None, guard);
        Self { halves, owner, token, validity, revocation, was_held, context, _reliance, _guard }
    }
}

impl Halves {
    /// Gives back what is left; what does not answer is released in the background.
    async fn give_back(&self) {
        drop(self.old.lock().await.take());
        drop(self.new.lock().await.take());
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
        if let Some(old) = &*self.halves.old.lock().await {
            self.context.process.note_ttl(ttl);
            old.extend(ttl).await?;
        }
        match &*self.halves.new.lock().await {
            Some(new) => new.extend(ttl).await?,
            None => return Err(Error::lost(BACKEND)),
        };
        Ok(self.validity.until())
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
        // The reverse of the order of acquisition.
        for half in [&self.halves.old, &self.halves.new] {
            let mut half = half.lock().await;
            if let Some(lock) = &mut *half {
                was_held &= lock.release().await? == Released::Released;
                self.was_held = Some(was_held);
                *half = None;
            }
        }
        Ok(if was_held { Released::Released } else { Released::AlreadyLost })
    }

    async fn downgrade(&mut self) -> Result<()> {
        if let Some(old) = &mut *self.halves.old.lock().await {
            old.downgrade().await?;
        }
        match &mut *self.halves.new.lock().await {
            Some(new) => new.downgrade().await,
            None => Err(Error::lost(BACKEND)),
        }
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        if let Some(old) = &*self.halves.old.lock().await {
            old.raise_token(floor).await?;
        }
        match &*self.halves.new.lock().await {
            Some(new) => new.raise_token(floor).await,
            None => Err(Error::lost(BACKEND)),
        }
    }
}
