//! The entry of one wait in the wait queues of the masters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::OwnerId;
use redis_link::acquisitions::{Acquisitions, Registration};
use redis_link::keys::Keys;
use redis_link::take_back::Sent;
use tokio::runtime::Handle;

use crate::ballot::{Request, TURN, Waiter};
use crate::fan_out::FanOut;
use crate::masters::Masters;

/// The entry of one wait in the wait queue of each master.
///
/// Each master has its own queue, in the order in which the waits began by the waiters' clocks. So all queues have the same
/// order without any coordination. A release makes every master notify the first waiter whose process listens, and refuse
/// the others for a moment. The queue is a hint: a grant depends only on the key of the lock.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    id: OwnerId,
    since: u64,
    /// The channel of each master on which the process listens, or did.
    inboxes: Mutex<Vec<Inbox>>,
    /// The masters that may have it in their queue, as bits.
    queued: AtomicU64,
    left: AtomicBool,
    runtime: Option<Handle>,
    /// Keeps notifications for this wait from being returned.
    registration: Registration,
}

#[derive(Clone, Debug, Default)]
struct Inbox {
    channel: Option<Arc<str>>,
    is_live: bool,
}

impl QueueEntry {
    /// A wait that began at `since`, in microseconds since 1970.
    pub(crate) fn new(masters: usize, since: u64, acquisitions: &Arc<Acquisitions>) -> Arc<Self> {
        let id = OwnerId::random();
        Arc::new(Self {
            id,
            registration: acquisitions.register(id),
            since,
            inboxes: Mutex::new(vec![Inbox::default(); masters]),
            queued: AtomicU64::new(0),
            left: AtomicBool::new(false),
            runtime: Handle::try_current().ok(),
        })
    }

    pub(crate) const fn id(&self) -> OwnerId {
        self.id
    }

    /// Sets whether the channel of a master is live. If not, this waiter does not join its queue: the master would take it
    /// for dead.
    pub(crate) fn set_live(&self, master: usize, channel: &str, is_live: bool) {
        let inbox = &mut self.inboxes()[master];
        inbox.is_live = is_live;
        if is_live && inbox.channel.as_deref() != Some(channel) {
            inbox.channel = Some(channel.into());
        }
    }

    /// The waiter for the queue of a master; without a start when the wait has ended, which removes it.
    pub(crate) fn waiter(&self, master: usize) -> Option<Waiter> {
        let Inbox { channel, is_live } = self.inboxes()[master].clone();
        let since = (is_live && !self.has_left()).then_some(self.since);
        if since.is_some() {
            self.queued.fetch_or(1 << master, Ordering::AcqRel);
        }
        Some(Waiter { id: self.id, inbox: channel?, since })
    }

    /// Whether it is, or was, perhaps in the queue of a master.
    pub(crate) fn may_be_queued(&self, master: usize) -> bool {
        self.queued.load(Ordering::Acquire) & (1 << master) != 0
    }

    /// Whether the wait has ended.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Ends the wait, with or without the lock: further requests remove it from the queues.
    pub(crate) fn end(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Ends the wait without the lock: leaves the queues in the background, and has the next waiter notified.
    pub(crate) fn leave(self: &Arc<Self>, masters: &Masters, keys: &Arc<Keys>) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        self.registration.ends(Sent::Answered);
        let Some(runtime) = &self.runtime else { return };
        let _runtime = runtime.enter();
        let queued = self.queued.load(Ordering::Acquire);
        let leaves = (0..masters.len()).filter(|master| queued & (1 << master) != 0).map(|number| {
            let (entry, master, keys) = (Arc::clone(self), Arc::clone(&masters[number]), Arc::clone(keys));
            let counted = master.voter.cleanup().count();
            async move {
                if let Some(waiter) = entry.waiter(number) {
                    // If this fails, the entry expires with the queue, seconds after the last waiter asked.
                    let vacate = Request::vacate(&keys, entry.id, Some(&waiter), Some(TURN));
                    drop(master.voter.vacate(&vacate).await);
                }
                drop(counted);
            }
        });
        drop(FanOut::new(leaves));
    }

    fn inboxes(&self) -> MutexGuard<'_, Vec<Inbox>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
