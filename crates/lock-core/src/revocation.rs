//! The wish of somebody that a holder gives up its lock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether somebody has asked the holder of a lock to give it up. A wish only: the lock stays held.
#[derive(Clone, Debug)]
pub struct Revocation(Arc<Wish>);

/// The writing side of a [`Revocation`]: what a backend knows of the wish.
#[derive(Clone, Debug, Default)]
pub struct RevocationCell(Arc<Wish>);

#[derive(Debug, Default)]
struct Wish {
    requested: AtomicBool,
    told: Notify,
}

impl RevocationCell {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that somebody asked. There is no way back.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::Release);
        self.0.told.notify_waiters();
    }

    /// The reading side.
    #[must_use]
    pub fn revocation(&self) -> Revocation {
        Revocation(Arc::clone(&self.0))
    }
}

impl Revocation {
    /// Whether somebody has asked.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::Acquire)
    }

    /// Waits until somebody asks; for ever if nobody does.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn requested(&self) {
        let mut told = pin!(self.0.told.notified());
        // From here on no wish is missed.
        told.as_mut().enable();
        if !self.is_requested() {
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn a_wish_is_told_to_all_who_wait_and_stays() {
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
    async fn nobody_asks_when_nobody_can_any_more() {
        let revocation = RevocationCell::new().revocation();
        assert!(timeout(Duration::from_secs(5), revocation.requested()).await.is_err());
    }
}
