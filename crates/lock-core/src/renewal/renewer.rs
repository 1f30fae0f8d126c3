//! The renewer of one server, and the renewal of one lease.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::renew::{Renew, Renewed, Terms};
use super::schedule::ScheduledLease;
use super::task::{RenewalControl, RenewalTasks};
use crate::values::error::NO_BACKEND;
use crate::{Clock, Error, ValidityCell};

/// Renews the leases of one server at a third of their time to live, all that are due together in one batch.
///
/// It never acquires a lock. It stops renewing a lease at the first answer that the lock is lost, at its deadline and at
/// its `max_hold`. At most one renewal of a lease is in flight at any time, so the answer recorded last is the last one
/// that the server gave. A task on the runtime of their holders does the work; it runs only while there is something to
/// renew, and moves to another runtime when its own ends.
pub struct Renewer<R: Renew> {
    tasks: Arc<RenewalTasks<R>>,
}

impl<R: Renew> Renewer<R> {
    /// A renewer without leases.
    #[must_use]
    pub fn new(renew: R, clock: Clock) -> Self {
        Self { tasks: Arc::new(RenewalTasks::new(renew, clock)) }
    }

    /// The backend's part of the renewal.
    #[must_use]
    pub fn renew(&self) -> &R {
        &self.tasks.renew
    }

    /// Adds a lease of a holder on this runtime, whose validity is written to `cell`. After [`stop_all`](Self::stop_all) it is not renewed.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn add(&self, key: R::Key, terms: Terms, cell: ValidityCell) -> Renewal {
        let longest_ttl = AtomicU64::new(millis(terms.ttl));
        let lease = ScheduledLease::new(key, terms, cell.clone(), self.tasks.clock.now());
        let task = self.tasks.on(Handle::current());
        Renewal { id: task.add(lease), cell, longest_ttl, task }
    }

    /// Stops the renewal of all leases for good: they expire at the end of their ttl. From then on renewals return
    /// [`Closed`](crate::ErrorKind::Closed) while the lease lasts, those in flight too.
    pub fn stop_all(&self) {
        self.tasks.close();
    }
}

impl<R: Renew> fmt::Debug for Renewer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases: usize = self.tasks.all().iter().map(|task| task.schedule().leases.len()).sum();
        f.debug_struct("Renewer").field("leases", &leases).finish_non_exhaustive()
    }
}

/// The renewal of one lease. Dropping it stops the renewal.
pub struct Renewal {
    id: u64,
    cell: ValidityCell,
    longest_ttl: AtomicU64,
    task: Arc<dyn RenewalControl>,
}

impl Renewal {
    /// Stops the renewal, and waits until none is in flight; no longer than the lease lasts, as the runtime that has sent it
    /// may be paused.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the renewal has stopped, but a request may still be in flight.
    pub async fn stop(&self) {
        let validity = self.cell.validity();
        while self.task.remove(self.id) {
            let mut answered = pin!(self.task.answered().notified());
            answered.as_mut().enable();
            if !self.task.remove(self.id) {
                return;
            }
            tokio::select! {
                () = answered => {}
                _ = validity.lost() => return,
            }
        }
    }

    /// Renews now, with this time to live from now on.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the renewal goes on.
    pub async fn extend(&self, ttl: Duration) -> Renewed {
        self.longest_ttl.fetch_max(millis(ttl), Ordering::Relaxed);
        self.renew_now(Some(ttl)).await
    }

    /// Renews now, with the ttl that the lease has. The request leaves after this call, so a backend can change something
    /// else by the same request.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the renewal goes on.
    pub async fn renew(&self) -> Renewed {
        self.renew_now(None).await
    }

    /// Renews by itself from now on a lease that was added without: for one that begins before its holder has it. Nobody would end
    /// its renewals if the future of the acquisition is kept and not polled.
    pub fn renew_automatically(&self) {
        Arc::clone(&self.task).renew_automatically(self.id);
    }

