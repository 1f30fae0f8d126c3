//! Owner info as the server stores it, for inspections.

use std::sync::{Arc, Mutex, PoisonError};

use lock_core::OwnerInfo;

/// The JSON of the last owner. Usually all locks of a process have the same.
#[derive(Debug, Default)]
pub struct OwnerCache {
    last: Mutex<Option<(Arc<OwnerInfo>, Arc<str>)>>,
}

impl OwnerCache {
    /// The JSON of this owner.
    #[must_use]
    pub fn of(&self, owner: &Arc<OwnerInfo>) -> Arc<str> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((other, info)) if Arc::ptr_eq(other, owner) => Arc::clone(info),
            _ => {
                let info: Arc<str> = serde_json::to_string(&**owner).unwrap_or_default().into();
                *last = Some((Arc::clone(owner), Arc::clone(&info)));
                info
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_gets_its_own_json() {
        let (owners, owner) = (OwnerCache::default(), Arc::new(OwnerInfo::this_process()));
        let labelled = Arc::new(OwnerInfo::clone(&owner).with_label("job"));
        for owner in [&owner, &owner, &labelled, &owner] {
            assert_eq!(serde_json::from_str::<OwnerInfo>(&owners.of(owner)).unwrap(), **owner);
        }
        assert!(Arc::ptr_eq(&owners.of(&owner), &owners.of(&owner)));
    }
}
