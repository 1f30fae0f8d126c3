//! The driver's task of one connection: it ends with the connection, and before it does, it closes a gate for its watches.
//!
//! The driver would reconnect by itself, and not tell which session timeout was negotiated then. So its task is wrapped when
//! the driver spawns it, and is dropped when its connection breaks.
//!
//! A watch of the driver panics if it is polled after that, or after its runtime has shut down, and the panic cannot be caught
//! under `panic = "abort"`. So no watch is polled behind a closed gate.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use spawns_core::{Spawn, Task};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Client, Error, EventType, OneshotWatcher, SessionState, StateWatcher, WatchedEvent};

use crate::ensemble::Watching;
use crate::poison::{lock, read, write};

/// Open while the driver's task of one connection lives.
///
/// Polls of watches share the lock, so the task is not dropped during a poll.
#[derive(Debug, Default)]
pub(crate) struct TaskGate {
    /// The state that closed it.
    closed: RwLock<Option<SessionState>>,
    has_closed: CancellationToken,
    /// Whether the task ends without closing the session.
    abandoned: AtomicBool,
}

impl TaskGate {
    /// Connects one client, and runs the driver's task on the current tokio runtime until its connection breaks or its session
    /// ends.
    pub(crate) async fn guard(
        connecting: impl Future<Output = Result<Client, Error>>,
    ) -> Result<(Client, Arc<Self>), Error> {
        let spawner = Spawner::default();
        let mut connecting = pin!(connecting);
        let connected = poll_fn(|context| {
            let _scope = spawns_core::enter(&spawner);
            connecting.as_mut().poll(context)
        });
        let client = connected.await?;
        let (gate, states) = (Arc::<Self>::default(), client.state_watcher());
        let task = lock(&spawner.task).take();
        debug_assert!(task.is_some(), "the driver spawns its task in another way");
        drop(tokio::spawn(DriverTask { gate: Arc::clone(&gate), states, task }));
        Ok((client, gate))
    }

    /// The event of this watch. If the connection breaks first, the node may have changed; if the runtime shuts down, the
    /// session ends.
    pub(crate) fn watching(self: &Arc<Self>, watcher: OneshotWatcher) -> Watching {
        Guarded { gate: Arc::clone(self), watch: watcher.changed().boxed() }.boxed()
    }

    /// Waits until the connection is broken or the session has ended, and returns which.
    pub(crate) async fn closed(&self) -> SessionState {
        self.has_closed.cancelled().await;
        read(&self.closed).unwrap_or(SessionState::Closed)
    }

    /// Has the end of the client break the connection, and not close the session.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    fn close(&self, state: SessionState) {
        write(&self.closed).get_or_insert(state);
    }
}

/// A watch that is polled only while the gate is open.
struct Guarded {
    gate: Arc<TaskGate>,
    watch: BoxFuture<'static, WatchedEvent>,
}

impl Future for Guarded {
    type Output = WatchedEvent;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<WatchedEvent> {
        let gate = Arc::clone(&self.gate);
        let closed = read(&gate.closed);
        match *closed {
            None => self.watch.poll_unpin(context),
            Some(SessionState::Disconnected) => {
                Poll::Ready(WatchedEvent::new(EventType::NodeDataChanged, ""))
            }
            Some(state) => Poll::Ready(WatchedEvent::new_session(state)),
        }
    }
}

/// Keeps the task that the driver spawns.
#[derive(Default)]
struct Spawner {
    task: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        *lock(&self.task) = Some(Box::into_pin(task.future));
    }
}

struct DriverTask {
    gate: Arc<TaskGate>,
    states: StateWatcher,
    task: Option<BoxFuture<'static, ()>>,
}

impl DriverTask {
    /// How the connection ended, if it has.
    ///
    /// The driver changes its state in the poll that finds the connection broken, and needs another poll to connect.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<SessionState> {
        if self.gate.abandoned.load(Ordering::Acquire) {
            return Poll::Ready(SessionState::Disconnected);
        }
        let ended = self.task.as_mut().is_none_or(|task| task.poll_unpin(context).is_ready());
        if !ended && self.states.changed().now_or_never().is_none() {
            return Poll::Pending;
        }
        let state = self.states.peek_state();
        Poll::Ready(if state.is_terminated() { state } else { SessionState::Disconnected })
    }
}

impl Future for DriverTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let state = std::task::ready!(self.poll_end(context));
        self.gate.close(state);
        Poll::Ready(())
    }
}

/// The runtime shut down if the gate is still open.
impl Drop for DriverTask {
    fn drop(&mut self) {
        self.gate.close(SessionState::Closed);
        // Wakes the tasks that wait for a watch; they find the gate closed.
        self.task = None;
        self.gate.has_closed.cancel();
    }
}
