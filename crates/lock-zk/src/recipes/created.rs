//! What an acquisition has created on the servers, or may have.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::BoxFuture;
use lock_core::background::Background;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, NodeIdentity};
use crate::nodes::watches::Claim;
use crate::poison::lock;

/// What one acquisition has created on the servers, or may have, and what undoes it.
pub(crate) struct Rollback {
    pub(crate) identity: NodeIdentity,
    pub(super) lock: Arc<LockPath>,
    pub(super) claim: Arc<Claim>,
    pub(super) cleanup: Background,
    created: Mutex<Created>,
}

pub(crate) struct Created {
    pub(crate) state: State,
    /// Whether there is certainly no second node, from a creation that got no answer.
    pub(crate) certain: bool,
}

pub(crate) enum State {
    Nothing,
    Creating(BoxFuture<'static, Creation>),
    Exists(Arc<CreatedNode>),
    /// All is undone in the background.
    RolledBack,
}

/// The created node, and whether it is known to be the only one in its directory.
pub(crate) type Creation = Result<(Arc<CreatedNode>, bool), Fault>;

impl Rollback {
    /// The directory of the lock.
    pub(crate) fn path(&self) -> &str {
        &self.lock.dir
    }

    /// That of an acquisition that has created nothing yet.
    pub(crate) fn new(
        claim: &Arc<Claim>,
        lock: &Arc<LockPath>,
        identity: NodeIdentity,
        cleanup: &Background,
    ) -> Arc<Self> {
        let (claim, created) = (Arc::clone(claim), Mutex::default());
        Arc::new(Self { identity, lock: Arc::clone(lock), claim, cleanup: cleanup.clone(), created })
    }

    /// Whether it belongs to the connection that has this clean-up.
    pub(crate) fn is_of(&self, cleanup: &Background) -> bool {
        self.cleanup.is(cleanup)
    }

    pub(crate) fn created(&self) -> MutexGuard<'_, Created> {
        lock(&self.created)
    }
}

impl Created {
    /// The node, if it exists and nobody deletes it.
    pub(crate) fn node(&self) -> Option<Arc<CreatedNode>> {
        match &self.state {
            State::Exists(node) => Some(Arc::clone(node)),
            _ => None,
        }
    }
}

impl Default for Created {
    fn default() -> Self {
        Self { state: State::Nothing, certain: true }
    }
}

impl fmt::Debug for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Nothing => "nothing",
            State::Creating(_) => "being created",
            State::Exists(node) => &node.path,
            State::RolledBack => "rolled back",
        })
    }
}
