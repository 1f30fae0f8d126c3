//! The renewal of leases: one pipeline to each node for all that are due.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renew, Renewal, Renewed, Renewer, Terms};
use lock_core::{Clock, Error, Outcome, OwnerId, Result, ValidityCell};
use redis_link::keys::Keys;

use crate::error::surely_not_begun;
use crate::request::{Extension, Hold};
use crate::server::Server;

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
    pub(crate) fn add(&self, keys: &Keys, held: Arc<HeldLock>, terms: Terms, cell: ValidityCell) -> Renewal {
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

/// What leases are renewed by: those of one server that are due go out in one pipeline.
#[derive(Debug)]
pub(crate) struct RenewOnServer {
    pub(crate) server: Arc<Server>,
}

/// A lock that is held, as its renewals know it.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: OwnerId,
    form: Mutex<Form>,
}

/// How a lock is held, as far as is known.
#[derive(Debug)]
struct Form {
    sharing: Sharing,
    /// Whether every renewal is a downgrade.
    downgrading: bool,
    /// Whether the next renewal tells the first of those who wait that it is.
    notifies_next: bool,
}

/// Whether a lock may be held with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    No,
    /// A downgrade is on its way, the first one.
    Asked,
    /// It is so, or a downgrade was sent of which nobody knows that it was not carried out.
    Perhaps,
}

impl HeldLock {
    pub(crate) fn new(keys: &Arc<Keys>, owner: OwnerId, hold: Hold) -> Arc<Self> {
        let sharing = if hold == Hold::Alone { Sharing::No } else { Sharing::Perhaps };
        let form = Mutex::new(Form { sharing, downgrading: false, notifies_next: false });
        Arc::new(Self { keys: Arc::clone(keys), owner, form })
    }

    pub(crate) fn hold(&self) -> Hold {
        self.form().hold()
    }

    /// Has the next renewal notify the next waiter that it is the first in the queue.
    pub(crate) fn notify_next(&self) {
        self.form().notifies_next = true;
    }

    /// Notes that a renewal is about to leave, and says of what it is one. None other is on its way.
    fn sends(&self) -> Hold {
        let mut form = self.form();
        form.sharing = match form.sharing {
            Sharing::No if form.downgrading => Sharing::Asked,
            Sharing::No => Sharing::No,
            // The one before was never answered.
            Sharing::Asked | Sharing::Perhaps => Sharing::Perhaps,
        };
        match form.hold() {
            Hold::Alone if mem::take(&mut form.notifies_next) => Hold::HandedOver,
            hold => hold,
        }
    }

    /// Notes what became of that renewal.
    fn answered(&self, renewed: &Renewed) {
        let mut form = self.form();
        if form.sharing == Sharing::Asked {
            form.sharing = match renewed {
                Renewed::Unknown(error) if surely_not_begun(error) => Sharing::No,
                _ => Sharing::Perhaps,
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
            Sharing::Asked | Sharing::Perhaps => Hold::Shared,
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

    /// From here on no renewal is one, and what is said of the lock by now stays so.
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

    async fn renew(&self, batch: &[(Self::Key, Duration)]) -> Vec<Renewed> {
        let leases: Vec<_> = batch
            .iter()
            .map(|(held, ttl)| Extension {
                keys: &held.keys,
                owner: held.owner,
                hold: held.sends(),
                ttl: *ttl,
            })
            .collect();
        let mut renewed = self.extend(&leases).await;
        // One that also tells the next needs more keys than any other, and the rights to them: it is not to fail for that.
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
        for ((held, _), renewed) in batch.iter().zip(&renewed) {
            held.answered(renewed);
        }
        renewed
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
