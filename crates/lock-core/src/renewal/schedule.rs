//! Which leases are renewed when, and what their last answers mean for the next request.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;
use std::time::Duration;

use foldhash::fast::RandomState;
use rand::Rng;
use tokio::sync::oneshot;

use super::renew::{Due, Renewed, Terms};
use crate::process::time::drift::{margin, valid_until};
use crate::values::error::NO_BACKEND;
use crate::{BootInstant, Error, ErrorKind, LossReason, Outcome, ValidityCell};

/// Leases that are due within this time of each other go out in one batch.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// Stores count in milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// The largest batch, so that an acquisition behind it does not wait long.
const LARGEST_BATCH: usize = 256;

pub(super) struct Schedule<K> {
    pub(super) leases: HashMap<u64, ScheduledLease<K>, RandomState>,
    pub(super) due: BTreeSet<(BootInstant, u64)>,
    pub(super) in_flight: HashSet<u64, RandomState>,
    next_id: u64,
    /// Whether renewal has stopped for good.
    pub(super) closed: bool,
    /// Whether only requests that shorten a lease can cut a longer one short when they are executed late.
    spares_longer: bool,
    /// While the task runs: when it wakes up by itself.
    pub(super) wakes: Option<BootInstant>,
}

pub(super) struct ScheduledLease<K> {
    key: K,
    pub(super) terms: Terms,
    cell: ValidityCell,
    pub(super) due: BootInstant,
    /// The time to live of the last request that was applied, or the longest of those that may be.
    stored_ttl: Duration,
    /// A lease at rest has none, and there may be many leases.
    exchange: Option<Box<Exchange>>,
}

/// What is to be known about a request in flight, about the next one, and about earlier ones without an answer.
struct Exchange {
    /// The deadline before the request in flight, if that request may shorten the lease.
    before_shortened: Option<BootInstant>,
    /// The ttl in the request in flight.
    sent_ttl: Duration,
    /// Whether the request in flight may cut a longer ttl short, if the server applies it late.
    may_shorten: bool,
    /// The shortest ttl of such a request without an answer. The server may still apply it, so no longer ttl is requested.
    max_ttl: Duration,
    /// The waiters for the request in flight, and for the next one.
    callers: Vec<Caller>,
    next_callers: Vec<Caller>,
}

/// A waiter for the answer to a request.
pub(super) struct Caller {
    /// The ttl that it asked for, if for a certain one.
    pub(super) asked: Option<Duration>,
    pub(super) answer: oneshot::Sender<Renewed>,
}

/// The leases of one request.
pub(super) struct Batch<K> {
    pub(super) ids: Vec<u64>,
    pub(super) leases: Vec<Due<K>>,
    /// When half of what is left of each has passed, with its place.
    pub(super) halves: Vec<(BootInstant, usize)>,
}

impl<K> ScheduledLease<K> {
    pub(super) fn new(key: K, terms: Terms, cell: ValidityCell, now: BootInstant) -> Self {
        let (due, until) = (BootInstant::NEVER, cell.validity().until());
        let mut lease = Self { key, due, stored_ttl: terms.ttl, exchange: None, terms, cell };
        if lease.terms.auto {
            lease.due = lease.next_due(until, now);
        }
        lease.set_loss_reason(until);
        lease
    }

    /// When to renew it, valid until then, without an answer just now. There may be less left than its ttl.
    fn next_due(&self, until: BootInstant, now: BootInstant) -> BootInstant {
        let (ttl, left) = (self.ttl(), until.saturating_duration_since(now));
        now + interval(if left < ttl / 2 { left.max(TICK) } else { ttl })
    }

    /// Notes that a request leaves now, and returns it. A shorter ttl counts from the moment at which it may reach the server.
    fn begin_request(&mut self, now: BootInstant, spares_longer: bool) -> Due<K>
    where
        K: Clone,
    {
        let left = self.terms.hold_until.saturating_duration_since(now);
        let ttl = self.ttl().min(left).max(Duration::from_millis(1));
        let until = valid_until(now, ttl);
        let before = self.cell.validity().until();
        let shortens = ttl < self.stored_ttl && until < before;
        let exchange = self.exchange.get_or_insert_default();
        exchange.callers = mem::take(&mut exchange.next_callers);
        (exchange.sent_ttl, exchange.may_shorten) = (ttl, shortens || !spares_longer);
        exchange.before_shortened = (until < before).then_some(before);
        self.set_loss_reason(until.min(before));
        self.cell.shorten_to(until);
        Due { key: self.key.clone(), ttl, shortens }
    }

