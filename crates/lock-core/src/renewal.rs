//! The automatic renewal of leases, batched.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::mem;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use foldhash::fast::RandomState;
use rand::Rng;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};

use crate::error::NO_BACKEND;
use crate::{BootInstant, Clock, Error, ErrorKind, LossReason, Outcome, Result, ValidityCell};

/// Leases that are due within this time of each other go out together.
const TICK: Duration = Duration::from_millis(20);
/// What a lease that is shortened is believed less, beside a hundredth of it: the drift of clocks.
const DRIFT: Duration = Duration::from_millis(3);
/// The largest batch, so that an acquisition behind it does not wait long.
const LARGEST_BATCH: usize = 256;

/// What a backend does to renew leases.
#[async_trait]
pub trait Renew: Send + Sync + 'static {
    /// What a lease is known by.
    type Key: Clone + Send + Sync + 'static;

    /// Renews all of `batch` at once, with one answer for each in the same order. Must end in bounded
    /// time, and must never take a lock that is no longer held.
    async fn renew(&self, batch: &[(Self::Key, Duration)]) -> Vec<Renewed>;
}

/// What became of one renewal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Renewed {
    /// The server keeps the lock until then at least, by our clock.
    Until(BootInstant),
    /// The lock is no longer ours.
    NotOurs,
    /// The server did not answer, or not in a way that tells.
    Unknown(Error),
}

impl Renewed {
    /// The new deadline, as [`Lease::extend`](crate::Lease::extend) answers it.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) when the lock is no longer ours; else why that is not known.
    pub fn deadline(self, backend: &'static str) -> Result<BootInstant> {
        match self {
            Self::Until(until) => Ok(until),
            Self::NotOurs => Err(Error::lost(backend)),
            Self::Unknown(error) => Err(error),
        }
    }
}

/// Renews the leases of one server, all that are due together in one batch, at a third of their time
/// to live.
///
/// It never takes a lock, stops a lease at the first "not yours", at its deadline and at its
/// `max_hold`. At most one renewal of a lease is on its way at any time, so that the answer noted
/// last is the one that the server gave last. A single task does the work; it runs only while there
/// is something to renew.
pub struct Renewer<R: Renew> {
    shared: Arc<Shared<R>>,
}

/// What is to be renewed.
///
/// ```
/// # use std::time::Duration;
/// use lock_core::renewal::Terms;
///
/// let mut only_extended = Terms::new(Duration::from_secs(30));
/// only_extended.auto = false;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// The time to live of the lease.
    pub ttl: Duration,
    /// Whether it is renewed by itself, or only when it is [extended](Renewal::extend).
    pub auto: bool,
    /// The end of the lease, however often it is renewed.
    pub hold_until: BootInstant,
}

impl Terms {
    /// A lease with this time to live that is renewed by itself, for ever.
    #[must_use]
    pub const fn new(ttl: Duration) -> Self {
        Self { ttl, auto: true, hold_until: BootInstant::NEVER }
    }
}

struct Shared<R: Renew> {
    renew: R,
    clock: Clock,
    book: Mutex<Book<R::Key>>,
    /// Something became due earlier than before.
    sooner: Notify,
    /// A batch came back.
    answered: Notify,
}

struct Book<K> {
    entries: HashMap<u64, Entry<K>, RandomState>,
    due: BTreeSet<(BootInstant, u64)>,
    in_flight: HashSet<u64, RandomState>,
    next_id: u64,
    /// Whether nothing is renewed any more.
    closed: bool,
    /// While the task runs: when it wakes up by itself.
    wakes: Option<BootInstant>,
}

struct Entry<K> {
    key: K,
    terms: Terms,
    cell: ValidityCell,
    due: BootInstant,
    /// The runtime of the holder, where the renewing goes on if there is no other.
    runtime: Handle,
    /// The deadline before the request on its way, if that may have shortened the lease.
    before_shortened: Option<BootInstant>,
    /// The time to live that the request on its way asks for.
    sent: Duration,
    /// No longer time to live is asked for than a request without an answer did: it may be carried out at any time, and
    /// would cut a longer one short.
    most: Duration,
    /// Who waits for the next renewal, and who for the one on its way.
    asking: Vec<oneshot::Sender<Renewed>>,
    asked: Vec<oneshot::Sender<Renewed>>,
}

/// A lease that is being renewed. Dropping it ends the renewal.
pub struct Renewal {
    id: u64,
    cell: ValidityCell,
    longest_ttl: AtomicU64,
    renewer: Arc<dyn Registry>,
}

