//! Waits until a lock has other holders.
//!
//! The server reports the next change of the key, by any client, over the push connection (client tracking). Each round arms
//! that report, then inspects the lock, so that no change falls between. A renewal is a change too: the round then ends in
//! the same holders, and the next begins.

use std::time::Duration;

use lock_core::{LockName, LockState, OwnerId, Result};
use redis_link::push::{Listener, Mailbox, Push};
use redis_link::waiting::{ROUNDING, longest_pause};
use tokio::time::sleep;

use crate::context::Context;
use crate::wait::poll_pause;

/// How an observer of one lock is told of a change.
enum Report {
    /// By the server, which reports the next change of the key.
    Armed(Mailbox),
    /// Not yet: the push connection is being opened.
    Opening(Listener),
    /// Not at all: it polls.
    None,
}

impl Context {
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let keys = self.keys(name)?;
        loop {
            let report = match self.push.of(&keys) {
                Some(push) => arm(&push, &push.inbox(&keys), keys.lock()).await,
                None => Report::None,
            };
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            let expires = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let again = match report {
                // A report that is lost, and the end of a lease, which the server may report late.
                Report::Armed(_) => expires.map_or(self.ttl, |left| self.ttl.min(left + ROUNDING)),
                _ => poll_pause(),
            };
            report.wait(again).await;
        }
    }
}

impl Report {
    /// Waits for the report, at most for this time.
    async fn wait(self, patience: Duration) {
        match self {
            Self::Armed(mut mailbox) => tokio::select! {
                _ = mailbox.next() => {}
                () = sleep(patience) => {}
            },
            Self::Opening(mut listener) => tokio::select! {
                () = listener.changed() => {}
                () = sleep(patience) => {}
            },
            Self::None => sleep(patience).await,
        }
    }
}

async fn arm(push: &Push, inbox: &str, key: &str) -> Report {
    // It belongs to no acquisition, so nothing but changes of the key arrives.
    let Some(mut mailbox) = push.mailbox(inbox, OwnerId::random()) else {
        return Report::Opening(push.open_inbox(inbox));
    };
    mailbox.mark_seen();
    let watching = mailbox.watch(key);
    let armed = tokio::select! {
        armed = watching => armed.is_some(),
        // The connection has changed.
        _ = mailbox.next() => false,
        () = sleep(longest_pause()) => false,
    };
    if armed { Report::Armed(mailbox) } else { Report::None }
}