    /// Renews now, in the background.
    pub fn hasten(&self) {
        let (sender, _) = oneshot::channel();
        Arc::clone(&self.task).renew_now(self.id, None, sender);
    }

    /// The longest time to live that was ever requested for the lease: whatever is left of it on a server expires within
    /// that time.
    #[must_use]
    pub fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.longest_ttl.load(Ordering::Relaxed))
    }

    async fn renew_now(&self, ttl: Option<Duration>) -> Renewed {
        let (sender, answer) = oneshot::channel();
        Arc::clone(&self.task).renew_now(self.id, ttl, sender);
        let validity = self.cell.validity();
        tokio::select! {
            biased;
            // The sender is dropped without an answer when the lease has ended, or renewal has stopped.
            answer = answer => answer.unwrap_or_else(|_| match self.task.is_closed() && validity.is_valid() {
                true => Renewed::Unknown(Error::closed(NO_BACKEND)),
                false => Renewed::Lost,
            }),
            // The runtime that renews the lease may be paused.
            () = async { _ = validity.lost().await; tokio::time::sleep(LATE).await } => Renewed::Lost,
        }
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.task.remove(self.id);
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How long an answer may come after the end of the lease.
const LATE: Duration = Duration::from_secs(1);

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use async_trait::async_trait;
    use rand::Rng;

    use super::super::renew::{Answered, Due};
    use super::super::schedule::TICK;
    use super::*;
    use crate::process::time::drift::valid_until;
    use crate::{BootInstant, ErrorKind, GuardState, LossReason, Outcome};

    const TTL: Duration = Duration::from_secs(3);
    const FOREVER: Terms = Terms { ttl: TTL, auto: true, hold_until: BootInstant::NEVER };

    struct Server {
        clock: Clock,
        answer: fn(usize, BootInstant) -> Renewed,
        calls: Arc<AtomicUsize>,
        delay: Duration,
        spares_longer: bool,
    }

    #[async_trait]
    impl Renew for Server {
        type Key = u64;

        async fn renew(&self, batch: &[Due<u64>], answered: &dyn Answered<Renewed>) {
            let call = self.calls.fetch_add(1, Ordering::SeqCst);
            let sent = self.clock.now();
            tokio::time::sleep(self.delay).await;
            for (at, due) in batch.iter().enumerate() {
                answered(at, (self.answer)(call, sent + due.ttl));
            }
        }

        fn spares_longer(&self) -> bool {
            self.spares_longer
        }
    }

    fn renewer(
        answer: fn(usize, BootInstant) -> Renewed,
        delay: Duration,
    ) -> (Clock, Renewer<Server>, Arc<AtomicUsize>) {
        let (clock, calls) = (Clock::tokio(), Arc::new(AtomicUsize::new(0)));
        let server = server(&clock, answer, &calls, delay);
        (clock.clone(), Renewer::new(server, clock), calls)
    }

    fn server(
        clock: &Clock,
        answer: fn(usize, BootInstant) -> Renewed,
        calls: &Arc<AtomicUsize>,
        delay: Duration,
    ) -> Server {
        Server { clock: clock.clone(), answer, calls: Arc::clone(calls), delay, spares_longer: false }
    }

    fn is_idle<R: Renew>(renewer: &Renewer<R>) -> bool {
        renewer.tasks.all().iter().all(|task| task.schedule().wakes.is_none())
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

        async fn renew(&self, batch: &[Due<u64>], answered: &dyn Answered<Renewed>) {
            self.largest.fetch_max(batch.len(), Ordering::SeqCst);
            let sent = self.clock.now();
            for (at, due) in batch.iter().enumerate() {
                answered(at, (self.answer)(due.key, sent + due.ttl));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_batch_only_the_lost_lease_is_lost() {
        const LEASES: u64 = 100;
        let (clock, largest) = (Clock::tokio(), Arc::new(AtomicUsize::new(0)));
        let answer = |key, until| match key {
            7 => Renewed::Lost,
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
                (7, Renewed::Lost) => assert_eq!(validity.lost().await, LossReason::Removed),
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

    /// Answers lease 0 at once, and others after longer than they last.
    struct OneByOne(Clock);

    #[async_trait]
    impl Renew for OneByOne {
        type Key = u64;

        async fn renew(&self, batch: &[Due<u64>], answered: &dyn Answered<Renewed>) {
            let sent = self.0.now();
            let first = batch.iter().position(|due| due.key == 0);
            first.into_iter().for_each(|at| answered(at, Renewed::Until(sent + batch[at].ttl)));
            if batch.len() > 1 || first.is_none() {
                tokio::time::sleep(TTL * 4).await;
            }
            (0..batch.len()).for_each(|at| answered(at, unknown()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_when_it_comes_and_for_its_lease() {
        let clock = Clock::tokio();
        let renewer = Renewer::new(OneByOne(clock.clone()), clock.clone());
        let cells = [lease(&clock), lease(&clock)];
        let [first, _second] = [0, 1].map(|at| renewer.add(at, FOREVER, cells[at as usize].clone()));
        let validity = cells[1].validity();
        while validity.state() == GuardState::Valid {
            tokio::time::sleep(TICK).await;
        }
        assert_eq!(validity.state(), GuardState::Suspect, "it is not answered");
        assert_eq!(validity.lost().await, LossReason::DeadlinePassed);
        tokio::time::sleep(TTL * 10).await;
        assert!(cells[0].validity().is_valid());
        // Both in one batch.
        let cell = lease(&clock);
        let third = renewer.add(2, FOREVER, cell.clone());
        let _ = tokio::join!(first.renew(), tokio::time::timeout(TICK, third.renew()));
        let asked = clock.now();
        first.stop().await;
        assert!(clock.now() < asked + TICK, "nothing of it is in flight");
        // The next renewal of the one that is answered does not wait for the other answer.
        let (answered, silent) = (lease(&clock), lease(&clock));
        let first = renewer.add(0, FOREVER, answered.clone());
        let second = renewer.add(3, FOREVER, silent);
        let _ = tokio::join!(first.renew(), tokio::time::timeout(TICK, second.renew()));
        tokio::time::sleep(TTL * 2).await;
        assert!(answered.validity().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lock_is_noticed_with_the_next_renewal() {
        // The most that timers are late.
        const LATE: Duration = Duration::from_millis(5);
        for _ in 0..200 {
            let clock = Clock::tokio();
            let deleted =
                clock.now() + (TTL * 5).mul_f64(crate::process::random::rng().random_range(0.2..1.0));
            let answer = {
                let clock = clock.clone();
                move |_, until| if clock.now() < deleted { Renewed::Until(until) } else { Renewed::Lost }
            };
            let renewer =
                Renewer::new(ByKey { clock: clock.clone(), answer, largest: Arc::default() }, clock.clone());
            let mut leases = Vec::new();
            for key in 0..5 {
                let cell = lease(&clock);
                leases.push((renewer.add(key, FOREVER, cell.clone()), cell));
                tokio::time::sleep(TTL.mul_f64(crate::process::random::rng().random_range(0.0..0.2))).await;
            }
            assert!(clock.now() <= deleted);
            for (_, cell) in &leases {
                assert_eq!(cell.validity().lost().await, LossReason::Removed);
            }
            let took = clock.now().saturating_duration_since(deleted);
            assert!(took <= TTL / 3 + TICK + LATE, "{took:?} after {deleted:?}");
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
        assert!(is_idle(&renewer));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_is_answered_in_time_raises_no_suspicion() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), TTL / 10);
        let cell = lease(&clock);
        let _renewal = renewer.add(0, FOREVER, cell.clone());
        let end = clock.now() + TTL * 5;
        while clock.now() < end {
            assert_eq!(cell.validity().state(), GuardState::Valid);
            tokio::time::sleep(TICK).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_confirmed_for_less_than_its_ttl_is_renewed_in_time() {
        let clock = Clock::tokio();
        let answer = {
            let clock = clock.clone();
            move |_, _| Renewed::Until(clock.now() + TTL / 4)
        };
        let server = ByKey { clock: clock.clone(), answer, largest: Arc::default() };
        let renewer = Renewer::new(server, clock.clone());
        let cell = lease(&clock);
        let _renewal = renewer.add(0, FOREVER, cell.clone());
        tokio::time::sleep(TTL * 3).await;
        assert!(cell.validity().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn stops_at_the_first_answer_that_the_lock_is_lost() {
        let (clock, renewer, calls) = renewer(|_, _| Renewed::Lost, Duration::ZERO);
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
        assert!(until_lost > 8, "{until_lost} tries: the nearer the deadline, the more often");
        tokio::time::sleep(TTL * 10).await;
        assert_eq!(calls.load(Ordering::SeqCst), until_lost);
    }

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_a_renewal_in_flight() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::from_millis(700));
        let renewal = renewer.add(0, FOREVER, lease(&clock));
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sent = clock.now();
        renewal.stop().await;
        assert!(clock.now() >= sent + Duration::from_millis(600), "the renewal was joined");
        assert!(clock.now() < sent + Duration::from_millis(800), "its answer ends the wait");
        tokio::time::sleep(TTL * 3).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_begins_early_is_renewed_by_itself_once_it_is_held() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let terms = Terms { auto: false, ..FOREVER };
        let (held, left) = (lease(&clock), lease(&clock));
        let renewal = renewer.add(0, terms.clone(), held.clone());
        let _left = renewer.add(1, terms, left.clone());
        renewal.hasten();
        tokio::time::sleep(TTL / 2).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        renewal.renew_automatically();
        assert_eq!(left.validity().lost().await, LossReason::DeadlinePassed);
        tokio::time::sleep(TTL * 10).await;
        assert!(held.validity().is_valid());
        drop(renewal);
        // Also if the first renewal is on its way.
        let hastened = lease(&clock);
        let renewal = renewer.add(2, Terms { auto: false, ..FOREVER }, hastened.clone());
        let before = calls.load(Ordering::SeqCst);
        renewal.hasten();
        renewal.renew_automatically();
        tokio::time::sleep(TTL / 10).await;
        assert_eq!(calls.load(Ordering::SeqCst), before + 1, "it is not put off");
        tokio::time::sleep(TTL * 10).await;
        assert!(hastened.validity().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_held_while_a_renewal_is_in_flight_is_not_renewed_twice() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), TTL / 10);
        let cell = lease(&clock);
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        renewal.hasten();
        tokio::time::sleep(TTL / 20).await;
        renewal.renew_automatically();
        tokio::time::sleep(TTL * 10).await;
        assert!(cell.validity().is_valid());
        let calls = calls.load(Ordering::SeqCst);
        assert!(calls <= 30, "{calls} renewals, one after the other");
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
    async fn a_lease_without_automatic_renewal_can_be_extended() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let (start, cell) = (clock.now(), lease(&clock));
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL * 4).await, Renewed::Until(until) if until >= start + TTL * 4));
        assert_eq!(cell.validity().lost().await, LossReason::DeadlinePassed);
        assert!(clock.now() >= start + TTL * 4 && clock.now() < start + TTL * 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_begins_with_little_of_its_ttl_is_renewed_in_time() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::ZERO);
        let cell = ValidityCell::new(clock.clone(), clock.now() + TTL / 4);
        let _renewal = renewer.add(0, FOREVER, cell.clone());
        tokio::time::sleep(TTL * 2).await;
        assert!(cell.validity().is_valid() && calls.load(Ordering::SeqCst) > 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shorter_ttl_counts_from_the_time_of_the_request() {
        let (clock, renewer, _) = renewer(|_, _| unknown(), Duration::from_millis(100));
        let (start, cell) = (clock.now(), lease(&clock));
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL / 3).await, Renewed::Unknown(_)));
        // A timer may take a millisecond until the request leaves.
        let sent = start + Duration::from_millis(1);
        assert!(cell.validity().until() <= valid_until(sent, TTL / 3));
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
        assert!(until >= asked + TTL * 9 + Duration::from_millis(400), "sent after the renewal in flight");
        assert_eq!(cell.validity().until(), until);
    }

    #[tokio::test(start_paused = true)]
    async fn a_requested_renewal_keeps_the_ttl_and_follows_the_one_in_flight() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), Duration::from_millis(500));
        let cell = lease(&clock);
        let renewal = renewer.add(0, FOREVER, cell.clone());
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let asked = clock.now();
        let Renewed::Until(until) = renewal.renew().await else { panic!("not renewed") };
        assert_eq!(calls.load(Ordering::SeqCst), 2, "the renewal that was in flight is not the answer");
        assert!(until >= asked + TTL + Duration::from_millis(400) && until <= clock.now() + TTL);
        assert_eq!(renewal.longest_ttl(), TTL);
        renewal.stop().await;
        assert!(matches!(renewal.renew().await, Renewed::Lost));
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_that_is_answered_too_late_fails() {
        let (clock, renewer, _) = renewer(|_, until| Renewed::Until(until), TTL * 2);
        let cell = lease(&clock);
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        assert!(matches!(renewal.extend(TTL * 10).await, Renewed::Lost));
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
            assert!(cell.validity().until() <= clock.now() + ttl, "the server may have applied it");
            tokio::time::sleep(TTL * 10).await;
            assert!(cell.validity().is_valid(), "{ttl:?}");
            assert!(cell.validity().until() <= clock.now() + ttl, "the server may still apply it");
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
        // The server may apply the first just after the second.
        let Renewed::Unknown(error) = renewal.extend(TTL * 9).await else { panic!("it may be cut short") };
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Exhausted, Outcome::Applied), "{error}");
        assert!(cell.validity().until() > sent && cell.validity().until() <= sent + TTL);
        assert!(matches!(renewal.extend(TTL).await, Renewed::Until(_)));
        assert!(matches!(renewal.renew().await, Renewed::Until(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn where_late_requests_spare_longer_leases_only_one_that_shortens_limits_later_ones() {
        let flaky = |call, until| if call % 2 == 0 { unknown() } else { Renewed::Until(until) };
        let (clock, calls) = (Clock::tokio(), Arc::default());
        let server =
            Server { spares_longer: true, ..server(&clock, flaky, &calls, Duration::from_millis(100)) };
        let renewer = Renewer::new(server, clock.clone());
        let cell = lease(&clock);
        let renewal = renewer.add(0, Terms { auto: false, ..FOREVER }, cell.clone());
        // A renewal, and a longer one.
        assert!(matches!(renewal.extend(TTL).await, Renewed::Unknown(_)));
        let sent = clock.now();
        assert!(matches!(renewal.extend(TTL * 9).await, Renewed::Until(until) if until >= sent + TTL * 9));
        // A shorter one.
        assert!(matches!(renewal.extend(TTL).await, Renewed::Unknown(_)));
        let Renewed::Unknown(error) = renewal.extend(TTL * 9).await else { panic!("it may be cut short") };
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
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
        let (short, clock) = (Duration::from_secs(3), Clock::boot());
        let calls = Arc::new(AtomicUsize::new(0));
        let answer = |_, until| Renewed::Until(until);
        let server = server(&clock, answer, &calls, Duration::from_millis(50));
        let renewer = Renewer::new(server, clock.clone());
        let terms = Terms { ttl: short, auto: true, hold_until: BootInstant::NEVER };
        let cell = ValidityCell::new(clock.clone(), clock.now() + short);
        let (one, two) = (runtime(), runtime());
        let renewal = one.block_on(async { renewer.add(0, terms.clone(), cell.clone()) });
        one.block_on(async { tokio::time::sleep(short * 2 / 5).await });
        drop(one);
        let answer = two.block_on(async { tokio::time::timeout(short, renewal.extend(short)).await });
        assert!(matches!(answer, Ok(Renewed::Until(_))), "{answer:?}");
        two.block_on(async { tokio::time::sleep(short * 3 / 2).await });
        assert!(cell.validity().is_valid());
    }

    #[test]
    fn leases_of_another_runtime_are_renewed_when_the_one_that_renewed_them_ends() {
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (short, clock) = (Duration::from_secs(3), Clock::boot());
        let calls = Arc::new(AtomicUsize::new(0));
        let answer = |_, until| Renewed::Until(until);
        let server = server(&clock, answer, &calls, Duration::from_millis(1));
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
        assert_eq!(renewer.tasks.all().len(), 3, "each can be stopped, and take over the leases of another");
        drop(ended);
        drop(first);
        std::thread::sleep(short * 3 / 2);
        for (number, cell) in cells.iter().enumerate() {
            assert!(cell.validity().is_valid(), "lease {number}");
        }
        drop(lasting);
        assert!(is_idle(&renewer), "there is no runtime left");
    }

    #[test]
    fn the_last_lease_of_a_runtime_that_ends_is_renewed_where_the_locks_were_connected() {
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (short, clock) = (Duration::from_secs(3), Clock::boot());
        let calls = Arc::new(AtomicUsize::new(0));
        let server = server(&clock, |_, until| Renewed::Until(until), &calls, Duration::from_millis(1));
        let (home, job) = (runtime(), runtime());
        let renewer = home.block_on(async { Renewer::new(server, clock.clone()) });
        let terms = Terms { ttl: short, auto: true, hold_until: BootInstant::NEVER };
        let cell = ValidityCell::new(clock.clone(), clock.now() + short);
        let _renewal = job.block_on(async { renewer.add(0, terms, cell.clone()) });
        drop(job);
        std::thread::sleep(short * 3 / 2);
        assert!(cell.validity().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_of_a_closed_renewer_fail_and_new_leases_expire() {
        let (clock, renewer, calls) = renewer(|_, until| Renewed::Until(until), TTL / 10);
        let closed = |renewed| match renewed {
            Renewed::Unknown(error) if error.kind() == ErrorKind::Closed => error.outcome(),
            renewed => panic!("{renewed:?}"),
        };
        let (kept, lost) = (lease(&clock), lease(&clock));
        let renewal = renewer.add(0, FOREVER, kept.clone());
        let of_lost = renewer.add(1, FOREVER, lost.clone());
        let in_flight = async {
            // A request is in flight.
            tokio::time::sleep(TTL / 20).await;
            let behind_it = async {
                tokio::task::yield_now().await;
                renewer.stop_all();
            };
            tokio::join!(renewal.extend(2 * TTL), behind_it).0
        };
        let (first, second) = tokio::join!(renewal.extend(TTL), in_flight);
        assert_eq!((closed(first), closed(second)), (Outcome::Unknown, Outcome::NotApplied));
        assert_eq!(closed(renewal.extend(TTL).await), Outcome::NotApplied);
        lost.lose(LossReason::Removed);
        assert!(matches!(of_lost.extend(TTL).await, Renewed::Lost));

        let before = calls.load(Ordering::SeqCst);
        let late = lease(&clock);
        let renewal = renewer.add(2, FOREVER, late.clone());
        assert_eq!(late.validity().lost().await, LossReason::DeadlinePassed);
        assert!(matches!(renewal.extend(TTL).await, Renewed::Lost));
        assert_eq!(calls.load(Ordering::SeqCst), before);
    }

    #[test]
    fn a_runtime_that_was_shut_down_renews_nothing_and_blocks_no_caller() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (clock, calls) = (Clock::boot(), Arc::new(AtomicUsize::new(0)));
        let server = server(&clock, |_, until| Renewed::Until(until), &calls, TTL);
        let renewer = Renewer::new(server, clock.clone());
        let handle = runtime.handle().clone();
        drop(runtime);
        let _entered = handle.enter();
        let _renewal = renewer.add(0, FOREVER, lease(&clock));
        assert!(is_idle(&renewer), "the next lease gets a task of its own runtime");
    }
}
