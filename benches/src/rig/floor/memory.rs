//! The floor of the memory backend: a mutex of the runtime.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Floor;
use crate::data::Outcome;

/// A [`tokio::sync::Mutex`]: no name, no token, no lease, no time.
#[derive(Debug, Default)]
pub(crate) struct BareMutex {
    mutex: Arc<Mutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Floor for BareMutex {
    async fn acquire(&mut self) -> Outcome<()> {
        self.guard = Some(Arc::clone(&self.mutex).lock_owned().await);
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        self.guard = None;
        Ok(())
    }
}
