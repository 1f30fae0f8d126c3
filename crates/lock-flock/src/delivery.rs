//! A result on its way from a task to the caller.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::Result;
use lock_core::poison::lock;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::error::no_thread;

/// Runs the work in a task, and returns its result.
///
/// What the caller does not take within a second is dropped, so that one that is not polled keeps nobody out. The work begins
/// again once it is polled.
///
/// # Cancel safety
///
/// Dropping the future ends the work, or drops its result.
pub(crate) async fn deliver<T, F>(steps: &TaskTracker, work: impl Fn() -> F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    loop {
        let (work, (send, sent)) = (work(), oneshot::channel());
        let task = AbortOnDropHandle::new(steps.spawn(async move {
            let result = Arc::new(Mutex::new(Some(work.await)));
            if send.send(Arc::clone(&result)).is_ok() {
                sleep(TAKE_WITHIN).await;
                drop(lock(&result).take());
            }
        }));
        match sent.await {
            Ok(result) => {
                if let Some(taken) = lock(&result).take() {
                    return Ok(taken);
                }
            }
            Err(_) => task.await.map_err(no_thread)?,
        }
    }
}

/// How long a caller may leave a result.
const TAKE_WITHIN: Duration = Duration::from_secs(1);
