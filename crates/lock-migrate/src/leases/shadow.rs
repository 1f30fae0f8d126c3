//! Shadow locks: the new store is measured while the old one grants the locks.
//!
//! A shadow lock that is busy is no proof that the old store granted a lock twice: the session of a holder that crashed may outlive
//! the ttl of its lock. So the holder of the shadow lock is asked, by a request to release it, and counts if its guard is still valid
//! then. A process that crashed, or was paused for longer than its lease, does not.

use std::future::pending;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{AcquireRequest, Acquired, Mode, Wait};
use lock_core::{CancellationToken, LockName, Result, Revocation, Validity};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::context::Context;
use crate::leases::half::Half;
use crate::leases::later::Begin;

/// The names of shadow locks begin with it.
pub(crate) const PREFIX: &str = ".shadow/";

/// The shadow lock of a guard: after a moment a task acquires it, and releases it when the guard is lost or released.
#[derive(Debug)]
pub(crate) struct Shadow(Arc<Stage>);

/// How far a shadow lock is.
#[derive(Debug)]
struct Stage {
    context: Arc<Context>,
    /// That of the lock itself.
    request: AcquireRequest,
    validity: Validity,
    progress: Mutex<Progress>,
    released: CancellationToken,
    runtime: Handle,
}

#[derive(Debug)]
enum Progress {
    Waiting,
    Begun(JoinHandle<()>),
    /// The guard is released; nothing begins any more.
    Released,
}

impl Shadow {
    /// Begins the shadow of a lock that was granted on the old store.
    pub(crate) fn begin(context: &Arc<Context>, request: &AcquireRequest, validity: Validity) -> Self {
        let (context, request) = (Arc::clone(context), request.clone());
        let (progress, released) = (Mutex::new(Progress::Waiting), CancellationToken::new());
        let runtime = Handle::current();
        let stage = Arc::new(Stage { context, request, validity, progress, released, runtime });
        stage.context.later.add(&stage);
        Self(stage)
    }

    /// Releases the shadow lock, before the lock itself is released: else the next holder would find it busy.
    pub(crate) async fn release(&self) {
        if let Some(task) = self.0.end() {
            // What takes longer ends in the background.
            let _ = timeout(RELEASE_LIMIT, task).await;
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

impl Stage {
    /// Ends the shadow, and returns its task if that has begun.
    fn end(&self) -> Option<JoinHandle<()>> {
        let before = mem::replace(&mut *self.progress(), Progress::Released);
        match before {
            Progress::Begun(task) => {
                self.released.cancel();
                Some(task)
            }
            Progress::Waiting | Progress::Released => None,
        }
    }

    /// The request for the shadow lock; none for a name that is too long.
    fn shadow_request(&self) -> Option<AcquireRequest> {
        let mut request = self.request.clone();
        request.name = LockName::new(format!("{PREFIX}{}", request.name)).ok()?;
        (request.wait, request.on_queued) = (Wait::Never, None);
        Some(request)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Begin for Stage {
    fn begin(self: Arc<Self>) {
        if !self.validity.is_valid() {
            return;
        }
        let Some(request) = self.shadow_request() else { return };
        let mut progress = self.progress();
        if let Progress::Waiting = *progress {
            let (context, validity, released) =
                (Arc::clone(&self.context), self.validity.clone(), self.released.clone());
            let task = self.runtime.spawn(follow(context, request, validity, released));
            *progress = Progress::Begun(task);
        }
    }
}

async fn follow(
    context: Arc<Context>,
    request: AcquireRequest,
    validity: Validity,
    released: CancellationToken,
) {
    let is_over = async {
        tokio::select! {
            () = released.cancelled() => {}
            _ = validity.lost() => {}
        }
    };
    tokio::pin!(is_over);
    let name = request.name.clone();
    // A store that does not answer is not waited for once the guard is gone.
    let measured = tokio::select! {
        biased;
        () = &mut is_over => return,
        measured = measure(&context, request) => measured,
    };
    let Some(mut half) = measured else { return };
    let is_asked = asked(half.revocation().cloned());
    tokio::select! {
        biased;
        () = &mut is_over => {}
        () = is_asked => {
            if validity.is_valid() {
                context.process.note_double_grant();
                tracing::error!(lock = name.as_str(), "the old store has granted a lock to two holders at once");
            }
            is_over.await;
        }
    }
    // A release that fails is repeated in the background.
    let _ = half.release().await;
}

/// Waits until another holder of the lock asks for its shadow.
async fn asked(revocation: Option<Revocation>) {
    match revocation {
        Some(revocation) => revocation.requested().await,
        None => pending().await,
    }
}

async fn measure(context: &Context, request: AcquireRequest) -> Option<Half> {
    let (counts, sent, name) = (&context.shadow, Instant::now(), request.name.clone());
    counts.tried.fetch_add(1, Ordering::Relaxed);
    let mut acquired = acquire(context, request.clone()).await;
    if matches!(acquired, Ok(None)) {
        // The guard of its holder may not be valid any more, and the shadow on its way out.
        ask_holder(context, &request).await;
        sleep(SECOND_LOOK).await;
        acquired = acquire(context, request).await;
    }
    match acquired {
        Ok(Some(half)) => {
            counts.granted(sent.elapsed());
            return Some(half);
        }
        Ok(None) => {}
        Err(error) => {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, lock = name.as_str(), "the shadow lock failed");
        }
    }
    None
}

/// Asks the holder of a shadow lock whether its guard is valid. Of permits, one of a holder that crashed makes the others look as if
/// they were too many.
async fn ask_holder(context: &Context, request: &AcquireRequest) {
    if matches!(request.mode, Mode::Permit { .. }) {
        return;
    }
    if let Err(error) = context.to.request_revocation(&request.name).await {
        tracing::debug!(%error, lock = request.name.as_str(), "the holder of a shadow lock could not be asked");
    }
}

async fn acquire(context: &Context, request: AcquireRequest) -> Result<Option<Half>> {
    match context.to.acquire(request).await? {
        Acquired::Held(lease) => Ok(Some(context.half(lease))),
        _ => Ok(None),
    }
}

/// How long the release of a lock waits for that of its shadow.
const RELEASE_LIMIT: Duration = Duration::from_millis(50);
/// When a shadow lock that was busy is tried again.
const SECOND_LOOK: Duration = Duration::from_millis(200);
