//! Waits until a lock has other holders.
//!
//! Each round arms the report of the server that the key has changed, then inspects the lock, so that no change falls between.
//! After a renewal the round ends in the same holders, and the next begins.

use lock_core::{LockName, LockState, Result};
use redis_link::key_watch::KeyWatch;
use redis_link::waiting::ROUNDING;
use tokio::time::sleep;

use crate::context::Context;
use crate::wait::poll_pause;

impl Context {
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let keys = self.keys(name)?;
        loop {
            let watch = KeyWatch::arm(&self.push, &keys).await;
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            let expires = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let again = match watch.is_armed() {
                // A report that is lost, and the end of a lease, which the server may report late.
                true => expires.map_or(self.ttl, |left| self.ttl.min(left + ROUNDING)),
                false => poll_pause(),
            };
            tokio::select! {
                () = watch.reported() => {}
                () = sleep(again) => {}
            }
        }
    }
}
