//! A span for each wait and each hold.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Layer, Wait};
use lock_core::{AcquireRequest, Acquired, Backend, Error, Lease, LockName, Mode, Result, Token};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, info_span, trace, warn};

use crate::hold::{End, Report, Watch};
use crate::layered::{Around, Layered};
use crate::lease::LayeredLease;
use crate::{mode_code, reason_code};

/// Emits a span for each wait and each hold, and events for what happens to a lock, by the crate [`tracing`](::tracing).
///
/// The target of all of them is `polylock`.
///
/// | span | level | fields |
/// |---|---|---|
/// | `lock_wait` | info | lock, backend, mode, wait; at its end outcome (`acquired`, `busy`, `failed`, `cancelled`), token, code |
/// | `lock_hold` | info | lock, backend, mode, token; at its end, end (`released`, `handed_over`, `lost`, `left`) |
///
/// | event | level | fields |
/// |---|---|---|
/// | `acquired` | debug | lock, token, waited_ms |
/// | `the acquisition failed` | warn | lock, error |
/// | `renewed` | trace | lock, token, remaining_ms |
/// | `the server does not answer` | warn | lock, token, remaining_ms |
/// | `the server answers again` | debug | lock, token |
/// | `handed over to another task` | debug | lock, token, held_ms |
/// | `released` | debug | lock, token, held_ms |
/// | `lost` | warn | lock, token, held_ms, reason |
/// | `left to its time to live` | debug | lock, token, held_ms |
/// | `the operation failed` | debug | lock, operation, error |
///
/// * The span of a hold is a child of the span in which the lock was acquired, and follows from its wait. After a hand-over
///   it has no parent, and follows from the hold before.
/// * What backends log while they acquire, extend or release appears inside these spans. A failed release is not logged
///   here: the guard repeats it, and logs that.
/// * Losses, silent servers and renewals are noticed within 100 ms, those of the last moment by the release. Of several
///   renewals within that time one is shown.
/// * The wait of a task behind others of its own process has no span: it sends no request to the store.
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
    type Backend = Layered<Tracing>;

    fn layer(self, inner: Arc<dyn Backend>) -> Layered<Tracing> {
        Layered::new(inner, Tracing { watch: Arc::default() })
    }
}

/// The spans of one backend.
#[derive(Debug)]
pub struct Tracing {
    watch: Arc<Watch<HoldSpan>>,
}

impl Around for Tracing {
    async fn acquire(&self, inner: &dyn Backend, request: AcquireRequest) -> Result<Acquired> {
        let mut wait = WaitSpan::new(&request, inner.capabilities().backend);
        let (name, mode, goes_on) = (request.name.clone(), request.mode, request.is_repeated);
        let acquired = inner.acquire(request).instrument(wait.span.clone()).await;
        Ok(match acquired.inspect_err(|error| wait.failed(&name, error, goes_on && error.can_pass()))? {
            Acquired::Held(lease) => {
                wait.acquired(&name, lease.token());
                let span = HoldSpan::new(&Span::current(), &name, wait.backend, mode, lease.token());
                span.span.follows_from(&wait.span);
                let hold = self.watch.hold(&*lease, span);
                Acquired::Held(LayeredLease::boxed(lease, hold))
            }
            other => {
                wait.outcome = "busy";
                other
            }
        })
    }

    async fn call<T: Send>(
        &self,
        _: &dyn Backend,
        operation: &'static str,
        name: Option<&LockName>,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let lock = name.map(LockName::as_str);
        request.await.inspect_err(|error| {
            debug!(target: "polylock", lock, operation, %error, "the operation failed");
        })
    }
}

/// The span of a wait, whose outcome is recorded when it ends, also by a drop.
struct WaitSpan {
    span: Span,
    backend: &'static str,
    since: Instant,
    outcome: &'static str,
}

impl WaitSpan {
    fn new(request: &AcquireRequest, backend: &'static str) -> Self {
        let wait = match request.wait {
            Wait::Never => "never",
            Wait::Until(_) => "until",
            _ => "forever",
        };
        let span = info_span!(
            target: "polylock",
            "lock_wait",
            lock = request.name.as_str(),
            backend,
            mode = mode_code(request.mode),
            wait,
            outcome = Empty,
            token = Empty,
            code = Empty,
        );
        Self { span, backend, since: Instant::now(), outcome: "cancelled" }
    }

