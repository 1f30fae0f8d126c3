//! The driver's task of one connection: it ends with the connection, and before it does, it closes a gate for its watches.
//!
//! The driver would reconnect by itself, and not tell which session timeout was negotiated then. So its task is wrapped when
//! the driver spawns it, and is dropped when its connection breaks.
//!
//! A watch of the driver panics if it is polled after that, or after its runtime has shut down, and the panic cannot be caught
//! under `panic = "abort"`. So no watch is polled behind a closed gate.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use spawns_core::{Spawn, Task};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Client, Error, EventType, OneshotWatcher, SessionState, StateWatcher, WatchedEvent};

use crate::poison::{lock, read, write};
use crate::sessions::ensemble::Watching;

/// Open while the driver's task of one connection lives.
///
/// Polls of the task and of its watches share the lock, so the gate is not closed during a poll.
#[derive(Debug, Default)]
pub(crate) struct TaskGate {
    /// The state that closed it.
    closed: RwLock<Option<SessionState>>,
    has_closed: CancellationToken,
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
        let connected = states.peek_state();
        drop(tokio::spawn(DriverTask { gate: Arc::clone(&gate), states, connected, task }));
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

    /// Whether the connection is broken or the session has ended.
    pub(crate) fn is_closed(&self) -> bool {
        read(&self.closed).is_some()
    }

    /// Has the end of the client break the connection, and not close the session.
    pub(crate) fn abandon(&self) {
        self.close(SessionState::Disconnected);
    }

    /// Polls while the gate is open, or returns the state that closed it.
    fn poll_open<T>(&self, poll: impl FnOnce() -> T) -> Result<T, SessionState> {
        let closed = read(&self.closed);
        closed.map_or_else(|| Ok(poll()), Err)
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
        let Self { gate, watch } = &mut *self;
        match gate.poll_open(|| watch.poll_unpin(context)) {
            Ok(event) => event,
            Err(SessionState::Disconnected) => Poll::Ready(WatchedEvent::new(EventType::NodeDataChanged, "")),
            Err(state) => Poll::Ready(WatchedEvent::new_session(state)),
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
    /// The state while the connection lives.
    connected: SessionState,
    task: Option<BoxFuture<'static, ()>>,
}

impl DriverTask {
    /// How the connection ended, if it has.
    ///
    /// The driver changes its state in the poll that finds the connection broken, and needs another poll to connect.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<SessionState> {
        let Self { gate, states, connected, task } = self;
        let ended = gate.poll_open(|| task.as_mut().is_none_or(|task| task.poll_unpin(context).is_ready()));
        // Peeked at, as this is done at each poll.
        let state = states.peek_state();
        match ended {
            Err(state) => return Poll::Ready(state),
            Ok(false) if state == *connected => return Poll::Pending,
            Ok(_) => {}
        }
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
        // Before the tasks that wait for a watch: they may send requests again.
        self.gate.has_closed.cancel();
        // Wakes those tasks; they find the gate closed.
        self.task = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    /// The driver would close the session if its client were dropped during a poll that began before.
    #[test]
    fn a_connection_is_abandoned_between_polls() {
        let (gate, finished) = (TaskGate::default(), Mutex::new(false));
        let (began, has_begun) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                gate.poll_open(|| {
                    began.send(()).unwrap();
                    thread::sleep(Duration::from_millis(50));
                    *lock(&finished) = true;
                })
            });
            has_begun.recv().unwrap();
            gate.abandon();
            assert!(*lock(&finished));
        });
        assert_eq!(gate.poll_open(|| ()), Err(SessionState::Disconnected));
    }
}
