//! What all clones of one `Locks`, and the handles of its locks, share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::background::Background;
use crate::guard::Origin;
use crate::local_queue::LocalQueues;
use crate::readers::Readers;
use crate::runtime::Runtimes;
use crate::{Backend, Guard, OwnerInfo, Result};

/// The backend of one [`Locks`](crate::Locks), with the wait queues of its tasks.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) queues: Arc<LocalQueues<Guard>>,
    pub(crate) owner: Arc<OwnerInfo>,
    pub(crate) origin: Arc<Origin>,
}

impl Connection {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let (queues, owner) = (Arc::default(), Arc::new(OwnerInfo::this_process()));
        let runtimes = Runtimes::new(backend.capabilities().backend);
        let min_ttl = backend.capabilities().lease.min_ttl();
        let (releases, closed) = (Background::default(), CancellationToken::new());
        let readers = Readers::default();
        let origin = Arc::new(Origin { runtimes, min_ttl, releases, closed, readers });
        Self { backend, queues, owner, origin }
    }

    /// Sends a request on the runtime of the caller.
    pub(crate) async fn request<'a, T, F>(&'a self, send: impl FnOnce(&'a dyn Backend) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.origin.runtimes.enter()?;
        send(&*self.backend).await.map_err(|error| self.origin.runtimes.explain(error))
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.origin.runtimes.backend()
    }
}
