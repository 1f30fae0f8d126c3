//! What a process knows of tombstones, and which of its guards rely on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::migration::Reading;
use lock_core::{BootInstant, Clock, LockName, LossReason, ValidityCell};

use crate::leases::halves::Halves;
use crate::rungs::record::{Phase, Record};

/// What was read of tombstones, for later acquisitions, and the guards that rely on them now.
#[derive(Debug)]
pub(crate) struct Tombstones {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What movers have read.
    readings: HashMap<LockName, Known>,
    relying: HashMap<LockName, Vec<Relying>>,
    guards: u64,
    /// Until when their store is not asked again, as it did not answer.
    silent_until: Option<BootInstant>,
}

/// A reading, and the record as of then: it counts in the same generation of the same record.
#[derive(Debug)]
struct Known {
    reading: Arc<Reading>,
    record: Arc<Record>,
}

/// A guard that relies on a tombstone.
#[derive(Debug)]
struct Relying {
    guard: u64,
    /// Valid as long as the tombstone that it knows of lives.
    cell: ValidityCell,
    /// Its lock of the new store.
    halves: Weak<Halves>,
    /// When the last reading of it was sent.
    sent: BootInstant,
}

impl Tombstones {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default() })
    }

    /// What was read of the tombstone of a name, if a mover may rely on it without asking. It is called once the lock of the
    /// new store is granted, with the record as of then.
    pub(crate) fn earlier(&self, name: &LockName, record: &Record) -> Option<Arc<Reading>> {
        let state = self.state();
        let known = state.readings.get(name)?;
        // A record that was deleted and written again counts its generations anew.
        let same = (&known.record.id, known.record.generation) == (&record.id, record.generation);
        let counts = same && record.phase == Phase::Open && known.reading.is_fresh(self.clock.now());
        counts.then(|| Arc::clone(&known.reading))
    }

    /// Whether it is time to read a tombstone again, if its store answers.
    pub(crate) fn is_outdated(&self, sent: BootInstant) -> bool {
        let now = self.clock.now();
        let is_silent = self.state().silent_until.is_some_and(|until| now < until);
        !is_silent && now.saturating_duration_since(sent) >= READ_AGAIN
    }

    /// Notes that their store did not answer: the next acquisitions do not wait for it.
    pub(crate) fn note_silence(&self) {
        self.state().silent_until = Some(self.clock.now() + SILENCE);
    }

    /// Keeps what a mover has read, for later acquisitions.
    pub(crate) fn keep(&self, name: &LockName, reading: Reading, record: &Arc<Record>) {
        if record.phase != Phase::Open {
            return;
        }
        let mut state = self.state();
        if state.readings.len() >= MOST_READINGS && !state.readings.contains_key(name) {
            state.drop_older_half();
        }
        let (reading, record) = (Arc::new(reading), Arc::clone(record));
        state.readings.insert(name.clone(), Known { reading, record });
    }

    pub(crate) fn forget(&self, name: &LockName) {
        self.state().readings.remove(name);
    }

    /// Notes that a guard relies on the tombstone of this name, read by a request of that time, until the returned value is
    /// dropped.
    pub(crate) fn rely(self: &Arc<Self>, name: &LockName, until: BootInstant, sent: BootInstant) -> Reliance {
        let cell = ValidityCell::new(self.clock.clone(), until);
        let mut state = self.state();
        state.guards += 1;
        let guard = state.guards;
        let relying = Relying { guard, cell: cell.clone(), halves: Weak::new(), sent };
        state.relying.entry(name.clone()).or_default().push(relying);
        drop(state);
        Reliance { tombstones: Arc::clone(self), name: name.clone(), guard, cell }
    }

    /// The names of guards whose tombstones were read a while ago.
    pub(crate) fn to_read(&self) -> Vec<LockName> {
        let (now, state) = (self.clock.now(), self.state());
        let is_old = |guards: &[Relying]| {
            guards.iter().any(|guard| now.saturating_duration_since(guard.sent) >= READ_AGAIN - LOOK)
        };
        state.relying.iter().filter(|(_, guards)| is_old(guards)).map(|(name, _)| name.clone()).collect()
    }

    /// After the seal no guard needs its tombstone any more.
    pub(crate) fn let_go(&self) {
        let state = self.state();
        for guard in state.relying.values().flatten() {
            guard.cell.extend_to(BootInstant::NEVER);
        }
    }

    /// Notes what was read for the guards of a name; nothing if its tombstone does not exist any more. Returns what the guards
    /// that are lost by that still hold.
    pub(crate) fn found(&self, name: &LockName, reading: Option<&Reading>) -> Vec<Weak<Halves>> {
        let mut lost = Vec::new();
        let mut state = self.state();
        let guards = state.relying.get_mut(name).map(Vec::as_mut_slice).unwrap_or_default();
        for guard in guards {
            match reading {
                Some(reading) => {
                    guard.sent = reading.sent;
                    guard.cell.extend_to(reading.until);
                }
                None => {
                    guard.cell.lose(LossReason::Removed);
                    lost.push(Weak::clone(&guard.halves));
                }
            }
        }
        lost
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn drop_older_half(&mut self) {
        let mut sent: Vec<_> = self.readings.values().map(|known| known.reading.sent).collect();
        let middle = sent.len() / 2;
        let (_, &mut middle, _) = sent.select_nth_unstable(middle);
        self.readings.retain(|_, known| known.reading.sent > middle);
    }
}

