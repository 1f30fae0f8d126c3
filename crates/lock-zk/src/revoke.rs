//! Asks the holders of a lock to release it.

use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::error::Fault;
use crate::inspect::{ContenderNode, look};
use crate::lock_path::LockPath;
use crate::node_data::{NodeData, REVOKE};
use crate::session::Session;

/// Writes a revocation request into the nodes of all holders. Returns whether the lock was held.
pub(crate) async fn request_revocation(session: &Session, lock: &LockPath) -> Result<bool, Fault> {
    let request = |holder: ContenderNode| async move { write_request(session, lock, &holder.path).await };
    loop {
        let holders = look(session, lock).await?.holders;
        let free = holders.is_empty();
        let mut held = false;
        for written in join_all(holders.into_iter().map(request)).await {
            match written {
                Ok(()) => held = true,
                // It has just released the lock, or become a reader.
                Err(fault) if fault.is_no_node() => {}
                Err(fault) => return Err(fault),
            }
        }
        if free || held {
            return Ok(held);
        }
    }
}

/// Writes a revocation request into the node of a holder.
///
/// It replaces the data, as Curator's holders expect. Where names are reused, it is added instead: there, an owner that
/// missed the answer to the creation recognizes its node only by the data.
async fn write_request(session: &Session, lock: &LockPath, path: &str) -> Result<(), Fault> {
    if lock.has_unique_names() {
        return session.retry_until_definite(|| session.set_data(path, REVOKE, None)).await.map(drop);
    }
    loop {
        let (data, stat) = session.retry_until_definite(|| session.data(path)).await?;
        let parsed = NodeData::parse(&data);
        let data =
            parsed.map_or_else(|| REVOKE.to_vec(), |data| NodeData { revoke: true, ..data }.to_bytes());
        let written = session.retry_until_definite(|| session.set_data(path, &data, Some(stat.version)));
        match written.await {
            // Another client wrote it, or the answer was lost.
            Err(Fault::Refused(zk::Error::BadVersion)) => {}
            written => return written.map(drop),
        }
    }
}
