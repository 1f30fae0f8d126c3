//! Waits until a lock has other holders.
//!
//! Each round arms the report of each master that its key has changed, then inspects the lock, so that no change falls between.
//! A quorum of reports ends the wait. Fewer may be a change as well, where the holder had no more than a quorum: they end it
//! after a pause, in which the others arrive. After a renewal the round ends in the same holders, and the next begins.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use lock_core::{LockName, LockState, Result};
use redis_link::key_watch::KeyWatch;
use redis_link::keys::Keys;
use redis_link::waiting::{ROUNDING, pause_between};
use tokio::time::sleep;

use crate::context::Context;
use crate::master::Readiness;
use crate::quorum::quorum;

impl Context {
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let keys = self.keys(name)?;
        loop {
            let watches = self.watch(&keys).await;
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            let armed = watches.iter().filter(|watch| watch.is_armed()).count();
            let expires = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let again = match armed >= quorum(self.masters.len()) {
                // Reports that are lost, and the end of a lease, which the servers may report late.
                true => expires.map_or(self.ttl, |left| self.ttl.min(left + ROUNDING)),
                false => pause_between(400, 600),
            };
            tokio::select! {
                () = reported(watches, quorum(self.masters.len())) => {}
                () = sleep(again) => {}
            }
        }
    }

    /// Arms the reports of the masters that answer.
    async fn watch(&self, keys: &Keys) -> Vec<KeyWatch> {
        let healthy = self.masters.iter().filter(|master| matches!(master.readiness(), Readiness::Healthy));
        join_all(healthy.map(|master| KeyWatch::arm(&master.pushes, keys))).await
    }
}

/// Waits for so many reports, or for fewer and a pause.
async fn reported(watches: Vec<KeyWatch>, enough: usize) {
    let mut reports: FuturesUnordered<_> = watches.into_iter().map(KeyWatch::reported).collect();
    if reports.next().await.is_none() {
        // No master can report.
        return std::future::pending().await;
    }
    let others = async {
        for _ in 1..enough {
            reports.next().await;
        }
    };
    tokio::select! {
        () = others => {}
        () = sleep(GATHER) => {}
    }
}

/// How long the first reports wait for others.
const GATHER: Duration = Duration::from_millis(50);
