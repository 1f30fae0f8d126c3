//! How a writer becomes a reader: the node of a reader takes the place of its node, under the same number.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture, Shared};
use lock_core::{Mode, OwnerId};
use zookeeper_client::{self as zk, CreateMode, MultiWriteResult};

use crate::ensemble::Change;
use crate::error::{Fault, Right};
use crate::layout::LockPath;
use crate::lease::REVOKE;
use crate::node::{CreatedNode, NodeData, Origin, is_card_of};
use crate::session::{PAUSE, Session, SessionHandle};

/// The downgrade of one node. It is begun before a request leaves that may put the node of a reader in its place.
#[derive(Debug, Default)]
pub(crate) struct Downgrade(Mutex<Option<Begun>>);

/// All who have to know the outcome wait for the same.
type Begun = Shared<BoxFuture<'static, Downgraded>>;

/// What a downgrade ended with.
#[derive(Clone, Debug)]
pub(crate) enum Downgraded {
    /// This node of a reader is in the place of the writer's.
    To(Arc<CreatedNode>),
    /// The writer's was gone before.
    Gone,
    /// The server does not do it, and nothing has changed.
    Refused(Fault),
}

impl Downgrade {
    /// Puts the node of a reader in the place of this one, which is a writer's, however often that takes.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped it goes on, and the next call gives what came of it.
    pub(crate) async fn of(
        node: &Arc<CreatedNode>,
        session: &Arc<Session>,
        lock: &Arc<LockPath>,
        owner: OwnerId,
    ) -> Downgraded {
        let begun = {
            let mut latest = node.downgrade.0.lock().unwrap_or_else(PoisonError::into_inner);
            // One that was refused when nobody waited for it any more is tried again.
            latest.take_if(|begun| matches!(begun.peek(), Some(Downgraded::Refused(_))));
            latest.get_or_insert_with(|| begin(node, session, lock, owner)).clone()
        };
        begun.await
    }

    /// The node of a reader, if there is one in the place of the writer's by now.
    pub(crate) async fn reader(&self) -> Option<Arc<CreatedNode>> {
        let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match OptionFuture::from(begun).await {
            Some(Downgraded::To(reader)) => Some(reader),
            _ => None,
        }
    }
}

fn begin(node: &Arc<CreatedNode>, session: &Arc<Session>, lock: &Arc<LockPath>, owner: OwnerId) -> Begun {
    let (node, lock, handle) = (Arc::clone(node), Arc::clone(lock), SessionHandle::new(session, 0));
    let task = session.runtime().spawn(async move { replace(&handle, &lock, owner, &node).await });
    // With the runtime goes the session.
    task.map(|ended| ended.unwrap_or(Downgraded::Gone)).boxed().shared()
}

/// Puts the node of a reader in the place of a writer's, with its number, so that nobody behind it is let in who could
/// not share the lock; however often that takes.
///
/// Source of the idea: Curator's `InterProcessReadWriteLock`, which also lets a writer read under its own number, but as
/// a second node beside the first.
async fn replace(session: &Session, lock: &LockPath, owner: OwnerId, node: &CreatedNode) -> Downgraded {
    let prefix = lock.child(&lock.layout.prefix(owner, Mode::Shared, false));
    let path = format!("{prefix}{:010}", node.sequence);
    let mut in_doubt = false;
    loop {
        let czxid = match replace_once(session, lock, node, &path).await {
            Ok(Some(czxid)) => Ok(Some(czxid)),
            Ok(None) => find_reader(session, lock, owner, &path).await,
            Err(fault) => Err(fault),
        };
        match czxid {
            Ok(Some(czxid)) => match CreatedNode::at(path, prefix.len(), czxid) {
                Some(reader) => return Downgraded::To(Arc::new(reader)),
                None => return Downgraded::Gone,
            },
            Ok(None) | Err(Fault::SessionEnded) => return Downgraded::Gone,
            Err(fault) if is_open(&fault, in_doubt) => {
                in_doubt = true;
                tracing::debug!(?fault, path, "a downgrade is repeated");
                tokio::time::sleep(PAUSE).await;
            }
            Err(fault) => return Downgraded::Refused(fault),
        }
    }
}

/// Whether a downgrade that ended so may have been carried out. What a server refuses by itself says nothing of the
/// request before.
const fn is_open(fault: &Fault, in_doubt: bool) -> bool {
    match fault {
        Fault::Unknown(_) | Fault::Refused(zk::Error::Throttled | zk::Error::NotReadOnly) => true,
        Fault::Denied { right: Right::Read, .. } => in_doubt,
        _ => false,
    }
}

/// Gives the number of the transaction, or nothing when the node is not there.
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
        let data = card_of_reader(&data, writer).unwrap_or(data);
        let (mode, acl) = (CreateMode::Ephemeral, session.acl().acls());
        let changes = [
            // Of this version: a wish for revocation that comes in between is not to be lost.
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

/// Looks for the node that an earlier request has put in the place of ours.
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
    // Where names come again, what it says tells it from another one of this session.
    let says_so = lock.is_unique() || data == REVOKE || is_card_of(&data, owner);
    Ok(Some(stat.czxid).filter(|_| stat.ephemeral_owner == session.id() && says_so))
}

/// What the node says once the writer is a reader, if it says anything.
fn card_of_reader(data: &[u8], writer: Origin) -> Option<Vec<u8>> {
    let card: NodeData = serde_json::from_slice(data).ok()?;
    serde_json::to_vec(&NodeData { writer: Some(writer), ..card }).ok()
}
