//! The locks of a guard on both stores, until they are released.

use std::mem;
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};

use futures_util::future::join_all;
use lock_core::{LossReason, Validity, ValidityCell};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::leases::half::Half;
use crate::leases::later::Begin;

/// The locks of a guard, until they are released.
#[derive(Debug)]
pub(crate) struct Halves {
    /// Ends the guard, whatever its locks do.
    loss: ValidityCell,
    pub(crate) new: Mutex<Option<Half>>,
    /// The lock of the old store; none where a tombstone is in its place.
    pub(crate) old: Mutex<Option<Half>>,
    /// Of a guard that has both, or ends by itself.
    watched: Option<Watched>,
}

/// How the end of a guard is noticed, to give back what it has.
#[derive(Debug)]
pub(crate) struct Watched {
    /// That of the whole guard.
    pub(crate) validity: Validity,
    pub(crate) runtime: Handle,
}

/// The renewal of one half would keep it for as long as the guard lives, though the other is lost, or its time is over.
impl Begin for Halves {
    fn begin(self: Arc<Self>) {
        let Some(Watched { validity, runtime }) = &self.watched else { return };
        let (halves, validity) = (Arc::downgrade(&self), validity.clone());
        drop(runtime.spawn(async move {
            let reason = validity.lost().await;
            if reason == LossReason::Released {
                // The release that has begun returns both, before it is answered.
                return;
            }
            if let Some(halves) = halves.upgrade() {
                halves.end(reason).await;
            }
        }));
    }
}

impl Halves {
    pub(crate) fn new(
        loss: ValidityCell,
        new: Half,
        old: Option<Half>,
        watched: Option<Watched>,
    ) -> Arc<Self> {
        Arc::new(Self { loss, new: Mutex::new(Some(new)), old: Mutex::new(old), watched })
    }

    /// Ends the guard, and gives back what is left; what does not answer is released in the background.
    pub(crate) async fn end(&self, reason: LossReason) {
        self.loss.lose(reason);
        drop(self.old.lock().await.take());
        drop(self.new.lock().await.take());
    }
}

/// The guards that hold the locks of both stores.
#[derive(Debug, Default)]
pub(crate) struct HeldGuards(StdMutex<Vec<Weak<Halves>>>);

impl HeldGuards {
    pub(crate) fn add(&self, halves: &Arc<Halves>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() == held.capacity() {
            held.retain(|halves| halves.strong_count() > 0);
        }
        held.push(Arc::downgrade(halves));
    }

    /// Ends all of them, as the end of their session does.
    pub(crate) async fn end(&self) {
        let held = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let held: Vec<_> = held.iter().filter_map(Weak::upgrade).collect();
        join_all(held.iter().map(|halves| halves.end(LossReason::SessionEnded))).await;
    }
}
