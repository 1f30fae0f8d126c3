//! Renews leases: one request for all on a server that are due.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use async_trait::async_trait;
use tokio::time::sleep;

use super::blocked::Pauses;
use super::{Changed, Extension, Hold, LeaseStore};
use crate::process::poison::lock;
use crate::process::time::drift::valid_until;
use crate::renewal::{Answered, Due, Renew, Renewal, Renewed, Renewer, Terms};
use crate::{Capabilities, Clock, Error, ErrorKind, Outcome, OwnerId, ValidityCell};

/// How often a lease is tried whose record something else has.
const TRIES: u32 = 5;
/// The code of a renewal whose record something else has.
const BLOCKED: &str = "locked";

/// The renewers of a store: one for each of its servers.
#[derive(Debug)]
pub(super) struct Renewers<S: LeaseStore> {
    renew: RenewOnStore<S>,
    one: Renewer<RenewOnStore<S>>,
    by_node: Mutex<BTreeMap<String, Renewer<RenewOnStore<S>>>>,
}

impl<S: LeaseStore> Renewers<S> {
    pub(super) fn new(store: &Arc<S>, capabilities: &Capabilities, clock: &Clock) -> Self {
        // The leases keep the store.
        let store = Arc::downgrade(store);
        let renew = RenewOnStore { store, backend: capabilities.backend, clock: clock.clone() };
        let one = Renewer::new(renew.clone(), clock.clone());
        Self { renew, one, by_node: Mutex::default() }
    }

    /// Adds a lease, whose validity is written to `cell`, to the renewer of its present server. It is renewed even if its lock moves.
    pub(super) fn add(
        &self,
        node: Option<String>,
        held: Arc<HeldLock<S::Place>>,
        terms: Terms,
        cell: ValidityCell,
    ) -> Renewal {
        let Some(node) = node else { return self.one.add(held, terms, cell) };
        let renewer = || Renewer::new(self.renew.clone(), self.renew.clock.clone());
        self.by_node().entry(node).or_insert_with(renewer).add(held, terms, cell)
    }

    /// Stops the renewal of all leases, which then expire.
    pub(super) fn stop_all(&self) {
        self.one.stop_all();
        self.by_node().values().for_each(Renewer::stop_all);
    }

    fn by_node(&self) -> MutexGuard<'_, BTreeMap<String, Renewer<RenewOnStore<S>>>> {
        lock(&self.by_node)
    }
}

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(super) struct HeldLock<P> {
    pub(super) place: P,
    pub(super) owner: OwnerId,
    form: Mutex<Form>,
}

/// How a lock is held, as far as is known.
#[derive(Debug)]
struct Form {
    sharing: Sharing,
    /// Whether every renewal is a downgrade.
    downgrades: bool,
    /// Whether one of those was applied.
    is_downgraded: bool,
    /// Whether the next renewal confirms a grant.
    confirms_next: bool,
    /// Whether the guard is gone.
    is_left: bool,
}

/// Whether a lock may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    No,
    /// The first downgrade is in flight.
    Requested,
    /// It is shared, or an earlier downgrade may have been applied.
    Possible,
}

impl<P> HeldLock<P> {
    pub(super) const fn new(place: P, owner: OwnerId, hold: Hold) -> Self {
        let sharing = if matches!(hold, Hold::Alone) { Sharing::No } else { Sharing::Possible };
        let form = Mutex::new(Form {
            sharing,
            downgrades: false,
            is_downgraded: false,
            confirms_next: false,
            is_left: false,
        });
        Self { place, owner, form }
    }

    pub(super) fn hold(&self) -> Hold {
        self.form().hold()
    }

    pub(super) fn confirm_next(&self) {
        self.form().confirms_next = true;
    }

    /// Notes that the guard is gone: the next extension is the last one.
    pub(super) fn leave(&self) {
        self.form().is_left = true;
    }

    /// Notes that a renewal is about to be sent, and returns the hold that it renews. No other one is in flight.
    fn sends(&self) -> Hold {
        let mut form = self.form();
        form.sharing = match form.sharing {
            Sharing::No if form.downgrades => Sharing::Requested,
            Sharing::No => Sharing::No,
            // The previous renewal got no answer.
            Sharing::Requested | Sharing::Possible => Sharing::Possible,
        };
        match form.hold() {
            Hold::Alone if mem::take(&mut form.confirms_next) => Hold::Granted,
            hold => hold,
        }
    }

    /// Notes that it was a downgrade that was blocked, and returns the hold to renew instead: the lease itself may be free.
    fn blocked(&self) -> Hold {
        let mut form = self.form();
        if form.sharing == Sharing::Requested {
            form.sharing = Sharing::No;
        }
        form.sharing.hold()
    }

