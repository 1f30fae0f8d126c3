//! Acquires a lock: from the request to the lease.

use std::sync::Arc;

use lock_core::{AcquireRequest, Acquired, Result};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;

use crate::attempt::Acquisition;
use crate::context::Context;
use crate::wait::Waiting;

/// Acquires a lock, and waits for it as long as the request allows.
pub(crate) async fn acquire(
    context: &Arc<Context>,
    keys: Arc<Keys>,
    request: &AcquireRequest,
) -> Result<Acquired> {
    let what = Acquisition::new(context, keys, request);
    let listener = what.listener();
    let mut attempt = what.attempt();
    let (sent, answer) = attempt.ask(&what, false).await;
    match answer {
        Ok(LockAnswer::Granted(token)) if !context.server.waits_for_replicas() => {
            attempt.granted(&what, sent, token).map(|lease| Acquired::Held(Box::new(lease)))
        }
        // Boxed, to keep the future of an acquisition small.
        answer => Box::pin(Waiting::new(what, listener).go_on(attempt, sent, answer)).await,
    }
}
