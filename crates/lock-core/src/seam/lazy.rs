//! A backend that connects at its first use.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use crate::process::tasks::single_flight::SingleFlight;
use crate::seam::migration::{MigrationSource, MigrationTarget};
use crate::{
    AcquireRequest, Acquired, Backend, Capabilities, DoctorReport, Error, ErrorKind, LockName, LockState,
    Result, Token,
};

/// A connection takes longer only on a paused runtime.
const PATIENCE: Duration = Duration::from_secs(60);

/// A backend that connects at its first use: the backend behind `connect_lazy`.
///
/// Concurrent first uses share one attempt, in a task of its own. If it fails, the next use tries again. Until the
/// connection exists, [`capabilities`](Backend::capabilities) are those that the configuration promises. What the servers
/// grant later, such as a session timeout, is checked at each acquisition.
///
/// # Drop
///
/// As for the backend that it connects to.
pub struct Lazy {
    state: Arc<LazyState>,
}

struct LazyState {
    expected: Capabilities,
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
    connecting: SingleFlight,
    backend: OnceLock<Arc<dyn Backend>>,
    is_closed: AtomicBool,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

impl Lazy {
    /// A backend that `connect` makes, with these expected capabilities.
    pub fn new<B, F>(expected: Capabilities, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        B: Backend,
        F: Future<Output = Result<B>> + Send + 'static,
    {
        let connect = move || -> Connecting {
            let connecting = connect();
            Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Backend>) })
        };
        let state = LazyState {
            expected,
            connect: Box::new(connect),
            connecting: SingleFlight::default(),
            backend: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        };
        Self { state: Arc::new(state) }
    }

    async fn connected(&self) -> Result<&Arc<dyn Backend>> {
        let state = &self.state;
        if let Some(backend) = state.backend.get() {
            return Ok(backend);
        }
        state.check_open()?;
        let attempt = || Arc::clone(state).connect();
        state.connecting.join(PATIENCE, attempt).await.unwrap_or_else(|| Err(state.too_late()))?;
        state.backend.get().ok_or_else(|| Error::closed(state.expected.backend))
    }
}

impl LazyState {
    async fn connect(self: Arc<Self>) -> Result<()> {
        let connected = (self.connect)().await?;
        // An earlier attempt that timed out may have connected first.
        let surplus = self.backend.set(Arc::clone(&connected)).is_err();
        let open = self.check_open();
        if surplus || open.is_err() {
            // One that nobody needs has no caller to tell.
            let _ = connected.close().await;
        }
        open
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::SeqCst) {
            true => Err(Error::closed(self.expected.backend)),
            false => Ok(()),
        }
    }

    fn too_late(&self) -> Error {
        Error::new(ErrorKind::Unavailable, self.expected.backend)
            .with_message(format!("the connection was not made within {PATIENCE:?}"))
            .with_hint("the tokio runtime that uses the locks first has to keep running")
    }
}

#[async_trait]
impl Backend for Lazy {
    fn capabilities(&self) -> &Capabilities {
        self.state.backend.get().map_or(&self.state.expected, |backend| backend.capabilities())
    }

    async fn connect(&self) -> Result<()> {
        self.connected().await?.connect().await
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let backend = self.connected().await?;
        backend.capabilities().check(request.lease)?;
        backend.acquire(request).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.connected().await?.inspect(name).await
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        self.connected().await?.await_change(name, seen).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.connected().await?.break_lock(name).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.connected().await?.break_lock_if(name, token).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.connected().await?.list(prefix).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.connected().await?.request_revocation(name).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.connected().await?.doctor().await
    }

    /// None before the connection exists.
    fn migration_source(&self) -> Option<&dyn MigrationSource> {
        self.state.backend.get()?.migration_source()
    }

    /// None before the connection exists.
    fn migration_target(&self) -> Option<&dyn MigrationTarget> {
        self.state.backend.get()?.migration_target()
    }

    async fn settle(&self) {
        if let Some(backend) = self.state.backend.get() {
            backend.settle().await;
        }
    }

    async fn close(&self) -> Result<()> {
        self.state.is_closed.store(true, Ordering::SeqCst);
        match self.state.backend.get() {
            Some(backend) => backend.close().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy")
            .field("backend", &self.state.backend.get())
            .field("expected", &self.state.expected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{LeaseKind, LockOptions, Locks, Memory, MemoryConfig};

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the attempts. Each takes a second, and the first fails.
    fn lazy(attempts: &Arc<AtomicUsize>) -> Locks {
        let kind = LeaseKind::Ttl { default: 30 * SECOND, min: SECOND / 1000 };
        let attempts = Arc::clone(attempts);
        Locks::new(Lazy::new(Capabilities::new("memory", kind), move || {
            let attempt = attempts.fetch_add(1, Ordering::SeqCst);
            async move {
                sleep(SECOND).await;
                match attempt {
                    0 => Err(Error::new(ErrorKind::Unavailable, "memory").with_message("connection refused")),
                    _ => Memory::open(MemoryConfig::new()),
                }
            }
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn first_uses_share_one_attempt_and_a_failure_is_retried() {
        let attempts = Arc::default();
        let locks = lazy(&attempts);
        assert_eq!(attempts.load(Ordering::SeqCst), 0, "no attempt before the first use");
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, Some("acquire")));
        // A dropped caller does not end the attempt.
        assert!(timeout(SECOND / 2, locks.mutex("a").acquire()).await.is_err());
        let (a, b) = (locks.mutex("a"), locks.mutex("b"));
        let (a, b) = tokio::join!(a.acquire(), b.acquire());
        assert!(a.unwrap().is_valid() && b.unwrap().is_valid());
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
        // The capabilities of the memory backend, which differ from the expected ones.
        assert!(locks.capabilities().fifo && !locks.capabilities().cross_process);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_the_attempt_that_is_running() {
        let attempts = Arc::new(AtomicUsize::new(1));
        let locks = lazy(&attempts);
        let (acquired, closed) = tokio::join!(locks.inspect("a"), async {
            sleep(SECOND / 2).await;
            locks.close().await
        });
        assert_eq!(acquired.unwrap_err().kind(), ErrorKind::Closed);
        assert!(closed.is_ok());
        assert_eq!(locks.mutex("a").acquire().await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_servers_grant_is_checked_at_the_acquisition() {
        let kind = LeaseKind::Ttl { default: 30 * SECOND, min: SECOND / 1000 };
        let mut locks = Capabilities::new("memory", kind);
        locks.lease = LeaseKind::Ttl { default: SECOND, min: SECOND / 1_000_000 };
        let locks = Locks::new(Lazy::new(locks, || async { Memory::open(MemoryConfig::new()) }));
        let short = LockOptions::new().ttl(Duration::from_micros(2));
        let mutex = locks.mutex_with("a", short).expect("the configuration promises it");
        assert_eq!(mutex.acquire().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