/// The part of a renewer that does not depend on the backend.
trait Registry: Send + Sync {
    fn answered(&self) -> &Notify;
    fn remove(&self, id: u64) -> bool;
    fn is_closed(&self) -> bool;
    /// With the time to live that it has had if none is given.
    fn ask(self: Arc<Self>, id: u64, ttl: Option<Duration>, answer: oneshot::Sender<Renewed>);
}

impl<R: Renew> Renewer<R> {
    /// A renewer without leases.
    #[must_use]
    pub fn new(renew: R, clock: Clock) -> Self {
        let book = Book {
            entries: HashMap::default(),
            due: BTreeSet::new(),
            in_flight: HashSet::default(),
            next_id: 0,
            closed: false,
            wakes: None,
        };
        let (sooner, answered) = (Notify::new(), Notify::new());
        Self { shared: Arc::new(Shared { renew, clock, book: Mutex::new(book), sooner, answered }) }
    }

    /// What does the renewing.
    #[must_use]
    pub fn renew(&self) -> &R {
        &self.shared.renew
    }

    /// Takes a lease on, whose validity is written to `cell`. After [`stop_all`](Self::stop_all) it is not renewed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn add(&self, key: R::Key, terms: Terms, cell: ValidityCell) -> Renewal {
        let longest_ttl = AtomicU64::new(millis(terms.ttl));
        let due = if terms.auto { self.shared.clock.now() + interval(terms.ttl) } else { BootInstant::NEVER };
        let runtime = Handle::current();
        let (asking, asked) = (Vec::new(), Vec::new());
        let (sent, most) = (terms.ttl, Duration::MAX);
        let entry =
            Entry { key, terms, cell, due, runtime, before_shortened: None, sent, most, asking, asked };
        // A lease may begin with less than its time to live.
        entry.name_end(entry.cell.validity().until());

        let cell = entry.cell.clone();
        let mut book = self.shared.book();
        let id = book.next_id;
        book.next_id += 1;
        if !book.closed {
            book.entries.insert(id, entry);
            if due < BootInstant::NEVER {
                self.shared.schedule(book, id, due);
            }
        }
        Renewal { id, cell, longest_ttl, renewer: Arc::<Shared<R>>::clone(&self.shared) }
    }

    /// Ends the renewal of all leases, for good: they end when their time to live is over. Who asks for a renewal from then
    /// on, or is not answered by then, hears [`Closed`](ErrorKind::Closed) while the lease lasts.
    pub fn stop_all(&self) {
        let mut book = self.shared.book();
        book.closed = true;
        book.due.clear();
        for (_, entry) in book.entries.drain() {
            for asked in entry.asked {
                // It may be carried out yet. Nobody listens when the caller of `extend` was dropped.
                let _ =
                    asked.send(Renewed::Unknown(Error::closed(NO_BACKEND).with_outcome(Outcome::Unknown)));
            }
        }
    }
}

impl<R: Renew> fmt::Debug for Renewer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewer").field("leases", &self.shared.book().entries.len()).finish_non_exhaustive()
    }
}

impl Renewal {
    /// Ends the renewal and waits until none is on its way any more.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the renewal has ended, but one may still be on its way.
    pub async fn stop(&self) {
        while self.renewer.remove(self.id) {
            let mut answered = pin!(self.renewer.answered().notified());
            answered.as_mut().enable();
            if !self.renewer.remove(self.id) {
                return;
            }
            answered.await;
        }
    }

    /// Renews now, with this time to live from now on.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the renewal goes on.
    pub async fn extend(&self, ttl: Duration) -> Renewed {
        self.longest_ttl.fetch_max(millis(ttl), Ordering::Relaxed);
        self.ask(Some(ttl)).await
    }

    /// Renews now, with the time to live that the lease has had: for those who change something with it, by a
    /// request that leaves after this call.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the renewal goes on.
    pub async fn renew(&self) -> Renewed {
        self.ask(None).await
    }

    /// Renews now, in the background.
    pub fn hasten(&self) {
        let (sender, _) = oneshot::channel();
        Arc::clone(&self.renewer).ask(self.id, None, sender);
    }

    async fn ask(&self, ttl: Option<Duration>) -> Renewed {
        let (sender, answer) = oneshot::channel();
        Arc::clone(&self.renewer).ask(self.id, ttl, sender);
        // The sender is dropped without an answer when the lease has ended, or will not be renewed any more.
        answer.await.unwrap_or_else(|_| match self.renewer.is_closed() && self.cell.validity().is_valid() {
            true => Renewed::Unknown(Error::closed(NO_BACKEND)),
            false => Renewed::NotOurs,
        })
    }

