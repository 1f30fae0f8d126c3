//! Watches the holders of a lock, for an observer that holds nothing itself.
//!
//! The node of an exclusive holder is watched, so that neither waiters that come and go nor their watches wake the observer.
//! Otherwise the children of the directory are watched: the next one may be a holder.

use std::sync::Arc;

use lock_core::Mode;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::watches::{Claim, Need, Room, Subject, Watch};
use crate::operate::inspect::look;
use crate::recipes::recipe::ZkRecipe;
use crate::sessions::session::{PAUSE, Session};

/// Fires when a lock may have other holders. Without room in the session there is no watch: the observer polls.
pub(crate) struct HoldersWatch(Option<Watch>);

impl HoldersWatch {
    /// Waits for the watch, or until the caller should [look again](Session::second_look).
    pub(crate) async fn fired(self, session: &Session) {
        match self.0 {
            Some(watch) => tokio::select! {
                _ = watch => {}
                () = session.pause(session.second_look()) => {}
            },
            None => session.pause(session.poll_interval()).await,
        }
    }
}

/// Watches the holders that the lock has now.
///
/// The directory of a lock is watched for its creation or for its children, [not for both](crate::nodes::watches). When it has just been
/// created or deleted, and another observer of this session has not noticed yet, this one waits for a moment.
pub(crate) async fn watch_holders(session: &Session, lock: &LockPath) -> Result<HoldersWatch, Fault> {
    let claim = session.watches.claim(0);
    let mut refusals = 0;
    while refusals < MOST_REFUSALS {
        match try_watch(session, lock, &claim).await? {
            Attempt::Watched(watch) => return Ok(HoldersWatch(Some(watch))),
            Attempt::Changed => {}
            Attempt::NoRoom => {
                refusals += 1;
                session.pause(PAUSE).await;
            }
        }
    }
    Ok(HoldersWatch(None))
}

enum Attempt {
    Watched(Watch),
    /// The node was created or deleted since the look.
    Changed,
    NoRoom,
}

async fn try_watch(session: &Session, lock: &LockPath, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
    let holders = look(session, lock).await?.holders;
    let watch = match (&holders[..], lock.recipe) {
        ([only], _) if only.mode == Mode::Exclusive => {
            let Some(room) = claim.room(&only.path, Need::Must) else { return Ok(Attempt::NoRoom) };
            existing(watch_node(session, &only.path, &room).await)?
        }
        (_, ZkRecipe::Queue) => match claim.room_for(Subject::Children, &lock.dir, Need::Must) {
            Some(room) => match existing(watch_children(session, &lock.dir, &room).await)? {
                None => {
                    drop(room);
                    return watch_creation(session, lock, claim).await;
                }
                watch => watch,
            },
            // Another observer waits for the directory, which may exist by now.
            None => match watch_creation(session, lock, claim).await? {
                Attempt::Changed => return Ok(Attempt::NoRoom),
                attempt => return Ok(attempt),
            },
        },
        (_, ZkRecipe::Ephemeral(_)) => return watch_creation(session, lock, claim).await,
    };
    Ok(watch.map_or(Attempt::Changed, Attempt::Watched))
}

async fn watch_node(session: &Session, path: &str, room: &Arc<Room>) -> Result<Watch, Fault> {
    let watched = session.retry_until_definite(|| session.watch_existing(path, Some(Arc::clone(room))));
    watched.await.map(|(watch, _)| watch)
}

async fn watch_children(session: &Session, path: &str, room: &Arc<Room>) -> Result<Watch, Fault> {
    session.retry_until_definite(|| session.watch_children_in(Arc::clone(room), path)).await
}

/// Watches for the creation of the lock's directory or, with one node, of the lock.
async fn watch_creation(session: &Session, lock: &LockPath, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
    let Some(room) = claim.room(&lock.dir, Need::Must) else { return Ok(Attempt::NoRoom) };
    let watched = session.retry_until_definite(|| session.watch_absence_in(Arc::clone(&room), &lock.dir));
    let (stat, watch) = watched.await?;
    Ok(if stat.is_none() { Attempt::Watched(watch) } else { Attempt::Changed })
}

/// The watch; none if there is no node.
fn existing(watched: Result<Watch, Fault>) -> Result<Option<Watch>, Fault> {
    match watched {
        Err(fault) if fault.is_no_node() => Ok(None),
        watched => watched.map(Some),
    }
}

/// How often an observer finds no room before it polls.
const MOST_REFUSALS: u32 = 10;
