//! The wait queue of one process: of all its tasks that want a lock, one talks to the server.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::pending;
use std::mem;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::api::lock_spec::LockSpec;
use crate::process::waiting::within;
use crate::{AcquireRequest, Error, GuardState, LockName, LossReason, Mode, Validity, Wait};

/// The number of a turn or of a waiter.
type Id = NonZeroU64;

/// How often queues that have waiters are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How many queues a check looks at, so that what it costs is bounded: it takes less than a millisecond. Of more queues the others
/// have their turn at the next checks: each of 10 000 is looked at twice a second.
const CHECKED_AT_ONCE: usize = 1_000;
/// How many of them are looked at without unlocking the mutex.
const CHECKED_LOCKED: usize = 50;
/// How long a waiter may leave what it was given: nobody may poll it again, and others wait for it.
const TAKE_WITHIN: Duration = Duration::from_secs(1);
/// How long a refusal counts after it was noted. A task that is polled notes it again after a pause and an answer.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// The same once that task has ended: those whose patience ends with its own learn why.
const REFUSED_BEFORE_FOR: Duration = Duration::from_secs(1);

/// First-in, first-out queues, one per lock name in use. `G` is what a holder hands over to the next waiter: a guard.
///
/// A task on each runtime that has waiters checks their queues: it serves those behind a holder that lost its lock, and takes
/// back what a waiter was given and does not take. A waiter that is not polled thus stops nobody.
#[derive(Debug)]
pub(crate) struct LocalQueues<G> {
    queues: Mutex<Queues<G>>,
    /// Notified when a task goes on although the store refuses it, and when the refusals end.
    refusals: watch::Sender<()>,
}

#[derive(Debug)]
struct Queues<G> {
    by_name: HashMap<LockName, Queue<G>, RandomState>,
    /// The queues that have waiters, or had some at their last check.
    with_waiters: HashSet<LockName, RandomState>,
    /// The same, the next one to be checked first.
    to_check: VecDeque<LockName>,
    /// When they were checked, by the task of any runtime.
    checked: Option<Instant>,
    /// The runtimes on which a task checks them.
    checked_on: HashSet<runtime::Id, RandomState>,
    /// Numbers turns and waiters.
    last_id: Id,
}

/// The task that has the turn, and its waiters. Removed with the last of them.
#[derive(Debug)]
struct Queue<G> {
    turn: Option<Id>,
    /// The mode of the task that has the turn.
    mode: Option<Mode>,
    /// The lock of the task that has the turn, once it was granted.
    held: Option<Validity>,
    /// Whether the lock was busy since the queue exists: one of its tasks held it, or waited for another client.
    was_busy: bool,
    /// Most locks have none, and there may be many locks.
    waiters: Option<Box<Waiters<G>>>,
}

#[derive(Debug)]
struct Waiters<G> {
    in_order: VecDeque<Waiter>,
    served: Vec<Served<G>>,
    /// Why the task that has the turn does not get the lock, though it may be free; and until when that counts.
    refusal: Option<(Error, Instant)>,
}

#[derive(Debug)]
struct Waiter {
    id: Id,
    spec: Arc<LockSpec>,
    wait: Wait,
    runtime: Handle,
    /// Notified when it is served.
    served: Arc<Notify>,
}

/// A waiter whose wait has ended, though it has not been polled since.
#[derive(Debug)]
struct Served<G> {
    waiter: Waiter,
    event: QueueEvent<G>,
    /// When it is to be taken back.
    until: Instant,
}

/// What ends the wait of the first waiter.
#[derive(Debug)]
pub(crate) enum QueueEvent<G> {
    /// Its turn to ask the server.
    Turn(Turn<G>),
    /// The lock itself, from the previous holder.
    HandedOver(G),
}

/// The right to talk to the server about a lock, and to hold it. The next waiter gets it on drop, or when the lock is lost:
/// a holder that lost the lock does not block its successors.
#[derive(Debug)]
pub(crate) struct Turn<G> {
    /// `None` for a turn beside that of another task.
    id: Option<Id>,
    queues: Arc<LocalQueues<G>>,
    name: LockName,
}

/// The first waiter, to which a holder may hand its lock over.
#[derive(Debug)]
pub(crate) struct NextWaiter {
    id: Id,
    pub(crate) spec: Arc<LockSpec>,
    wait: Wait,
    pub(crate) runtime: Handle,
}

impl NextWaiter {
    pub(crate) fn request(&self) -> AcquireRequest {
        self.spec.request(self.wait)
    }

