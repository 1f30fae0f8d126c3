//! A task whose outcome all its callers share.

use std::sync::Mutex;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture, Shared};
use tokio::runtime::Handle;

use crate::poison::lock;

/// A task that runs once, unless its outcome allows another try. Dropping the futures does not stop it.
///
/// Every held lock has two, of which most never run: what they would hold is boxed.
#[derive(Debug)]
pub(crate) struct SharedTask<T: Clone>(Mutex<Option<Box<Outcome<T>>>>);

type Outcome<T> = Shared<BoxFuture<'static, T>>;

impl<T: Clone> Default for SharedTask<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SharedTask<T> {
    /// The outcome of the task that is running or done. If there is none, or its outcome `allows_retry`, a new task is
    /// spawned on this runtime; `start` learns whether it is a retry. If the runtime shuts down, the outcome is `shut_down`.
    pub(crate) fn run<F: Future<Output = T> + Send + 'static>(
        &self,
        runtime: &Handle,
        allows_retry: fn(&T) -> bool,
        shut_down: T,
        start: impl FnOnce(bool) -> F,
    ) -> Outcome<T> {
        let mut last = lock(&self.0);
        let retry = last.take_if(|task| task.peek().is_some_and(allows_retry)).is_some();
        let spawn = || {
            let task = runtime.spawn(start(retry));
            Box::new(task.map(|ended| ended.unwrap_or(shut_down)).boxed().shared())
        };
        last.get_or_insert_with(spawn).as_ref().clone()
    }

    /// The outcome of the task, if one was started.
    pub(crate) fn outcome(&self) -> OptionFuture<Outcome<T>> {
        lock(&self.0).as_deref().cloned().into()
    }
}
