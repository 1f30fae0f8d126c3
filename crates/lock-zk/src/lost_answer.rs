//! Finds the nodes of an acquisition whose creation got no answer.

use futures_util::future::join;

use crate::error::Fault;
use crate::lock_path::LockPath;
use crate::node::{CreatedNode, NodeIdentity};
use crate::node_data::NodeData;
use crate::recipe::ZkRecipe;
use crate::session::Session;

/// All nodes of this acquisition, the lowest first, as the quorum knows them.
///
/// After a reconnection, a transaction that the quorum commits comes after all that the session sent before: requests that
/// arrive later over the old connection are refused, as the session has moved.
pub(crate) async fn find(
    session: &Session,
    lock: &LockPath,
    identity: NodeIdentity,
) -> Result<Vec<CreatedNode>, Fault> {
    let paths = candidates(session, lock, identity).await?;
    find_among(session, lock, identity, paths).await
}

/// The nodes that may be of this acquisition by their names.
pub(crate) async fn candidates(
    session: &Session,
    lock: &LockPath,
    identity: NodeIdentity,
) -> Result<Vec<String>, Fault> {
    if let ZkRecipe::Ephemeral(_) = lock.recipe {
        session.retry_until_definite(|| session.pass_quorum(&lock.dir)).await?;
        return Ok(vec![lock.dir.clone()]);
    }
    let listed = session.retry_until_definite(|| async {
        let children = session.children(&lock.dir);
        let (passed, children) = join(session.pass_quorum(&lock.dir), children).await;
        passed.and(children)
    });
    let names = match listed.await {
        Err(fault) if fault.is_no_node() => Vec::new(),
        children => children?,
    };
    let prefix = identity.prefix(lock);
    let matching = names.iter().filter(|name| name.starts_with(&prefix));
    Ok(matching.map(|name| lock.child(name)).collect())
}

/// The nodes of this acquisition among these.
pub(crate) async fn find_among(
    session: &Session,
    lock: &LockPath,
    identity: NodeIdentity,
    paths: Vec<String>,
) -> Result<Vec<CreatedNode>, Fault> {
    let before_digits = match lock.recipe {
        ZkRecipe::Queue => lock.child(&identity.prefix(lock)),
        ZkRecipe::Ephemeral(_) => lock.dir.clone(),
    };
    let mut found = Vec::new();
    for path in paths {
        let (data, stat) = match session.retry_until_definite(|| session.data(&path)).await {
            Err(fault) if fault.is_no_node() => continue,
            answer => answer?,
        };
        // Never adopt the node of another session, however similar: it may expire at any time.
        let is_ours = lock.has_unique_names() || NodeData::is_of(&data, identity.owner);
        if is_ours && stat.ephemeral_owner == session.id() {
            found.extend(CreatedNode::at(path, before_digits.len(), stat.czxid));
        }
    }
    found.sort_unstable_by_key(|node| node.sequence);
    Ok(found)
}
