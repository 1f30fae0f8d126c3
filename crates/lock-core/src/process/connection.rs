//! What all clones of one `Locks`, and the handles of its locks, share.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::TryFutureExt;
use tokio_util::sync::CancellationToken;

use crate::api::guard::Origin;
use crate::process::events::Observers;
use crate::process::local_queue::LocalQueues;
use crate::process::readers::Readers;
use crate::process::tasks::background::{Background, Counted};
use crate::process::tasks::runtime::Runtimes;
use crate::{Backend, Error, Guard, LockName, OwnerInfo, Result};

/// The backend of one [`Locks`](crate::Locks), with the wait queues of its tasks.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) queues: Arc<LocalQueues<Guard>>,
    pub(crate) owner: Arc<OwnerInfo>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) observers: Observers,
}

impl Connection {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let (queues, owner) = (Arc::default(), Arc::new(OwnerInfo::this_process()));
        let runtimes = Runtimes::new(backend.capabilities().backend);
        let min_ttl = backend.capabilities().lease.min_ttl();
        let (releases, acquisitions) = (Background::default(), Background::default());
        let (closed, readers) = (CancellationToken::new(), Readers::default());
        let origin = Arc::new(Origin { runtimes, min_ttl, releases, acquisitions, closed, readers });
        Self { backend, queues, owner, origin, observers: Observers::default() }
    }

    /// Sends a request that belongs to no acquisition: observers learn of its failure.
    pub(crate) async fn request<'a, T, F>(
        &'a self,
        operation: &'static str,
        lock: Option<&LockName>,
        send: impl FnOnce(&'a dyn Backend) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let failed = |error: &Error| self.observers.failed(self.backend_name(), operation, lock, error);
        self.send(|backend| send(backend).inspect_err(failed)).await
    }

    /// Sends a request on the runtime of the caller.
    pub(crate) async fn send<'a, T, F>(&'a self, send: impl FnOnce(&'a dyn Backend) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.origin.runtimes.enter()?;
        self.check_open()?;
        send(&*self.backend).await.map_err(|error| self.origin.runtimes.explain(error))
    }

    /// Counts an acquisition as under way. To be dropped after it: its drop starts its roll-back.
    pub(crate) fn under_way(&self) -> Counted {
        self.origin.acquisitions.count()
    }

    /// The result of an acquisition, or an error once the locks are closed, whatever the backend does with it.
    ///
    /// The acquisition stays where it is: moved in here, it would take its place twice.
    pub(crate) async fn unless_closed<T>(
        &self,
        acquisition: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let acquired = tokio::select! {
            biased;
            () = self.origin.closed.cancelled() => return Err(self.closed()),
            acquired = acquisition => acquired?,
        };
        // They may have been closed during that poll.
        self.check_open().map(|()| acquired)
    }

    fn check_open(&self) -> Result<()> {
        if self.origin.closed.is_cancelled() { Err(self.closed()) } else { Ok(()) }
    }

    pub(crate) fn closed(&self) -> Error {
        Error::closed(self.backend_name())
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.origin.runtimes.backend()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{
        AcquireRequest, Acquired, Capabilities, ErrorKind, LockName, LockState, Locks, Memory, MemoryConfig,
        Multi,
    };

    /// Less than a lease.
    const SOON: Duration = Duration::from_secs(10);

    /// A backend that ends nothing when it is closed.
    #[derive(Debug)]
    struct NeverCloses(Memory);

    #[async_trait]
    impl Backend for NeverCloses {
        fn capabilities(&self) -> &Capabilities {
            self.0.capabilities()
        }

        async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
            self.0.acquire(request).await
        }

        async fn inspect(&self, name: &LockName) -> Result<LockState> {
            self.0.inspect(name).await
        }

        async fn break_lock(&self, name: &LockName) -> Result<bool> {
            self.0.break_lock(name).await
        }

        async fn close(&self) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closed_locks_get_nothing_whatever_the_backend_does() {
        let backend = Arc::new(NeverCloses(Memory::open(MemoryConfig::new()).unwrap()));
        let connect = || Locks::from_dyn(Arc::clone(&backend) as Arc<dyn Backend>);
        let (locks, other) = (connect(), connect());
        let held = other.mutex("a").acquire().await.unwrap();
        let (first, second, election) = (locks.mutex("a"), locks.mutex("a"), locks.election("a"));
        let both = Multi::new([locks.mutex("a"), locks.mutex("b")]).unwrap();
        let waiters = [
            tokio::spawn(async move { first.acquire().await.map(drop) }),
            tokio::spawn(async move { second.try_acquire_for(10 * SOON).await.map(drop) }),
            tokio::spawn(async move {
                election.run("one", async |_| ()).await.map_err(|error| error.error().clone())
            }),
            tokio::spawn(async move { both.acquire().await.map(drop) }),
        ];
        let mut leaders = locks.election("a").observe();
        assert!(timeout(SOON, leaders.next()).await.unwrap().is_some());
        timeout(SOON, locks.close()).await.unwrap().unwrap();
        for waiter in waiters {
            let ended = timeout(SOON, waiter).await.expect("it is closed").unwrap();
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
        }
        assert_eq!(leaders.next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        held.release().await.unwrap();
        for error in [
            locks.mutex("c").try_acquire().await.map(drop).unwrap_err(),
            locks.inspect("c").await.map(drop).unwrap_err(),
            locks.election("c").campaign("one").await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        }
        assert!(other.mutex("a").try_acquire().await.unwrap().is_some(), "nobody got it, or waits for it");
        locks.close().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_handed_over_to_nobody_once_the_locks_are_closed() {
        let locks = Locks::new(NeverCloses(Memory::open(MemoryConfig::new()).unwrap()));
        let (held, mutex) = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("a"));
        let mut unpolled = Box::pin(mutex.acquire());
        assert!(futures_util::poll!(&mut unpolled).is_pending());
        timeout(SOON, locks.close()).await.expect("it does not wait for what nobody polls").unwrap();
        held.release().await.unwrap();
        sleep(SOON).await;
        assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
