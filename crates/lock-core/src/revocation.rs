//! The wish of somebody that a holder gives up its lock.

use tokio::sync::watch;

/// Whether somebody has asked the holder of a lock to give it up. A wish only: the lock stays held.
#[derive(Clone, Debug)]
pub struct Revocation {
    requested: watch::Receiver<bool>,
}

/// The writing side of a [`Revocation`]: what a backend knows of the wish.
#[derive(Clone, Debug, Default)]
pub struct RevocationCell {
    requested: watch::Sender<bool>,
}

impl RevocationCell {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that somebody asked. There is no way back.
    pub fn request(&self) {
        self.requested.send_if_modified(|requested| !std::mem::replace(requested, true));
    }

    /// The reading side.
    #[must_use]
    pub fn revocation(&self) -> Revocation {
        Revocation { requested: self.requested.subscribe() }
    }
}

impl Revocation {
    /// Whether somebody has asked.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.requested.borrow()
    }

    /// Waits until somebody asks; for ever if nobody does.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn requested(&self) {
        if self.requested.clone().wait_for(|requested| *requested).await.is_err() {
            std::future::pending::<()>().await;
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
