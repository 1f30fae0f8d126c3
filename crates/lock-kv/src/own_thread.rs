//! A thread that runs the requests of a file: a runtime that is not polled keeps no connection, and no turn, from the others.

use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};
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
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (_ends, ended)) = (runtime.handle().clone(), oneshot::channel());
        let thread = thread::Builder::new().name("polylock-file".to_owned());
        thread.spawn(move || drop(runtime.block_on(ended)))?;
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
