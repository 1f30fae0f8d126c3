//! The data of a node: its owner, its origin, and a revocation request.

use std::time::{Duration, SystemTime};

use lock_core::{OwnerId, OwnerInfo, stored_time};
use serde::{Deserialize, Serialize};

/// The data of a node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeData {
    #[serde(flatten)]
    pub(crate) info: OwnerInfo,
    /// The owner id.
    pub(crate) owner: String,
    /// The writer's node, if this is a downgraded reader's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) writer: Option<Origin>,
    /// Whether a holder is asked to release the lock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoke: bool,
    /// The transaction that created the node of that holder. Where names are reused, a late request may be written into the
    /// node of the next holder, which ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<i64>,
}

/// The creation of the node by which a holder got the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The id of the transaction, from which the token is computed.
    pub(crate) czxid: i64,
    /// The time, in milliseconds on the clock of the server.
    pub(crate) ctime: i64,
}

impl Origin {
    pub(crate) fn time(&self) -> Option<SystemTime> {
        stored_time(Duration::from_millis(u64::try_from(self.ctime).ok()?))
    }
}

impl NodeData {
    pub(crate) const fn new(info: OwnerInfo, owner: String) -> Self {
        Self { info, owner, writer: None, revoke: false, revoked: None }
    }

    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers always make JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn is_of(data: &[u8], owner: OwnerId) -> bool {
        Self::parse(data).is_some_and(|data| data.owner == owner.to_string())
    }

    /// The same data, with the request that the holder whose node this transaction created has read in it.
    pub(crate) fn restored(&self, czxid: i64, requested: bool) -> Self {
        let (info, owner) = (self.info.clone(), self.owner.clone());
        Self { revoke: requested, revoked: requested.then_some(czxid), ..Self::new(info, owner) }
    }

    /// Whether it asks the holder whose node this transaction created, and who wrote `original` where names are reused. Earlier
    /// versions name the holder by its owner id alone.
    fn asks(&self, czxid: i64, original: Option<&Self>) -> bool {
        let is_meant = match self.revoked {
            Some(revoked) => revoked == czxid || self.writer.is_some_and(|writer| writer.czxid == revoked),
            None => original.is_none_or(|original| original.owner == self.owner),
        };
        self.revoke && is_meant
    }
}

/// The data of a node that asks its holder to release the lock. It goes on saying whose node it is; the nodes of other clients
/// get what Curator's holders expect.
pub(crate) fn revocation_request(data: &[u8], czxid: i64) -> Vec<u8> {
    let request = |data| NodeData { revoke: true, revoked: Some(czxid), ..data }.to_bytes();
    NodeData::parse(data).map_or_else(|| REVOKE.to_vec(), request)
}

/// Whether this data asks the holder whose node this transaction created to release the lock; see [`NodeData::asks`].
pub(crate) fn asks_to_release(data: &[u8], czxid: i64, original: Option<&NodeData>) -> bool {
    data == REVOKE || NodeData::parse(data).is_some_and(|data| data.asks(czxid, original))
}

/// The revocation request, as Curator's `Revoker` writes it over the data of a node.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";

#[cfg(test)]
mod tests {
    use lock_core::{Holder, HolderInfo, LockMode};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_a_node_says_can_be_shown(data: Vec<u8>, czxid: i64, ctime: i64, since in 0..400_000_000_000_000_i64) {
            let _ = NodeData::parse(&data);
            for ctime in [ctime, since] {
                let origin = format!(r#"{{"czxid":{czxid},"ctime":{ctime}}}"#);
                let data = format!(r#"{{"host":"h","pid":1,"label":null,"owner":"x","writer":{origin}}}"#);
                let writer = NodeData::parse(data.as_bytes()).and_then(|data| data.writer);
                let mut holder = HolderInfo::new(Holder::Unknown("x".into()), LockMode::Shared);
                holder.since = writer.expect("it is read").time();
                prop_assert!(!holder.to_string().is_empty());
            }
        }
    }
}
