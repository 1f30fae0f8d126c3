//! Acquires a lock: from the request to the lease.

use std::sync::Arc;

use lock_core::{AcquireRequest, Acquired, Result};

use crate::context::Context;
use crate::error::check_ttl;
use crate::wait::Waiting;

/// Acquires a lock, and waits for it as long as the request allows.
pub(crate) async fn acquire(context: &Arc<Context>, request: &AcquireRequest) -> Result<Acquired> {
    check_ttl(context.ttl_of(&request.lease), context.longest_ttl)?;
    let keys = context.keys(&request.name)?;
    let mut waiting = Waiting::new(context, &keys, request);
    loop {
        if let Some(lease) = waiting.ask().await? {
            return Ok(Acquired::Held(lease));
        }
        if request.wait.is_expired() || !waiting.wait().await {
            return waiting.give_up();
        }
    }
}
