//! A thread that runs the requests of a store: a runtime that is not polled keeps no connection, and no turn, from the others.

use std::io;
use std::sync::mpsc;
use std::thread;

use lock_core::{Error, ErrorKind, Outcome, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A runtime on a thread of its own, which ends with this.
#[derive(Debug)]
pub(crate) struct OwnThread {
    store: &'static str,
    runtime: Handle,
    _ends: oneshot::Sender<()>,
}

impl OwnThread {
    pub(crate) fn start(store: &'static str) -> Result<Self> {
        let ((give, given), (_ends, ended)) = (mpsc::channel::<Runtime>(), oneshot::channel());
        let start = || {
            let thread = thread::Builder::new().name("polylock-store".to_owned());
            // Given later: a runtime that is dropped where another one runs, as when there is no room for a thread, would panic.
            thread.spawn(move || given.recv().map(|runtime| runtime.block_on(ended)))?;
            Builder::new_current_thread().enable_all().build()
        };
        let runtime = start().map_err(|error: io::Error| {
            Error::new(ErrorKind::Unavailable, store)
                .with_message("a thread for the requests cannot be started")
                .with_hint("see the cause")
                .with_outcome(Outcome::NotApplied)
                .caused_by(error)
        })?;
        let handle = runtime.handle().clone();
        _ = give.send(runtime);
        Ok(Self { store, runtime: handle, _ends })
    }

    /// Runs a request on this thread, to its end, or for as long as its caller waits. One that panics has this outcome.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        otherwise: Outcome,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut task = JoinSet::new();
        task.spawn_on(request, &self.runtime);
        match task.join_next().await {
            Some(Ok(ended)) => ended,
            _ => Err(Error::new(ErrorKind::Unavailable, self.store)
                .with_message("the request has panicked")
                .with_outcome(otherwise)),
        }
    }
}