    /// Whether it waits on this runtime. A lease that begins on another one is renewed no longer than that one runs.
    pub(crate) fn is_on(&self, runtime: &Handle) -> bool {
        self.runtime.id() == runtime.id()
    }
}

/// The place of a waiter in a queue, given up on drop.
#[derive(Debug)]
struct QueueEntry<'a, G> {
    queues: &'a Arc<LocalQueues<G>>,
    name: &'a LockName,
    /// `None` once it was removed with an event.
    id: Option<Id>,
    served: Arc<Notify>,
}

impl<G: Send + 'static> LocalQueues<G> {
    /// Waits for the turn or for a hand-over; `None` if the patience ends first.
    ///
    /// # Errors
    ///
    /// The [refusal](Self::refusal) that lasts when the patience ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. A turn that was given already goes to the next waiter, a guard is dropped. A
    /// future that is not polled loses both after a second, and its place.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        spec: &Arc<LockSpec>,
        wait: Wait,
        runtime: &Handle,
    ) -> Result<Option<QueueEvent<G>>, Error> {
        let mut entry = match self.enter(spec, wait, runtime) {
            Ok(turn) => return Ok(Some(QueueEvent::Turn(turn))),
            Err(entry) => entry,
        };
        self.check_on(runtime);
        while within(wait.deadline(), entry.served.notified()).await.is_some() {
            if let Some(event) = entry.take() {
                return Ok(Some(event));
            }
        }
        entry.leave()
    }

    /// Starts the task that checks the queues on this runtime, if it does not run.
    fn check_on(self: &Arc<Self>, runtime: &Handle) {
        if !self.queues().checked_on.insert(runtime.id()) {
            return;
        }
        // Made here, so that it is dropped even if the runtime never polls the task.
        let checks = Checks { queues: Arc::clone(self), runtime: Some(runtime.id()) };
        drop(runtime.spawn(checks.run()));
    }
}

impl<G> LocalQueues<G> {
    /// Takes the turn for an acquisition that would wait, if no task has it.
    pub(crate) fn free_turn(self: &Arc<Self>, name: &LockName, mode: Mode) -> Option<Turn<G>> {
        self.take_if_free(&mut self.queues(), name, mode)
    }

    /// Takes the turn if no task has it.
    ///
    /// An acquisition that may share the lock with the task that has the turn gets a turn beside it: only the server
    /// knows whether it would have to wait.
    pub(crate) fn try_turn(self: &Arc<Self>, name: &LockName, mode: Mode) -> Option<Turn<G>> {
        self.advance_if_lost(name);
        let mut queues = self.queues();
        self.take_if_free(&mut queues, name, mode).or_else(|| {
            let shares = queues.by_name.get(name).is_some_and(|queue| queue.may_share(mode));
            shares.then(|| Turn { id: None, queues: Arc::clone(self), name: name.clone() })
        })
    }

    /// Delivers the guard to this waiter if it still waits, else drops the guard. Where the waiter does not take it within
    /// `patience`, the guard is dropped as well.
    pub(crate) fn deliver(&self, name: &LockName, next: &NextWaiter, guard: G, patience: Duration) {
        let mut queues = self.queues();
        // The guard is dropped after the mutex is unlocked: its destructor locks it again.
        let Some(queue) = queues.by_name.get_mut(name) else { return };
        let Some(waiter) = queue.waiters.as_mut().and_then(|waiters| waiters.remove(next.id)) else { return };
        queue.serve(waiter, QueueEvent::HandedOver(guard), patience.min(TAKE_WITHIN));
    }

    /// The number of tasks that wait behind the one that has the turn.
    pub(crate) fn waiters(&self, name: &LockName) -> usize {
        self.queues().by_name.get(name).map_or(0, |queue| queue.in_order().len())
    }

    /// Why the task that has the turn does not get this lock, if the store refuses it, or refused it to the one before: not long ago, as
    /// that task may not be polled any more.
    pub(crate) fn refusal(&self, name: &LockName) -> Option<Error> {
        self.queues().by_name.get(name)?.refusal()
    }

