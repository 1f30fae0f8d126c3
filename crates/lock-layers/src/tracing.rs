//! A span for each wait and each hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{Layer, Wait};
use lock_core::observe::{Acquisition, LockEvent, LockObserver, Observation};
use lock_core::{Error, LockName, Locks};
use tracing::field::Empty;
use tracing::{Span, debug, info_span, trace, warn};

use crate::{mode_code, reason_code};

/// Emits a span for each wait and each hold, and events for what happens to a lock, by the crate [`tracing`](::tracing).
///
/// [The page of layers](https://github.com/polylock/polylock/blob/main/docs/LAYERS.md#tracing) lists them, with their levels and fields. Their
/// target is `polylock`. What backends log while they acquire, extend or release appears inside these spans.
///
/// # Examples
///
/// ```
/// # use lock_core::MemoryConfig;
/// # use lock_layers::TracingLayer;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let locks = MemoryConfig::new().connect()?.layer(TracingLayer::new());
/// locks.mutex("orders/42").acquire().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TracingLayer {}

impl TracingLayer {
    /// A layer that emits to the subscriber of each thread.
    #[must_use]
    pub const fn new() -> Self {
        Self {}
    }
}

impl Layer for TracingLayer {
    fn layer(self, locks: Locks) -> Locks {
        locks.observe(self)
    }
}

impl LockObserver for TracingLayer {
    fn begin(&self, acquisition: &Acquisition<'_>) -> Box<dyn Observation> {
        let (name, backend, mode) =
            (acquisition.name.clone(), acquisition.backend, mode_code(acquisition.mode));
        let wait = match acquisition.wait {
            Wait::Never => "never",
            Wait::Until(_) => "until",
            _ => "forever",
        };
        let span = info_span!(
            target: "polylock",
            "lock_wait",
            lock = name.as_str(),
            backend,
            mode,
            wait,
            outcome = Empty,
            token = Empty,
            code = Empty,
        );
        Box::new(Traced { name, backend, mode, refused: AtomicBool::new(false), now: Mutex::new((span, 0)) })
    }

    fn failed(&self, _: &'static str, operation: &'static str, lock: Option<&LockName>, error: &Error) {
        let lock = lock.map(LockName::as_str);
        debug!(target: "polylock", lock, operation, %error, "the operation failed");
    }
}

/// One acquisition, and its lock.
#[derive(Debug)]
struct Traced {
    name: LockName,
    backend: &'static str,
    mode: &'static str,
    /// Whether the store has refused it.
    refused: AtomicBool,
    /// The span of the wait or of the hold, and the token of the hold.
    now: Mutex<(Span, u64)>,
}

/// Events repeat lock and token: the span may be disabled.
impl Observation for Traced {
    fn on(&self, event: &LockEvent, after: Duration) {
        let (lock, (span, token), after_ms) = (self.name.as_str(), self.now(), millis(after));
        match event {
            LockEvent::LeftQueue(queued) => {
                let queued_ms = millis(*queued);
                debug!(target: "polylock", parent: &span, lock, queued_ms, "waited behind other tasks of this process");
            }
            LockEvent::Refused(error) => self.refused(&span, error),
            LockEvent::Acquired { token, .. } => {
                let token = token.get();
                span.record("outcome", "acquired").record("token", token);
                debug!(target: "polylock", parent: &span, lock, token, waited_ms = after_ms, "acquired");
                let hold = self.hold(token);
                hold.follows_from(&span);
                *self.locked() = (hold, token);
            }
            LockEvent::Busy => _ = span.record("outcome", "busy"),
            LockEvent::Failed(error) => {
                span.record("outcome", "failed").record("code", error.code());
                self.refused(&span, error);
            }
            LockEvent::Cancelled => _ = span.record("outcome", "cancelled"),
            LockEvent::Renewed(remaining) => {
                let remaining_ms = millis(*remaining);
                trace!(target: "polylock", parent: &span, lock, token, remaining_ms, "renewed");
            }
            LockEvent::Suspect(remaining) => {
                let remaining_ms = millis(*remaining);
                warn!(target: "polylock", parent: &span, lock, token, remaining_ms, "the server does not answer");
            }
            LockEvent::Confirmed => {
                debug!(target: "polylock", parent: &span, lock, token, "the server answers again");
            }
            LockEvent::RequestFailed(operation, error) if !LOGGED_BY_THE_GUARD.contains(operation) => {
                debug!(target: "polylock", parent: &span, lock, operation, %error, "the operation failed");
            }
            LockEvent::Released => {
                span.record("end", "released");
                debug!(target: "polylock", parent: &span, lock, token, held_ms = after_ms, "released");
            }
            LockEvent::HandedOver => {
                let held_ms = after_ms;
                span.record("end", "handed_over");
                debug!(target: "polylock", parent: &span, lock, token, held_ms, "handed over to another task");
            }
            LockEvent::Lost(reason) => {
                let (held_ms, reason) = (after_ms, reason_code(*reason));
                span.record("end", "lost");
                warn!(target: "polylock", parent: &span, lock, token, held_ms, reason, "lost");
            }
            LockEvent::Left => {
                let held_ms = after_ms;
                span.record("end", "left");
                debug!(target: "polylock", parent: &span, lock, token, held_ms, "left to its time to live");
            }
            _ => {}
        }
    }

    fn run(&self, step: &mut dyn FnMut()) {
        self.now().0.in_scope(step);
    }
}

impl Traced {
    /// Of a caller that goes on, the first refusal is a warning.
    fn refused(&self, span: &Span, error: &Error) {
        let lock = self.name.as_str();
        if self.refused.swap(true, Ordering::Relaxed) && error.can_pass() {
            debug!(target: "polylock", parent: span, lock, %error, "the acquisition failed again");
        } else {
            warn!(target: "polylock", parent: span, lock, %error, "the acquisition failed");
        }
    }

    fn hold(&self, token: u64) -> Span {
        info_span!(
            target: "polylock",
            "lock_hold",
            lock = self.name.as_str(),
            backend = self.backend,
            mode = self.mode,
            token,
            end = Empty,
        )
    }

    fn now(&self) -> (Span, u64) {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, (Span, u64)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The operations whose failures the guard repeats and logs.
const LOGGED_BY_THE_GUARD: [&str; 2] = ["release", "hand over"];

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
