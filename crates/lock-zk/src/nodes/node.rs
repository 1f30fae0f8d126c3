//! A node of a lock: how it is recognized, and what becomes of it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use lock_core::{Mode, OwnerId, OwnerInfo};
use zookeeper_client as zk;

use crate::error::Fault;
use crate::nodes::lock_path::LockPath;
use crate::nodes::node_data::NodeData;
use crate::nodes::node_owners::{NodeOwners, Owned};
use crate::recipes::recipe::ZkRecipe;
use crate::sessions::shared_task::SharedTask;

/// What the nodes of one acquisition have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeIdentity {
    pub(crate) owner: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) writes: bool,
}

impl NodeIdentity {
    /// The part of the name before the sequence number.
    pub(crate) fn prefix(&self, lock: &LockPath) -> String {
        match lock.recipe {
            ZkRecipe::Queue => lock.layout.prefix(self.owner, self.mode, self.writes),
            ZkRecipe::Ephemeral(_) => String::new(),
        }
    }

    pub(crate) fn data(&self, info: &OwnerInfo) -> Vec<u8> {
        self.node_data(info).to_bytes()
    }

    pub(crate) fn node_data(&self, info: &OwnerInfo) -> NodeData {
        NodeData::new(info.clone(), self.owner.to_string())
    }
}

/// A node that the server created.
#[derive(Debug)]
pub(crate) struct CreatedNode {
    pub(crate) path: String,
    pub(crate) sequence: i64,
    /// The id of the transaction that created it.
    pub(crate) czxid: i64,
    /// Its downgrade, started before a request that may replace it is sent.
    pub(crate) downgrade: SharedTask<Downgraded>,
    /// Its deletion: all who delete the node (a release, a drop, the end of a fixed ttl) share one task.
    ///
    /// The server deletes by name alone, so the release looks at the node first where names are reused. No second deletion may be
    /// under way then: the first would free the name, and the second delete the node of the next holder.
    pub(crate) deletion: SharedTask<Result<Deletion, Fault>>,
    /// How many fenced writes were sent and have got no answer: they may be applied while the node exists.
    pub(crate) unanswered_writes: AtomicUsize,
    /// The record of its owner, where names are reused.
    #[expect(dead_code, reason = "it lasts until this is dropped")]
    owned: Option<Owned>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// This deletion did it.
    Done,
    /// The node was deleted before.
    Earlier,
    /// The session ended, and its nodes with it.
    WithSession,
}

#[derive(Clone, Debug)]
pub(crate) enum Downgraded {
    /// This reader's node replaced the writer's.
    To(Arc<CreatedNode>),
    /// The writer's node was deleted before.
    Deleted,
    /// The server refused, and nothing changed.
    Refused(Fault),
}

impl PartialEq for CreatedNode {
    fn eq(&self, other: &Self) -> bool {
        (self.czxid, &self.path) == (other.czxid, &other.path)
    }
}

impl CreatedNode {
    /// The node at this path, whose sequence number begins at this byte, if it has one.
    pub(crate) fn at(mut path: String, digits: usize, czxid: i64) -> Option<Self> {
        let digits = path.get(digits..)?;
        let sequence = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        // The driver leaves spare capacity.
        path.shrink_to_fit();
        Some(Self {
            path,
            sequence,
            czxid,
            downgrade: SharedTask::default(),
            deletion: SharedTask::default(),
            unanswered_writes: AtomicUsize::default(),
            owned: None,
        })
    }

    /// The same node, recorded as that of an acquisition.
    pub(crate) fn with_record(self, owned: Option<Owned>) -> Self {
        Self { owned, ..self }
    }

    /// The same node, which the server has just created for this acquisition. Its outcome is unknown if another one of the session
    /// has [adopted](NodeOwners::adopt) it.
    pub(crate) fn owned_by(
        self,
        owner: OwnerId,
        owners: &NodeOwners,
        lock: &LockPath,
    ) -> Result<Self, Fault> {
        if lock.has_unique_names() {
            return Ok(self);
        }
        match owners.record(self.czxid, owner) {
            Some(owned) => Ok(self.with_record(Some(owned))),
            None => Err(Fault::Unknown(zk::Error::NodeExists)),
        }
    }

    /// The node at this path, to whose prefix the server appended the sequence number.
    pub(crate) fn below(prefix: &str, path: String, czxid: i64) -> Result<Self, Fault> {
        let text = format!("the server created {path} for {prefix}");
        Self::at(path, prefix.len(), czxid).ok_or(Fault::Unknown(zk::Error::UnexpectedError(text)))
    }

    /// The reader's node that replaced this one, or this one.
    pub(crate) async fn latest(self: &Arc<Self>) -> Arc<Self> {
        match self.downgrade.outcome().await {
            Some(Downgraded::To(reader)) => reader,
            _ => Arc::clone(self),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}
