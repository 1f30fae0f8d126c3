//! Watches of the driver, and the end of its task.
//!
//! A watch of the driver ends with an event, also when its session ends. There is one exception: when the driver's task is
//! dropped, which happens when its runtime shuts down, the next poll of a watch panics. Catching the panic is no way out, as
//! `panic = "abort"` leaves nothing to catch. So the task is wrapped when it is spawned: before it is dropped, a [`Gate`]
//! closes, and behind a closed gate no watch is polled.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use spawns_core::{Spawn, Task};
use zookeeper_client::{Error, OneshotWatcher, SessionState, WatchedEvent};

use crate::ensemble::Watching;

/// Whether the driver's task of one session may still be relied on.
///
/// Polls of watches share the lock, so that the task is not dropped while one goes on.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: RwLock<bool>,
}

impl Gate {
    /// Runs `connecting` so that every task which the driver spawns closes a gate of its own at its end, and gives the gate of
    /// the last one: `connecting` may have dropped clients that it connected before.
    pub(crate) async fn guard<T>(
        connecting: impl Future<Output = Result<T, Error>>,
    ) -> Result<(T, Arc<Self>), Error> {
        let spawner = Spawner::default();
        let mut connecting = pin!(connecting);
        let connected = poll_fn(|context| {
            let _scope = spawns_core::enter(&spawner);
            connecting.as_mut().poll(context)
        });
        let connected = connected.await?;
        let last = spawner.last.into_inner().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(last.is_some(), "the driver spawns its task in another way");
        Ok((connected, last.unwrap_or_default()))
    }

    /// The event of this watch, or the end of the session when the task has gone without one.
    pub(crate) fn watching(self: &Arc<Self>, watcher: OneshotWatcher) -> Watching {
        Guarded { gate: Arc::clone(self), watch: watcher.changed().boxed() }.boxed()
    }
}

/// A watch that is polled only while the gate is open.
struct Guarded {
    gate: Arc<Gate>,
    watch: BoxFuture<'static, WatchedEvent>,
}

impl Future for Guarded {
    type Output = WatchedEvent;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<WatchedEvent> {
        let gate = Arc::clone(&self.gate);
        let closed = gate.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Poll::Ready(WatchedEvent::new_session(SessionState::Closed));
        }
        self.watch.poll_unpin(context)
    }
}

/// Spawns the driver's tasks on the current tokio runtime.
#[derive(Default)]
struct Spawner {
    /// The gate of the last one.
    last: Mutex<Option<Arc<Gate>>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let gate = Arc::<Gate>::default();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&gate));
        let task = DriverTask { gate, task: Some(Box::into_pin(task.future)) };
        drop(tokio::spawn(task));
    }
}

struct DriverTask {
    gate: Arc<Gate>,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for DriverTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.task.as_mut().map_or(Poll::Ready(()), |task| task.poll_unpin(context))
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        *self.gate.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        // This wakes those that wait for a watch, who find the gate closed.
        self.task = None;
    }
}
