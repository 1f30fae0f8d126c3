//! The automatic renewal of leases, batched.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::{BootInstant, Clock, LossReason, ValidityCell};

/// Leases that are due within this time of each other go out together.
const TICK: Duration = Duration::from_millis(20);
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The server keeps the lock until then at least, by our clock.
    Until(BootInstant),
    /// The lock is no longer ours.
    NotOurs,
    /// The server did not answer.
    Unknown,
}

/// Renews the leases of one server, all that are due together in one batch, at a third of their time
/// to live.
///
/// It never takes a lock, stops a lease at the first "not yours", at its deadline and at its
/// `max_hold`. A single task does the work; it runs only while there is something to renew.
pub struct Renewer<R: Renew> {
    shared: Arc<Shared<R>>,
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
    entries: HashMap<u64, Entry<K>>,
    due: BTreeSet<(BootInstant, u64)>,
    in_flight: HashSet<u64>,
    next_id: u64,
    running: bool,
}

struct Entry<K> {
    key: K,
    ttl: Duration,
    hold_until: BootInstant,
    cell: ValidityCell,
    due: BootInstant,
}

/// A lease that is being renewed. Dropping it ends the renewal.
pub struct Renewal {
    id: u64,
    renewer: Weak<dyn Stop>,
}

trait Stop: Send + Sync {
    fn remove(&self, id: u64) -> bool;
    fn answered(&self) -> &Notify;
    fn set_ttl(&self, id: u64, ttl: Duration);
}

impl<R: Renew> Renewer<R> {
    /// A renewer without leases.
    #[must_use]
    pub fn new(renew: R, clock: Clock) -> Self {
        let book = Book {
            entries: HashMap::new(),
            due: BTreeSet::new(),
            in_flight: HashSet::new(),
            next_id: 0,
            running: false,
        };
        let (sooner, answered) = (Notify::new(), Notify::new());
        Self { shared: Arc::new(Shared { renew, clock, book: Mutex::new(book), sooner, answered }) }
    }

    /// Renews a lease with this time to live from now on, until it is lost or `hold_until` comes.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn add(&self, key: R::Key, ttl: Duration, hold_until: BootInstant, cell: ValidityCell) -> Renewal {
        let mut book = self.shared.book();
        let id = book.next_id;
        book.next_id += 1;
        let due = self.shared.clock.now() + interval(ttl);
        book.due.insert((due, id));
        book.entries.insert(id, Entry { key, ttl, hold_until, cell, due });
        if !book.running {
            book.running = true;
            drop(
                Handle::current().spawn(Arc::clone(&self.shared).run(Running(Arc::downgrade(&self.shared)))),
            );
        } else if book.due.first() == Some(&(due, id)) {
            self.shared.sooner.notify_one();
        }
        let shared: Arc<dyn Stop> = Arc::<Shared<R>>::clone(&self.shared);
        Renewal { id, renewer: Arc::downgrade(&shared) }
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
        let Some(renewer) = self.renewer.upgrade() else { return };
        loop {
            let mut answered = std::pin::pin!(renewer.answered().notified());
            answered.as_mut().enable();
            if !renewer.remove(self.id) {
                return;
            }
            answered.await;
        }
    }

    /// Renews with this time to live from now on.
    pub fn set_ttl(&self, ttl: Duration) {
        if let Some(renewer) = self.renewer.upgrade() {
            renewer.set_ttl(self.id, ttl);
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        if let Some(renewer) = self.renewer.upgrade() {
            renewer.remove(self.id);
        }
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Notes that the task was ended by the shutdown of its runtime.
struct Running<R: Renew>(Weak<Shared<R>>);

impl<R: Renew> Running<R> {
    fn disarm(mut self) {
        self.0 = Weak::new();
    }
}

impl<R: Renew> Drop for Running<R> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            let mut book = shared.book();
            book.running = false;
            book.in_flight.clear();
            shared.answered.notify_waiters();
        }
    }
}

impl<R: Renew> Shared<R> {
    fn book(&self) -> MutexGuard<'_, Book<R::Key>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, running: Running<R>) {
        while let Some(due) = self.next_due() {
            tokio::select! {
                () = self.clock.sleep_until(due) => self.renew_due().await,
                () = self.sooner.notified() => {}
            }
        }
        running.disarm();
    }

    /// When to wake up next; `None`, and no longer running, when there is nothing left.
    fn next_due(&self) -> Option<BootInstant> {
        let mut book = self.book();
        let next = book.due.first().map(|(due, _)| *due);
        book.running = next.is_some();
        next
    }

    async fn renew_due(&self) {
        let horizon = self.clock.now() + TICK;
        while let Some((ids, batch)) = self.take_due(horizon) {
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
        let mut book = self.book();
        let (mut ids, mut batch) = (Vec::new(), Vec::new());
        while let Some(&(due, id)) = book.due.first() {
            if due > horizon || batch.len() == LARGEST_BATCH {
                break;
            }
            book.due.pop_first();
            if let Some(entry) = book.entries.get(&id) {
                batch.push((entry.key.clone(), entry.ttl));
                ids.push(id);
            }
        }
        book.in_flight.extend(&ids);
        (!ids.is_empty()).then_some((ids, batch))
    }
}

