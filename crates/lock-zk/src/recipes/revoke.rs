//! Asks the holders of a lock to release it.

use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node_data::revocation_request;
use crate::operate::inspect::{ContenderNode, look_for_holders};
use crate::sessions::session::Session;

/// Writes a revocation request into the nodes of all holders whose ACL allows it. Returns whether the lock was held; fails if
/// no holder could be asked.
pub(crate) async fn request_revocation(session: &Session, lock: &LockPath) -> Result<bool, Fault> {
    let request = |holder: ContenderNode| async move { write_request(session, &holder.path).await };
    loop {
        let holders = look_for_holders(session, lock).await?;
        let free = holders.is_empty();
        let (mut held, mut denied, mut refused) = (false, None, None);
        for written in join_all(holders.into_iter().map(request)).await {
            match written {
                Ok(is_asked) => held |= is_asked,
                // It has just released the lock, or become a reader.
                Err(fault) if fault.is_no_node() => {}
                Err(fault @ Fault::Denied { .. }) => denied = Some(fault),
                Err(fault) => refused = Some(fault),
            }
        }
        if let Some(fault) = refused {
            return Err(fault.doubted_if(held));
        }
        if let Some(fault) = denied {
            if !held {
                return Err(fault);
            }
            tracing::warn!(?fault, dir = lock.dir, "not every holder could be asked to release the lock");
        }
        if free || held {
            return Ok(held);
        }
    }
}

/// Writes a revocation request into the node of a holder. Returns whether it is still the node of that holder.
///
/// Where names are reused, the node of the next holder may have the same name and version. The request does not ask that one.
async fn write_request(session: &Session, path: &str) -> Result<bool, Fault> {
    loop {
        let (data, stat) = session.retry_until_definite(|| session.data(path)).await?;
        let request = revocation_request(&data, stat.czxid);
        let written = session.retry_until_definite(|| session.set_data(path, &request, Some(stat.version)));
        match written.await {
            // Another client wrote it, or the answer was lost.
            Err(Fault::Refused(zk::Error::BadVersion)) => {}
            written => return written.map(|written| written.czxid == stat.czxid),
        }
    }
}
