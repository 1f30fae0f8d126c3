//! One of the two locks of a guard.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use lock_core::background::Background;
use lock_core::{BootInstant, Clock, ErrorKind, Lease, Released, Result};
use tokio::runtime::Handle;
use tokio::time::sleep;

/// One of the two locks of a guard. A lock that is dropped is released in the background.
#[derive(Debug)]
pub(crate) struct Half {
    lease: Option<Box<dyn Lease>>,
    /// When it is dropped earlier, it is released then.
    kept: Option<(Clock, BootInstant)>,
    cleanup: Arc<Background>,
    runtime: Handle,
}

impl Half {
    pub(crate) fn new(lease: Box<dyn Lease>, cleanup: &Arc<Background>, runtime: &Handle) -> Self {
        Self { lease: Some(lease), kept: None, cleanup: Arc::clone(cleanup), runtime: runtime.clone() }
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
            for _ in 0..TRIES {
                match lease.release().await {
                    Ok(_) => return,
                    // The lock ends with its lease or session.
                    Err(error) if error.kind() == ErrorKind::Closed => return,
                    Err(error) => tracing::debug!(%error, "a lock that was given up could not be released; trying again"),
                }
                sleep(PAUSE).await;
            }
        });
    }
}

/// A lock that is not released by then ends with its lease or session.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
