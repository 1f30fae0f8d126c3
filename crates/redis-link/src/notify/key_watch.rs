//! The report of a server that a key has changed.

use lock_core::OwnerId;
use tokio::time::sleep;

use crate::notify::push::{Listener, Mailbox, Push, Pushes};
use crate::scripts::keys::Keys;
use lock_core::waiting::longest_pause;

/// Waits for the next change of the key of a lock, by any client: the server reports it over the push connection (client
/// tracking). A renewal is a change too.
#[derive(Debug)]
pub enum KeyWatch {
    /// The server reports the next change.
    Armed(Mailbox),
    /// The push connection is being opened.
    Opening(Listener),
    /// The server reports nothing.
    Silent,
}

impl KeyWatch {
    /// Asks for the report of the next change. What is read after that is not older than what is reported.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn arm(pushes: &Pushes, keys: &Keys) -> Self {
        match pushes.of(keys) {
            Some(push) => arm(&push, &push.inbox(keys), keys.lock()).await,
            None => Self::Silent,
        }
    }

    /// Whether the server reports the next change.
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        matches!(self, Self::Armed(_))
    }

    /// Waits until there is a reason to look: a change, or the push connection was opened or lost. For ever if the server
    /// reports nothing.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the report is lost. Arm another one before the next look.
    pub async fn reported(self) {
        match self {
            Self::Armed(mut mailbox) => drop(mailbox.next().await),
            Self::Opening(mut listener) => listener.changed().await,
            Self::Silent => std::future::pending().await,
        }
    }
}

async fn arm(push: &Push, inbox: &str, key: &str) -> KeyWatch {
    // It belongs to no acquisition, so nothing but changes of the key arrives.
    let Some(mut mailbox) = push.mailbox(inbox, OwnerId::random()) else {
        return KeyWatch::Opening(push.open_inbox(inbox));
    };
    mailbox.mark_seen();
    let watching = mailbox.watch(key);
    let armed = tokio::select! {
        armed = watching => armed.is_some(),
        // The connection has changed.
        _ = mailbox.next() => false,
        () = sleep(longest_pause()) => false,
    };
    if armed { KeyWatch::Armed(mailbox) } else { KeyWatch::Silent }
}
