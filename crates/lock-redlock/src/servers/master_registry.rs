//! Maps addresses to servers, to find a server with two addresses.

use redis_link::greeting::Identity;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The server behind each address. A server with two addresses must not vote twice.
#[derive(Debug, Default)]
pub(crate) struct MasterRegistry {
    /// Address and `run_id`, in the order of discovery: the first address votes.
    servers: Mutex<Vec<(String, String)>>,
    /// Whether two addresses lead to one server; the fast answer for the common case.
    has_twins: AtomicBool,
}

impl MasterRegistry {
    /// Notes the identity of the server behind an address.
    pub(crate) fn enter(&self, identity: &Identity, address: &str) {
        let mut servers = self.servers();
        if !servers.iter().any(|(at, run_id)| at == address && *run_id == identity.run_id) {
            servers.retain(|(at, _)| at != address);
            servers.push((address.to_owned(), identity.run_id.clone()));
            let run_ids: BTreeSet<&str> = servers.iter().map(|(_, run_id)| run_id.as_str()).collect();
            self.has_twins.store(run_ids.len() < servers.len(), Ordering::Release);
        }
    }

    /// The address that votes for the server behind this one, if it is another.
    pub(crate) fn twin(&self, address: &str) -> Option<String> {
        if !self.has_twins.load(Ordering::Acquire) {
            return None;
        }
        let servers = self.servers();
        let (_, ours) = servers.iter().find(|(at, _)| at == address)?;
        let (first, _) = servers.iter().find(|(_, run_id)| run_id == ours)?;
        (first != address).then(|| first.clone())
    }

    fn servers(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_address_votes_again_once_the_other_one_leads_elsewhere() {
        let registry = MasterRegistry::default();
        let leads_to = |address, run_id| registry.enter(&Identity::new(run_id, Duration::ZERO, 0), address);
        for (address, run_id) in [("a", "1"), ("b", "1"), ("c", "2"), ("b", "1")] {
            leads_to(address, run_id);
        }
        assert_eq!(["a", "b", "c", "d"].map(|at| registry.twin(at).is_some()), [false, true, false, false]);
        leads_to("a", "3");
        assert_eq!(["a", "b", "c"].map(|at| registry.twin(at).is_some()), [false; 3]);
        leads_to("a", "2");
        assert_eq!(registry.twin("a").as_deref(), Some("c"));
    }
}
