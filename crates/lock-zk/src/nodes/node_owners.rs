//! Which acquisition each node of a session belongs to, where its data may not say.
//!
//! An acquisition whose creation got no answer recognizes its node by its name or, where names are reused, by its data. Others
//! may overwrite that: a revocation request that is late hits the node of the next holder. Such a node belongs to an
//! acquisition whose creation got no answer if all others of its session know theirs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use lock_core::OwnerId;

use crate::poison::lock;

/// The owners of the nodes of one session whose names are reused, by the transactions that created the nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeOwners(Mutex<Owners>);

#[derive(Debug, Default)]
struct Owners {
    by_czxid: HashMap<i64, (OwnerId, Weak<()>)>,
    /// Stay recorded: the creation may be answered later.
    adopted: Vec<Owned>,
}

/// A record of the owner of a node, which lasts until all its clones are dropped.
pub(crate) type Owned = Arc<()>;

impl NodeOwners {
    /// Records whose node this is; returns nothing if it belongs to another acquisition.
    pub(crate) fn record(&self, czxid: i64, owner: OwnerId) -> Option<Owned> {
        lock(&self.0).record(czxid, owner)
    }

    /// Records that a node without a known owner belongs to this acquisition, for good.
    pub(crate) fn adopt(&self, czxid: i64, owner: OwnerId) -> Option<Owned> {
        let mut owners = lock(&self.0);
        let owned = owners.record(czxid, owner)?;
        owners.adopted.push(Arc::clone(&owned));
        Some(owned)
    }
}

impl Owners {
    fn record(&mut self, czxid: i64, owner: OwnerId) -> Option<Owned> {
        if let Some((recorded, owned)) = self.by_czxid.get(&czxid)
            && let Some(owned) = owned.upgrade()
        {
            return (*recorded == owner).then_some(owned);
        }
        if self.by_czxid.len() == self.by_czxid.capacity() {
            self.by_czxid.retain(|_, (_, owned)| owned.strong_count() > 0);
        }
        let owned = Owned::default();
        self.by_czxid.insert(czxid, (owner, Arc::downgrade(&owned)));
        Some(owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_owner_until_that_is_done_with_it() {
        let (owners, one, two) = (NodeOwners::default(), OwnerId::random(), OwnerId::random());
        let owned = (owners.record(7, one).unwrap(), owners.record(7, one).unwrap());
        assert!(owners.record(7, two).is_none() && owners.adopt(7, two).is_none());
        drop(owned.0);
        assert!(owners.record(7, two).is_none());
        drop(owned.1);
        assert!(owners.record(7, two).is_some());
        drop(owners.adopt(8, one).unwrap());
        assert!(owners.record(8, two).is_none(), "its answer comes later");
    }

    #[test]
    fn nodes_that_are_done_with_leave_no_record() {
        let owners = NodeOwners::default();
        (0..10_000).for_each(|czxid| drop(owners.record(czxid, OwnerId::random())));
        assert!(lock(&owners.0).by_czxid.len() < 100);
    }
}
