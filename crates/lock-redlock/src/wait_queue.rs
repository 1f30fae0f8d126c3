//! The line of those who wait for a lock, as one of them sees it.

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

/// The waiter of one wait in the line of each master.
///
/// Each master keeps its own line, in the order in which the waiting began by the clocks of those who wait, so that all
/// lines are alike though nobody compares them. Who gives a lock back has every master call the first in its line
/// whose process listens, and the others hold back on it for a moment. All this is a hint: what a master grants is
/// decided by its key alone.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    id: OwnerId,
    since: u64,
    /// For each master the channel on which we listen there, or did.
    inboxes: Mutex<Vec<Inbox>>,
    /// Where it may stand in the line, one bit for each master.
    stood: AtomicU64,
    left: AtomicBool,
    runtime: Option<Handle>,
    /// A call for it is its own, as long as it exists.
    registration: Registration,
}

#[derive(Clone, Debug, Default)]
struct Inbox {
    channel: Option<Arc<str>>,
    is_heard: bool,
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
            stood: AtomicU64::new(0),
            left: AtomicBool::new(false),
            runtime: Handle::try_current().ok(),
        })
    }

    pub(crate) const fn id(&self) -> OwnerId {
        self.id
    }

    /// Notes whether we hear what is told on this channel of a master; if not, we do not stand in its line, as whoever
    /// does not hear is taken for dead.
    pub(crate) fn hears(&self, master: usize, channel: &str, is_heard: bool) {
        let inbox = &mut self.inboxes()[master];
        inbox.is_heard = is_heard;
        if is_heard && inbox.channel.as_deref() != Some(channel) {
            inbox.channel = Some(channel.into());
        }
    }

    /// The waiter that it is to have in the line of a master: none of its own when the wait is over.
    pub(crate) fn waiter(&self, master: usize) -> Option<Waiter> {
        let Inbox { channel, is_heard } = self.inboxes()[master].clone();
        let since = (is_heard && !self.has_left()).then_some(self.since);
        if since.is_some() {
            self.stood.fetch_or(1 << master, Ordering::AcqRel);
        }
        Some(Waiter { id: self.id, inbox: channel?, since })
    }

    /// Whether it may stand, or have stood, in the line of a master.
    pub(crate) fn has_stood(&self, master: usize) -> bool {
        self.stood.load(Ordering::Acquire) & (1 << master) != 0
    }

    /// Whether the wait is over.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Ends the wait, with or without a lock: what its requests still do is to leave the lines.
    pub(crate) fn rise(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Ends the wait without a lock: leaves the lines in the background, and lets the next come up who was behind.
    pub(crate) fn leave(self: &Arc<Self>, masters: &Masters, keys: &Arc<Keys>) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        self.registration.ends(Sent::Answered);
        let Some(runtime) = &self.runtime else { return };
        let _runtime = runtime.enter();
        let stood = self.stood.load(Ordering::Acquire);
        let leaves = (0..masters.len()).filter(|master| stood & (1 << master) != 0).map(|number| {
            let (entry, master, keys) = (Arc::clone(self), Arc::clone(&masters[number]), Arc::clone(keys));
            let counted = master.voter.cleanup().count();
            async move {
                if let Some(waiter) = entry.waiter(number) {
                    // One that fails ends with the line, a few seconds after the last has asked.
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