    /// Notes the outcome of a renewal of this hold.
    fn answered(&self, hold: Hold, renewed: &Renewed) {
        let mut form = self.form();
        form.is_downgraded |= hold == Hold::Downgrading && matches!(renewed, Renewed::Until(_));
        if form.sharing == Sharing::Requested {
            form.sharing = match renewed {
                Renewed::Unknown(error) if error.outcome() == Outcome::NotApplied => Sharing::No,
                _ => Sharing::Possible,
            };
        }
    }

    fn form(&self) -> MutexGuard<'_, Form> {
        lock(&self.form)
    }
}

impl Form {
    const fn hold(&self) -> Hold {
        if self.downgrades { Hold::Downgrading } else { self.sharing.hold() }
    }
}

impl Sharing {
    const fn hold(self) -> Hold {
        match self {
            Self::No => Hold::Alone,
            Self::Requested | Self::Possible => Hold::Shared,
        }
    }
}

/// While this exists, every renewal is a downgrade.
pub(super) struct Downgrading<'a, P>(&'a HeldLock<P>);

impl<'a, P> Downgrading<'a, P> {
    pub(super) fn begin(held: &'a HeldLock<P>) -> Self {
        let mut form = held.form();
        (form.downgrades, form.is_downgraded) = (true, false);
        Self(held)
    }

    /// Whether a renewal has made the lock a share. Else it was blocked, and the lease was extended alone.
    pub(super) fn is_done(&self) -> bool {
        self.0.form().is_downgraded
    }

    /// Ends it: later renewals are no downgrades. Returns the final state.
    pub(super) fn end(self) -> Sharing {
        let mut form = self.0.form();
        form.downgrades = false;
        form.sharing
    }
}

impl<P> Drop for Downgrading<'_, P> {
    fn drop(&mut self) {
        self.0.form().downgrades = false;
    }
}

/// Whether a renewal failed as something else has the record of the lease.
pub(super) fn is_blocked(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.code() == BLOCKED
}

/// Renews a batch of leases.
#[derive(Debug)]
pub(super) struct RenewOnStore<S> {
    store: Weak<S>,
    backend: &'static str,
    clock: Clock,
}

impl<S> Clone for RenewOnStore<S> {
    fn clone(&self) -> Self {
        Self { store: Weak::clone(&self.store), backend: self.backend, clock: self.clock.clone() }
    }
}

#[async_trait]
impl<S: LeaseStore> Renew for RenewOnStore<S> {
    type Key = Arc<HeldLock<S::Place>>;

    async fn renew(&self, batch: &[Due<Self::Key>], answered: &dyn Answered<Renewed>) {
        let Some(store) = self.store.upgrade() else {
            return (0..batch.len())
                .for_each(|at| answered(at, Renewed::Unknown(Error::closed(self.backend))));
        };
        let mut holds: Vec<_> = batch.iter().map(|due| due.key.sends()).collect();
        let (mut left, mut pauses): (Vec<usize>, _) = ((0..batch.len()).collect(), Pauses::default());
        for _ in 0..TRIES {
            let extension = |&at: &usize| {
                let Due { key: held, ttl, shortens, .. } = &batch[at];
                let (place, hold, leaves) = (&held.place, holds[at], held.form().is_left);
                Extension { place, owner: held.owner, ttl: *ttl, shortens: *shortens, hold, leaves }
            };
            let extensions: Vec<_> = left.iter().map(extension).collect();
            let (sent, blocked) = (self.clock.now(), Mutex::new(Vec::new()));
            let extended = store.extend(&extensions, |at, answer| {
                let at = left[at];
                let renewed = match answer {
                    Ok(Changed::Done(())) => Renewed::Until(valid_until(sent, batch[at].ttl)),
                    Ok(Changed::NotHeld | Changed::NotHeldAnyMore) => Renewed::Lost,
                    Ok(Changed::Blocked) => return lock(&blocked).push(at),
                    Err(error) => Renewed::Unknown(error),
                };
                batch[at].key.answered(holds[at], &renewed);
                answered(at, renewed);
            });
            extended.await;
            left = mem::take(&mut *lock(&blocked));
            if left.is_empty() {
                return;
            }
            for &at in &left {
                if holds[at] == Hold::Downgrading {
                    holds[at] = batch[at].key.blocked();
                }
            }
            sleep(pauses.next()).await;
        }
        for at in left {
            let renewed = Renewed::Unknown(self.blocked());
            batch[at].key.answered(holds[at], &renewed);
            answered(at, renewed);
        }
    }

    fn spares_longer(&self) -> bool {
        true
    }
}

impl<S> RenewOnStore<S> {
    fn blocked(&self) -> Error {
        Error::new(ErrorKind::Unavailable, self.backend)
            .with_message("something else has the record of the lease")
            .with_code(BLOCKED)
            .with_hint("it is renewed again soon")
    }
}
