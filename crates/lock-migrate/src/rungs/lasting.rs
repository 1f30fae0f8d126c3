//! A task of a process that runs on the runtime of one of its callers, and on that of a later one when it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the task runs, or has come to its end.
#[derive(Debug, Default)]
pub(crate) struct Lasting(Arc<AtomicBool>);

impl Lasting {
    /// Starts the task on the runtime of the caller, unless it runs or has come to its end: the runtime on which it ran may have ended
    /// before.
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub(crate) fn ensure<F: Future<Output = ()> + Send + 'static>(&self, task: impl FnOnce() -> F) {
        // Each acquisition asks.
        if self.0.load(Ordering::Acquire) || self.0.swap(true, Ordering::AcqRel) {
            return;
        }
        let (running, task) = (Running { runs: Arc::clone(&self.0), has_ended: false }, task());
        drop(tokio::spawn(running.through(task)));
    }
}

struct Running {
    runs: Arc<AtomicBool>,
    has_ended: bool,
}

impl Running {
    async fn through(mut self, task: impl Future<Output = ()> + Send) {
        task.await;
        self.has_ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.runs.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[test]
    fn a_task_is_started_again_once_its_runtime_has_ended_and_not_once_it_has() {
        let (first, second, begun) = (runtime(), runtime(), AtomicUsize::new(0));
        let (lasting, ends) = (Lasting::default(), Lasting::default());
        let ensure = |on: &Runtime| {
            on.block_on(async {
                lasting.ensure(|| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    pending()
                });
            });
            begun.load(Ordering::Relaxed)
        };
        assert_eq!((ensure(&first), ensure(&second)), (1, 1));
        drop(first);
        assert_eq!((ensure(&second), ensure(&second)), (2, 2));
        second.block_on(async {
            let (done, has_ended) = tokio::sync::oneshot::channel::<()>();
            ends.ensure(|| async move { drop(done) });
            assert!(has_ended.await.is_err());
            ends.ensure(|| async { unreachable!("it has come to its end") });
        });
    }
}
