//! The runtimes of a worker's clients: of one thread each, as of a web server that has one for each core.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::failure::Outcome;

/// How many runtimes the clients of a process are on.
pub(crate) const RUNTIMES: usize = 2;

/// The runtime of a client.
pub(crate) fn runtime_of(client: u64) -> usize {
    client as usize % RUNTIMES
}

/// Running runtimes.
#[derive(Debug)]
pub(super) struct ClientRuntimes {
    handles: Vec<Handle>,
    load: Load,
}

/// What the clients know of a thread that is to compute.
#[derive(Clone, Debug)]
pub(super) struct Load(Arc<watch::Sender<Computing>>);

#[derive(Clone, Copy, Debug)]
enum Computing {
    No,
    Wanted { runtime: usize, span: Duration },
    Until(Instant),
}

/// Does the work on a runtime that never waits for a client. The connections that the work opens are there.
///
/// The first of the clients' runtimes is on this thread: after a fork, it has what the parent had in memory.
pub(super) fn with_client_runtimes<F: Future<Output: Send> + Send + 'static>(
    work: impl FnOnce(ClientRuntimes) -> F,
) -> Outcome<F::Output> {
    let connections = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let first = Builder::new_current_thread().enable_all().build()?;
    let mut handles = vec![first.handle().clone()];
    while handles.len() < RUNTIMES {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        handles.push(runtime.handle().clone());
        // It ends with the process.
        thread::Builder::new().name("clients".into()).spawn(move || {
            runtime.block_on(std::future::pending::<()>());
        })?;
    }
    let runtimes = ClientRuntimes { handles, load: Load(Arc::new(watch::Sender::new(Computing::No))) };
    let done = first.block_on(connections.spawn(work(runtimes)));
    // The thread that reads standard input may be blocked.
    connections.shutdown_background();
    Ok(done?)
}

impl ClientRuntimes {
    /// That of a client.
    pub(super) fn of(&self, client: u64) -> &Handle {
        &self.handles[runtime_of(client)]
    }

    /// What a client needs to know.
    pub(super) fn load(&self) -> Load {
        self.load.clone()
    }

    /// Has the thread of a runtime compute as soon as one of its clients holds a lock. Returns when it has done so.
    pub(super) async fn compute(&self, runtime: usize, span: Duration) {
        let mut load = self.load.0.subscribe();
        self.load.0.send_replace(Computing::Wanted { runtime, span });
        // The sender exists as long as this does.
        let _ = load.wait_for(|computing| matches!(computing, Computing::No)).await;
    }
}

impl Load {
    /// Computes on this thread if it is the turn of this client.
    pub(super) fn compute_if_wanted(&self, client: u64) {
        let mut computes = None;
        self.0.send_if_modified(|computing| match *computing {
            Computing::Wanted { runtime, span } if runtime == runtime_of(client) => {
                *computing = Computing::Until(Instant::now() + span);
                computes = Some(span);
                true
            }
            _ => false,
        });
        if let Some(span) = computes {
            thread::sleep(span);
            self.0.send_replace(Computing::No);
        }
    }

    /// Until when a thread computes.
    pub(super) fn until(&self) -> Option<Instant> {
        match *self.0.borrow() {
            Computing::Until(until) => Some(until),
            _ => None,
        }
    }
}