    /// The longest time to live that the lease was ever asked to have: what may be left of it on a
    /// server ends within that time.
    #[must_use]
    pub fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.longest_ttl.load(Ordering::Relaxed))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.renewer.remove(self.id);
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Notes that the task was ended by the shutdown of its runtime.
struct Running<R: Renew> {
    shared: Option<Arc<Shared<R>>>,
    /// Whether either who started the task or its end has come so far: the second of them goes on elsewhere.
    settled: Arc<AtomicBool>,
}

impl<R: Renew> Drop for Running<R> {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        shared.book().interrupted(shared.clock.now());
        shared.answered.notify_waiters();
        if self.settled.swap(true, Ordering::AcqRel) {
            shared.start(None);
        }
    }
}

impl<R: Renew> Shared<R> {
    fn book(&self) -> MutexGuard<'_, Book<R::Key>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a renewal, and sees to it that there is a task for it.
    fn schedule(self: &Arc<Self>, mut book: MutexGuard<'_, Book<R::Key>>, id: u64, due: BootInstant) {
        let Some(entry) = book.entries.get_mut(&id) else { return };
        let (earlier, runtime) = (mem::replace(&mut entry.due, due), entry.runtime.clone());
        book.due.remove(&(earlier, id));
        book.due.insert((due, id));
        match book.wakes {
            None => {
                drop(book);
                self.start(Some(Handle::try_current().unwrap_or(runtime)));
            }
            Some(wakes) if due < wakes => self.sooner.notify_one(),
            Some(_) => {}
        }
    }

    /// Starts the task if there is something to renew: on this runtime, or on that of any holder where it still runs.
    fn start(self: &Arc<Self>, mut on: Option<Handle>) {
        let mut ended = HashSet::new();
        loop {
            let mut book = self.book();
            let Some(&(due, _)) = book.due.first().filter(|_| book.wakes.is_none()) else { return };
            let Some(runtime) = on.take().or_else(|| book.runtime_but(&ended)) else { return };
            book.wakes = Some(due);
            // A runtime that was shut down drops the task at once, and that looks into the book.
            drop(book);
            let settled = Arc::new(AtomicBool::new(false));
            drop(runtime.spawn(Arc::clone(self).run(Arc::clone(&settled))));
            if !settled.swap(true, Ordering::AcqRel) {
                return;
            }
            ended.insert(runtime.id());
        }
    }

    fn run(self: Arc<Self>, settled: Arc<AtomicBool>) -> impl Future<Output = ()> + Send + 'static {
        // Made here, so that it is dropped also when the runtime never polls the task.
        let running = Running { shared: Some(Arc::clone(&self)), settled };
        async move {
            let mut running = running;
            while let Some(wake) = self.next_wake() {
                tokio::select! {
                    () = self.clock.sleep_until(wake) => self.renew_due().await,
                    () = self.sooner.notified() => {}
                }
            }
            running.shared = None;
        }
    }

    /// When to wake up next; `None`, and no longer running, when there is nothing left.
    ///
    /// Never later than planned before: a lock that is taken and given back all the time then finds the
    /// task asleep and early enough, and need not wake it.
    fn next_wake(&self) -> Option<BootInstant> {
        let now = self.clock.now();
        let mut book = self.book();
        let due = book.due.first().map(|(due, _)| *due);
        let planned = book.wakes.filter(|planned| *planned > now);
        book.wakes = due.into_iter().chain(planned).min();
        book.wakes
    }

    async fn renew_due(&self) {
        let mut horizon = self.clock.now() + TICK;
        while let Some((ids, batch)) = self.take_due(horizon) {
            // What was renewed just now is not due again, however short its time to live.
            horizon = self.clock.now();
            let answers = self.renew.renew(&batch).await;
            let now = self.clock.now();
            let mut book = self.book();
            for (id, answer) in ids.iter().zip(answers) {
                book.note(*id, answer, now);
            }
            book.in_flight.clear();
            drop(book);
            self.answered.notify_waiters();
        }
    }

    #[allow(clippy::type_complexity, reason = "two halves of one batch, used by the caller above only")]
    fn take_due(&self, horizon: BootInstant) -> Option<(Vec<u64>, Vec<(R::Key, Duration)>)> {
        let now = self.clock.now();
        let mut book = self.book();
        let (mut ids, mut batch) = (Vec::new(), Vec::new());
        while let Some(&(due, id)) = book.due.first() {
            if due > horizon || batch.len() == LARGEST_BATCH {
                break;
            }
            book.due.pop_first();
            if book.entries.get(&id).is_some_and(|entry| !entry.cell.validity().is_valid()) {
                book.entries.remove(&id);
            }
            if let Some(entry) = book.entries.get_mut(&id) {
                entry.asked = mem::take(&mut entry.asking);
                batch.push((entry.key.clone(), entry.send(now)));
                ids.push(id);
            }
        }
        book.in_flight.extend(&ids);
        (!ids.is_empty()).then_some((ids, batch))
    }
}

