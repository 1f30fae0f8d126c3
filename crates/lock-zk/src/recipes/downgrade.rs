//! Downgrades a writer to a reader: replaces its node by a reader's, with the same sequence number.

use std::sync::Arc;

use lock_core::{Mode, OwnerId};
use zookeeper_client::{self as zk, CreateMode, MultiWriteResult};

use crate::error::{Fault, Right};
use crate::nodes::lock_path::LockPath;
use crate::nodes::node::{CreatedNode, Downgraded};
use crate::nodes::node_data::{NodeData, Origin};
use crate::sessions::ensemble::Change;
use crate::sessions::session::{PAUSE, Session, SessionHandle};

/// Replaces this writer's node by a reader's, however often that takes.
///
/// # Cancel safety
///
/// This function is cancel safe: the downgrade goes on, and the next call returns its outcome.
pub(crate) async fn downgrade(
    node: &Arc<CreatedNode>,
    session: &Arc<Session>,
    lock: &Arc<LockPath>,
    owner: OwnerId,
) -> Downgraded {
    let start = |_| {
        let (node, lock, handle) = (Arc::clone(node), Arc::clone(lock), SessionHandle::new(session, 0));
        async move { replace(&handle, &lock, owner, &node).await }
    };
    let may_retry = |outcome: &Downgraded| matches!(outcome, Downgraded::Refused(_));
    // The session ends with its runtime, and its nodes are deleted.
    node.downgrade.run(&session.runtime, may_retry, Downgraded::Deleted, start).await
}

/// The reader's node gets the number of the writer's, so no contender behind it that cannot share the lock is let in.
///
/// Source of the idea: Curator's `InterProcessReadWriteLock`, where a writer also reads under its own number, but by a
/// second node beside the first.
async fn replace(session: &Session, lock: &LockPath, owner: OwnerId, node: &CreatedNode) -> Downgraded {
    let prefix = lock.child(&lock.layout.prefix(owner, Mode::Shared, false));
    let path = format!("{prefix}{:010}", node.sequence);
    let mut in_doubt = false;
    loop {
        let czxid = match replace_once(session, lock, node, &path).await {
            Ok(Some(czxid)) => Ok(Some(czxid)),
            Ok(None) => {
                // An earlier request has replaced it, or somebody has deleted it.
                let found = find_reader(session, lock, owner, &path).await;
                found.map_err(|fault| fault.doubted_if(true))
            }
            Err(fault) => Err(fault),
        };
        match czxid {
            Ok(Some(czxid)) => match CreatedNode::at(path, prefix.len(), czxid) {
                Some(reader) => match reader.owned_by(owner, &session.owners, lock) {
                    Ok(reader) => return Downgraded::To(Arc::new(reader)),
                    Err(_) => return Downgraded::Deleted,
                },
                None => return Downgraded::Deleted,
            },
            Ok(None) | Err(Fault::SessionEnded) => return Downgraded::Deleted,
            Err(fault) if is_unknown(&fault, in_doubt) => {
                in_doubt = true;
                tracing::debug!(?fault, path, "the outcome of a downgrade is unknown; repeating it");
                tokio::time::sleep(PAUSE).await;
            }
            Err(fault) => return Downgraded::Refused(fault.doubted_if(in_doubt)),
        }
    }
}

/// Whether a downgrade that failed so may have been applied. A refusal by one server says nothing about an earlier request.
const fn is_unknown(fault: &Fault, in_doubt: bool) -> bool {
    match fault {
        Fault::Unknown(_) | Fault::Refused(zk::Error::Throttled | zk::Error::NotReadOnly) => true,
        Fault::Denied { right: Right::Read, .. } => in_doubt,
        Fault::Doubted(fault) => is_unknown(fault, in_doubt),
        _ => false,
    }
}

/// Returns the id of the transaction, or nothing if the writer's node does not exist.
async fn replace_once(
    session: &Session,
    lock: &LockPath,
    node: &CreatedNode,
    reader: &str,
) -> Result<Option<i64>, Fault> {
    loop {
        let (data, stat) = match session.data(&node.path).await {
            Err(fault) if fault.is_no_node() => return Ok(None),
            answer => answer?,
        };
        if stat.czxid != node.czxid {
            return Ok(None);
        }
        let writer = Origin { czxid: stat.czxid, ctime: stat.ctime };
        let parsed = NodeData::parse(&data);
        let data = parsed.map_or(data, |data| NodeData { writer: Some(writer), ..data }.to_bytes());
        let (mode, acl) = (CreateMode::Ephemeral, session.acl.acls());
        let changes = [
            // Of this version: a revocation request that is written in between must not be lost.
            Change::Delete { path: &node.path, version: Some(stat.version) },
            Change::Create { path: reader, data: &data, mode, acl },
        ];
        match session.multi(&changes).await {
            Ok(results) => match results.last() {
                Some(MultiWriteResult::Create { stat, .. }) if !stat.is_invalid() => {
                    return Ok(Some(stat.czxid));
                }
                _ => return Ok(session.stat(reader).await?.map(|stat| stat.czxid)),
            },
            Err((Some(0), Fault::Refused(zk::Error::NoNode | zk::Error::BadVersion))) => {}
            Err((Some(0), fault)) => return Err(fault.needing(Right::Delete, &lock.dir)),
            Err((_, fault)) => return Err(fault.needing(Right::Create, &lock.dir)),
        }
    }
}

/// Looks for the reader's node that an earlier request created.
async fn find_reader(
    session: &Session,
    lock: &LockPath,
    owner: OwnerId,
    path: &str,
) -> Result<Option<i64>, Fault> {
    let (data, stat) = match session.data(path).await {
        Err(fault) if fault.is_no_node() => return Ok(None),
        answer => answer?,
    };
    // Where names are reused, the data tells it from another node of this session, unless it was overwritten.
    let is_ours = lock.has_unique_names() || stat.version > 0 || NodeData::is_of(&data, owner);
    Ok(Some(stat.czxid).filter(|_| stat.ephemeral_owner == session.id && is_ours))
}
