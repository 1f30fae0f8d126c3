//! A backend that forwards everything, with a layer around each request.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, Acquired, Backend, Capabilities, DoctorReport, LockName, LockState, Result, Token,
};

/// A backend with a layer over it, as [`Locks::layer`](lock_core::Locks::layer) makes it.
#[derive(Debug)]
pub struct Layered<L> {
    inner: Arc<dyn Backend>,
    layer: L,
}

/// What a layer does around requests.
pub trait Around: Debug + Send + Sync + 'static {
    /// Acquires a lock of the backend below.
    fn acquire(
        &self,
        inner: &dyn Backend,
        request: AcquireRequest,
    ) -> impl Future<Output = Result<Acquired>> + Send;

    /// Runs any other request; `name` is that of its lock.
    fn call<T: Send>(
        &self,
        inner: &dyn Backend,
        operation: &'static str,
        name: Option<&LockName>,
        request: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send;

    /// Waits for what the layer does in the background.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

impl<L> Layered<L> {
    pub(crate) fn new(inner: Arc<dyn Backend>, layer: L) -> Self {
        Self { inner, layer }
    }
}

impl<L: Around> Layered<L> {
    async fn call<T: Send>(
        &self,
        operation: &'static str,
        name: Option<&LockName>,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.layer.call(&*self.inner, operation, name, request).await
    }
}

/// Everything but migrations: a store of a migration expects its own leases, not those of a layer.
#[async_trait]
impl<L: Around> Backend for Layered<L> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn connect(&self) -> Result<()> {
        self.call("connect", None, self.inner.connect()).await
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.layer.acquire(&*self.inner, request).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.call("inspect", Some(name), self.inner.inspect(name)).await
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        self.call("await change", Some(name), self.inner.await_change(name, seen)).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.call("break", Some(name), self.inner.break_lock(name)).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.call("break", Some(name), self.inner.break_lock_if(name, token)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.call("list", None, self.inner.list(prefix)).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.call("request revocation", Some(name), self.inner.request_revocation(name)).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.call("doctor", None, self.inner.doctor()).await
    }

    async fn settle(&self) {
        self.layer.settle().await;
        self.inner.settle().await;
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
