//! What the server keeps of an owner, for those who look at a lock.

use std::sync::{Arc, Mutex, PoisonError};

use lock_core::OwnerInfo;

/// Owners as the server keeps them. The last one is remembered: most often all locks of a process have the same.
#[derive(Debug, Default)]
pub struct Infos {
    last: Mutex<Option<(Arc<OwnerInfo>, Arc<str>)>>,
}

impl Infos {
    /// This owner, in JSON.
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
    fn every_owner_is_itself() {
        let (infos, owner) = (Infos::default(), Arc::new(OwnerInfo::this_process()));
        let labelled = Arc::new(OwnerInfo::clone(&owner).with_label("job"));
        for owner in [&owner, &owner, &labelled, &owner] {
            assert_eq!(serde_json::from_str::<OwnerInfo>(&infos.of(owner)).unwrap(), **owner);
        }
        assert!(Arc::ptr_eq(&infos.of(&owner), &infos.of(&owner)));
    }
}
