//! What happens to a lock while it is held: reported once, by the lease itself or by the task that watches all leases.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{BootInstant, GuardState, Lease, LossReason, Mode, Released, Result, Validity};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::lease::Hold;

/// How often the leases are checked. The check reads memory only.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Where a layer reports what happens to one lock.
pub(crate) trait Report: Debug + Send + Sync + Sized + 'static {
    /// The report of the next holder, which has the same lock in this mode.
    fn next(&self, mode: Mode, lease: &dyn Lease) -> Self;

    /// Runs a request of the lease.
    fn call<T: Send>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send;

    /// The deadline has moved.
    fn renewed(&self, remaining: Duration) {
        let _ = remaining;
    }

    /// The server does not answer.
    fn suspect(&self, remaining: Duration) {
        let _ = remaining;
    }

    /// The server has answered again.
    fn confirmed(&self) {}

    /// The lock is not held any more. Called once.
    fn ended(&self, end: End, held: Duration);
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was released.
    Released,
    /// It was handed over to another task of this process.
    HandedOver,
    /// It was lost for this reason.
    Lost(LossReason),
    /// The lease was dropped without a release: the lock ends with its time to live or session.
    Left,
}

impl End {
    /// The end as a word for logs and metrics.
    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::HandedOver => "handed_over",
            Self::Lost(_) => "lost",
            Self::Left => "left",
        }
    }
}

/// The leases of one layer, and the task that watches them.
#[derive(Debug)]
pub(crate) struct Watch<R> {
    state: Mutex<WatchState<R>>,
}

#[derive(Debug)]
struct WatchState<R> {
    held: HashMap<u64, Arc<Held<R>>>,
    last_id: u64,
    /// It ends when nothing is held any more.
    task: Option<JoinHandle<()>>,
}

/// A lock that is held, or was.
#[derive(Debug)]
struct Held<R> {
    report: R,
    validity: Validity,
    since: Instant,
    seen: Mutex<Seen>,
}

/// What was reported so far.
#[derive(Debug)]
struct Seen {
    until: BootInstant,
    is_suspect: bool,
    /// Whether a release has begun: its outcome says whether the lock was lost.
    is_ending: bool,
    has_ended: bool,
}

/// The part of a lease that reports.
#[derive(Debug)]
pub(crate) struct WatchedHold<R: Report> {
    held: Arc<Held<R>>,
    id: u64,
    watch: Arc<Watch<R>>,
}

impl<R> Default for Watch<R> {
    fn default() -> Self {
        Self { state: Mutex::new(WatchState { held: HashMap::new(), last_id: 0, task: None }) }
    }
}

impl<R: Report> Watch<R> {
    /// Watches a lease that was just granted.
    pub(crate) fn hold(self: &Arc<Self>, lease: &dyn Lease, report: R) -> WatchedHold<R> {
        let validity = lease.validity().clone();
        let seen = Seen { until: validity.until(), is_suspect: false, is_ending: false, has_ended: false };
        let held = Arc::new(Held { report, validity, since: Instant::now(), seen: Mutex::new(seen) });
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        state.held.insert(id, Arc::clone(&held));
        // A task of a runtime that was shut down has finished.
        if state.task.as_ref().is_none_or(JoinHandle::is_finished) {
            let watch = Arc::downgrade(self);
            state.task = Handle::try_current().ok().map(|runtime| runtime.spawn(check_all(watch)));
        }
        drop(state);
        WatchedHold { held, id, watch: Arc::clone(self) }
    }

    fn state(&self) -> MutexGuard<'_, WatchState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks all leases until nothing is held.
async fn check_all<R: Report>(watch: Weak<Watch<R>>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(watch) = watch.upgrade() else { return };
        let held: Vec<_> = {
            let mut state = watch.state();
            if state.held.is_empty() {
                state.task = None;
                return;
            }
            state.held.values().cloned().collect()
        };
        for held in held {
            held.check();
        }
    }
}

impl<R: Report> Held<R> {
    /// Reports what has changed since the last check.
    fn check(&self) {
        let mut seen = self.seen();
        if seen.is_ending || seen.has_ended {
            return;
        }
        match self.validity.state() {
            GuardState::Lost(reason) => self.end(&mut seen, End::Lost(reason)),
            state => {
                let is_suspect = state == GuardState::Suspect;
                if is_suspect && !seen.is_suspect {
                    self.report.suspect(self.validity.remaining());
                } else if seen.is_suspect && !is_suspect {
                    self.report.confirmed();
                }
                let until = self.validity.until();
                if until != seen.until {
                    self.report.renewed(self.validity.remaining());
                }
                (seen.is_suspect, seen.until) = (is_suspect, until);
            }
        }
    }

    fn end(&self, seen: &mut Seen, end: End) {
        if !seen.has_ended {
            seen.has_ended = true;
            self.report.ended(end, self.since.elapsed());
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Report> WatchedHold<R> {
    fn end(&self, end: End) {
        self.held.end(&mut self.held.seen(), end);
    }
}

impl<R: Report> Hold for WatchedHold<R> {
    fn call<T: Send>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        self.held.report.call(operation, request)
    }

    fn ending(&self) {
        // A loss before the release is one.
        self.held.check();
        self.held.seen().is_ending = true;
    }

    fn released(&mut self, how: Released) {
        self.end(match how {
            Released::AlreadyLost => End::Lost(loss(&self.held.validity)),
            _ => End::Released,
        });
    }

    fn handed_over(&mut self, mode: Mode, lease: &dyn Lease) -> Self {
        self.end(End::HandedOver);
        self.watch.hold(lease, self.held.report.next(mode, lease))
    }
}

impl<R: Report> Drop for WatchedHold<R> {
    fn drop(&mut self) {
        self.held.check();
        self.end(End::Left);
        // Drop outside the mutex: the report may be the last of a span.
        let removed = self.watch.state().held.remove(&self.id);
        drop(removed);
    }
}

/// Why a lock that the release found lost was lost.
fn loss(validity: &Validity) -> LossReason {
    match validity.state() {
        GuardState::Lost(reason) if reason != LossReason::Released => reason,
        _ => LossReason::Removed,
    }
}
