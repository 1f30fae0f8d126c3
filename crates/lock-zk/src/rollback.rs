//! Rolls back what a dropped acquisition, or a dropped guard, left in ZooKeeper.

use std::mem;
use std::sync::Arc;

use tokio::time::{Instant, sleep};

use crate::error::Fault;
use crate::lock_path::LockPath;
use crate::lost_answer::find;
use crate::node::NodeIdentity;
use crate::own_node::{OwnNode, State};
use crate::release::{LONGEST_PAUSE, delete, delete_latest};
use crate::session::{PAUSE, SessionHandle};

impl Drop for OwnNode {
    fn drop(&mut self) {
        let state = mem::replace(&mut self.state, State::Nothing);
        if (matches!(state, State::Nothing) && self.certain) || self.session.has_ended() {
            return;
        }
        let (session, lock) = (self.session.another(), Arc::clone(&self.lock));
        // The task owns no `OwnNode`: dropping the task, as its runtime shuts down, must not start another one.
        let task = roll_back(session, lock, self.identity, state, self.certain);
        self.cleanup.spawn(&self.session.runtime, task);
    }
}

/// Waits for the request under way, and deletes the node.
async fn roll_back(
    session: SessionHandle,
    lock: Arc<LockPath>,
    identity: NodeIdentity,
    state: State,
    mut certain: bool,
) {
    match state {
        State::Nothing => {}
        State::Creating(creation) => match creation.answer().await {
            // The answer may be old.
            Ok((node, _)) => drop(delete(&session, &lock, &node, true).await),
            Err(fault) => certain &= !matches!(fault, Fault::Unknown(_)),
        },
        State::Exists(node) => delete_latest(&session, &lock, &node).await,
        State::Deleting(node, deletion) => {
            if deletion.answer().await.is_err() {
                delete_latest(&session, &lock, &node).await;
            }
        }
    }
    if !certain {
        delete_unanswered(session, &lock, identity).await;
    }
}

/// Deletes the nodes of creations that got no answer, once the servers answer again. The session is not kept open for long
/// for that, as its end deletes the nodes as well.
async fn delete_unanswered(session: SessionHandle, lock: &LockPath, identity: NodeIdentity) {
    let keep_until = Instant::now() + session.timeout;
    let (weak, mut handle) = (Arc::downgrade(&session), Some(session));
    let (mut looks, mut pause) = (0, PAUSE);
    while let Some(session) = weak.upgrade().filter(|session| !session.has_ended()) {
        match find(&session, lock, identity, || {}).await {
            Ok(found) => {
                for node in &found {
                    delete(&session, lock, node, false).await;
                }
                looks += 1;
                // The second look is for a creation that arrived, against the ordering guarantees, after the first.
                if looks == 2 {
                    return;
                }
                pause = LONGEST_PAUSE / 5;
            }
            Err(Fault::SessionEnded) => return,
            Err(fault) => {
                tracing::warn!(
                    ?fault,
                    dir = lock.dir,
                    "cannot look for the node of a lock whose creation got no answer; trying again"
                );
                handle = handle.filter(|_| Instant::now() < keep_until);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        drop(session);
        sleep(pause).await;
    }
}
