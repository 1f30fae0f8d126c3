//! The lease of a lock that is held on one store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::AcquireRequest;
use lock_core::{
    BootInstant, GuardState, HandOver, Lease, LockName, OwnerId, Released, Result, Revocation, Token,
    Validity,
};

use crate::context::Context;
use crate::leases::lead::RAISE_LEAD;
use crate::leases::shadow::Shadow;
use crate::rungs::process::CountedGuard;
use crate::rungs::rung::Rung;

/// The lease of a lock that is held on the old store, perhaps with a shadow, or on the new one after the seal.
#[derive(Debug)]
pub(crate) struct OneLease {
    lease: Box<dyn Lease>,
    shadow: Option<Shadow>,
    guard: CountedGuard,
    name: LockName,
    context: Arc<Context>,
}

impl OneLease {
    pub(crate) fn new(
        context: &Arc<Context>,
        rung: Rung,
        lease: Box<dyn Lease>,
        request: &AcquireRequest,
    ) -> Self {
        let guard = context.process.count(rung);
        if rung < Rung::New {
            context.process.note_token(lease.token());
        }
        let shadow =
            (rung == Rung::Shadow).then(|| Shadow::begin(context, request, lease.validity().clone()));
        Self { lease, shadow, guard, name: request.name.clone(), context: Arc::clone(context) }
    }
}

#[async_trait]
impl Lease for OneLease {
    fn token(&self) -> Token {
        self.lease.token()
    }

    fn owner(&self) -> OwnerId {
        self.lease.owner()
    }

    fn validity(&self) -> &Validity {
        self.lease.validity()
    }

    fn revocation(&self) -> Option<&Revocation> {
        self.lease.revocation()
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        // By the rule of both stores, so that a lock behaves alike on every rung.
        self.context.check_ttl(ttl)?;
        self.context.process.note_ttl(ttl);
        self.lease.extend(ttl).await
    }

    async fn verify(&self) -> Result<GuardState> {
        self.lease.verify().await
    }

    async fn release(&mut self) -> Result<Released> {
        if let Some(shadow) = &self.shadow {
            shadow.release().await;
        }
        self.lease.release().await
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        if !self.guard.is_in_force(&next.name) {
            // The next guard is on another rung.
            return Ok(HandOver::Released(self.release().await?));
        }
        if let Some(shadow) = &self.shadow {
            shadow.release().await;
        }
        Ok(match self.lease.hand_over(next).await? {
            HandOver::HandedOver(lease) => {
                HandOver::HandedOver(Box::new(Self::new(&self.context, self.guard.rung, lease, next)))
            }
            released => released,
        })
    }

    async fn downgrade(&mut self) -> Result<()> {
        // It is exclusive, and would be taken for a lock that was granted twice beside other readers.
        if let Some(shadow) = self.shadow.take() {
            shadow.release().await;
        }
        self.lease.downgrade().await
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        if self.guard.rung < Rung::New {
            // The seal raises the tokens of the new store above the old one's clock by more than that.
            self.context.check_lead(&self.name, floor, RAISE_LEAD).await?;
            self.context.process.note_token(floor);
        }
        self.lease.raise_token(floor).await
    }
}
