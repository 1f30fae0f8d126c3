//! The entry of one acquisition in the wait queues of the masters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{OwnerId, Validity};
use redis_link::acquisitions::{Acquisitions, Registration};
use redis_link::push::Push;
use redis_link::take_back::Sent;

use crate::voting::ballot::{Entry, Wanted};
use crate::voting::quorum::OfEach;

/// The entry of one acquisition in the wait queue of each master.
///
/// Each master has its own queue, in the order in which the waits began by the waiters' clocks. So all queues have the same
/// order without any coordination. A release makes every master hand the lock over to the first waiter whose process listens.
/// The queue is a hint: a grant depends only on the key of the lock.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    owner: OwnerId,
    since: u64,
    grace: Duration,
    /// What each master has in its queue, or may have.
    entries: Mutex<OfEach<Option<Arc<Entry>>>>,
    /// The masters that may have it in their queue, as bits.
    queued: AtomicU64,
    /// Keeps the lock from being returned where it is handed over to this owner.
    registration: Registration,
}

impl QueueEntry {
    /// An entry for a wait that began at `since`, in microseconds since 1970, with an owner id of its own. A lock that is handed
    /// over is kept for `grace` until the owner confirms.
    pub(crate) fn new(
        masters: usize,
        since: u64,
        grace: Duration,
        acquisitions: &Arc<Acquisitions>,
    ) -> Arc<Self> {
        let owner = OwnerId::random();
        Arc::new(Self {
            owner,
            registration: acquisitions.register(owner),
            since,
            grace,
            entries: Mutex::new(OfEach::from_elem(None, masters)),
            queued: AtomicU64::new(0),
        })
    }

    /// The owner id of the acquisition.
    pub(crate) const fn owner(&self) -> OwnerId {
        self.owner
    }

    /// For how long a lock that is handed over is kept.
    pub(crate) const fn grace(&self) -> Duration {
        self.grace
    }

    /// Joins the queue of a master with the next claim there. The process listens to this channel: the master would take it for
    /// dead otherwise.
    pub(crate) fn join(&self, master: usize, push: &Push, inbox: &str, ttl: Duration, info: &str) {
        let Self { owner, since, grace, .. } = *self;
        let secret = &push.secret(owner);
        let entry = Entry::new(&Wanted { owner, secret, inbox, since, grace, ttl, info });
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)[master] = Some(Arc::new(entry));
    }

    /// The entry to send with a claim to a master, which may then have it in its queue.
    pub(crate) fn sent_to(&self, master: usize) -> Option<Arc<Entry>> {
        let entry = self.entries.lock().unwrap_or_else(PoisonError::into_inner)[master].clone()?;
        self.queued.fetch_or(1 << master, Ordering::AcqRel);
        Some(entry)
    }

    /// The entry that a master may have in its queue.
    pub(crate) fn queued_at(&self, master: usize) -> Option<Arc<Entry>> {
        self.may_be_queued(master).then(|| self.sent_to(master)).flatten()
    }

    /// Whether a master may have it in its queue, or had it there.
    pub(crate) fn may_be_queued(&self, master: usize) -> bool {
        self.queued.load(Ordering::Acquire) & (1 << master) != 0
    }

    /// Notes that the acquisition holds the lock while this is valid.
    pub(crate) fn holds(&self, validity: Validity) {
        self.registration.holds(validity);
    }

    /// Notes that the acquisition has ended, or ends: where the lock is handed over to it, it is returned.
    pub(crate) fn ends(&self) {
        self.registration.ends(Sent::Answered);
    }
}