    /// Waits until the store refuses this lock to the task that has the turn.
    pub(crate) async fn refused(&self, name: &LockName) -> Error {
        let mut refusals = self.refusals();
        loop {
            if let Some(refusal) = self.refusal(name) {
                return refusal;
            }
            if refusals.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }

    /// Notified when a [refusal](Self::refusal) begins or ends.
    pub(crate) fn refusals(&self) -> watch::Receiver<()> {
        self.refusals.subscribe()
    }

    fn enter<'a>(
        self: &'a Arc<Self>,
        spec: &'a Arc<LockSpec>,
        wait: Wait,
        runtime: &Handle,
    ) -> Result<Turn<G>, QueueEntry<'a, G>> {
        let (mut queues, name) = (self.queues(), &spec.name);
        if let Some(turn) = self.take_if_free(&mut queues, name, spec.mode) {
            return Ok(turn);
        }
        let (id, served) = (queues.next_id(), Arc::new(Notify::new()));
        let (spec, runtime) = (Arc::clone(spec), runtime.clone());
        let waiter = Waiter { id, spec, wait, runtime, served: Arc::clone(&served) };
        let queue = queues.by_name.entry(name.clone()).or_default();
        queue.waiters.get_or_insert_default().in_order.push_back(waiter);
        if !queues.with_waiters.contains(name) {
            queues.with_waiters.insert(name.clone());
            queues.to_check.push_back(name.clone());
        }
        Err(QueueEntry { queues: self, name, id: Some(id), served })
    }

    fn take_if_free(
        self: &Arc<Self>,
        queues: &mut Queues<G>,
        name: &LockName,
        mode: Mode,
    ) -> Option<Turn<G>> {
        let id = queues.next_id();
        let queue = queues.by_name.entry(name.clone()).or_default();
        if queue.turn.is_some() {
            return None;
        }
        (queue.turn, queue.mode) = (Some(id), Some(mode));
        Some(self.turn_of(id, name))
    }

    fn turn_of(self: &Arc<Self>, id: Id, name: &LockName) -> Turn<G> {
        Turn { id: Some(id), queues: Arc::clone(self), name: name.clone() }
    }

    /// Gives the turn to the next waiter if the holder lost its lock. The turn of that holder is void from then on.
    fn advance_if_lost(self: &Arc<Self>, name: &LockName) {
        self.advance(name, Queue::is_lost);
    }

    /// Gives the turn to the first waiter, if the current turn has ended.
    fn advance(self: &Arc<Self>, name: &LockName, has_ended: impl FnOnce(&Queue<G>) -> bool) {
        let mut queues = self.queues();
        let id = queues.next_id();
        let Some(queue) = queues.by_name.get_mut(name).filter(|queue| has_ended(queue)) else { return };
        (queue.turn, queue.mode, queue.held) = (None, None, None);
        if let Some((_, until)) = queue.waiters.as_mut().and_then(|waiters| waiters.refusal.as_mut()) {
            *until = (*until).min(Instant::now() + REFUSED_BEFORE_FOR);
        }
        if let Some(waiter) = queue.waiters.as_mut().and_then(|waiters| waiters.in_order.pop_front()) {
            (queue.turn, queue.mode) = (Some(id), Some(waiter.spec.mode));
            queue.serve(waiter, QueueEvent::Turn(self.turn_of(id, name)), TAKE_WITHIN);
        } else if !queue.has_waiters() {
            if queue.set_refusal(None) {
                self.refusals.send_replace(());
            }
            queues.by_name.remove(name);
        }
    }

    /// Checks queues that have waiters, and returns whether there are any left.
    fn check(self: &Arc<Self>) -> bool {
        let mut left = self.queues().begin_check();
        while left > 0 {
            let now = left.min(CHECKED_LOCKED);
            left -= now;
            let stuck = self.queues().next_stuck(now);
            for name in &stuck {
                self.unblock(name);
            }
        }
        !self.queues().to_check.is_empty()
    }

    /// Takes back what waiters of this queue have not taken, and gives the turn of a lost lock to the next one.
    fn unblock(self: &Arc<Self>, name: &LockName) {
        let taken_back = self.queues().take_back(name);
        // Outside the mutex: their destructors lock it again.
        drop(taken_back);
        // The turn of a guard that was lost before it was taken back had ended already.
        self.advance(name, |queue| queue.turn.is_none() || queue.is_lost());
    }

    fn queues(&self) -> MutexGuard<'_, Queues<G>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G> Queues<G> {
    /// The number of queues to look at now: none if the task of another runtime has just checked them.
    fn begin_check(&mut self) -> usize {
        let now = Instant::now();
        if self.checked.is_some_and(|checked| now.duration_since(checked) < CHECK_INTERVAL / 2) {
            return 0;
        }
        self.checked = Some(now);
        self.to_check.len().min(CHECKED_AT_ONCE)
    }

    /// Looks at so many queues, and returns those in which a waiter is held up. Those that have waiters are looked at again.
    fn next_stuck(&mut self, count: usize) -> Vec<LockName> {
        let (mut stuck, now) = (Vec::new(), Instant::now());
        for _ in 0..count {
            let Some(name) = self.to_check.pop_front() else { break };
            match self.by_name.get(&name).filter(|queue| queue.has_waiters()) {
                Some(queue) => {
                    if queue.is_stuck(now) {
                        stuck.push(name.clone());
                    }
                    self.to_check.push_back(name);
                }
                None => _ = self.with_waiters.remove(&name),
            }
        }
        stuck
    }

    fn next_id(&mut self) -> Id {
        self.last_id = self.last_id.saturating_add(1);
        self.last_id
    }

    /// Takes what this waiter was given; it has left the queue then.
    fn take(&mut self, name: &LockName, waiter: Id) -> Option<QueueEvent<G>> {
        let queue = self.by_name.get_mut(name)?;
        let served = &mut queue.waiters.as_mut()?.served;
        let at = served.iter().position(|served| served.waiter.id == waiter)?;
        let event = served.swap_remove(at).event;
        if queue.turn.is_none() && !queue.has_waiters() {
            self.by_name.remove(name);
        }
        Some(event)
    }

    /// Takes back what waiters have not taken in time. They wait again, as the last ones.
    fn take_back(&mut self, name: &LockName) -> Vec<QueueEvent<G>> {
        let waiters = self.by_name.get_mut(name).and_then(|queue| queue.waiters.as_mut());
        waiters.map_or_else(Vec::new, |waiters| waiters.take_back(Instant::now()))
    }
}

