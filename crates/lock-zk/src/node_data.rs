//! The data of a node: its owner, its origin, and a revocation request.

use std::time::{Duration, SystemTime};

use lock_core::{OwnerId, OwnerInfo};
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
    /// Whether the holder is asked to release the lock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoke: bool,
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
        let since = Duration::from_millis(u64::try_from(self.ctime).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}

impl NodeData {
    pub(crate) const fn new(info: OwnerInfo, owner: String) -> Self {
        Self { info, owner, writer: None, revoke: false }
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
}

/// Whether this data asks the holder to release the lock.
pub(crate) fn is_revocation_request(data: &[u8]) -> bool {
    data == REVOKE || NodeData::parse(data).is_some_and(|data| data.revoke)
}

/// The revocation request, as Curator's `Revoker` writes it over the data of a node.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";
