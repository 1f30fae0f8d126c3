//! A handle to a session, for as long as a node of a lock may exist in it.

use std::ops::Deref;
use std::sync::Arc;

use crate::session::Session;
use crate::watches::Claim;

/// Counts one node of a lock in a session, and holds the right to watch one path of that length.
pub(crate) struct SessionHandle {
    session: Arc<Session>,
    pub(crate) claim: Arc<Claim>,
}

impl SessionHandle {
    /// A handle for a node whose path has this many bytes.
    pub(crate) fn new(session: &Arc<Session>, bytes: usize) -> Self {
        Self::with(session, session.watches.claim(bytes))
    }

    /// Another handle for the same lock.
    pub(crate) fn another(&self) -> Self {
        Self::with(&self.session, Arc::clone(&self.claim))
    }

    fn with(session: &Arc<Session>, claim: Arc<Claim>) -> Self {
        session.add_node();
        Self { session: Arc::clone(session), claim }
    }
}

impl Deref for SessionHandle {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        self.session.remove_node();
    }
}
