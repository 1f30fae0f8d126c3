//! Acquires a lock: from the request to the lease.

use std::sync::Arc;

use lock_core::{AcquireRequest, Acquired, Result};

use crate::attempt::Acquisition;
use crate::context::Context;
use crate::server::Asked;
use crate::wait::Waiting;

/// Acquires a lock, and waits for it as long as the request allows.
pub(crate) async fn acquire(context: &Arc<Context>, request: &AcquireRequest) -> Result<Acquired> {
    context.sweeper.sweep(&context.server);
    let what = Acquisition::new(context, request);
    let mut attempt = what.attempt();
    let (sent, answer) = attempt.ask(&what).await;
    match answer {
        Ok(Asked::Granted(token)) => {
            attempt.granted(&what, sent, token).map(|lease| Acquired::Held(Box::new(lease)))
        }
        // Boxed, to keep the future of an acquisition small.
        answer => Box::pin(Waiting::new(what).go_on(attempt, sent, answer)).await,
    }
}
