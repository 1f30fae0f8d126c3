//! The harness of the memory backend.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Backend, Capabilities, Locks, Memory, MemoryConfig};

use super::helpers::fresh;
use super::{Fault, Handle, Harness};

/// The memory backend under test, or a backend built upon it.
pub struct MemoryHarness {
    name: String,
    store: Memory,
    url: String,
    connect: Connect,
    handle: Handle,
}

/// Connects a client by a URL such as `memory://NAME?ttl=10s`.
pub type Connect = Arc<dyn Fn(String) -> Connecting + Send + Sync>;

/// A future client.
pub type Connecting = Pin<Box<dyn Future<Output = lock_core::Result<Locks>> + Send>>;

impl MemoryHarness {
    /// A harness with a new store.
    pub fn new(
        name: impl Into<String>,
        connect: impl Fn(String) -> Connecting + Send + Sync + 'static,
    ) -> Self {
        Self::with_new_store(name.into(), Arc::new(connect), Handle::Mutex)
    }

    fn with_new_store(name: String, connect: Connect, handle: Handle) -> Self {
        let url = format!("memory://{}", fresh());
        // The store lives as long as it is open.
        let store = MemoryConfig::from_url(&url).and_then(Memory::open).expect("the URL is valid");
        Self { name, store, url, connect, handle }
    }

    /// The same backend, tested through this handle.
    #[must_use]
    pub fn by(mut self, handle: Handle) -> Self {
        self.handle = handle;
        self
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.handle
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities().clone()
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        (self.connect)(format!("{}?ttl={}ms", self.url, lease.as_millis())).await
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        if part.is_empty() {
            return Vec::new();
        }
        let state = Locks::new(self.store.clone()).inspect(part).await.expect("the store can be looked at");
        let holders = state.holders.iter().map(|holder| format!("{part} is held by {holder}"));
        holders.chain((0..state.waiters).map(|_| format!("a waiter for {part}"))).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let broken = Locks::new(self.store.clone()).break_lock(name).await;
        assert!(broken.expect("a lock can be broken"), "{name} was not held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        panic!("{} has no connections", self.name)
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::with_new_store(self.name.clone(), Arc::clone(&self.connect), self.handle))
    }

    async fn fault(&self, fault: Fault) {
        panic!("{} has no connections that {fault:?} could happen to", self.name)
    }

    async fn restart(&self) {
        panic!("{} has no servers", self.name)
    }
}

impl fmt::Debug for MemoryHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryHarness")
            .field("name", &self.name)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