    /// Sets the reason of a loss at the deadline that is about to be set. A lease whose last renewal is never answered may
    /// expire before its `max_hold`, also when that renewal requested no more than was left of it.
    fn set_loss_reason(&self, until: BootInstant) {
        if self.terms.hold_until == BootInstant::NEVER {
            return;
        }
        let lasts_until = until + margin(self.terms.ttl) + ROUNDING;
        let is_max_hold = lasts_until >= self.terms.hold_until;
        self.cell.end_with(if is_max_hold { LossReason::MaxHold } else { LossReason::DeadlinePassed });
    }

    /// Adds a caller of the next request.
    pub(super) fn add_caller(&mut self, caller: Caller) {
        self.exchange.get_or_insert_default().next_callers.push(caller);
    }

    fn has_next_callers(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| !exchange.next_callers.is_empty())
    }

    fn ttl(&self) -> Duration {
        self.exchange.as_ref().map_or(self.terms.ttl, |exchange| self.terms.ttl.min(exchange.max_ttl))
    }

    /// Answers the callers of the request in flight.
    fn answer(&mut self, answer: &Renewed) {
        if let Some(exchange) = &mut self.exchange {
            let max_ttl = exchange.max_ttl;
            for Caller { asked, answer: caller } in exchange.callers.drain(..) {
                let answer = match answer {
                    Renewed::Until(_) if asked > Some(max_ttl) => Renewed::Unknown(may_be_shortened(max_ttl)),
                    answer => answer.clone(),
                };
                // Fails when the caller of `extend` was dropped.
                let _ = caller.send(answer);
            }
        }
        self.exchange.take_if(|exchange| exchange.is_over());
    }

    /// Notes that the request in flight may still be applied, even after a later confirmation.
    fn note_unanswered(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            self.stored_ttl = self.stored_ttl.max(exchange.sent_ttl);
            if exchange.may_shorten {
                exchange.max_ttl = exchange.max_ttl.min(exchange.sent_ttl);
            }
        }
    }
}

impl Exchange {
    /// Whether nothing of it matters to the next request.
    fn is_over(&self) -> bool {
        self.max_ttl == Duration::MAX && self.next_callers.is_empty()
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            before_shortened: None,
            sent_ttl: Duration::MAX,
            may_shorten: false,
            max_ttl: Duration::MAX,
            callers: Vec::new(),
            next_callers: Vec::new(),
        }
    }
}

impl<K> Schedule<K> {
    pub(super) fn new(closed: bool, spares_longer: bool) -> Self {
        Self {
            leases: HashMap::default(),
            due: BTreeSet::new(),
            in_flight: HashSet::default(),
            next_id: 0,
            closed,
            spares_longer,
            wakes: None,
        }
    }

    pub(super) fn add(&mut self, lease: ScheduledLease<K>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if !self.closed {
            self.leases.insert(id, lease);
        }
        id
    }

    /// Renews a lease by itself from now on: when it is due, unless another renewal is earlier.
    pub(super) fn renew_automatically(&mut self, id: u64, now: BootInstant) -> Option<BootInstant> {
        let lease = self.leases.get_mut(&id)?;
        let is_planned = mem::replace(&mut lease.terms.auto, true) || lease.has_next_callers();
        // The answer to a request in flight plans the next one.
        (!is_planned && !self.in_flight.contains(&id))
            .then(|| lease.next_due(lease.cell.validity().until(), now))
    }

