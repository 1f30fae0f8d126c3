//! The ACLs of created nodes.

use zookeeper_client::{Acl, Acls, Permission};

/// The ACL of the nodes that this client creates: nodes of locks, their directories, and the nodes above.
///
/// Nodes that exist already keep their ACL.
///
/// # Examples
///
/// ```
/// # use lock_zk::{NodeAcl, ZkConfig};
/// let config = ZkConfig::new("a:2181").credentials("shop", "secret").acl(NodeAcl::CreatorAndReaders);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeAcl {
    /// Clients with the same credentials may do everything, others nothing: they can neither take a lock nor see who holds
    /// it. The default with credentials.
    Creator,
    /// As [`Creator`](Self::Creator), and everybody may read.
    CreatorAndReaders,
    /// Everybody may do everything. The default without credentials.
    Open,
    /// These entries.
    Custom(Vec<Acl>),
}

impl NodeAcl {
    pub(crate) fn acls(&self) -> Acls<'_> {
        match self {
            Self::Creator => Acls::creator_all(),
            Self::CreatorAndReaders => Acls::new(&CREATOR_AND_READERS),
            Self::Open => Acls::anyone_all(),
            Self::Custom(acls) => Acls::new(acls),
        }
    }

    /// Whether an entry is for an authenticated client.
    pub(crate) fn needs_credentials(&self) -> bool {
        self.acls().iter().any(|acl| acl.scheme() == "auth")
    }
}

static CREATOR_AND_READERS: [Acl; 2] =
    [Acl::new_const(Permission::ALL, "auth", ""), Acl::new_const(Permission::READ, "world", "anyone")];
