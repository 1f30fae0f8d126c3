//! Keeps watches of the driver from panicking when the runtime of the session shuts down.
//!
//! A watch of the driver panics if it is polled after the driver's task was dropped, as happens when its runtime shuts
//! down. The panic cannot be caught under `panic = "abort"`. So the task is wrapped when the driver spawns it: before the
//! task is dropped, a [`ShutdownGate`] closes, and no watch is polled behind a closed gate.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use spawns_core::{Spawn, Task};
use zookeeper_client::{Error, OneshotWatcher, SessionState, WatchedEvent};

use crate::ensemble::Watching;

/// Open while the driver's task of one session lives.
///
/// Polls of watches share the lock, so the task is not dropped during a poll.
#[derive(Debug, Default)]
pub(crate) struct ShutdownGate {
    closed: RwLock<bool>,
}

impl ShutdownGate {
    /// Runs `connecting` so that every task that the driver spawns closes a gate of its own at its end. Returns the gate of
    /// the last task: `connecting` may have dropped clients that it connected before.
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

    /// The event of this watch, or the end of the session if the task was dropped first.
    pub(crate) fn watching(self: &Arc<Self>, watcher: OneshotWatcher) -> Watching {
        Guarded { gate: Arc::clone(self), watch: watcher.changed().boxed() }.boxed()
    }
}

/// A watch that is polled only while the gate is open.
struct Guarded {
    gate: Arc<ShutdownGate>,
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
    last: Mutex<Option<Arc<ShutdownGate>>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let gate = Arc::<ShutdownGate>::default();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&gate));
        let task = DriverTask { gate, task: Some(Box::into_pin(task.future)) };
        drop(tokio::spawn(task));
    }
}

struct DriverTask {
    gate: Arc<ShutdownGate>,
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
        // Wakes the tasks that wait for a watch; they find the gate closed.
        self.task = None;
    }
}