    fn acquired(&mut self, name: &LockName, token: Token) {
        self.outcome = "acquired";
        self.span.record("token", token.get());
        let (lock, token, waited_ms) = (name.as_str(), token.get(), millis(self.since.elapsed()));
        debug!(target: "polylock", parent: &self.span, lock, token, waited_ms, "acquired");
    }

    /// Of a caller that goes on, the reason was logged.
    fn failed(&mut self, name: &LockName, error: &Error, goes_on: bool) {
        self.outcome = "failed";
        self.span.record("code", error.code());
        let lock = name.as_str();
        match goes_on {
            false => warn!(target: "polylock", parent: &self.span, lock, %error, "the acquisition failed"),
            true => {
                debug!(target: "polylock", parent: &self.span, lock, %error, "the acquisition failed again");
            }
        }
    }
}

impl Drop for WaitSpan {
    fn drop(&mut self) {
        self.span.record("outcome", self.outcome);
    }
}

/// The span of a hold.
#[derive(Debug)]
struct HoldSpan {
    span: Span,
    name: LockName,
    backend: &'static str,
    token: Token,
}

impl HoldSpan {
    fn new(parent: &Span, name: &LockName, backend: &'static str, mode: Mode, token: Token) -> Self {
        let span = info_span!(
            target: "polylock",
            parent: parent.id(),
            "lock_hold",
            lock = name.as_str(),
            backend,
            mode = mode_code(mode),
            token = token.get(),
            end = Empty,
        );
        Self { span, name: name.clone(), backend, token }
    }
}

/// Events repeat lock and token: the span may be disabled.
impl Report for HoldSpan {
    fn next(&self, mode: Mode, lease: &dyn Lease) -> Self {
        let span = Self::new(&Span::none(), &self.name, self.backend, mode, lease.token());
        span.span.follows_from(&self.span);
        span
    }

    async fn call<T: Send>(
        &self,
        operation: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let result = request.instrument(self.span.clone()).await;
        if let Err(error) = &result
            && !LOGGED_BY_THE_GUARD.contains(&operation)
        {
            let lock = self.name.as_str();
            debug!(target: "polylock", parent: &self.span, lock, operation, %error, "the operation failed");
        }
        result
    }

    fn renewed(&self, remaining: Duration) {
        let (lock, token, remaining_ms) = (self.name.as_str(), self.token.get(), millis(remaining));
        trace!(target: "polylock", parent: &self.span, lock, token, remaining_ms, "renewed");
    }

    fn suspect(&self, remaining: Duration) {
        let (lock, token, remaining_ms) = (self.name.as_str(), self.token.get(), millis(remaining));
        warn!(target: "polylock", parent: &self.span, lock, token, remaining_ms, "the server does not answer");
    }

    fn confirmed(&self) {
        let (lock, token) = (self.name.as_str(), self.token.get());
        debug!(target: "polylock", parent: &self.span, lock, token, "the server answers again");
    }

    fn ended(&self, end: End, held: Duration) {
        self.span.record("end", end.code());
        let (lock, token, held_ms) = (self.name.as_str(), self.token.get(), millis(held));
        match end {
            End::Released => debug!(target: "polylock", parent: &self.span, lock, token, held_ms, "released"),
            End::HandedOver => {
                debug!(target: "polylock", parent: &self.span, lock, token, held_ms, "handed over to another task");
            }
            End::Lost(reason) => {
                let reason = reason_code(reason);
                warn!(target: "polylock", parent: &self.span, lock, token, held_ms, reason, "lost");
            }
            End::Left => {
                debug!(target: "polylock", parent: &self.span, lock, token, held_ms, "left to its time to live");
            }
        }
    }
}

/// The operations whose failures the guard repeats and logs.
const LOGGED_BY_THE_GUARD: [&str; 2] = ["release", "hand over"];

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
