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

/// What an observer of one lock listens to.
enum Ear {
    /// The server reports the next change of the key.
    Armed(Mailbox),
    /// The push connection is being opened.
    Opening(Listener),
    /// The server reports nothing.
    Deaf,
}

impl Context {
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let keys = self.keys(name)?;
        loop {
            let ear = match self.push.of(&keys) {
                Some(push) => arm(&push, &push.inbox(&keys), keys.lock()).await,
                None => Ear::Deaf,
            };
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            let expires = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let again = match ear {
                // A report that is lost, and the end of a lease, which the server may report late.
                Ear::Armed(_) => expires.map_or(self.ttl, |left| self.ttl.min(left + ROUNDING)),
                _ => poll_pause(),
            };
            ear.next(again).await;
        }
    }
}

impl Ear {
    /// Waits for a report, at most for this time.
    async fn next(self, patience: Duration) {
        match self {
            Self::Armed(mut mailbox) => tokio::select! {
                _ = mailbox.next() => {}
                () = sleep(patience) => {}
            },
            Self::Opening(mut listener) => tokio::select! {
                () = listener.changed() => {}
                () = sleep(patience) => {}
            },
            Self::Deaf => sleep(patience).await,
        }
    }
}

async fn arm(push: &Push, inbox: &str, key: &str) -> Ear {
    // It belongs to no acquisition, so nothing but changes of the key arrives.
    let Some(mut mailbox) = push.mailbox(inbox, OwnerId::random()) else {
        return Ear::Opening(push.open_inbox(inbox));
    };
    mailbox.mark_seen();
    let watching = mailbox.watch(key);
    let armed = tokio::select! {
        armed = watching => armed.is_some(),
        // The connection has changed.
        _ = mailbox.next() => false,
        () = sleep(longest_pause()) => false,
    };
    if armed { Ear::Armed(mailbox) } else { Ear::Deaf }
}
