//! Watches the holders of a lock, for an observer that holds nothing itself.
//!
//! The node of an exclusive holder is watched, so that neither waiters that come and go nor their watches wake the observer.
//! Otherwise the children of the directory are watched: the next one may be a holder.

use std::sync::Arc;

use lock_core::Mode;

use crate::error::Fault;
use crate::inspect::look;
use crate::lock_path::LockPath;
use crate::session::Session;
use crate::watches::{Need, Room, Watch};

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
pub(crate) async fn watch_holders(session: &Session, lock: &LockPath) -> Result<HoldersWatch, Fault> {
    let claim = session.watches.claim(0);
    loop {
        let holders = look(session, lock).await?.holders;
        let (path, is_holder) = match &holders[..] {
            [only] if only.mode == Mode::Exclusive => (&only.path, true),
            _ => (&lock.dir, false),
        };
        let Some(room) = claim.room(path, Need::Must) else { return Ok(HoldersWatch(None)) };
        let watch = match is_holder {
            true => existing(watch_node(session, path, &room).await)?,
            false => match existing(watch_children(session, path, &room).await)? {
                None => watch_absence(session, path, room).await?,
                watch => watch,
            },
        };
        // Otherwise the node was created or deleted since the look.
        if watch.is_some() {
            return Ok(HoldersWatch(watch));
        }
    }
}

async fn watch_node(session: &Session, path: &str, room: &Arc<Room>) -> Result<Watch, Fault> {
    let watched = session.retry_until_definite(|| session.watch_in(Arc::clone(room), path));
    watched.await.map(|(watch, ..)| watch)
}

async fn watch_children(session: &Session, path: &str, room: &Arc<Room>) -> Result<Watch, Fault> {
    session.retry_until_definite(|| session.watch_children_in(Arc::clone(room), path)).await
}

/// The watch for the creation of a node; none if it exists.
async fn watch_absence(session: &Session, path: &str, room: Arc<Room>) -> Result<Option<Watch>, Fault> {
    let watched = session.retry_until_definite(|| session.watch_absence_in(Arc::clone(&room), path));
    watched.await.map(|(stat, watch)| stat.is_none().then_some(watch))
}

/// The watch; none if there is no node.
fn existing(watched: Result<Watch, Fault>) -> Result<Option<Watch>, Fault> {
    match watched {
        Err(fault) if fault.is_no_node() => Ok(None),
        watched => watched.map(Some),
    }
}
