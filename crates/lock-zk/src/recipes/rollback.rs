//! Rolls back what a dropped acquisition, or a dropped guard, left in ZooKeeper.

use std::sync::{Arc, Mutex, MutexGuard};
use std::{fmt, mem};

use futures_util::future::BoxFuture;
use lock_core::background::Background;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, Deletion, NodeIdentity};
use crate::nodes::watches::Claim;
use crate::poison::lock;
use crate::recipes::release::{LONGEST_PAUSE, delete, delete_latest};
use crate::sessions::lost_answer::find;
use crate::sessions::session::{PAUSE, Session, SessionHandle};

/// What one acquisition has created on the servers, or may have, and what undoes it.
pub(crate) struct Rollback {
    pub(crate) identity: NodeIdentity,
    lock: Arc<LockPath>,
    claim: Arc<Claim>,
    cleanup: Background,
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
        session: &SessionHandle,
        lock: &Arc<LockPath>,
        identity: NodeIdentity,
        cleanup: &Background,
    ) -> Arc<Self> {
        let (claim, created) = (Arc::clone(&session.claim), Mutex::default());
        Arc::new(Self { identity, lock: Arc::clone(lock), claim, cleanup: cleanup.clone(), created })
    }

    /// Whether it belongs to the connection that has this clean-up.
    pub(crate) fn is_of(&self, cleanup: &Background) -> bool {
        self.cleanup.is(cleanup)
    }

    pub(crate) fn created(&self) -> MutexGuard<'_, Created> {
        lock(&self.created)
    }

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

/// Deletes the nodes of creations that got no answer, once the servers answer again. The session is not kept open for long
/// for that, as its end deletes the nodes as well. Returns whether none is left.
async fn delete_unanswered(session: SessionHandle, lock: &LockPath, identity: NodeIdentity) -> bool {
    let keep_until = Instant::now() + session.timeout;
    let (weak, mut handle) = (Arc::downgrade(&session), Some(session));
    let (mut looks, mut pause) = (0, PAUSE);
    while let Some(session) = weak.upgrade().filter(|session| !session.has_ended()) {
        match find(&session, lock, identity).await {
            Ok(found) => {
                for node in &found {
                    delete(&session, lock, node, false).await;
                }
                looks += 1;
                // The second look is for a creation that arrived, against the ordering guarantees, after the first.
                if looks == 2 {
                    return true;
                }
                pause = LONGEST_PAUSE / 5;
            }
            Err(Fault::SessionEnded) => return false,
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
    false
}
