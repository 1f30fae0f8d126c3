//! Connections that take turns.

use tokio::sync::{Mutex, Semaphore};

use crate::data::{Failure, Outcome};

/// A pool without checks: the connection that was used last goes first. One that is not put back is gone.
#[derive(Debug)]
pub(crate) struct Idle<C> {
    idle: Mutex<Vec<C>>,
    permits: Semaphore,
}

impl<C> Idle<C> {
    pub(crate) fn of(all: Vec<C>) -> Self {
        Self { permits: Semaphore::new(all.len()), idle: Mutex::new(all) }
    }

    pub(crate) async fn take(&self) -> Outcome<C> {
        self.permits.acquire().await?.forget();
        let taken = self.idle.lock().await.pop();
        taken.ok_or_else(|| Failure::new("the pool has fewer connections than permits"))
    }

    pub(crate) async fn put_back(&self, connection: C) {
        self.idle.lock().await.push(connection);
        self.permits.add_permits(1);
    }
}
