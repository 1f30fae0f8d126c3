//! The request that a holder releases its lock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether the holder of a lock was asked to release it. A request only: the lock stays held.
#[derive(Clone, Debug)]
pub struct Revocation(Arc<Request>);

/// The writing side of a [`Revocation`], for backends.
#[derive(Clone, Debug, Default)]
pub struct RevocationCell(Arc<Request>);

#[derive(Debug, Default)]
struct Request {
    requested: AtomicBool,
    notify: Notify,
}

impl RevocationCell {
    /// A cell without a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a request. It cannot be withdrawn.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// The reading side.
    #[must_use]
    pub fn revocation(&self) -> Revocation {
        Revocation(Arc::clone(&self.0))
    }
}

impl Revocation {
    /// Whether there was a request.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::Acquire)
    }

    /// Waits for a request; for ever if there is none.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn requested(&self) {
        let mut notified = pin!(self.0.notify.notified());
        // Registered before the flag is read, so that no request is missed.
        notified.as_mut().enable();
        if !self.is_requested() {
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn a_request_notifies_all_waiters_and_stays() {
        let cell = RevocationCell::new();
        let (early, late) = (cell.revocation(), cell.revocation());
        assert!(!early.is_requested());
        assert!(timeout(Duration::from_secs(5), early.requested()).await.is_err());
        let waiting = tokio::spawn(async move { early.requested().await });
        tokio::task::yield_now().await;
        cell.request();
        cell.request();
        waiting.await.unwrap();
        drop(cell);
        assert!(late.is_requested());
        late.requested().await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_comes_from_a_dropped_cell() {
        let revocation = RevocationCell::new().revocation();
        assert!(timeout(Duration::from_secs(5), revocation.requested()).await.is_err());
    }
}
