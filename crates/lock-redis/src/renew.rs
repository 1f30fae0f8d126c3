//! Renews leases: one pipeline to each node for all that are due.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use lock_core::renewal::{Due, Renew, Renewal, Renewed, Renewer, Terms};
use lock_core::{Clock, Error, Outcome, OwnerId, Result, ValidityCell};
use redis_link::keys::Keys;

use crate::error::changed_nothing;
use crate::request::{Extension, Hold};
use crate::server::Server;

/// One renewer, or in a cluster one for each node, so that a node that hangs does not delay renewals at the others.
#[derive(Debug)]
pub(crate) struct Renewers {
    server: Arc<Server>,
    clock: Clock,
    by_node: Mutex<BTreeMap<String, Renewer<RenewOnServer>>>,
}

impl Renewers {
    /// Creates an empty set; a renewer starts with the first lease on its node.
    pub(crate) fn new(server: Arc<Server>, clock: Clock) -> Self {
        Self { server, clock, by_node: Mutex::default() }
    }

    /// Adds a lease, whose validity is written to `cell`, to the renewer of its present node. It is renewed even if its slot
    /// moves.
    pub(crate) fn add(&self, keys: &Keys, held: Arc<HeldLock>, terms: Terms, cell: ValidityCell) -> Renewal {
        let node = self.server.client.node_name(keys).unwrap_or_default();
        let renewer = || Renewer::new(RenewOnServer { server: Arc::clone(&self.server) }, self.clock.clone());
        self.by_node().entry(node).or_insert_with(renewer).add(held, terms, cell)
    }

    /// Stops the renewal of all leases, which then expire.
    pub(crate) fn stop_all(&self) {
        self.by_node().values().for_each(Renewer::stop_all);
    }

    fn by_node(&self) -> MutexGuard<'_, BTreeMap<String, Renewer<RenewOnServer>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews a batch of leases on one server in one pipeline.
#[derive(Debug)]
pub(crate) struct RenewOnServer {
    pub(crate) server: Arc<Server>,
}

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    form: Mutex<Form>,
}

/// The mode in which a lock is held, as far as is known.
#[derive(Debug)]
struct Form {
    sharing: Sharing,
    /// Whether every renewal is a downgrade.
    downgrading: bool,
    /// Whether the next renewal notifies the first waiter.
    notifies_next: bool,
}

/// Whether a lock may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    No,
    /// The first downgrade is in flight.
    Requested,
    /// It is shared, or an earlier downgrade may have been applied.
    Possible,
}

impl HeldLock {
    pub(crate) fn new(keys: &Arc<Keys>, owner: OwnerId, hold: Hold) -> Arc<Self> {
        let sharing = if hold == Hold::Alone { Sharing::No } else { Sharing::Possible };
        let form = Mutex::new(Form { sharing, downgrading: false, notifies_next: false });
        Arc::new(Self { keys: Arc::clone(keys), owner, form })
    }

    pub(crate) fn hold(&self) -> Hold {
        self.form().hold()
    }

    /// Makes the next renewal notify the next waiter that it is now the first in the queue.
    pub(crate) fn notify_next(&self) {
        self.form().notifies_next = true;
    }

    /// Notes that a renewal is about to be sent, and returns the hold that it renews. No other one is in flight.
    fn sends(&self) -> Hold {
        let mut form = self.form();
        form.sharing = match form.sharing {
            Sharing::No if form.downgrading => Sharing::Requested,
            Sharing::No => Sharing::No,
            // The previous renewal got no answer.
            Sharing::Requested | Sharing::Possible => Sharing::Possible,
        };
        match form.hold() {
            Hold::Alone if mem::take(&mut form.notifies_next) => Hold::HandedOver,
            hold => hold,
        }
    }

    /// Notes the outcome of that renewal.
    fn answered(&self, renewed: &Renewed) {
        let mut form = self.form();
        if form.sharing == Sharing::Requested {
            form.sharing = match renewed {
                Renewed::Unknown(error) if changed_nothing(error) => Sharing::No,
                _ => Sharing::Possible,
            };
        }
    }

    fn form(&self) -> MutexGuard<'_, Form> {
        self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Form {
    fn hold(&self) -> Hold {
        match self.sharing {
            _ if self.downgrading => Hold::Downgrading,
            Sharing::No => Hold::Alone,
            Sharing::Requested | Sharing::Possible => Hold::Shared,
        }
    }
}

/// While this exists, every renewal is a downgrade.
pub(crate) struct Downgrading<'a>(&'a HeldLock);

impl<'a> Downgrading<'a> {
    pub(crate) fn begin(held: &'a HeldLock) -> Self {
        held.form().downgrading = true;
        Self(held)
    }

    /// Ends it: later renewals are no downgrades. Returns the final state.
    pub(crate) fn end(self) -> Sharing {
        let mut form = self.0.form();
        form.downgrading = false;
        form.sharing
    }
}

impl Drop for Downgrading<'_> {
    fn drop(&mut self) {
        self.0.form().downgrading = false;
    }
}

#[async_trait]
impl Renew for RenewOnServer {
    type Key = Arc<HeldLock>;

    async fn renew(&self, batch: &[Due<Self::Key>]) -> Vec<Renewed> {
        let leases: Vec<_> = batch
            .iter()
            .map(|Due { key: held, ttl, shortens, .. }| Extension {
                keys: &held.keys,
                owner: held.owner,
                hold: held.sends(),
                ttl: *ttl,
                shortens: *shortens,
            })
            .collect();
        let mut renewed = self.extend(&leases).await;
        // A renewal that also notifies needs more keys and rights. If it is refused, renew without the notification.
        let is_refused = |number: &usize| {
            let is_refused = |error: &Error| error.outcome() == Outcome::NotApplied;
            leases[*number].hold == Hold::HandedOver
                && matches!(&renewed[*number], Renewed::Unknown(error) if is_refused(error))
        };
        let refused: Vec<usize> = (0..leases.len()).filter(is_refused).collect();
        if !refused.is_empty() {
            let alone = |number: &usize| Extension { hold: Hold::Alone, ..leases[*number] };
            let alone: Vec<_> = refused.iter().map(alone).collect();
            let again = Box::pin(self.extend(&alone)).await;
            refused.into_iter().zip(again).for_each(|(number, again)| renewed[number] = again);
        }
        for (due, renewed) in batch.iter().zip(&renewed) {
            due.key.answered(renewed);
        }
        renewed
    }

    fn spares_longer(&self) -> bool {
        true
    }
}

impl RenewOnServer {
    async fn extend(&self, leases: &[Extension<'_>]) -> Vec<Renewed> {
        let sent = self.server.moment();
        let renewed = |(ours, lease): (Result<bool>, &Extension<'_>)| match ours {
            Ok(true) => Renewed::Until(self.server.valid_until(sent, lease.ttl)),
            Ok(false) => Renewed::Lost,
            Err(error) => Renewed::Unknown(error),
        };
        match self.server.extend(sent, leases).await {
            Ok(ours) => ours.into_iter().zip(leases).map(renewed).collect(),
            Err(error) => leases.iter().map(|_| Renewed::Unknown(error.clone())).collect(),
        }
    }
}
