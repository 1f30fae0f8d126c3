//! Waits until a lock has other holders.

use lock_core::waiting::pause_between;
use lock_core::{LockName, LockState, Result};
use tokio::time::sleep;

use crate::context::Context;

impl Context {
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let stored = Self::stored(name);
        loop {
            // Armed before the look, so that no change falls between.
            let changes = self.inbox.observe(&stored).await?;
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            // The end of a lease is not reported, nor is a change while the connection is open no longer.
            let ends = state.holders.iter().filter_map(|holder| holder.remaining).min();
            match changes {
                Some(mut changes) => tokio::select! {
                    () = changes.next() => {}
                    () = sleep(ends.map_or(self.ttl, |left| left.min(self.ttl)) + pause_between(1, 50)) => {}
                },
                None => sleep(pause_between(250, 500)).await,
            }
        }
    }
}
