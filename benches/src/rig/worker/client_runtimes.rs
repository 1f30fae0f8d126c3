//! The runtimes of a worker's clients: of one thread each, as of a web server that has one for each core.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::data::Outcome;

pub(crate) const RUNTIMES: usize = 2;

pub(crate) fn runtime_of(client: u64) -> usize {
    client as usize % RUNTIMES
}

#[derive(Debug)]
pub(super) struct ClientRuntimes {
    handles: Vec<Handle>,
    demands: Demands,
}

#[derive(Clone, Debug)]
pub(super) struct Demands(Arc<watch::Sender<Demand>>);

#[derive(Clone, Copy, Debug)]
enum Demand {
    None,
    Compute { runtime: usize, span: Duration },
    Keep { until: Instant },
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
    let runtimes = ClientRuntimes { handles, demands: Demands(Arc::new(watch::Sender::new(Demand::None))) };
    let done = first.block_on(connections.spawn(work(runtimes)));
    // The thread that reads standard input may be blocked.
    connections.shutdown_background();
    Ok(done?)
}

impl ClientRuntimes {
    pub(super) fn of(&self, client: u64) -> &Handle {
        &self.handles[runtime_of(client)]
    }

    pub(super) fn demands(&self) -> Demands {
        self.demands.clone()
    }

    /// Has the thread of a runtime compute as soon as one of its clients holds a lock. Returns when it has done so.
    pub(super) async fn compute(&self, runtime: usize, span: Duration) {
        let mut demand = self.demands.0.subscribe();
        self.demands.0.send_replace(Demand::Compute { runtime, span });
        // The sender exists as long as this does.
        let _ = demand.wait_for(|demand| matches!(demand, Demand::None)).await;
    }

    /// Has all clients keep the locks that they have or get for so long.
    pub(super) fn keep(&self, span: Duration) {
        self.demands.0.send_replace(Demand::Keep { until: Instant::now() + span });
    }
}

impl Demands {
    /// Computes on this thread if it is the turn of this client.
    pub(super) fn compute_if_wanted(&self, client: u64) {
        let mut computes = None;
        self.0.send_if_modified(|demand| match *demand {
            Demand::Compute { runtime, span } if runtime == runtime_of(client) => {
                *demand = Demand::Keep { until: Instant::now() + span };
                computes = Some(span);
                true
            }
            _ => false,
        });
        if let Some(span) = computes {
            thread::sleep(span);
            self.0.send_replace(Demand::None);
        }
    }

    /// Waits until this time, and for as long as clients keep their locks: another thread computes, for example, which may not
    /// take them.
    pub(super) async fn kept_until(&self, mut end: Instant) {
        loop {
            sleep_until(end).await;
            match *self.0.borrow() {
                Demand::Keep { until } if until > end => end = until,
                _ => return,
            }
        }
    }
}