impl<G> Queue<G> {
    fn in_order(&self) -> impl ExactSizeIterator<Item = &Waiter> {
        self.waiters.as_ref().map_or_else(Default::default, |waiters| waiters.in_order.iter())
    }

    /// Whether tasks wait, or were served and have not noticed.
    fn has_waiters(&self) -> bool {
        let are_there = |waiters: &Waiters<G>| !waiters.in_order.is_empty() || !waiters.served.is_empty();
        self.waiters.as_deref().is_some_and(are_there)
    }

    /// Whether the holder lost its lock. A lock that is being released is not lost: its turn ends when the server has confirmed
    /// the release.
    fn is_lost(&self) -> bool {
        let state = self.held.as_ref().map(Validity::state);
        matches!(state, Some(GuardState::Lost(reason)) if reason != LossReason::Released)
    }

    /// Whether a waiter is held up by a lock that is lost, or by a waiter that does not take what it was given.
    fn is_stuck(&self, now: Instant) -> bool {
        let are_overdue =
            |waiters: &Waiters<G>| waiters.served.iter().any(|served| waiters.is_overdue(served, now));
        self.turn.is_none() || self.is_lost() || self.waiters.as_deref().is_some_and(are_overdue)
    }

    fn refusal(&self) -> Option<Error> {
        let (refusal, until) = self.waiters.as_ref()?.refusal.as_ref()?;
        (Instant::now() < *until).then(|| refusal.clone())
    }

    /// Notes why the task that has the turn does not get the lock, and reports whether that is a change.
    fn set_refusal(&mut self, refusal: Option<Error>) -> bool {
        if self.waiters.is_none() && refusal.is_none() {
            return false;
        }
        let noted = &mut self.waiters.get_or_insert_default().refusal;
        let kind = refusal.as_ref().map(Error::kind);
        let before = mem::replace(noted, refusal.map(|refusal| (refusal, Instant::now() + REFUSED_FOR)));
        before.map(|(refusal, _)| refusal.kind()) != kind
    }

    /// Ends the wait of a waiter that is not in the queue any more.
    fn serve(&mut self, waiter: Waiter, event: QueueEvent<G>, patience: Duration) {
        waiter.served.notify_one();
        let served = Served { waiter, event, until: Instant::now() + patience };
        self.waiters.get_or_insert_default().served.push(served);
    }

    /// Whether an acquisition that does not wait may ask the server beside the task that has the turn: if it could share
    /// the lock with that task and all waiters, only the server knows whether it has to wait.
    fn may_share(&self, mode: Mode) -> bool {
        let shares = |other| {
            matches!((other, mode), (Mode::Shared, Mode::Shared) | (Mode::Permit { .. }, Mode::Permit { .. }))
        };
        self.mode.is_some_and(shares) && self.in_order().all(|waiter| shares(waiter.spec.mode))
    }
}

