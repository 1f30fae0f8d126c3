//! The acquisitions under way in a session, and which of them are polled.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::task::{ArcWake, AtomicWaker, waker_ref};
use lock_core::OwnerId;

use crate::error::Stop;
use crate::poison::lock;
use crate::recipes::created::Rollback;

/// The acquisitions under way in a session.
#[derive(Default)]
pub(crate) struct Acquisitions(Mutex<HashMap<OwnerId, Arc<Acquisition>>>);

/// An acquisition, and whether it is polled.
pub(super) struct Acquisition {
    pub(super) rollback: Arc<Rollback>,
    pub(super) caller: AtomicWaker,
    /// A set of the flags below.
    flags: AtomicU8,
}

/// It was woken, and not polled since.
const WOKEN: u8 = 1;
/// A check has found it woken.
const FOUND: u8 = 2;
/// It is being polled, or has ended.
const POLLED: u8 = 4;
/// It is rolled back.
const TAKEN_BACK: u8 = 8;
/// Its connection was closed while it was polled: that poll ends it.
const CLOSED: u8 = 16;

impl Acquisitions {
    pub(super) fn all(&self) -> Vec<Arc<Acquisition>> {
        lock(&self.0).values().cloned().collect()
    }
}

impl Acquisition {
    pub(super) fn poll<T>(
        self: &Arc<Self>,
        acquiring: Pin<&mut impl Future<Output = Result<T, Stop>>>,
        context: &Context<'_>,
    ) -> Poll<Result<T, Stop>> {
        self.caller.register(context.waker());
        let polled = |flags| (flags & TAKEN_BACK == 0).then_some(POLLED);
        if self.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, polled).is_err() {
            return Poll::Ready(Err(Stop::StartOver));
        }
        let polled = acquiring.poll(&mut Context::from_waker(&waker_ref(self)));
        if polled.is_pending() && self.flags.fetch_and(!POLLED, Ordering::AcqRel) & CLOSED > 0 {
            return Poll::Ready(Err(Stop::StartOver));
        }
        polled
    }

    /// Notes that its connection is closed, and reports whether it is to be rolled back: the poll that is under way does
    /// that itself.
    pub(super) fn is_closed_unpolled(&self) -> bool {
        let close = |flags| match flags {
            taken_back if taken_back & TAKEN_BACK > 0 => None,
            polled if polled & POLLED > 0 => Some(polled | CLOSED),
            _ => Some(TAKEN_BACK),
        };
        let before = self.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, close);
        before.is_ok_and(|flags| flags & POLLED == 0)
    }

    /// Whether the check before this one has found it woken as well. It then makes no progress any more.
    pub(super) fn is_to_be_taken_back(&self) -> bool {
        let replace =
            |flags, by| self.flags.compare_exchange(flags, by, Ordering::AcqRel, Ordering::Acquire).is_ok();
        !replace(WOKEN, WOKEN | FOUND) && replace(WOKEN | FOUND, TAKEN_BACK)
    }
}

impl ArcWake for Acquisition {
    fn wake_by_ref(this: &Arc<Self>) {
        this.flags.fetch_or(WOKEN, Ordering::AcqRel);
        this.caller.wake();
    }
}

/// The place of an acquisition among those under way.
pub(super) struct Entry<'a> {
    all: &'a Acquisitions,
    pub(super) acquisition: Arc<Acquisition>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(all: &'a Acquisitions, rollback: &Arc<Rollback>) -> Self {
        let (rollback, caller, flags) = (Arc::clone(rollback), AtomicWaker::new(), AtomicU8::new(0));
        let acquisition = Arc::new(Acquisition { rollback, caller, flags });
        lock(&all.0).insert(acquisition.rollback.identity.owner, Arc::clone(&acquisition));
        Self { all, acquisition }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        lock(&self.all.0).remove(&self.acquisition.rollback.identity.owner);
    }
}
