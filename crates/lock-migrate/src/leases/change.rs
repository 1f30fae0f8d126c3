//! Waits until a lock has other holders, in whatever store it is.
//!
//! Each store that was looked at is awaited in its own way: it reports at once what has changed since that look. The rung of a
//! name may change without a change of the lock, so that another store decides.

use std::future::pending;
use std::time::Duration;

use lock_core::{Backend, LockName, LockState, Result};
use tokio::time::sleep;

use crate::backend::Look;
use crate::context::Context;
use crate::rungs::rung::Rung;

impl Context {
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        loop {
            let rung = self.rung(name);
            let Look { state, old, new } = self.look(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            tokio::select! {
                changed = half_changes(&*self.from, name, old.as_ref()) => changed?,
                changed = half_changes(&*self.to, name, new.as_ref()) => changed?,
                () = self.leaves_rung(name, rung) => {}
            }
        }
    }

    /// Waits until this process has another rung for the name; it learns that without asking anybody.
    async fn leaves_rung(&self, name: &LockName, rung: Rung) {
        while self.rung(name) == rung {
            sleep(LOOK).await;
        }
    }
}

/// Waits for a change of one store; for ever if it was not looked at.
async fn half_changes(store: &dyn Backend, name: &LockName, seen: Option<&LockState>) -> Result<()> {
    match seen {
        Some(seen) => store.await_change(name, seen).await.map(drop),
        None => pending().await,
    }
}

const LOOK: Duration = Duration::from_millis(500);
