//! A lease that forwards everything, and reports how it ends.

use std::any::Any;
use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, BootInstant, GuardState, HandOver, Lease, Mode, OwnerId, Released, Result, Revocation,
    Token, Validity,
};

/// What a layer has to do with one lease. It is dropped with the lease.
pub(crate) trait Hold: Debug + Send + Sync + Sized + 'static {
    /// Runs a request of the lease.
    fn call<T: Send>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let _ = operation;
        request
    }

    /// The request of the next holder, as the lease below knows it.
    fn below<'a>(&self, next: &'a AcquireRequest) -> Result<Cow<'a, AcquireRequest>> {
        Ok(Cow::Borrowed(next))
    }

    /// The release or hand-over begins.
    fn ending(&self) {}

    /// The lock was released.
    fn released(&mut self, how: Released) {
        let _ = how;
    }

    /// The lock was handed over; returns the hold of the next holder, which has it in this mode, with this lease.
    fn handed_over(&mut self, mode: Mode, lease: &dyn Lease) -> Self;
}

/// A lease under a layer.
pub(crate) struct LayeredLease<H> {
    inner: Box<dyn Lease>,
    hold: H,
}

impl<H: Hold> LayeredLease<H> {
    pub(crate) fn boxed(inner: Box<dyn Lease>, hold: H) -> Box<dyn Lease> {
        Box::new(Self { inner, hold })
    }
}

#[async_trait]
impl<H: Hold> Lease for LayeredLease<H> {
    fn token(&self) -> Token {
        self.inner.token()
    }

    fn owner(&self) -> OwnerId {
        self.inner.owner()
    }

    fn validity(&self) -> &Validity {
        self.inner.validity()
    }

    fn revocation(&self) -> Option<&Revocation> {
        self.inner.revocation()
    }

    fn backend_specific(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.backend_specific()
    }

    #[cfg(unix)]
    fn locked_file(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.locked_file()
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        self.hold.call("extend", self.inner.extend(ttl)).await
    }

    async fn verify(&self) -> Result<GuardState> {
        self.hold.call("verify", self.inner.verify()).await
    }

    async fn release(&mut self) -> Result<Released> {
        self.hold.ending();
        let released = self.hold.call("release", self.inner.release()).await?;
        self.hold.released(released);
        Ok(released)
    }

    async fn hand_over(&mut self, next: &AcquireRequest) -> Result<HandOver> {
        self.hold.ending();
        let below = self.hold.below(next)?;
        match self.hold.call("hand over", self.inner.hand_over(&below)).await? {
            HandOver::HandedOver(lease) => {
                let hold = self.hold.handed_over(next.mode, &*lease);
                Ok(HandOver::HandedOver(Self::boxed(lease, hold)))
            }
            released => {
                if let HandOver::Released(how) = &released {
                    self.hold.released(*how);
                }
                Ok(released)
            }
        }
    }

    fn pass_on(&mut self, is_token_known: bool) -> bool {
        let passed_on = self.inner.pass_on(is_token_known);
        if passed_on {
            self.hold = self.hold.handed_over(Mode::Exclusive, &*self.inner);
        }
        passed_on
    }

    async fn downgrade(&mut self) -> Result<()> {
        self.hold.call("downgrade", self.inner.downgrade()).await
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        self.hold.call("raise token", self.inner.raise_token(floor)).await
    }
}

/// Without the owner id.
impl<H: Debug> Debug for LayeredLease<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredLease")
            .field("token", &self.inner.token())
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}
