//! Takes back the node of an acquisition that nobody polls any more, or whose connection is closed.
//!
//! A node keeps other clients out whether its acquisition goes on or not. A future that is kept and not polled, in a `select!`
//! loop for instance, would hold them up until the end of the session. So a task of each session looks at the acquisitions:
//! one that was woken and has not been polled for a second since is rolled back. Once it is polled again, it starts over.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::{ArcWake, AtomicWaker, waker_ref};
use lock_core::OwnerId;
use lock_core::background::Background;
use tokio::time::timeout;

use crate::error::Stop;
use crate::nodes::own_node::OwnNode;
use crate::poison::lock;
use crate::recipes::rollback::Rollback;
use crate::sessions::session::Session;

/// The acquisitions under way in a session.
#[derive(Default)]
pub(crate) struct Acquisitions(Mutex<HashMap<OwnerId, Arc<Acquisition>>>);

/// An acquisition, and whether it is polled.
struct Acquisition {
    rollback: Arc<Rollback>,
    caller: AtomicWaker,
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

/// Checks the acquisitions of a session until its end.
pub(crate) fn start(session: &Arc<Session>) {
    let (checked, ended) = (Arc::downgrade(session), session.ended.clone());
    drop(session.runtime.spawn(async move {
        while timeout(CHECK_INTERVAL, ended.cancelled()).await.is_err() {
            let Some(session) = checked.upgrade() else { return };
            session.acquisitions.check(&session);
        }
    }));
}

/// The result of acquiring; [`Stop::StartOver`] if it was rolled back meanwhile, as nobody polled it or its connection was closed.
pub(crate) async fn unless_taken_back<T>(
    own: &OwnNode,
    acquiring: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    let (entry, mut acquiring) = (Entry::new(&own.session.acquisitions, &own.rollback), pin!(acquiring));
    poll_fn(|context| entry.acquisition.poll(acquiring.as_mut(), context)).await
}

impl Acquisitions {
    fn check(&self, session: &Arc<Session>) {
        for acquisition in self.all().iter().filter(|acquisition| acquisition.is_to_be_taken_back()) {
            let rollback = &acquisition.rollback;
            tracing::debug!(path = rollback.path(), "an acquisition is rolled back, as nobody polls it");
            drop(rollback.begin(session));
        }
    }

    /// Takes back those of the connection that has this clean-up, as it is closed, whether they are polled or not.
    pub(crate) fn close(&self, session: &Arc<Session>, cleanup: &Background) {
        for acquisition in self.all().iter().filter(|acquisition| acquisition.rollback.is_of(cleanup)) {
            if acquisition.is_closed_unpolled() {
                drop(acquisition.rollback.begin(session));
            }
            acquisition.caller.wake();
        }
    }

    fn all(&self) -> Vec<Arc<Acquisition>> {
        lock(&self.0).values().cloned().collect()
    }
}

impl Acquisition {
    fn poll<T>(
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
    fn is_closed_unpolled(&self) -> bool {
        let close = |flags| match flags {
            taken_back if taken_back & TAKEN_BACK > 0 => None,
            polled if polled & POLLED > 0 => Some(polled | CLOSED),
            _ => Some(TAKEN_BACK),
        };
        let before = self.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, close);
        before.is_ok_and(|flags| flags & POLLED == 0)
    }

    /// Whether the check before this one has found it woken as well. It then makes no progress any more.
    fn is_to_be_taken_back(&self) -> bool {
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
struct Entry<'a> {
    all: &'a Acquisitions,
    acquisition: Arc<Acquisition>,
}

impl<'a> Entry<'a> {
    fn new(all: &'a Acquisitions, rollback: &Arc<Rollback>) -> Self {
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

/// How often the acquisitions are checked: one that is polled too late is taken back after one to two of these.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