impl<K> Entry<K> {
    /// The time to live to ask for; from the moment that a shorter one may reach the server, the
    /// holder believes no longer than that.
    fn send(&mut self, now: BootInstant) -> Duration {
        let left = self.terms.hold_until.saturating_duration_since(now);
        let ttl = self.ttl().min(left).max(Duration::from_millis(1));
        self.sent = ttl;
        let until = now + ttl.saturating_sub(ttl / 100 + DRIFT);
        let before = self.cell.validity().until();
        self.before_shortened = (until < before).then_some(before);
        self.name_end(until.min(before));
        self.cell.shorten_to(until);
        ttl
    }

    /// Names the reason of a loss at a deadline that is about to be set. A lease whose last renewal is never answered may
    /// end before its `max_hold`, also when that renewal asked for no more than was left of it.
    fn name_end(&self, until: BootInstant) {
        if self.terms.hold_until == BootInstant::NEVER {
            return;
        }
        let lasts_until = until + self.terms.ttl / 100 + DRIFT;
        let is_max_hold = lasts_until >= self.terms.hold_until;
        self.cell.end_with(if is_max_hold { LossReason::MaxHold } else { LossReason::DeadlinePassed });
    }

    fn ttl(&self) -> Duration {
        self.terms.ttl.min(self.most)
    }
}

impl<K> Book<K> {
    /// The runtime of a holder that is none of these.
    fn runtime_but(&self, ended: &HashSet<Id>) -> Option<Handle> {
        let mut runtimes = self.entries.values().map(|entry| &entry.runtime);
        runtimes.find(|runtime| !ended.contains(&runtime.id())).cloned()
    }

    /// Notes that the batch on its way will not be answered.
    fn interrupted(&mut self, now: BootInstant) {
        self.wakes = None;
        for id in mem::take(&mut self.in_flight) {
            let error = Error::new(ErrorKind::Unavailable, NO_BACKEND)
                .with_message("the runtime that renewed the lock was shut down")
                .with_outcome(Outcome::Unknown);
            self.note(id, Renewed::Unknown(error), now);
        }
    }

    fn note(&mut self, id: u64, answer: Renewed, now: BootInstant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let before_shortened = entry.before_shortened.take();
        let (answer, alive, pause) = match answer {
            Renewed::Until(until) => {
                let until = until.min(entry.terms.hold_until);
                entry.name_end(until);
                let alive = entry.cell.set_until(until);
                // An answer after the deadline revives nothing.
                let answer = if alive { Renewed::Until(until) } else { Renewed::NotOurs };
                (answer, alive && now < entry.terms.hold_until, interval(entry.ttl()))
            }
            Renewed::NotOurs => {
                entry.cell.lose(LossReason::Removed);
                (Renewed::NotOurs, false, Duration::ZERO)
            }
            Renewed::Unknown(error) => {
                if error.outcome() == Outcome::NotApplied {
                    if let Some(before) = before_shortened {
                        entry.name_end(before);
                        entry.cell.set_until(before);
                    }
                } else {
                    // It may be carried out yet, after whatever is confirmed later.
                    entry.most = entry.most.min(entry.sent);
                }
                entry.cell.suspect();
                let validity = entry.cell.validity();
                // There is to be time for some more tries, however near the deadline is.
                let left = validity.until().saturating_duration_since(now);
                let pause = (interval(entry.ttl()) / 2).min((left / 4).max(TICK));
                (Renewed::Unknown(error), validity.is_valid(), pause)
            }
        };
        for asked in entry.asked.drain(..) {
            // Nobody listens when the caller of `extend` was dropped.
            let _ = asked.send(answer.clone());
        }
        if !alive {
            self.entries.remove(&id);
        } else if !entry.asking.is_empty() {
            entry.due = now;
            self.due.insert((entry.due, id));
        } else if entry.terms.auto {
            entry.due = now + pause;
            self.due.insert((entry.due, id));
        }
    }
}

impl<R: Renew> Registry for Shared<R> {
    fn answered(&self) -> &Notify {
        &self.answered
    }

