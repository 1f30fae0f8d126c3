//! The nodes of an acquisition whose creation got no answer: finds them, and deletes them once it is given up.

use std::sync::Arc;

use futures_util::future::join;
use lock_core::OwnerId;
use tokio::time::{Instant, sleep};
use zookeeper_client::Stat;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, NodeIdentity};
use crate::nodes::node_data::NodeData;
use crate::nodes::node_owners::Owned;
use crate::recipes::queue::names;
use crate::recipes::release::{LONGEST_PAUSE, delete};
use crate::sessions::session::{PAUSE, Session, SessionHandle};

/// Deletes the nodes of creations that got no answer, once the servers answer again. The session is not kept open for long
/// for that, as its end deletes the nodes as well. Returns whether none is left.
pub(crate) async fn delete_unanswered(
    session: SessionHandle,
    lock: &LockPath,
    identity: NodeIdentity,
) -> bool {
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

/// All nodes of this acquisition, the lowest first, as the quorum knows them.
///
/// After a reconnection, a transaction that the quorum commits comes after all that the session sent before: requests that
/// arrive later over the old connection are refused, as the session has moved.
pub(crate) async fn find(
    session: &Session,
    lock: &LockPath,
    identity: NodeIdentity,
) -> Result<Vec<CreatedNode>, Fault> {
    let prefix = identity.prefix(lock);
    let names = list(session, lock).await?;
    let mut found = Vec::new();
    for path in names.iter().filter(|name| name.starts_with(&prefix)).map(|name| lock.child(name)) {
        // Never adopt the node of another session, however similar: it may expire at any time.
        let is_ours = |stat: &Stat| stat.ephemeral_owner == session.id;
        let Some(stat) = session.retry_until_definite(|| session.stat(&path)).await?.filter(is_ours) else {
            continue;
        };
        let digits = lock.child(&prefix).len();
        if lock.has_unique_names() {
            found.extend(CreatedNode::at(path, digits, stat.czxid));
            continue;
        }
        let (data, stat) = match session.retry_until_definite(|| session.data(&path)).await {
            Err(fault) if fault.is_no_node() => continue,
            answer => answer?,
        };
        if let Some(owned) = own(session, identity.owner, &data, &stat).filter(|_| is_ours(&stat)) {
            found.extend(CreatedNode::at(path, digits, stat.czxid).map(|node| node.with_record(Some(owned))));
        }
    }
    found.sort_unstable_by_key(|node| node.sequence);
    Ok(found)
}

/// The record of this owner for a node of the session, if it is the owner's. Only data that nobody has overwritten says whose it is.
fn own(session: &Session, owner: OwnerId, data: &[u8], stat: &Stat) -> Option<Owned> {
    match (NodeData::is_of(data, owner), stat.version) {
        (true, _) => session.owners.record(stat.czxid, owner),
        (false, 0) => None,
        (false, _) => session.owners.adopt(stat.czxid, owner),
    }
}

/// The names of the nodes of the lock, as the quorum knows them.
async fn list(session: &Session, lock: &LockPath) -> Result<Vec<String>, Fault> {
    let listed = session.retry_until_definite(|| async {
        let (passed, names) = join(session.pass_quorum(&lock.dir), names(session, lock)).await;
        passed.and(names)
    });
    match listed.await {
        Err(fault) if fault.is_no_node() => Ok(Vec::new()),
        names => names,
    }
}
