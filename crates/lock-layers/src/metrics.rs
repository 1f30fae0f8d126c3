//! Counters and histograms.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Layer;
use lock_core::observe::{Acquisition, LockEvent, LockObserver, Observation};
use lock_core::{Error, LockName, Locks, Outcome};
use metrics::{Label, SharedString, Unit, counter, describe_counter, describe_histogram, histogram};

use crate::{mode_code, reason_code};

/// Records waits, holds, contention, losses and errors by the crate [`metrics`](::metrics).
///
/// [The page of layers](https://github.com/polylock/polylock/blob/main/docs/LAYERS.md#metrics) lists them, and what they count. The names
/// of locks are no labels, as there may be many: [`group_by`](Self::group_by) adds the label `group`.
///
/// # Examples
///
/// ```
/// # use lock_core::MemoryConfig;
/// # use lock_layers::MetricsLayer;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// // The part before the first slash: "orders".
/// let group = |name: &lock_core::LockName| name.as_str().split('/').next().unwrap_or_default().to_owned();
/// let locks = MemoryConfig::new().connect()?.layer(MetricsLayer::new().group_by(group));
/// locks.mutex("orders/42").acquire().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct MetricsLayer {
    group: Option<Group>,
}

type Group = Arc<dyn Fn(&LockName) -> String + Send + Sync>;

impl MetricsLayer {
    /// A layer that records to the global recorder, or to that of the thread.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the label `group` to all metrics of a lock. The function is to return few different texts, and must not block.
    #[must_use]
    pub fn group_by(mut self, group: impl Fn(&LockName) -> String + Send + Sync + 'static) -> Self {
        self.group = Some(Arc::new(group));
        self
    }
}

impl Layer for MetricsLayer {
    fn layer(self, locks: Locks) -> Locks {
        describe();
        locks.observe(self)
    }
}

impl LockObserver for MetricsLayer {
    fn begin(&self, acquisition: &Acquisition<'_>) -> Box<dyn Observation> {
        let group = self.group.as_ref().map(|group| SharedString::from_owned(group(acquisition.name)));
        Box::new(LockLabels { backend: acquisition.backend, mode: mode_code(acquisition.mode), group })
    }

    fn failed(&self, backend: &'static str, operation: &'static str, _: Option<&LockName>, error: &Error) {
        LockLabels { backend, mode: "", group: None }.count_error(operation, error);
    }
}

/// What all metrics of a lock are labelled with.
#[derive(Debug)]
struct LockLabels {
    backend: &'static str,
    mode: &'static str,
    group: Option<SharedString>,
}

impl Observation for LockLabels {
    fn on(&self, event: &LockEvent, after: Duration) {
        match event {
            LockEvent::LeftQueue(queued) => {
                histogram!("polylock_queued_seconds", self.with([])).record(*queued);
            }
            LockEvent::Refused(error) => self.count_error("acquire", error),
            LockEvent::Acquired { is_handed_over, .. } => {
                self.waited("acquired", after);
                if !is_handed_over {
                    self.count("polylock_acquired_total");
                }
            }
            LockEvent::Busy => {
                self.waited("busy", after);
                self.count("polylock_busy_total");
            }
            LockEvent::Failed(error) => {
                self.waited("failed", after);
                self.count_error("acquire", error);
            }
            LockEvent::Cancelled => {
                self.waited("cancelled", after);
                self.count("polylock_cancelled_total");
            }
            LockEvent::Suspect(_) => self.count("polylock_suspect_total"),
            LockEvent::RequestFailed(operation, error) => self.count_error(operation, error),
            LockEvent::Released => {
                self.held("released", after);
                self.count("polylock_released_total");
            }
            LockEvent::HandedOver => {
                self.held("handed_over", after);
                self.count("polylock_handed_over_total");
            }
            LockEvent::Lost(reason) => {
                self.held("lost", after);
                let labels = self.with([("reason", reason_code(*reason))]);
                counter!("polylock_lost_total", labels).increment(1);
            }
            LockEvent::Left => self.held("left", after),
            _ => {}
        }
    }
}

impl LockLabels {
    fn with<const N: usize>(&self, more: [(&'static str, &'static str); N]) -> Vec<Label> {
        let mut labels = Vec::with_capacity(N + 3);
        labels.push(Label::from_static_parts("backend", self.backend));
        labels.push(Label::from_static_parts("mode", self.mode));
        labels.extend(more.map(|(key, value)| Label::from_static_parts(key, value)));
        labels.extend(self.group.clone().map(|group| Label::new("group", group)));
        labels
    }

    fn count(&self, counter: &'static str) {
        counter!(counter, self.with([])).increment(1);
    }

    fn waited(&self, outcome: &'static str, waited: Duration) {
        histogram!("polylock_wait_seconds", self.with([("outcome", outcome)])).record(waited);
    }

    fn held(&self, end: &'static str, held: Duration) {
        histogram!("polylock_hold_seconds", self.with([("end", end)])).record(held);
    }

    fn count_error(&self, operation: &'static str, error: &Error) {
        let outcome = match error.outcome() {
            Outcome::NotApplied => "not_applied",
            Outcome::Applied => "applied",
            _ => "unknown",
        };
        let mut labels = vec![
            Label::from_static_parts("backend", self.backend),
            Label::from_static_parts("operation", operation),
            Label::from_static_parts("code", error.code()),
            Label::from_static_parts("outcome", outcome),
        ];
        labels.extend(self.group.clone().map(|group| Label::new("group", group)));
        counter!("polylock_errors_total", labels).increment(1);
    }
}

fn describe() {
    describe_histogram!("polylock_wait_seconds", Unit::Seconds, "The time of acquisitions");
    let queued = "The time of acquisitions behind other tasks of the process";
    describe_histogram!("polylock_queued_seconds", Unit::Seconds, queued);
    describe_histogram!("polylock_hold_seconds", Unit::Seconds, "The time for which locks were held");
    for (name, what) in [
        ("polylock_acquired_total", "Locks that the store granted"),
        ("polylock_busy_total", "Acquisitions that gave up, as others hold the lock"),
        ("polylock_cancelled_total", "Acquisitions whose future was dropped"),
        ("polylock_handed_over_total", "Locks handed over to another task of the process"),
        ("polylock_released_total", "Locks that were held until their release"),
        ("polylock_lost_total", "Locks that were lost"),
        ("polylock_suspect_total", "Held locks whose server stopped answering"),
        ("polylock_errors_total", "Requests that failed"),
    ] {
        describe_counter!(name, Unit::Count, what);
    }
}

impl fmt::Debug for MetricsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsLayer").field("group", &self.group.is_some()).finish()
    }
}