impl<G> Waiters<G> {
    fn remove(&mut self, waiter: Id) -> Option<Waiter> {
        let at = self.in_order.iter().position(|other| other.id == waiter)?;
        self.in_order.remove(at)
    }

    fn take_back(&mut self, now: Instant) -> Vec<QueueEvent<G>> {
        let mut taken_back = Vec::new();
        while let Some(at) = self.served.iter().position(|served| self.is_overdue(served, now)) {
            let Served { waiter, event, .. } = self.served.swap_remove(at);
            self.in_order.push_back(waiter);
            taken_back.push(event);
        }
        taken_back
    }

    /// Whether others wait for what this waiter does not take. For a lock they may be anywhere, for a turn they are here.
    fn is_overdue(&self, served: &Served<G>, now: Instant) -> bool {
        let is_waited_for = match served.event {
            QueueEvent::HandedOver(_) => true,
            QueueEvent::Turn(_) => !self.in_order.is_empty(),
        };
        is_waited_for && served.until <= now
    }
}

/// The task that checks the queues on one runtime.
#[derive(Debug)]
struct Checks<G> {
    queues: Arc<LocalQueues<G>>,
    /// `None` once it has ended.
    runtime: Option<runtime::Id>,
}

impl<G> Checks<G> {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if !self.queues.check() && self.end() {
                return;
            }
        }
    }

    /// Ends the task unless somebody waits again.
    fn end(&mut self) -> bool {
        let mut queues = self.queues.queues();
        let ends = queues.to_check.is_empty();
        if ends && let Some(runtime) = self.runtime.take() {
            queues.checked_on.remove(&runtime);
        }
        ends
    }
}

impl<G> Drop for Checks<G> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime {
            self.queues.queues().checked_on.remove(&runtime);
        }
    }
}

impl<G> Turn<G> {
    /// Notes the lock that was granted in this turn.
    pub(crate) fn hold(&self, validity: &Validity) {
        if let Some(queue) = self.queues.queues().by_name.get_mut(&self.name)
            && queue.turn == self.id
        {
            (queue.held, queue.was_busy) = (Some(validity.clone()), true);
            if queue.set_refusal(None) {
                self.queues.refusals.send_replace(());
            }
        }
    }

    /// Notes whether the task of this turn waited for the lock, and returns whether one of the queue has waited or held it: the
    /// others have waited for that one.
    pub(crate) fn has_queued(&self, has_waited: bool) -> bool {
        let mut queues = self.queues.queues();
        queues.by_name.get_mut(&self.name).map_or(has_waited, |queue| {
            queue.was_busy |= has_waited;
            queue.was_busy
        })
    }

    /// Notes why the task of this turn does not get the lock, or that the store answers again.
    pub(crate) fn note_refusal(&self, refusal: Option<&Error>) {
        let mut queues = self.queues.queues();
        if let Some(queue) = queues.by_name.get_mut(&self.name)
            && self.id.is_some()
            && queue.turn == self.id
            && queue.set_refusal(refusal.cloned())
        {
            self.queues.refusals.send_replace(());
        }
    }

    /// The queues that the turn belongs to.
    pub(crate) fn queues(&self) -> Arc<LocalQueues<G>> {
        Arc::clone(&self.queues)
    }

    /// The next waiter, which stays in the queue.
    pub(crate) fn next_waiter(&self) -> Option<NextWaiter> {
        let queues = self.queues.queues();
        let queue = queues.by_name.get(&self.name).filter(|queue| queue.turn == self.id)?;
        let first = queue.in_order().next()?;
        let (spec, runtime) = (Arc::clone(&first.spec), first.runtime.clone());
        Some(NextWaiter { id: first.id, spec, wait: first.wait, runtime })
    }
}

impl<G> Drop for Turn<G> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.queues.advance(&self.name, |queue| queue.turn == Some(id));
        }
    }
}

impl<G> QueueEntry<'_, G> {
    /// Leaves the queue, unless the waiter was given something. The refusal is that of the same moment: the task that has the turn may end
    /// at the same time, which would pass on the turn.
    fn leave(mut self) -> Result<Option<QueueEvent<G>>, Error> {
        let Some(id) = self.id.take() else { return Ok(None) };
        let mut queues = self.queues.queues();
        if let Some(event) = queues.take(self.name, id) {
            return Ok(Some(event));
        }
        let Some(queue) = queues.by_name.get_mut(self.name) else { return Ok(None) };
        if let Some(waiters) = &mut queue.waiters {
            waiters.remove(id);
        }
        queue.refusal().map_or(Ok(None), Err)
    }

    /// Takes what the waiter was given, if it was not taken back.
    fn take(&mut self) -> Option<QueueEvent<G>> {
        let event = self.queues.queues().take(self.name, self.id?)?;
        self.id = None;
        Some(event)
    }
}