    /// Stops all renewals for good.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.due.clear();
        for (_, mut lease) in self.leases.drain() {
            // The server may still apply the request.
            let error = Error::closed(NO_BACKEND).with_outcome(Outcome::Unknown);
            lease.answer(&Renewed::Unknown(error));
        }
    }

    /// Takes the leases that are due by `horizon`; `None` when there are none.
    pub(super) fn take_due(&mut self, horizon: BootInstant, now: BootInstant) -> Option<Batch<K>>
    where
        K: Clone,
    {
        let (mut ids, mut leases, mut halves) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(&(due, id)) = self.due.first() {
            if due > horizon || leases.len() == LARGEST_BATCH {
                break;
            }
            self.due.pop_first();
            if self.leases.get(&id).is_some_and(|lease| !lease.cell.validity().is_valid()) {
                self.leases.remove(&id);
            }
            if let Some(lease) = self.leases.get_mut(&id) {
                leases.push(lease.begin_request(now, self.spares_longer));
                let left = lease.cell.validity().until().saturating_duration_since(now);
                halves.push((now + left / 2, ids.len()));
                ids.push(id);
            }
        }
        self.in_flight.extend(&ids);
        halves.sort_unstable();
        (!ids.is_empty()).then_some(Batch { ids, leases, halves })
    }

    /// Notes that a request is not answered for so long that its lease may end before it is.
    pub(super) fn suspect(&mut self, id: u64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.cell.suspect();
        }
    }

    /// Notes that the batch in flight will not be answered.
    pub(super) fn interrupted(&mut self, now: BootInstant) {
        self.wakes = None;
        for id in mem::take(&mut self.in_flight) {
            let error = Error::new(ErrorKind::Unavailable, NO_BACKEND)
                .with_message("the tokio runtime that renewed the lock was shut down")
                .with_outcome(Outcome::Unknown);
            self.record(id, Renewed::Unknown(error), now);
        }
    }

    /// Records the answer to a request, and schedules the next one.
    pub(super) fn record(&mut self, id: u64, answer: Renewed, now: BootInstant) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let before_shortened = lease.exchange.as_mut().and_then(|exchange| exchange.before_shortened.take());
        let (answer, alive, pause) = match answer {
            Renewed::Until(until) => {
                let asked = lease.exchange.as_ref().map_or(Duration::ZERO, |exchange| exchange.sent_ttl);
                lease.stored_ttl = asked;
                let left = until.saturating_duration_since(now);
                // A store may confirm less than it was asked for.
                let ttl = if left < asked / 2 { left.max(TICK) } else { lease.ttl() };
                let until = until.min(lease.terms.hold_until);
                lease.set_loss_reason(until);
                let alive = lease.cell.set_until(until);
                // An answer after the deadline revives nothing.
                let answer = if alive { Renewed::Until(until) } else { Renewed::Lost };
                (answer, alive && now < lease.terms.hold_until, interval(ttl))
            }
            Renewed::Lost => {
                lease.cell.lose(LossReason::Removed);
                (Renewed::Lost, false, Duration::ZERO)
            }
            Renewed::Unknown(error) => {
                if error.outcome() == Outcome::NotApplied {
                    if let Some(before) = before_shortened {
                        lease.set_loss_reason(before);
                        lease.cell.set_until(before);
                    }
                } else {
                    lease.note_unanswered();
                }
                lease.cell.suspect();
                let validity = lease.cell.validity();
                // Leaves time for some more tries, however near the deadline is.
                let left = validity.until().saturating_duration_since(now);
                let pause = (interval(lease.ttl()) / 2).min((left / 4).max(TICK));
                (Renewed::Unknown(error), validity.is_valid(), pause)
            }
        };
        lease.answer(&answer);
        if !alive {
            self.leases.remove(&id);
        } else if lease.has_next_callers() {
            lease.due = now;
            self.due.insert((lease.due, id));
        } else if lease.terms.auto {
            lease.due = now + pause;
            self.due.insert((lease.due, id));
        }
    }
}

/// The error of an extension that was applied for less than was asked for.
fn may_be_shortened(max_ttl: Duration) -> Error {
    Error::new(ErrorKind::Exhausted, NO_BACKEND)
        .with_message(format!(
            "the lease is extended by {max_ttl:?} and no more: an earlier extension by that time got no answer, and the server \
             may still apply it"
        ))
        .with_hint("release the lock, and acquire it again for as long as it is needed")
        .with_outcome(Outcome::Applied)
}

/// A third of the ttl, less up to a tenth at random: leases that were acquired together drift apart.
fn interval(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(crate::process::random::rng().random_range(0.9..=1.0))
}
