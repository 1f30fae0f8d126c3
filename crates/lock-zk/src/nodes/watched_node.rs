//! A node that a session watches: what it holds is known without a request until it changes.
//!
//! Why that is not older than the grant of a lock in the same session is in [`token`](crate::nodes::token).

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use tokio::sync::Mutex as AsyncMutex;
use zookeeper_client::Stat;

use crate::nodes::watches::{Claim, Watch};
use crate::poison::lock;

/// A node that a session watches, whether it exists or not.
pub(crate) struct WatchedNode {
    pub(crate) path: String,
    pub(super) claim: Arc<Claim>,
    known: Mutex<Known>,
    /// Held by the task that reads.
    pub(super) reading: AsyncMutex<()>,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) data: Arc<[u8]>,
    pub(crate) stat: Stat,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) content: Option<Content>,
    /// Fires when the content may be outdated.
    pub(super) watch: Option<Watch>,
    /// Whether it was read before, so that an event may have come that another server does not know of yet.
    pub(super) was_read: bool,
}

impl WatchedNode {
    /// A node that was not read yet.
    pub(crate) fn new(path: String, claim: Arc<Claim>) -> Self {
        Self { path, claim, known: Mutex::default(), reading: AsyncMutex::default() }
    }

    /// What the node holds, if its watch has not fired.
    #[allow(clippy::option_option, reason = "the inner one is a node that does not exist")]
    pub(super) fn newest(&self) -> Option<Option<Content>> {
        let mut known = self.known();
        if known.watch.as_mut()?.now_or_never().is_some() {
            known.watch = None;
            return None;
        }
        Some(known.content.clone())
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}
