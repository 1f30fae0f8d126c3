//! A [`Change`] that outlives what it was made of.

use zookeeper_client::{Acl, Acls, CreateMode};

use crate::sessions::ensemble::Change;

/// A [`Change`] that a request takes along.
pub(crate) struct OwnedChange {
    path: String,
    kind: ChangeKind,
}

enum ChangeKind {
    Check(Option<i32>),
    Create { data: Vec<u8>, mode: CreateMode, acl: Vec<Acl> },
    Set { data: Vec<u8>, version: Option<i32> },
    Delete(Option<i32>),
}

impl OwnedChange {
    pub(crate) fn of(change: &Change<'_>) -> Self {
        let kind = match *change {
            Change::Check { version, .. } => ChangeKind::Check(version),
            Change::Create { data, mode, acl, .. } => {
                ChangeKind::Create { data: data.to_owned(), mode, acl: acl.to_vec() }
            }
            Change::Set { data, version, .. } => ChangeKind::Set { data: data.to_owned(), version },
            Change::Delete { version, .. } => ChangeKind::Delete(version),
        };
        Self { path: change.path().to_owned(), kind }
    }

    pub(crate) fn borrow(&self) -> Change<'_> {
        let path = &self.path;
        match &self.kind {
            &ChangeKind::Check(version) => Change::Check { path, version },
            ChangeKind::Create { data, mode, acl } => {
                Change::Create { path, data, mode: *mode, acl: Acls::new(acl) }
            }
            &ChangeKind::Set { ref data, version } => Change::Set { path, data, version },
            &ChangeKind::Delete(version) => Change::Delete { path, version },
        }
    }
}
