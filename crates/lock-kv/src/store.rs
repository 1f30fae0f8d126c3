//! A store of leases whose records are changed by compare and swap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{StreamExt, iter};
use lock_core::backend::MAX_LISTED;
use lock_core::engine::{Answer, Answered, Ask, Changed, Extension, Hold, LeaseStore, Order, Release};
use lock_core::record::{self, Now, Record, Turn};
use lock_core::{
    BootInstant, Clock, DoctorReport, Error, ErrorKind, Finding, FindingLevel, LockName, LockState, Outcome,
    OwnerId, Result, Token,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::boot::BootId;
use crate::error::{contended, no_more_tokens, silent};
use crate::mailbox::KvMailbox;
use crate::observed::{Known, Observed};
use crate::pace::Pace;
use crate::probe;
use crate::registers::{About, Exchanged, LOCKS, Registers, Version, Versioned};
use crate::stored::{Moment, Party, Stored};
use crate::waiters::{MOST_WAITERS, lasts};

/// How many locks are renewed, or read for a list, at a time.
const AT_A_TIME: usize = 16;
/// How often a waiter tries to join the queue before it pauses. Once is too few: those who hand a lock over among them change the record all the
/// time, and a waiter may never come in between.
const TRIES_TO_JOIN: u32 = 4;
/// Locks as records in [registers](Registers).
#[derive(Debug)]
pub struct KvStore<R> {
    registers: Arc<R>,
    about: About,
    timeout: Duration,
    clock: Clock,
    /// The boot whose clock it is, if all processes that use the values run on one host.
    boot: Option<BootId>,
    /// For how long a waiter lives after it has said so, at least.
    waiter_lasts: Duration,
    observed: Observed,
    pace: Pace,
    is_closed: AtomicBool,
}

/// The order of requests. Each removal ends with a swap, and the version moves: an earlier swap that is late is refused.
#[derive(Clone, Debug)]
pub struct BySwaps(());

impl Order for BySwaps {
    fn is_open(&self) -> bool {
        true
    }
}

/// What a change needs to count.
enum Counts {
    /// A swap, also of a record that says the same: it proves that the record was read as it is, and no earlier swap can follow.
    Swapped,
    /// A read is enough if the record says the same.
    Read,
    /// The same. What is written is only told to others: it gives way to what somebody depends on, and is tried so often at most.
    Told { tries: u32 },
}

struct Done<T> {
    answer: T,
    /// Whether it is in the record. What is [told](Counts::Told) may not be.
    is_done: bool,
}

/// What became of a swap.
enum Swapped {
    Written,
    Refused,
    /// Refused, and this is what is there.
    Found(Arc<Known>),
}

impl<R: Registers> KvStore<R> {
    pub(crate) fn new(
        registers: R,
        timeout: Duration,
        (clock, boot): (Clock, Option<BootId>),
        waiter_lasts: Duration,
    ) -> Self {
        Self {
            about: registers.about(),
            registers: Arc::new(registers),
            timeout,
            clock,
            boot,
            waiter_lasts,
            observed: Observed::default(),
            pace: Pace::new(timeout),
            is_closed: AtomicBool::new(false),
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) { Err(Error::closed(self.about.name)) } else { Ok(()) }
    }

    fn moment(&self) -> Moment {
        Moment::new(self.clock.now(), self.boot.clone(), self.about.notifies)
    }

    fn record(&self, known: &Known, stored: &Stored, now: &Moment) -> Record<Party> {
        let now = (now.time(), self.boot.as_ref());
        stored.record(|owner, beat| known.since(owner, beat), now)
    }

    /// Changes the record of a lock, as it is or is remembered.
    async fn change<T: Send>(
        &self,
        key: &Arc<str>,
        change: impl FnMut(&mut Record<Party>, &mut Moment) -> (T, Counts) + Send,
    ) -> Result<Done<T>> {
        self.change_carried(key, None, change).await
    }

    /// Changes the record of a lock by a swap on the version that was read, or that a notice carried. It is tried again while others come
    /// first.
    async fn change_carried<T: Send>(
        &self,
        key: &Arc<str>,
        carried: Option<Versioned>,
        mut change: impl FnMut(&mut Record<Party>, &mut Moment) -> (T, Counts) + Send,
    ) -> Result<Done<T>> {
        let deadline = Instant::now() + self.timeout;
        // What is remembered may be as good as what a read would return: the swap tells. Not if others change it: a swap that is refused
        // costs more than a read where it waits for a disk.
        let is_quiet = |known: &Arc<Known>| known.value.as_ref().is_none_or(|(_, stored)| !stored.is_busy());
        let carried = carried.and_then(|carried| self.carried(key, &carried));
        let mut is_read = carried.is_some();
        let mut known = carried.or_else(|| self.observed.recall(key).filter(is_quiet));
        let (mut urgent, mut tried) = (self.pace.urgent(), 0);
        loop {
            let current = match known.take() {
                Some(known) => known,
                None => {
                    is_read = true;
                    self.read(key, deadline).await?
                }
            };
            let (version, before) = match &current.value {
                Some((version, stored)) => (Some(version), stored.clone()),
                None => (None, Stored::new()),
            };
            let mut moment = self.moment();
            let mut record = self.record(&current, &before, &moment);
            let (answer, counts) = change(&mut record, &mut moment);
            let next = before.followed_by(&record, &moment);
            if !matches!(counts, Counts::Swapped) && next.says_the_same_as(&before) {
                if is_read {
                    return Ok(Done { answer, is_done: true });
                }
                continue;
            }
            let was_read = is_read;
            let gives_way =
                matches!(counts, Counts::Told { .. }) && self.is_being_confirmed(&current, &before);
            if !gives_way {
                match self.swap(key, version, (next, &before), deadline).await? {
                    Swapped::Written => return Ok(Done { answer, is_done: true }),
                    Swapped::Refused => {}
                    Swapped::Found(found) => (known, is_read) = (Some(found), true),
                }
            }
            if let Counts::Told { tries } = counts
                && was_read
            {
                tried += 1;
                if tried >= tries || Instant::now() + self.pace.round_trip() * 2 > deadline {
                    // It is told later, by a waiter that learns meanwhile what happens.
                    return Ok(Done { answer, is_done: false });
                }
                if gives_way {
                    sleep(self.pace.give_way()).await;
                }
                continue;
            }
            if gives_way {
                continue;
            }
            let pause = urgent.next();
            if Instant::now() + pause >= deadline {
                return Err(contended(self.about.name, self.timeout));
            }
            sleep(pause).await;
        }
    }

    /// Whether a waiter that is notified of its grant is about to write the record.
    fn is_being_confirmed(&self, known: &Known, stored: &Stored) -> bool {
        let is_new = |(owner, beat)| {
            let seen = self.clock.now().saturating_duration_since(known.since(owner, beat));
            seen < self.pace.round_trip() * 2
        };
        stored.notified().any(is_new)
    }

    async fn read(&self, key: &Arc<str>, deadline: Instant) -> Result<Arc<Known>> {
        self.check_open()?;
        let asked = Instant::now();
        let read = timeout_at(deadline, self.registers.read(key)).await;
        let read = read.map_err(|_| silent(self.about.name, self.timeout, Outcome::NotApplied))??;
        self.pace.note_read(asked.elapsed());
        self.found(key, read)
    }

    /// What a notice carries; `None` if it cannot be read, which costs a read. It is no observation: whoever may publish notices could say that a
    /// beat was there before it was written, and leases would end too soon. The swap tells whether it was the record.
    fn carried(&self, key: &Arc<str>, carried: &Versioned) -> Option<Arc<Known>> {
        let stored = Stored::parse(self.about.name, key, &carried.value).ok()?;
        Some(self.observed.assume(key, (carried.version.clone(), stored)))
    }

    /// Notes what is there.
    fn found(&self, key: &Arc<str>, read: Option<Versioned>) -> Result<Arc<Known>> {
        // When it has returned: the value may have been written while the request was under way.
        let returned = self.clock.now();
        let known = self.observed.recall(key);
        let parse = |read: Versioned| {
            // What many wait for is read many times.
            let same = known.as_ref().and_then(|known| known.value.as_ref());
            let stored = match same.filter(|(version, _)| *version == read.version) {
                Some((_, stored)) => stored.clone(),
                None => Stored::parse(self.about.name, key, &read.value)?,
            };
            Ok::<_, Error>((read.version, stored))
        };
        Ok(self.observed.note(key, read.map(parse).transpose()?, returned))
    }

    async fn swap(
        &self,
        key: &Arc<str>,
        expected: Option<&Version>,
        (next, before): (Stored, &Stored),
        deadline: Instant,
    ) -> Result<Swapped> {
        self.check_open()?;
        if !next.is_possible() {
            return Err(no_more_tokens(self.about.name, key));
        }
        let (value, notices) = (next.to_bytes(), next.notices_after(before));
        let asked = Instant::now();
        let swapped = timeout_at(deadline, self.registers.exchange(key, expected, &value, &notices)).await;
        let swapped = swapped.map_err(|_| silent(self.about.name, self.timeout, Outcome::Unknown))??;
        self.pace.note_swap(asked.elapsed());
        Ok(match swapped {
            Exchanged::Written(version) => {
                self.observed.note(key, Some((version, next)), self.clock.now());
                Swapped::Written
            }
            Exchanged::Refused => Swapped::Refused,
            // One that cannot be read is an error of the next read.
            Exchanged::Found(found) => self.found(key, found).map_or(Swapped::Refused, Swapped::Found),
        })
    }

    /// Extends these of the leases, which are of one lock, in one swap.
    async fn extend_all(
        &self,
        key: &Arc<str>,
        leases: &[Extension<'_, Arc<str>>],
        places: Vec<usize>,
        deadline: Instant,
    ) -> Vec<(usize, Result<Changed>)> {
        let extended = self.change(key, |record, now| {
            let extend = |at: &usize| {
                let lease = &leases[*at];
                let is_held = match lease.hold {
                    Hold::Downgrading => record.downgrade(now, lease.owner, lease.ttl).0,
                    _ => record.extend(now, lease.owner, lease.ttl, lease.shortens).is_some(),
                };
                if is_held {
                    now.hear(lease.owner, lease.ttl);
                }
                if lease.leaves {
                    now.leave(lease.owner);
                }
                changed(is_held)
            };
            (places.iter().map(extend).collect::<Vec<_>>(), Counts::Swapped)
        });
        let silent = |_| Err(silent(self.about.name, self.timeout, Outcome::Unknown));
        match timeout_at(deadline, extended).await.unwrap_or_else(silent) {
            Ok(extended) => places.into_iter().zip(extended.answer.into_iter().map(Ok)).collect(),
            Err(error) => places.into_iter().map(|at| (at, Err(error.clone()))).collect(),
        }
    }

    fn record_of(&self, ask: &Ask<'_, KvMailbox<R>>) -> record::Ask<Party> {
        record::Ask {
            owner: ask.owner,
            mode: ask.mode,
            ttl: ask.ttl,
            waits: ask.queue.as_ref().map(|queue| Turn::Granted(queue.grace)),
            party: Party::new(ask.info, ask.ttl),
        }
    }
}

/// What came of a request for a lock.
struct Asked {
    answer: record::Answer,
    /// When the waiter has to say again that it lives.
    beat: BootInstant,
    /// Whether it was in the queue before.
    was_queued: bool,
}

/// Asks for a lock, with the least that has to be written: a waiter stays as it is until its beat is due, and while it is patient.
fn ask_for(
    record: &mut Record<Party>,
    now: &mut Moment,
    mut ask: record::Ask<Party>,
    is_patient: bool,
    waiter_lasts: impl Fn(usize) -> Duration,
) -> Asked {
    let (owner, ttl) = (ask.owner, ask.ttl);
    if record.queue().len() >= MOST_WAITERS {
        // Those that have gone take up the room of others.
        let alive = record.queue().iter().filter(|waiter| now.lives(waiter)).cloned();
        *record = Record::of(record.last(), record.holders().iter().cloned(), alive);
    }
    let lasts = waiter_lasts(record.queue().len());
    let (mut beat, mut is_due, mut was_queued) = (now.time() + lasts / 3, true, false);
    match record.queue().iter().find(|waiter| waiter.owner == owner) {
        Some(waiter) if now.lives(waiter) => {
            was_queued = true;
            ask.party = waiter.party.clone();
            if now.time() < ask.party.next_beat() {
                (beat, is_due) = (ask.party.next_beat(), false);
            }
            is_due &= !is_patient;
        }
        _ if is_patient => ask.waits = None,
        Some(_) => {}
        None if record.queue().len() >= MOST_WAITERS => ask.waits = None,
        None => {}
    }
    let (answer, _) = record.ask(now, ask);
    match answer {
        record::Answer::Granted(_) => now.hear(owner, ttl),
        record::Answer::Busy { .. } if is_due => now.hear(owner, lasts),
        record::Answer::Busy { .. } => {}
    }
    Asked { answer, beat, was_queued }
}

impl<R: Registers> LeaseStore for KvStore<R> {
    type Place = Arc<str>;
    type Order = BySwaps;
    type Mailbox = KvMailbox<R>;

    fn place(&self, name: &LockName) -> Result<Arc<str>> {
        let key = format!("{LOCKS}{name}");
        if key.len() > self.about.longest_key {
            let longest = self.about.longest_key - LOCKS.len();
            return Err(Error::new(ErrorKind::InvalidName, self.about.name)
                .with_message(format!(
                    "the name has {} bytes, and keys of this store have room for {longest}",
                    name.as_str().len()
                ))
                .with_hint("use a shorter name, for instance a hash of the long part"));
        }
        Ok(key.into())
    }

    async fn order(&self, _: &Arc<str>) -> Result<BySwaps> {
        self.check_open().map(|()| BySwaps(()))
    }

    async fn ask(&self, _: &BySwaps, key: &Arc<str>, ask: &Ask<'_, KvMailbox<R>>) -> Result<Answer> {
        let (asked, mailbox) = (self.record_of(ask), ask.queue.as_ref().and_then(|queue| queue.mailbox));
        let is_patient = mailbox.is_some_and(KvMailbox::is_patient);
        let carried = mailbox.and_then(KvMailbox::take_carried);
        let answered = self.change_carried(key, carried, |record, now| {
            let asked = ask_for(record, now, asked.clone(), is_patient, |others| {
                lasts(self.pace.round_trip(), others).max(self.waiter_lasts)
            });
            let counts = match asked.answer {
                record::Answer::Busy { .. } if asked.was_queued => Counts::Told { tries: 1 },
                record::Answer::Busy { .. } => Counts::Told { tries: TRIES_TO_JOIN },
                record::Answer::Granted(_) => Counts::Read,
            };
            ((asked.answer.at(now.time()), asked), counts)
        });
        let Done { answer: (mut answer, Asked { beat, was_queued, .. }), is_done } = answered.await?;
        if let Answer::Busy { ahead, .. } = &mut answer {
            *ahead = ahead.filter(|_| was_queued || is_done);
        }
        if let Answer::Busy { ahead, .. } = answer
            && let Some(mailbox) = mailbox
        {
            if !is_patient {
                mailbox.said(!is_done, &self.pace);
            }
            // It looks now and then, whatever it was told: whether the holder lives, too.
            let look = self.clock.now() + (self.waiter_lasts / 3).min(ask.ttl / 3);
            mailbox.busy(ask.owner, ahead, beat.min(look));
        }
        Ok(answer)
    }

    /// It ends with a swap, whatever it finds: a request of this owner that is late is refused from then on.
    async fn release(
        &self,
        _: &BySwaps,
        key: &Arc<str>,
        owner: OwnerId,
        _: Release<'_, KvMailbox<R>>,
    ) -> Result<Changed> {
        let released =
            self.change(key, |record, now| (changed(record.release(now, owner).0), Counts::Swapped));
        Ok(released.await?.answer)
    }

    async fn extend(&self, leases: &[Extension<'_, Arc<str>>], answered: impl Answered<Result<Changed>>) {
        let mut by_lock: BTreeMap<&Arc<str>, Vec<usize>> = BTreeMap::new();
        for (at, lease) in leases.iter().enumerate() {
            by_lock.entry(lease.place).or_default().push(at);
        }
        // Not by a closure: the compiler cannot tell that its future is `Send`.
        let mut requests = Vec::new();
        let deadline = Instant::now() + self.timeout;
        for (key, places) in by_lock {
            requests.push(self.extend_all(key, leases, places, deadline));
        }
        let mut requests = iter(requests).buffer_unordered(AT_A_TIME);
        while let Some(answers) = requests.next().await {
            answers.into_iter().for_each(|(at, answer)| answered(at, answer));
        }
    }

    async fn holds(&self, key: &Arc<str>, owner: OwnerId) -> Result<bool> {
        let held = self.change(key, |record, now| {
            let holds = record.is_held_by(now, owner);
            // A read that is stale may not show it yet.
            (holds, if holds { Counts::Read } else { Counts::Swapped })
        });
        Ok(held.await?.answer)
    }

    async fn raise(&self, key: &Arc<str>, owner: OwnerId, floor: Token) -> Result<Changed> {
        let raised =
            self.change(key, |record, now| (changed(record.raise(now, owner, floor)), Counts::Swapped));
        Ok(raised.await?.answer)
    }

    async fn hand_over(
        &self,
        _: &BySwaps,
        key: &Arc<str>,
        from: OwnerId,
        to: &Ask<'_, KvMailbox<R>>,
    ) -> Result<Changed<Token>> {
        let to = self.record_of(to);
        let handed_over = self.change(key, |record, now| {
            let token = record.hand_over(now, from, to.clone());
            if token.is_some() {
                now.hear(to.owner, to.ttl);
            }
            (token.map_or(Changed::NotHeld, Changed::Done), Counts::Swapped)
        });
        Ok(handed_over.await?.answer)
    }

    async fn inspect(&self, key: &Arc<str>) -> Result<LockState> {
        let known = self.read(key, Instant::now() + self.timeout).await?;
        let Some((_, stored)) = &known.value else { return Ok(LockState::default()) };
        let now = self.moment();
        let mut state = self.record(&known, stored, &now).state(&now);
        for holder in &mut state.holders {
            // Without the margin of this observer.
            let lasts = holder.id.and_then(|id| stored.lasts(id));
            holder.remaining = holder.remaining.map(|left| lasts.map_or(left, |lasts| left.min(lasts)));
        }
        Ok(state)
    }

    async fn break_lock(&self, key: &Arc<str>, only: Option<Token>) -> Result<Changed> {
        let broken = self.change(key, |record, now| {
            let is_broken = record.break_lock(now, |token| only.is_none_or(|only| token == only)).0;
            // A lock that nobody has had gets no record by this.
            let counts = if record.last() == Token::new(0) { Counts::Read } else { Counts::Swapped };
            (changed(is_broken), counts)
        });
        Ok(broken.await?.answer)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let registers = Arc::clone(&self.registers);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(async move { registers.close().await }));
        }
    }

    fn look_every(&self) -> Duration {
        self.about.poll
    }

    fn mailbox(&self, _: &Arc<str>) -> Option<KvMailbox<R>> {
        Some(KvMailbox::new(&self.registers, &self.about, &self.clock))
    }

    /// Those that are held or waited for, and those of which it is not known. Records of others stay, and are read for that.
    async fn list(&self, prefix: &str) -> Result<Option<Vec<LockName>>> {
        self.check_open()?;
        let (prefix, mut in_use) = (format!("{LOCKS}{prefix}"), Vec::new());
        let mut last = String::new();
        // More than that are reported as too many.
        while in_use.len() <= MAX_LISTED {
            let page = timeout(self.timeout, self.registers.list(&prefix, &last)).await;
            let page = page.map_err(|_| silent(self.about.name, self.timeout, Outcome::NotApplied))??;
            // In the order of the store.
            let Some(last_of_page) = page.last().filter(|key| **key != last) else { break };
            last.clone_from(last_of_page);
            let names: Vec<_> =
                page.iter().filter_map(|key| LockName::new(key.strip_prefix(LOCKS)?).ok()).collect();
            let looks = names.into_iter().map(async |name| {
                let is_in_use = match self.inspect(&self.place(&name)?).await {
                    Ok(state) => !state.holders.is_empty() || state.waiters > 0,
                    // To inspect it says why. Not for the key that another prefix has for trials.
                    Err(error) if matches!(error.kind(), ErrorKind::Unexpected | ErrorKind::Unsupported) => {
                        tracing::warn!(%error, "a lock is listed whose record cannot be read");
                        name.as_str() != probe::KEY
                    }
                    Err(error) => return Err(error),
                };
                Ok(is_in_use.then_some(name))
            });
            let looks: Vec<Result<_>> = iter(looks).buffer_unordered(AT_A_TIME).collect().await;
            for name in looks {
                in_use.extend(name?);
            }
        }
        Ok(Some(in_use))
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.check_open()?;
        probe::refuses_old_versions(&*self.registers, self.timeout).await?;
        let what = "a swap on an old version is refused";
        let mut findings = vec![Finding::new(FindingLevel::Note, "", what, "")];
        let asked = timeout(self.timeout, self.registers.doctor()).await;
        findings.extend(asked.map_err(|_| silent(self.about.name, self.timeout, Outcome::NotApplied))??);
        Ok(DoctorReport::new(findings))
    }
}

fn changed(is_changed: bool) -> Changed {
    if is_changed { Changed::Done(()) } else { Changed::NotHeld }
}