/// A guard's reliance on a tombstone.
#[derive(Debug)]
pub(crate) struct Reliance {
    tombstones: Arc<Tombstones>,
    name: LockName,
    guard: u64,
    /// Valid as long as the tombstone lives, as far as is known.
    pub(crate) cell: ValidityCell,
}

impl Reliance {
    /// Names what the guard holds, to be returned when the tombstone is gone: otherwise the renewal of a lost guard would block
    /// its successors for as long as it lives.
    pub(crate) fn of_halves(&self, halves: &Arc<Halves>) {
        let mut state = self.tombstones.state();
        let guards = state.relying.get_mut(&self.name).map(Vec::as_mut_slice).unwrap_or_default();
        if let Some(relying) = guards.iter_mut().find(|relying| relying.guard == self.guard) {
            relying.halves = Arc::downgrade(halves);
        }
    }
}

impl Drop for Reliance {
    fn drop(&mut self) {
        let mut state = self.tombstones.state();
        let Some(guards) = state.relying.get_mut(&self.name) else { return };
        guards.retain(|other| other.guard != self.guard);
        if guards.is_empty() {
            state.relying.remove(&self.name);
        }
    }
}

/// For how long a tombstone is relied on, while its store answers, until it is read again.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// How often a process looks which ones those are.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// How long a store that did not answer is not asked again by an acquisition that can go on without it.
const SILENCE: Duration = Duration::from_secs(10);
/// Some 30 MB.
const MOST_READINGS: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use lock_core::migration::Tombstone;

    use super::*;
    use crate::rungs::time::HOUR;

    fn name(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn reading(clock: &Clock, left: Duration) -> Reading {
        let (to, namespace) = ("zk://a".to_owned(), "shop".to_owned());
        let tombstone =
            Tombstone { to, namespace, lock: name("a"), written: UNIX_EPOCH, life: 24 * HOUR, newest: 1 };
        Reading::new(tombstone, clock.now() + left, clock.now(), 0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_counts_in_its_generation_while_more_than_half_of_the_whole_life_is_left() {
        let clock = Clock::tokio();
        let tombstones = Tombstones::new(clock.clone());
        let record = Arc::new(Record::new("shop", "redis://a", "zk://a"));
        let changed = |change: fn(&mut Record)| {
            let mut record = Record::clone(&record);
            change(&mut record);
            Arc::new(record)
        };
        tombstones.keep(&name("a"), reading(&clock, 13 * HOUR), &record);
        assert!(tombstones.earlier(&name("a"), &record).is_some());
        assert!(tombstones.earlier(&name("b"), &record).is_none());
        assert!(tombstones.earlier(&name("a"), &changed(|record| record.generation += 1)).is_none());
        assert!(tombstones.earlier(&name("a"), &changed(|record| record.id.push('x'))).is_none());
        let returning = changed(|record| record.phase = Phase::Returning);
        assert!(tombstones.earlier(&name("a"), &returning).is_none());
        tokio::time::advance(HOUR).await;
        assert!(tombstones.earlier(&name("a"), &record).is_none(), "no more than half is left");
        tombstones.keep(&name("c"), reading(&clock, 24 * HOUR), &returning);
        assert!(tombstones.earlier(&name("c"), &record).is_none(), "nothing is kept on the way back");
    }

    #[tokio::test(start_paused = true)]
    async fn guards_follow_their_tombstone() {
        let clock = Clock::tokio();
        let tombstones = Tombstones::new(clock.clone());
        let first = reading(&clock, HOUR);
        let guards: Vec<_> = (0..3).map(|_| tombstones.rely(&name("a"), first.until, first.sent)).collect();
        assert!(tombstones.to_read().is_empty());
        tokio::time::advance(READ_AGAIN).await;
        assert_eq!(tombstones.to_read(), [name("a")]);
        let second = reading(&clock, 24 * HOUR);
        tombstones.found(&name("a"), Some(&second));
        assert!(tombstones.to_read().is_empty());
        assert!(guards.iter().all(|guard| guard.cell.validity().until() == second.until));
        tombstones.let_go();
        assert!(guards.iter().all(|guard| guard.cell.validity().until() == BootInstant::NEVER));
        tombstones.found(&name("a"), None);
        assert!(guards.iter().all(|guard| !guard.cell.validity().is_valid()));
        drop(guards);
        assert!(tombstones.state().relying.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_older_readings_are_dropped_when_there_are_too_many() {
        let clock = Clock::tokio();
        let tombstones = Tombstones::new(clock.clone());
        let record = Arc::new(Record::new("shop", "redis://a", "zk://a"));
        for at in 0..=MOST_READINGS {
            tokio::time::advance(Duration::from_micros(1)).await;
            tombstones.keep(&name(&at.to_string()), reading(&clock, 24 * HOUR), &record);
        }
        assert!(tombstones.state().readings.len() <= MOST_READINGS / 2 + 1);
        assert!(tombstones.earlier(&name("0"), &record).is_none());
        assert!(tombstones.earlier(&name(&MOST_READINGS.to_string()), &record).is_some());
    }
}
