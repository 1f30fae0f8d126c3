//! One of the two locks of a guard.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use lock_core::background::{Background, until_released};
use lock_core::{BootInstant, Clock, Lease, Released, Result};
use tokio::runtime::Handle;

/// One of the two locks of a guard. A lock that is dropped is released in the background, on the runtime that it was acquired on.
#[derive(Debug)]
pub(crate) struct Half {
    lease: Option<Box<dyn Lease>>,
    /// When it is dropped earlier, it is released then.
    kept: Option<(Clock, BootInstant)>,
    cleanup: Arc<Background>,
    runtime: Handle,
}

impl Half {
    pub(crate) fn new(lease: Box<dyn Lease>, cleanup: &Arc<Background>) -> Self {
        Self { lease: Some(lease), kept: None, cleanup: Arc::clone(cleanup), runtime: Handle::current() }
    }

    /// Keeps the lock until this time, even if it is dropped: a request may be under way until then that needs it. To
    /// [release](Self::release) it says that there is none any more.
    pub(crate) fn keep_until(&mut self, until: BootInstant, clock: &Clock) {
        self.kept = Some((clock.clone(), until));
    }

    /// Releases the lock. As for [`Lease::release`], it may be called again until it returns `Ok`.
    pub(crate) async fn release(&mut self) -> Result<Released> {
        let Some(lease) = &mut self.lease else { return Ok(Released::AlreadyLost) };
        let released = lease.release().await?;
        self.lease = None;
        Ok(released)
    }

    /// The lock itself, for a guard that has nothing else.
    pub(crate) fn into_lease(mut self) -> Box<dyn Lease> {
        self.lease.take().expect("a lock is used until it is released")
    }

    /// Gives up the lock that has nothing on its server any more.
    pub(crate) fn forget(mut self) {
        self.lease = None;
    }
}

impl Deref for Half {
    type Target = Box<dyn Lease>;

    fn deref(&self) -> &Self::Target {
        self.lease.as_ref().expect("a lock is used until it is released")
    }
}

impl DerefMut for Half {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.lease.as_mut().expect("a lock is used until it is released")
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let Some(mut lease) = self.lease.take() else { return };
        let kept = self.kept.take();
        self.cleanup.spawn(&self.runtime, async move {
            if let Some((clock, until)) = kept {
                clock.sleep_until(until).await;
            }
            until_released(&mut lease, |lease| lease.release()).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use lock_core::{Error, ErrorKind, GuardState, LossReason, OwnerId, Token, Validity, ValidityCell};
    use tokio::time::Instant;

    use super::*;

    const OUTAGE: Duration = Duration::from_secs(60);

    /// A lock whose store answers again then.
    #[derive(Debug)]
    struct OutOfReach(ValidityCell, Validity, Instant);

    #[async_trait]
    impl Lease for OutOfReach {
        fn token(&self) -> Token {
            Token::new(1)
        }

        fn owner(&self) -> OwnerId {
            OwnerId::random()
        }

        fn validity(&self) -> &Validity {
            &self.1
        }

        async fn extend(&self, _: Duration) -> Result<BootInstant> {
            unreachable!("it is only released")
        }

        async fn verify(&self) -> Result<GuardState> {
            unreachable!("it is only released")
        }

        async fn release(&mut self) -> Result<Released> {
            if Instant::now() < self.2 {
                return Err(Error::new(ErrorKind::Unavailable, "test"));
            }
            self.0.lose(LossReason::Released);
            Ok(Released::Released)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_that_is_dropped_is_released_however_long_its_store_is_out_of_reach() {
        let (cell, cleanup) = (ValidityCell::new(Clock::tokio(), BootInstant::NEVER), Arc::default());
        let validity = cell.validity();
        let lease = Box::new(OutOfReach(cell, validity.clone(), Instant::now() + OUTAGE));
        drop(Half::new(lease, &cleanup));
        cleanup.settled().await;
        assert_eq!(validity.state(), GuardState::Lost(LossReason::Released));
    }
}