    fn remove(&self, id: u64) -> bool {
        let mut book = self.book();
        if let Some(entry) = book.entries.remove(&id) {
            book.due.remove(&(entry.due, id));
        }
        book.in_flight.contains(&id)
    }

    fn is_closed(&self) -> bool {
        self.book().closed
    }

    fn ask(self: Arc<Self>, id: u64, ttl: Option<Duration>, answer: oneshot::Sender<Renewed>) {
        let mut book = self.book();
        let in_flight = book.in_flight.contains(&id);
        let Some(entry) = book.entries.get_mut(&id) else { return };
        entry.terms.ttl = ttl.unwrap_or(entry.terms.ttl);
        entry.asking.push(answer);
        if !in_flight {
            self.schedule(book, id, self.clock.now());
        }
    }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// A third of the time to live, less up to a tenth of that: leases taken together drift apart.
fn interval(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(crate::random::rng().random_range(0.9..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const TTL: Duration = Duration::from_secs(3);
    const FOREVER: Terms = Terms { ttl: TTL, auto: true, hold_until: BootInstant::NEVER };

    struct Server {
        clock: Clock,
        answer: fn(usize, BootInstant) -> Renewed,
        calls: Arc<AtomicUsize>,
        delay: Duration,
    }

    #[async_trait]
    impl Renew for Server {
        type Key = u64;

        async fn renew(&self, batch: &[(u64, Duration)]) -> Vec<Renewed> {
            let call = self.calls.fetch_add(1, Ordering::SeqCst);
            let sent = self.clock.now();
            tokio::time::sleep(self.delay).await;
            batch.iter().map(|(_, ttl)| (self.answer)(call, sent + *ttl)).collect()
        }
    }

    fn renewer(
        answer: fn(usize, BootInstant) -> Renewed,
        delay: Duration,
    ) -> (Clock, Renewer<Server>, Arc<AtomicUsize>) {
        let (clock, calls) = (Clock::tokio(), Arc::new(AtomicUsize::new(0)));
        let server = Server { clock: clock.clone(), answer, calls: Arc::clone(&calls), delay };
        (clock.clone(), Renewer::new(server, clock), calls)
    }

    fn unknown() -> Renewed {
        Renewed::Unknown(Error::new(ErrorKind::Unavailable, "test").with_outcome(Outcome::Unknown))
    }

    fn lease(clock: &Clock) -> ValidityCell {
        ValidityCell::new(clock.clone(), clock.now() + TTL)
    }

    /// Answers each lease by its key, and notes how many leases there were in the largest batch.
    struct ByKey<F> {
        clock: Clock,
        answer: F,
        largest: Arc<AtomicUsize>,
    }

    #[async_trait]
    impl<F: Fn(u64, BootInstant) -> Renewed + Send + Sync + 'static> Renew for ByKey<F> {
        type Key = u64;

        async fn renew(&self, batch: &[(u64, Duration)]) -> Vec<Renewed> {
            self.largest.fetch_max(batch.len(), Ordering::SeqCst);
            let sent = self.clock.now();
            batch.iter().map(|(key, ttl)| (self.answer)(*key, sent + *ttl)).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_batch_only_the_lease_that_is_not_ours_is_lost() {
        const LEASES: u64 = 100;
        let (clock, largest) = (Clock::tokio(), Arc::new(AtomicUsize::new(0)));
        let answer = |key, until| match key {
            7 => Renewed::NotOurs,
            8 => unknown(),
            _ => Renewed::Until(until),
        };
        let server = ByKey { clock: clock.clone(), answer, largest: Arc::clone(&largest) };
        let renewer = Renewer::new(server, clock.clone());
        let cells: Vec<_> = (0..LEASES).map(|_| lease(&clock)).collect();
        let renewals: Vec<_> =
            (0..LEASES).zip(&cells).map(|(key, cell)| renewer.add(key, FOREVER, cell.clone())).collect();
        let before = clock.now();
        tokio::time::sleep(TTL / 10).await;
        // All at once, and so in one batch.
        let answers = futures_util::future::join_all(renewals.iter().map(Renewal::renew)).await;
        assert_eq!(largest.load(Ordering::SeqCst), 100);
        for (key, (answer, cell)) in (0..LEASES).zip(answers.iter().zip(&cells)) {
            let validity = cell.validity();
            match (key, answer) {
                (7, Renewed::NotOurs) => assert_eq!(validity.lost().await, LossReason::Removed),
                (8, Renewed::Unknown(_)) => assert!(validity.is_valid() && validity.until() <= before + TTL),
                (_, Renewed::Until(_)) => {
                    assert!(validity.is_valid() && validity.until() > before + TTL, "{key}");
                }
                _ => panic!("lease {key}: {answer:?}"),
            }
        }
        tokio::time::sleep(TTL * 3).await;
        assert_eq!(cells[8].validity().lost().await, LossReason::DeadlinePassed);
        let valid = cells.iter().filter(|cell| cell.validity().is_valid()).count();
        assert_eq!(valid, 98);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_gone_is_noticed_with_the_next_renewal() {
        // What timers are late by, at most.
        const LATE: Duration = Duration::from_millis(5);
        for _ in 0..200 {
            let clock = Clock::tokio();
            let gone = clock.now() + (TTL * 5).mul_f64(crate::random::rng().random_range(0.2..1.0));
            let answer = {
                let clock = clock.clone();
                move |_, until| if clock.now() < gone { Renewed::Until(until) } else { Renewed::NotOurs }
            };
            let renewer =
                Renewer::new(ByKey { clock: clock.clone(), answer, largest: Arc::default() }, clock.clone());
            let mut leases = Vec::new();
            for key in 0..5 {
                let cell = lease(&clock);
                leases.push((renewer.add(key, FOREVER, cell.clone()), cell));
                tokio::time::sleep(TTL.mul_f64(crate::random::rng().random_range(0.0..0.2))).await;
            }
            assert!(clock.now() <= gone);
            for (_, cell) in &leases {
                assert_eq!(cell.validity().lost().await, LossReason::Removed);
            }
            let took = clock.now().saturating_duration_since(gone);
            assert!(took <= TTL / 3 + TICK + LATE, "{took:?} after {gone:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_a_lease_alive_and_batches() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let cells: Vec<_> = (0..100).map(|_| lease(&clock)).collect();
        let renewals: Vec<_> = cells.iter().map(|cell| renewer.add(0, FOREVER, cell.clone())).collect();
        tokio::time::sleep(TTL * 10).await;
        assert!(cells.iter().all(|cell| cell.validity().is_valid()));
        let calls = calls.load(Ordering::SeqCst);
        assert!((27..=1500).contains(&calls), "{calls} calls for 100 leases over 10 ttl");
        drop(renewals);
        tokio::time::sleep(TTL * 2).await;
        assert!(cells.iter().all(|cell| !cell.validity().is_valid()));
        assert!(renewer.shared.book().wakes.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn stops_at_the_first_not_yours() {
        let (clock, renewer, calls) = renewer(|_, _| Renewed::NotOurs, Duration::ZERO);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, FOREVER, cell.clone());
        assert_eq!(cell.validity().lost().await, LossReason::Removed);
        tokio::time::sleep(TTL * 10).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_again_while_the_deadline_is_ahead() {
        let flaky = |call, until| if call % 3 == 2 { Renewed::Until(until) } else { unknown() };
        let (clock, renewer, _) = renewer(flaky, Duration::ZERO);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, FOREVER, cell.clone());
        tokio::time::sleep(TTL * 10).await;
        assert!(cell.validity().is_valid());

        let (clock, renewer, calls) = self::renewer(|_, _| unknown(), Duration::ZERO);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, FOREVER, cell.clone());
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        tokio::time::sleep(TTL).await;
        let until_lost = calls.load(Ordering::SeqCst);
        tokio::time::sleep(TTL * 10).await;
        assert_eq!(calls.load(Ordering::SeqCst), until_lost);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_a_renewal_on_its_way() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::from_millis(700));
        let renewal = renewer.add(0, FOREVER, lease(&clock));
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sent = clock.now();
        renewal.stop().await;
        assert!(clock.now() >= sent + Duration::from_millis(600), "the renewal was joined");
        tokio::time::sleep(TTL * 3).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn ends_at_max_hold() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let (start, cell) = (clock.now(), lease(&clock));
        let _renewal =
            renewer.add(0, Terms { hold_until: start + Duration::from_secs(10), ..FOREVER }, cell.clone());
        assert_eq!(cell.validity().lost().await, LossReason::MaxHold);
        let held = clock.now().saturating_duration_since(start);
        assert!(held >= Duration::from_secs(10) && held < Duration::from_secs(12), "{held:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_without_an_answer_ends_at_the_deadline_and_not_at_max_hold() {
        let silent = |call, until| if call == 0 { Renewed::Until(until) } else { unknown() };
        let (clock, renewer, calls) = renewer(silent, Duration::ZERO);
        let (start, cell) = (clock.now(), lease(&clock));
        // The second renewal asks for no more than is left, and the first lasts no longer than for its time to live.
        let hold_until = start + TTL * 3 / 2;
        let _renewal = renewer.add(0, Terms { hold_until, ..FOREVER }, cell.clone());
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        assert!(calls.load(Ordering::SeqCst) > 1 && clock.now() < hold_until);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_shortened_ends_at_its_deadline_and_not_at_max_hold() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let (start, cell) = (clock.now(), lease(&clock));
        let renewal = renewer.add(0, Terms { auto: false, hold_until: start + TTL, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL / 3).await, Renewed::Until(_)));
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        assert!(clock.now() < start + TTL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_renewed_by_itself_can_be_extended() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let (start, cell) = (clock.now(), lease(&clock));
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL * 4).await, Renewed::Until(until) if until >= start + TTL * 4));
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        assert!(clock.now() >= start + TTL * 4 && clock.now() < start + TTL * 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_ttl_counts_from_the_moment_that_it_is_sent() {
        let (clock, renewer, _) = renewer(|_, _| unknown(), Duration::from_millis(100));
        let (start, cell) = (clock.now(), lease(&clock));
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL / 3).await, Renewed::Unknown(_)));
        assert!(cell.validity().until() <= start + TTL / 3 + Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_during_a_renewal_is_sent_after_it() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::from_millis(500));
        let cell = lease(&clock);
        let renewal = renewer.add(0, FOREVER, cell.clone());
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let asked = clock.now();
        let Renewed::Until(until) = renewal.extend(TTL * 9).await else { panic!("not extended") };
        assert!(until >= asked + TTL * 9 + Duration::from_millis(400), "sent after the renewal on its way");
        assert_eq!(cell.validity().until(), until);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_is_asked_for_keeps_the_ttl_and_is_sent_after_the_one_on_its_way() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::from_millis(500));
        let cell = lease(&clock);
        let renewal = renewer.add(0, FOREVER, cell.clone());
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let asked = clock.now();
        let Renewed::Until(until) = renewal.renew().await else { panic!("not renewed") };
        assert_eq!(calls.load(Ordering::SeqCst), 2, "the one that was on its way is not the answer");
        assert!(until >= asked + TTL + Duration::from_millis(400) && until <= clock.now() + TTL);
        assert_eq!(renewal.longest_ttl(), TTL);
        renewal.stop().await;
        assert!(matches!(renewal.renew().await, Renewed::NotOurs));
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_that_is_answered_too_late_is_none() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), TTL * 2);
        let cell = lease(&clock);
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL * 10).await, Renewed::NotOurs));
        assert!(!cell.validity().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_goes_on_after_a_renewal_of_unknown_outcome() {
        let flaky = |call, until| if call == 0 { unknown() } else { Renewed::Until(until) };
        for ttl in [TTL, TTL / 3] {
            let (clock, renewer, _) = renewer(flaky, Duration::ZERO);
            let cell = lease(&clock);
            let renewal = renewer.add(0, FOREVER, cell.clone());
            assert!(matches!(renewal.extend(ttl).await, Renewed::Unknown(_)));
            assert!(cell.validity().until() <= clock.now() + ttl, "it may have been carried out");
            tokio::time::sleep(TTL * 10).await;
            assert!(cell.validity().is_valid(), "{ttl:?}");
            assert!(cell.validity().until() <= clock.now() + ttl, "it may be carried out yet");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_of_unknown_outcome_cuts_no_longer_ttl_short() {
        let flaky = |call, until| if call == 0 { unknown() } else { Renewed::Until(until) };
        let (clock, renewer, _) = renewer(flaky, Duration::from_millis(100));
        let cell = lease(&clock);
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL).await, Renewed::Unknown(_)));
        let sent = clock.now();
        // The first may be carried out just after the second.
        assert!(matches!(renewal.extend(TTL * 9).await, Renewed::Until(until) if until <= sent + TTL));
        assert!(cell.validity().until() <= sent + TTL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_ttl_that_was_not_applied_changes_nothing() {
        let refused = |call, until| match call {
            0 => Renewed::Unknown(Error::new(ErrorKind::Unavailable, "test")),
            _ => Renewed::Until(until),
        };
        let (clock, renewer, _) = renewer(refused, Duration::from_millis(100));
        let (start, cell) = (clock.now(), lease(&clock));
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL / 3).await, Renewed::Unknown(_)));
        assert!(cell.validity().until() >= start + TTL);
        assert!(matches!(renewal.extend(TTL * 9).await, Renewed::Until(until) if until >= start + TTL * 9));
    }

    #[test]
    fn leases_outlive_the_runtime_that_renewed_them() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (short, clock) = (Duration::from_millis(300), Clock::boot());
        let calls = Arc::new(AtomicUsize::new(0));
        let answer = |_, until| Renewed::Until(until);
        let server = Server { clock: clock.clone(), answer, calls, delay: Duration::from_millis(50) };
        let renewer = Renewer::new(server, clock.clone());
        let terms = Terms { ttl: short, auto: true, hold_until: BootInstant::NEVER };
        let cell = ValidityCell::new(clock.clone(), clock.now() + short);
        let (one, two) = (runtime(), runtime());
        let renewal = one.block_on(async { renewer.add(0, terms.clone(), cell.clone()) });
        one.block_on(async { tokio::time::sleep(Duration::from_millis(120)).await });
        drop(one);
        let answer = two.block_on(async { tokio::time::timeout(short, renewal.extend(short)).await });
        assert!(matches!(answer, Ok(Renewed::Until(_))), "{answer:?}");
        two.block_on(async { tokio::time::sleep(short * 3).await });
        assert!(cell.validity().is_valid());
    }

    #[test]
    fn leases_of_another_runtime_are_renewed_when_the_one_that_renewed_them_ends() {
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (short, clock) = (Duration::from_millis(600), Clock::boot());
        let calls = Arc::new(AtomicUsize::new(0));
        let answer = |_, until| Renewed::Until(until);
        let server = Server { clock: clock.clone(), answer, calls, delay: Duration::from_millis(1) };
        let renewer = Renewer::new(server, clock.clone());
        let terms = Terms { ttl: short, auto: true, hold_until: BootInstant::NEVER };
        let cell = || ValidityCell::new(clock.clone(), clock.now() + short);
        let (first, ended, lasting) = (runtime(), runtime(), runtime());
        let add = |on: &tokio::runtime::Runtime, cell: &ValidityCell| {
            let _entered = on.enter();
            renewer.add(0, terms.clone(), cell.clone())
        };
        let cells = [cell(), cell(), cell()];
        let _renewals = [add(&first, &cells[0]), add(&ended, &cells[1]), add(&lasting, &cells[2])];
        drop(ended);
        drop(first);
        std::thread::sleep(short * 3);
        for (number, cell) in cells.iter().enumerate() {
            assert!(cell.validity().is_valid(), "lease {number}");
        }
        drop(lasting);
        assert!(renewer.shared.book().wakes.is_none(), "there is no runtime left");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_a_closed_renewer_hears_so_and_nothing_new_is_renewed() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), TTL / 10);
        let closed = |renewed| match renewed {
            Renewed::Unknown(error) if error.kind() == ErrorKind::Closed => error.outcome(),
            renewed => panic!("{renewed:?}"),
        };
        let (kept, lost) = (lease(&clock), lease(&clock));
        let renewal = renewer.add(0, FOREVER, kept.clone());
        let of_lost = renewer.add(1, FOREVER, lost.clone());
        let on_its_way = async {
            // The request leaves, and is not answered yet.
            tokio::time::sleep(TTL / 20).await;
            let behind_it = async {
                tokio::task::yield_now().await;
                renewer.stop_all();
            };
            tokio::join!(renewal.extend(2 * TTL), behind_it).0
        };
        let (first, second) = tokio::join!(renewal.extend(TTL), on_its_way);
        assert_eq!((closed(first), closed(second)), (Outcome::Unknown, Outcome::NotApplied));
        assert_eq!(closed(renewal.extend(TTL).await), Outcome::NotApplied);
        lost.lose(LossReason::Removed);
        assert!(matches!(of_lost.extend(TTL).await, Renewed::NotOurs));

        let before = calls.load(Ordering::SeqCst);
        let late = lease(&clock);
        let renewal = renewer.add(2, FOREVER, late.clone());
        assert_eq!(late.validity().lost().await, LossReason::DeadlinePassed);
        assert!(matches!(renewal.extend(TTL).await, Renewed::NotOurs));
        assert_eq!(calls.load(Ordering::SeqCst), before);
    }

    #[test]
    fn a_runtime_that_was_shut_down_renews_nothing_and_blocks_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (clock, calls) = (Clock::boot(), Arc::new(AtomicUsize::new(0)));
        let server =
            Server { clock: clock.clone(), answer: |_, until| Renewed::Until(until), calls, delay: TTL };
        let renewer = Renewer::new(server, clock.clone());
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        let _renewal = renewer.add(0, FOREVER, lease(&clock));
        assert!(renewer.shared.book().wakes.is_none(), "the next lease gets a task of its own runtime");
    }
}
