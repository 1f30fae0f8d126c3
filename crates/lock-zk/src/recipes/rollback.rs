//! Rolls back what a dropped acquisition, or a dropped guard, left in ZooKeeper.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{Deletion, NodeIdentity};
use crate::recipes::created::{Created, Rollback, State};
use crate::recipes::lost_answer::delete_unanswered;
use crate::recipes::release::delete_latest;
use crate::sessions::session::{Session, SessionHandle};

impl Rollback {
    /// Undoes all of it, in the background. Nothing is left of it for the acquisition. The receiver is notified once nothing is left on
    /// the servers, and gets an error if that stays unknown, or another call has begun it.
    pub(crate) fn begin(&self, session: &Arc<Session>) -> oneshot::Receiver<()> {
        let (undone, is_undone) = oneshot::channel();
        let begun = Created { state: State::RolledBack, certain: true };
        let Created { state, certain } = mem::replace(&mut *self.created(), begun);
        if matches!(state, State::Nothing) && certain {
            let _ = undone.send(());
        } else if !matches!(state, State::RolledBack) && !session.has_ended() {
            // The task owns no `OwnNode`: dropping the task, as its runtime shuts down, must not start another one.
            let handle = SessionHandle::with(session, Arc::clone(&self.claim));
            let rolling_back = roll_back(handle, Arc::clone(&self.lock), self.identity, state, certain);
            self.cleanup.spawn(&session.runtime, async move {
                if rolling_back.await {
                    let _ = undone.send(());
                }
            });
        }
        is_undone
    }
}

/// Waits for the request under way, and deletes the node. Returns whether nothing is left.
async fn roll_back(
    session: SessionHandle,
    lock: Arc<LockPath>,
    identity: NodeIdentity,
    state: State,
    mut certain: bool,
) -> bool {
    let created = match state {
        State::Nothing | State::RolledBack => None,
        State::Creating(creation) => match creation.await {
            Ok((node, _)) => Some(node),
            Err(fault) => {
                certain &= !fault.is_in_doubt();
                None
            }
        },
        State::Exists(node) => Some(node),
    };
    if let Some(node) = created
        && delete_latest(&session, &lock, &node).await == Deletion::WithSession
    {
        return false;
    }
    certain || delete_unanswered(session, &lock, identity).await
}