impl<G> Drop for QueueEntry<'_, G> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut queues = self.queues.queues();
        let waiters = queues.by_name.get_mut(self.name).and_then(|queue| queue.waiters.as_mut());
        let was_waiting = waiters.is_some_and(|waiters| waiters.remove(id).is_some());
        let event = if was_waiting { None } else { queues.take(self.name, id) };
        // Outside the mutex: its destructor locks it again.
        drop((queues, event));
    }
}

impl<G> Default for LocalQueues<G> {
    fn default() -> Self {
        let queues = Queues {
            by_name: HashMap::default(),
            with_waiters: HashSet::default(),
            to_check: VecDeque::new(),
            checked: None,
            checked_on: HashSet::default(),
            last_id: Id::MIN,
        };
        Self { queues: Mutex::new(queues), refusals: watch::Sender::default() }
    }
}

impl<G> Default for Waiters<G> {
    fn default() -> Self {
        Self { in_order: VecDeque::new(), served: Vec::new(), refusal: None }
    }
}

impl<G> Default for Queue<G> {
    fn default() -> Self {
        Self { turn: None, mode: None, held: None, was_busy: false, waiters: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::lock_spec::tests::{named, spec};
    use crate::{Clock, ErrorKind, ValidityCell};
    use futures_util::poll;
    use std::num::NonZeroU32;
    use std::task::{Context, Poll, Waker};

    async fn turn(queue: &Arc<LocalQueues<()>>) -> Turn<()> {
        turn_in(queue, Mode::Exclusive).await
    }

    async fn turn_in(queue: &Arc<LocalQueues<()>>, mode: Mode) -> Turn<()> {
        match queue.wait(&spec(mode), Wait::Forever, &Handle::current()).await.unwrap() {
            Some(QueueEvent::Turn(turn)) => turn,
            other => panic!("nothing was held, and there was patience: {other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whose_patience_ends_with_that_of_the_task_before_learns_why_that_failed() {
        let queue = Arc::<LocalQueues<()>>::default();
        let (spec, runtime) = (spec(Mode::Exclusive), Handle::current());
        let first = turn(&queue).await;
        let wait = Wait::Until(Instant::now() + Duration::from_secs(1));
        let mut waiters = [(); 3].map(|()| Box::pin(queue.wait(&spec, wait, &runtime)));
        for waiter in &mut waiters {
            assert!(poll!(waiter).is_pending());
        }
        first.note_refusal(Some(&Error::new(ErrorKind::Denied, "test")));
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(first);
        let [second, third, fourth] = waiters;
        // The second would ask, and be refused itself.
        let turn = second.await.unwrap();
        assert!(matches!(turn, Some(QueueEvent::Turn(_))), "{turn:?}");
        assert_eq!(third.await.unwrap_err().kind(), ErrorKind::Denied);
        drop(turn);
        let turn = fourth.await.unwrap();
        let Some(QueueEvent::Turn(turn)) = turn else { panic!("{turn:?}") };
        assert!(queue.refusal(&spec.name).is_some());
        // The store may answer it at any time.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(queue.refusal(&spec.name).is_none());
        drop(turn);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_for_a_refusal_are_notified() {
        let queue = Arc::<LocalQueues<()>>::default();
        let (first, name) = (turn(&queue).await, &spec(Mode::Exclusive).name);
        let mut refused = Box::pin(queue.refused(name));
        assert!(poll!(&mut refused).is_pending());
        first.note_refusal(Some(&Error::new(ErrorKind::Denied, "test")));
        let refusal = tokio::time::timeout(Duration::from_secs(1), refused).await;
        assert_eq!(refusal.unwrap().kind(), ErrorKind::Denied);
    }

    #[tokio::test]
    async fn turns_come_in_order_and_empty_queues_are_removed() {
        let queue = Arc::<LocalQueues<()>>::default();
        let name = LockName::new("a").unwrap();
        let first = turn(&queue).await;
        assert!(queue.try_turn(&name, Mode::Exclusive).is_none());

        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..5 {
            let (queue, sender) = (Arc::clone(&queue), sender.clone());
            tokio::spawn(async move {
                let _turn = turn(&queue).await;
                sender.send(number).unwrap();
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.waiters(&name), 5);
        drop((first, sender));
        let mut seen = Vec::new();
        while let Some(number) = order.recv().await {
            seen.push(number);
        }
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert!(queue.queues().by_name.is_empty());
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_the_queue() {
        let queue = Arc::<LocalQueues<()>>::default();
        let name = LockName::new("a").unwrap();
        let holder = turn(&queue).await;
        let waiter = tokio::time::timeout(Duration::from_millis(5), turn(&queue)).await;
        assert!(waiter.is_err());
        assert_eq!(queue.waiters(&name), 0);
        drop(holder);
        assert!(queue.try_turn(&name, Mode::Exclusive).is_some());
        assert!(queue.queues().by_name.is_empty());
    }

    #[tokio::test]
    async fn the_turn_of_a_waiter_that_left_goes_to_the_next() {
        let queue = Arc::<LocalQueues<()>>::default();
        let holder = turn(&queue).await;
        let mut leaves = Box::pin(turn(&queue));
        let mut context = Context::from_waker(Waker::noop());
        assert!(leaves.as_mut().poll(&mut context).is_pending());
        let stays = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { turn(&queue).await }
        });
        tokio::task::yield_now().await;
        drop(holder);
        drop(leaves);
        drop(tokio::time::timeout(Duration::from_secs(5), stays).await.unwrap().unwrap());
        assert!(queue.queues().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_lost_the_lock_does_not_block_its_successors() {
        let (queue, clock) = (Arc::<LocalQueues<()>>::default(), Clock::tokio());
        let name = LockName::new("a").unwrap();
        let cell = |seconds| ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(seconds));

        let lost = turn(&queue).await;
        let waiter = |queue: &Arc<LocalQueues<()>>| {
            let queue = Arc::clone(queue);
            tokio::spawn(async move { turn(&queue).await })
        };
        let (first, second) = (waiter(&queue), waiter(&queue));
        tokio::task::yield_now().await;
        lost.hold(&cell(5).validity());
        let next = first.await.unwrap();
        assert!(clock.now().since_boot() >= Duration::from_secs(5));
        assert!(lost.next_waiter().is_none(), "the turn belongs to another task now");

        next.hold(&cell(5).validity());
        drop(lost);
        assert!(queue.try_turn(&name, Mode::Exclusive).is_none(), "the lost holder gave up its turn before");
        // The second waiter still watches the holder.
        let last = second.await.unwrap();
        drop(next);
        drop(last);
        let turn = queue.try_turn(&name, Mode::Exclusive);
        assert!(turn.is_some() && queue.try_turn(&name, Mode::Exclusive).is_none());
        drop(turn);
        assert!(queue.queues().by_name.is_empty());
    }

    #[tokio::test]
    async fn sharers_try_beside_each_other_but_overtake_no_other_waiter() {
        let queue = Arc::<LocalQueues<()>>::default();
        let name = LockName::new("a").unwrap();
        let permit = |max| Mode::Permit { max: NonZeroU32::new(max).unwrap() };
        for (mode, same, others) in [
            (Mode::Shared, Mode::Shared, [Mode::Exclusive, permit(2)]),
            (permit(2), permit(3), [Mode::Exclusive, Mode::Shared]),
        ] {
            let asking = turn_in(&queue, mode).await;
            let waiter = |mode| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { turn_in(&queue, mode).await })
            };
            let next = waiter(same);
            tokio::task::yield_now().await;
            drop(queue.try_turn(&name, same).unwrap());
            assert!(others.iter().all(|other| queue.try_turn(&name, *other).is_none()));
            let last = waiter(Mode::Exclusive);
            tokio::task::yield_now().await;
            assert!(queue.try_turn(&name, same).is_none());
            drop(asking);
            drop(next.await.unwrap());
            drop(last.await.unwrap());
            assert!(queue.queues().by_name.is_empty());
        }
    }

    /// So that neither a check holds up its runtime, nor the checks of several runtimes add up.
    #[tokio::test(start_paused = true)]
    async fn what_a_check_costs_is_bounded_and_each_queue_has_its_turn() {
        let queues = Arc::<LocalQueues<()>>::default();
        let (clock, runtime) = (Clock::tokio(), Handle::current());
        let specs: Vec<_> = (0..=2 * CHECKED_AT_ONCE).map(|number| named(&number.to_string())).collect();
        let (mut lost, mut waiters) = (Vec::new(), Vec::new());
        for spec in &specs {
            let turn = queues.free_turn(&spec.name, Mode::Exclusive).unwrap();
            let cell = ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(5));
            turn.hold(&cell.validity());
            let mut waiter = Box::pin(queues.wait(spec, Wait::Forever, &runtime));
            assert!(poll!(&mut waiter).is_pending());
            cell.lose(LossReason::Removed);
            lost.push(turn);
            waiters.push(waiter);
        }
        let mut served = 0;
        for most in [CHECKED_AT_ONCE, CHECKED_AT_ONCE, 1] {
            tokio::time::advance(CHECK_INTERVAL).await;
            for _ in 0..8 {
                assert!(queues.check(), "all have waiters");
            }
            let all = || queues.queues().by_name.values().filter(|queue| queue.in_order().len() == 0).count();
            served += most;
            assert_eq!(all(), served);
        }
    }

    fn unpolled(queue: &Arc<LocalQueues<()>>) -> std::pin::Pin<Box<impl Future<Output = QueueEvent<()>>>> {
        let queue = Arc::clone(queue);
        let mut waiter = Box::pin(async move {
            let waited = queue.wait(&spec(Mode::Exclusive), Wait::Forever, &Handle::current()).await;
            waited.unwrap().expect("its patience never ends")
        });
        assert!(waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waiter
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_is_not_polled_keeps_neither_the_turn_nor_the_lock() {
        let queue = Arc::<LocalQueues<()>>::default();
        let name = LockName::new("a").unwrap();
        let (holder, mut waiter) = (turn(&queue).await, unpolled(&queue));
        drop(holder);
        // Nobody else waits for the turn.
        tokio::time::sleep(3 * TAKE_WITHIN).await;
        assert!(queue.try_turn(&name, Mode::Exclusive).is_none());
        let next = tokio::time::timeout(2 * CHECK_INTERVAL, turn(&queue)).await.unwrap();
        // Others may wait for a lock elsewhere.
        queue.deliver(&name, &next.next_waiter().unwrap(), (), TAKE_WITHIN);
        assert_eq!(queue.waiters(&name), 0);
        tokio::time::sleep(TAKE_WITHIN + 2 * CHECK_INTERVAL).await;
        assert_eq!(queue.waiters(&name), 1, "it waits again");
        drop(next);
        let event = tokio::time::timeout(TAKE_WITHIN, &mut waiter).await.unwrap();
        assert!(matches!(event, QueueEvent::Turn(_)));
        drop(event);
        assert!(queue.queues().by_name.is_empty());
        tokio::time::sleep(2 * CHECK_INTERVAL).await;
        assert!(queue.queues().checked_on.is_empty(), "nobody waits, and yet it is checked");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_has_a_second_to_take_what_it_was_given() {
        let queue = Arc::<LocalQueues<()>>::default();
        let (holder, first, mut last) = (turn(&queue).await, unpolled(&queue), unpolled(&queue));
        drop(holder);
        tokio::time::sleep(TAKE_WITHIN - 2 * CHECK_INTERVAL).await;
        assert!(poll!(&mut last).is_pending(), "it is behind the first");
        let event = poll!(first);
        assert!(matches!(event, Poll::Ready(QueueEvent::Turn(_))), "{event:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_that_are_not_polled_hide_no_loss() {
        let (queue, clock) = (Arc::<LocalQueues<()>>::default(), Clock::tokio());
        let holder = turn(&queue).await;
        holder.hold(&ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(3)).validity());
        let (_first, second) = (unpolled(&queue), turn(&queue));
        let mut second = Box::pin(second);
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let _last = unpolled(&queue);
        let limit = Duration::from_secs(3) + TAKE_WITHIN + 3 * CHECK_INTERVAL;
        drop(tokio::time::timeout(limit, second).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_lost_before_it_is_taken_back_leaves_no_waiter_behind() {
        let (queue, clock) = (Arc::<LocalQueues<()>>::default(), Clock::tokio());
        let name = LockName::new("a").unwrap();
        let (holder, mut waiter) = (turn(&queue).await, unpolled(&queue));
        let cell = ValidityCell::new(clock.clone(), clock.now() + TAKE_WITHIN / 2);
        holder.hold(&cell.validity());
        // As a guard that is handed over, whose turn is void once it is lost.
        queue.deliver(&name, &holder.next_waiter().unwrap(), (), TAKE_WITHIN);
        tokio::time::sleep(2 * TAKE_WITHIN).await;
        let event = tokio::time::timeout(TAKE_WITHIN, &mut waiter).await.unwrap();
        assert!(matches!(event, QueueEvent::Turn(_)));
        drop((event, holder));
        assert!(queue.queues().by_name.is_empty());
    }
}