impl<K> Book<K> {
    fn note(&mut self, id: u64, answer: Renewed, now: BootInstant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let (alive, pause) = match answer {
            Renewed::Until(until) => (entry.cell.extend_to(until.min(entry.hold_until)), interval(entry.ttl)),
            Renewed::NotOurs => {
                entry.cell.lose(LossReason::Removed);
                (false, Duration::ZERO)
            }
            Renewed::Unknown => {
                entry.cell.suspect();
                (entry.cell.validity().is_valid(), interval(entry.ttl) / 2)
            }
        };
        if alive && now < entry.hold_until {
            entry.due = now + pause;
            self.due.insert((entry.due, id));
        } else {
            self.entries.remove(&id);
        }
    }
}

impl<R: Renew> Stop for Shared<R> {
    fn remove(&self, id: u64) -> bool {
        let mut book = self.book();
        if let Some(entry) = book.entries.remove(&id) {
            book.due.remove(&(entry.due, id));
        }
        book.in_flight.contains(&id)
    }

    fn answered(&self) -> &Notify {
        &self.answered
    }

    fn set_ttl(&self, id: u64, ttl: Duration) {
        let mut book = self.book();
        let due = self.clock.now() + interval(ttl);
        let Some(entry) = book.entries.get_mut(&id) else { return };
        entry.ttl = ttl;
        let earlier = std::mem::replace(&mut entry.due, due);
        if book.due.remove(&(earlier, id)) {
            book.due.insert((due, id));
            self.sooner.notify_one();
        }
    }
}

/// A third of the time to live, less up to a tenth of that: leases taken together drift apart.
fn interval(ttl: Duration) -> Duration {
    (ttl / 3).mul_f64(rand::rng().random_range(0.9..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const TTL: Duration = Duration::from_secs(3);

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
            let until = self.clock.now() + TTL;
            tokio::time::sleep(self.delay).await;
            batch.iter().map(|_| (self.answer)(call, until)).collect()
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

    fn lease(clock: &Clock) -> ValidityCell {
        ValidityCell::new(clock.clone(), clock.now() + TTL)
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_a_lease_alive_and_batches() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let cells: Vec<_> = (0..100).map(|_| lease(&clock)).collect();
        let renewals: Vec<_> =
            cells.iter().map(|cell| renewer.add(0, TTL, BootInstant::NEVER, cell.clone())).collect();
        tokio::time::sleep(TTL * 10).await;
        assert!(cells.iter().all(|cell| cell.validity().is_valid()));
        let calls = calls.load(Ordering::SeqCst);
        assert!((27..=1500).contains(&calls), "{calls} calls for 100 leases over 10 ttl");
        drop(renewals);
        tokio::time::sleep(TTL * 2).await;
        assert!(cells.iter().all(|cell| !cell.validity().is_valid()));
        assert!(!renewer.shared.book().running);
    }

    #[tokio::test(start_paused = true)]
    async fn stops_at_the_first_not_yours() {
        let (clock, renewer, calls) = renewer(|_, _| Renewed::NotOurs, Duration::ZERO);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, TTL, BootInstant::NEVER, cell.clone());
        assert_eq!(cell.validity().lost().await, LossReason::Removed);
        tokio::time::sleep(TTL * 10).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_again_while_the_deadline_is_ahead() {
        let flaky = |call, until| if call % 3 == 2 { Renewed::Until(until) } else { Renewed::Unknown };
        let (clock, renewer, _) = renewer(flaky, Duration::ZERO);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, TTL, BootInstant::NEVER, cell.clone());
        tokio::time::sleep(TTL * 10).await;
        assert!(cell.validity().is_valid());

        let (clock, renewer, calls) = self::renewer(|_, _| Renewed::Unknown, Duration::ZERO);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, TTL, BootInstant::NEVER, cell.clone());
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        tokio::time::sleep(TTL).await;
        let until_lost = calls.load(Ordering::SeqCst);
        tokio::time::sleep(TTL * 10).await;
        assert_eq!(calls.load(Ordering::SeqCst), until_lost);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_a_renewal_on_its_way() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::from_millis(700));
        let renewal = renewer.add(0, TTL, BootInstant::NEVER, lease(&clock));
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
        let _renewal = renewer.add(0, TTL, start + Duration::from_secs(10), cell.clone());
        cell.validity().lost().await;
        let held = clock.now().saturating_duration_since(start);
        assert!(held >= Duration::from_secs(10) && held < Duration::from_secs(12), "{held:?}");
    }
}
