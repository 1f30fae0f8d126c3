//! Notices that the runtime of the sessions is paused: it then neither answers nor opens a session.

use std::time::Duration;

use lock_core::Result;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{sleep, timeout};

use crate::error::unavailable;

/// The answer to requests, or an error if the runtime runs no task for this long.
pub(crate) async fn unless_paused<T, F>(
    runtime: &Handle,
    limit: Duration,
    requests: impl FnOnce() -> F + Send,
) -> Result<T>
where
    F: Future<Output = Result<T>> + Send,
{
    if !may_be_paused(runtime) {
        return requests().await;
    }
    // Boxed, as it is rare.
    let answer = Box::pin(requests());
    tokio::select! {
        answer = answer => answer,
        () = paused(runtime, limit) => {
            Err(unavailable("the tokio runtime of the session is paused, which ends the session"))
        }
    }
}

/// Whether this runtime may run only now and then: it has one thread, and the caller is on another runtime.
fn may_be_paused(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
        && Handle::try_current().is_ok_and(|here| here.id() != runtime.id())
}

/// Waits until a task of this runtime is not polled for this long.
async fn paused(runtime: &Handle, limit: Duration) {
    while timeout(limit, runtime.spawn(async {})).await.is_ok() {
        sleep(limit).await;
    }
}
