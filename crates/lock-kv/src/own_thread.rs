//! A thread that runs the requests of a store: a runtime that is not polled keeps no connection, and no turn, from the others.

use std::io;
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A runtime on a thread of its own, which ends with this.
#[derive(Debug)]
pub(crate) struct OwnThread {
    runtime: Handle,
    _ends: oneshot::Sender<()>,
}

impl OwnThread {
    pub(crate) fn start() -> io::Result<Self> {
        let ((give, given), (_ends, ended)) = (mpsc::channel::<Runtime>(), oneshot::channel());
        let thread = thread::Builder::new().name("polylock-store".to_owned());
        // Given later: a runtime that is dropped where another one runs, as when there is no room for a thread, would panic.
        thread.spawn(move || given.recv().map(|runtime| runtime.block_on(ended)))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        _ = give.send(runtime);
        Ok(Self { runtime: handle, _ends })
    }

    /// Runs a request on this thread. It ends with its caller. `None` if it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut task = JoinSet::new();
        task.spawn_on(request, &self.runtime);
        task.join_next().await?.ok()
    }
}
