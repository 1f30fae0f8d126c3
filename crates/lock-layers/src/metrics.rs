//! Counters and histograms.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Layer;
use lock_core::{
    AcquireRequest, Acquired, Backend, Error, Lease, LockName, LossReason, Mode, Outcome, Result,
};
use metrics::{Label, SharedString, Unit, counter, describe_counter, describe_histogram, histogram};
use tokio::time::Instant;

use crate::hold::{End, Report, Watch};
use crate::layered::{Around, Layered};
use crate::lease::LayeredLease;
use crate::{mode_code, reason_code};

/// Records waits, holds, contention, losses and errors by the crate [`metrics`](::metrics).
///
/// | metric | type | labels | counts |
/// |---|---|---|---|
/// | `polylock_wait_seconds` | histogram | backend, mode, outcome | the time of each acquisition at the store: until it is granted, busy, or fails |
/// | `polylock_hold_seconds` | histogram | backend, mode, end | the time from each grant until the release is confirmed, or the loss noticed |
/// | `polylock_acquired_total` | counter | backend, mode | locks that the store granted |
/// | `polylock_busy_total` | counter | backend, mode | acquisitions that gave up, as another client holds the lock |
/// | `polylock_cancelled_total` | counter | backend, mode | acquisitions whose future was dropped |
/// | `polylock_handed_over_total` | counter | backend, mode | locks handed over to another task of the process |
/// | `polylock_released_total` | counter | backend, mode | locks that were held until their release |
/// | `polylock_lost_total` | counter | backend, mode, reason | locks that were lost |
/// | `polylock_suspect_total` | counter | backend, mode | held locks whose server stopped answering, and that were not lost yet |
/// | `polylock_errors_total` | counter | backend, operation, code, outcome | requests that failed |
///
/// `outcome` of a wait is `acquired`, `busy`, `failed` or `cancelled`; `end` is `released`, `handed_over`, `lost`, or `left` for a
/// lock that was left to its time to live. `code` is [`Error::code`].
///
/// The names of locks are no labels, as there may be many: [`group_by`](Self::group_by) adds the label `group`.
///
/// Not there, because a layer cannot know it:
///
/// * The wait of a task behind others of its own process: it sends no request to the store.
/// * The latency of renewals: the backend renews by itself, and shows the new deadline only.
/// * Round trips: a backend may send one request or several for an operation.
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

    fn labels(&self, backend: &'static str, request: &AcquireRequest) -> LockLabels {
        let group = self.group.as_ref().map(|group| SharedString::from_owned(group(&request.name)));
        LockLabels { backend, mode: mode_code(request.mode), group }
    }
}

impl Layer for MetricsLayer {
    type Backend = Layered<Metrics>;

    fn layer(self, inner: Arc<dyn Backend>) -> Layered<Metrics> {
        describe();
        Layered::new(inner, Metrics { layer: self, watch: Arc::default() })
    }
}

/// The metrics of one backend.
#[derive(Debug)]
pub struct Metrics {
    layer: MetricsLayer,
    watch: Arc<Watch<MetricsReport>>,
}

impl Around for Metrics {
    async fn acquire(&self, inner: &dyn Backend, request: AcquireRequest) -> Result<Acquired> {
        let labels = self.layer.labels(inner.capabilities().backend, &request);
        let mut wait = Wait { labels, since: Instant::now(), outcome: "cancelled" };
        let acquired = inner.acquire(request).await;
        wait.outcome = match &acquired {
            Ok(Acquired::Held(_)) => "acquired",
            Ok(_) => "busy",
            Err(error) => {
                count_error(&wait.labels, "acquire", error);
                "failed"
            }
        };
        Ok(match acquired? {
            Acquired::Held(lease) => {
                let hold = self.watch.hold(&*lease, MetricsReport::new(wait.labels.clone()));
                Acquired::Held(LayeredLease::boxed(lease, hold))
            }
            other => other,
        })
    }

    async fn call<T: Send>(
        &self,
        inner: &dyn Backend,
        operation: &'static str,
        _: Option<&LockName>,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        request.await.inspect_err(|error| {
            let labels = LockLabels { backend: inner.capabilities().backend, mode: "", group: None };
            count_error(&labels, operation, error);
        })
    }
}

/// What all metrics of a lock are labelled with.
#[derive(Clone, Debug)]
struct LockLabels {
    backend: &'static str,
    mode: &'static str,
    group: Option<SharedString>,
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
}

/// A wait, which is recorded when it ends, also by a drop.
struct Wait {
    labels: LockLabels,
    since: Instant,
    outcome: &'static str,
}

impl Drop for Wait {
    fn drop(&mut self) {
        let labels = self.labels.with([("outcome", self.outcome)]);
        histogram!("polylock_wait_seconds", labels).record(self.since.elapsed());
        match self.outcome {
            "acquired" => counter!("polylock_acquired_total", self.labels.with([])).increment(1),
            "busy" => counter!("polylock_busy_total", self.labels.with([])).increment(1),
            "cancelled" => counter!("polylock_cancelled_total", self.labels.with([])).increment(1),
            _ => {}
        }
    }
}

/// The metrics of one lock that is held.
#[derive(Debug)]
struct MetricsReport {
    labels: LockLabels,
}

impl MetricsReport {
    const fn new(labels: LockLabels) -> Self {
        Self { labels }
    }
}

impl Report for MetricsReport {
    fn next(&self, mode: Mode, _: &dyn Lease) -> Self {
        Self::new(LockLabels { mode: mode_code(mode), ..self.labels.clone() })
    }

    async fn call<T: Send>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        request.await.inspect_err(|error| count_error(&self.labels, operation, error))
    }

    fn suspect(&self, _: Duration) {
        counter!("polylock_suspect_total", self.labels.with([])).increment(1);
    }

    fn ended(&self, end: End, held: Duration) {
        histogram!("polylock_hold_seconds", self.labels.with([("end", end.code())])).record(held);
        match end {
            End::Released => counter!("polylock_released_total", self.labels.with([])).increment(1),
            End::HandedOver => counter!("polylock_handed_over_total", self.labels.with([])).increment(1),
            End::Lost(reason) => self.lost(reason),
            End::Left => {}
        }
    }
}

impl MetricsReport {
    fn lost(&self, reason: LossReason) {
        counter!("polylock_lost_total", self.labels.with([("reason", reason_code(reason))])).increment(1);
    }
}

fn count_error(labels: &LockLabels, operation: &'static str, error: &Error) {
    let outcome = match error.outcome() {
        Outcome::NotApplied => "not_applied",
        Outcome::Applied => "applied",
        _ => "unknown",
    };
    let mut all = vec![
        Label::from_static_parts("backend", labels.backend),
        Label::from_static_parts("operation", operation),
        Label::from_static_parts("code", error.code()),
        Label::from_static_parts("outcome", outcome),
    ];
    all.extend(labels.group.clone().map(|group| Label::new("group", group)));
    counter!("polylock_errors_total", all).increment(1);
}

fn describe() {
    describe_histogram!("polylock_wait_seconds", Unit::Seconds, "The time of acquisitions at the store");
    describe_histogram!("polylock_hold_seconds", Unit::Seconds, "The time for which locks were held");
    for (name, what) in [
        ("polylock_acquired_total", "Locks that the store granted"),
        ("polylock_busy_total", "Acquisitions that gave up, as another client holds the lock"),
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
