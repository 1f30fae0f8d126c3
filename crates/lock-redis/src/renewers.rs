//! What renews the leases of a backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::renewal::{Renewal, Renewer, Terms};
use lock_core::{Clock, ValidityCell};

use crate::lease::{Held, RenewOnServer};
use crate::{Keys, Server};

/// A renewer for each node of a cluster, so that a node that hangs holds up no renewal at another; one for one server.
#[derive(Debug)]
pub(crate) struct Renewers {
    server: Arc<Server>,
    clock: Clock,
    by_node: Mutex<BTreeMap<String, Renewer<RenewOnServer>>>,
}

impl Renewers {
    /// Those at this server; none is made before there is a lease.
    pub(crate) fn new(server: Arc<Server>, clock: Clock) -> Self {
        Self { server, clock, by_node: Mutex::default() }
    }

    /// Takes a lease on, whose validity is written to `cell`, beside those of the node that has the lock now. If its slot
    /// moves it is renewed all the same.
    pub(crate) fn add(&self, keys: &Keys, held: Arc<Held>, terms: Terms, cell: ValidityCell) -> Renewal {
        let node = self.server.node_name(keys).unwrap_or_default();
        let renewer = || Renewer::new(RenewOnServer { server: Arc::clone(&self.server) }, self.clock.clone());
        self.by_node().entry(node).or_insert_with(renewer).add(held, terms, cell)
    }

    /// Ends the renewal of all leases: they end when their time to live is over.
    pub(crate) fn stop_all(&self) {
        self.by_node().values().for_each(Renewer::stop_all);
    }

    fn by_node(&self) -> MutexGuard<'_, BTreeMap<String, Renewer<RenewOnServer>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
