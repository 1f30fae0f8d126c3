//! When a waiter asks again: when it is notified, or when it has to look, as for its beat.

use std::fmt::{self, Debug};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_core::engine::{Mailbox, Message};
use lock_core::poison::lock;
use lock_core::waiting::longest_pause;
use lock_core::{BootInstant, Clock, OwnerId, random};
use rand::Rng;
use tokio::time::sleep;

use crate::pace::Pace;
use crate::registers::{About, Notified, Registers, Versioned};

/// The shortest pause of a waiter that polls: this part of the longest one of the first.
const SHORTEST: u32 = 8;
/// The longest of those behind it.
const LONGEST: Duration = Duration::from_secs(2);
/// One that is not in the queue, or could not ask, polls as one that so many come before.
const OUTSIDE: u32 = 6;

/// Wakes one waiter.
pub struct KvMailbox<R> {
    registers: Arc<R>,
    about: About,
    clock: Clock,
    last: Mutex<Last>,
    notified: Mutex<Option<BoxFuture<'static, Notified>>>,
    /// The value that came with the last notice.
    carried: Mutex<Option<Versioned>>,
    /// Whether a notice came: it may stay, though the grant is over, and would come again at once.
    was_told: bool,
    patience: Mutex<Patience>,
}

/// How what a waiter says gives way to what others do.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How often in a row it came too late.
    losses: u32,
    until: BootInstant,
}

/// The last answer that the waiter got.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// Who waits, if it is in the queue.
    queued: Option<OwnerId>,
    ahead: u32,
    /// Since when it is the first.
    first: Option<BootInstant>,
    look: BootInstant,
    /// Whether it was woken after it: its next request has failed, if it comes again.
    is_old: bool,
}

impl<R: Registers> KvMailbox<R> {
    pub(crate) fn new(registers: &Arc<R>, about: &About, clock: &Clock) -> Self {
        let (about, clock, last) = (about.clone(), clock.clone(), Mutex::default());
        let (notified, carried) = (Mutex::default(), Mutex::default());
        let patience = Mutex::new(Patience { losses: 0, until: clock.now() });
        let registers = Arc::clone(registers);
        Self { registers, about, clock, last, notified, carried, was_told: false, patience }
    }

    /// Whether the waiter says nothing now: that came too late a moment ago. It looks all the same.
    pub(crate) fn is_patient(&self) -> bool {
        self.clock.now() < lock(&self.patience).until
    }

    /// The value that came with the last notice, once.
    pub(crate) fn take_carried(&self) -> Option<Versioned> {
        lock(&self.carried).take()
    }

    /// Notes whether what the waiter had to say came too late.
    pub(crate) fn said(&self, is_late: bool, pace: &Pace) {
        let mut patience = lock(&self.patience);
        let losses = if is_late { patience.losses + 1 } else { 0 };
        let pause = if is_late { pace.patient(patience.losses) } else { Duration::ZERO };
        *patience = Patience { losses, until: self.clock.now() + pause };
    }

    /// Notes that the lock was busy, how many come before this owner, and when it looks again at the latest.
    pub(crate) fn busy(&self, owner: OwnerId, ahead: Option<usize>, look: BootInstant) {
        let until = lock(&self.patience).until;
        let look = if self.clock.now() < until { look.min(until) } else { look };
        let queued = ahead.map(|_| owner);
        let ahead = ahead.map_or(OUTSIDE, |ahead| u32::try_from(ahead).unwrap_or(u32::MAX));
        let mut last = lock(&self.last);
        let first = (ahead == 0).then(|| last.first.unwrap_or_else(|| self.clock.now()));
        *last = Last { queued, ahead, first, look, is_old: false };
    }

    /// How long a waiter pauses that polls. The first one asks often at first, as locks that are held for a moment change hands often; the
    /// others have to wait for those before them.
    fn pause(&self, last: &Last) -> Duration {
        let poll = self.about.poll;
        let longest = match last.first.filter(|_| !last.is_old) {
            Some(first) => {
                (self.clock.now().saturating_duration_since(first) / 2).clamp(poll / SHORTEST, poll)
            }
            None if last.is_old => poll.saturating_mul(1 + OUTSIDE / 2),
            None => (poll / 2).saturating_mul(last.ahead.saturating_add(2)),
        };
        longest.min(LONGEST.max(poll)).mul_f64(random::rng().random_range(0.5..=1.0))
    }

    /// Whether it is told of a grant; else it polls.
    const fn is_notified(&self) -> bool {
        self.about.notifies && !self.was_told
    }

    /// What the store tells this waiter. It is asked once, until it has answered.
    async fn notified(&mut self, queued: Option<OwnerId>) -> Notified {
        let Some(waiter) = queued.filter(|_| self.is_notified()) else { return pending().await };
        let registers = &self.registers;
        let notified = self.notified.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let notified = notified.get_or_insert_with(|| {
            let registers = Arc::clone(registers);
            Box::pin(async move { registers.notified(waiter).await })
        });
        let why = notified.await;
        *lock(&self.notified) = None;
        self.was_told |= matches!(why, Notified::Granted(_));
        why
    }
}

impl Default for Last {
    fn default() -> Self {
        Self { queued: None, ahead: OUTSIDE, first: None, look: BootInstant::NEVER, is_old: true }
    }
}

impl<R> Debug for KvMailbox<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvMailbox").field("last", &self.last).finish_non_exhaustive()
    }
}

impl<R: Registers> Mailbox for KvMailbox<R> {
    fn listens(&mut self, _: Option<usize>) -> Option<Duration> {
        // One that is to read rarely does not read more often for this.
        Some(longest_pause().max(self.about.poll * 2))
    }

    async fn next(&mut self) -> Message {
        let last = *lock(&self.last);
        let (clock, pause) = (self.clock.clone(), self.pause(&last));
        let polls = last.is_old || last.queued.is_none() || !self.is_notified();
        // One that asks in vain does so no sooner for that: a store that refuses at once would be asked without a pause.
        let look = if last.is_old { BootInstant::NEVER } else { last.look };
        let why = tokio::select! {
            why = self.notified(last.queued) => why,
            () = sleep(pause), if polls => Notified::Look,
            () = clock.sleep_until(look) => Notified::Look,
        };
        lock(&self.last).is_old = true;
        let Notified::Granted(value) = why else { return Message::Ask };
        *lock(&self.carried) = value;
        // To be confirmed first: a caller who blocks its thread at once may not send the swap for that, or the read before it. The lock would
        // be kept for the grace period alone.
        Message::Confirm
    }
}
