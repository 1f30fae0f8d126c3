//! The wait queue of one process: of all its tasks that want a lock, one talks to the server.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::lock_spec::LockSpec;
use crate::{AcquireRequest, GuardState, LockName, LossReason, Mode, Validity, Wait};

/// The number of a turn or of a waiter.
type Id = NonZeroU64;

/// How often one waiter checks whether the holder lost its lock.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// First-in, first-out queues, one per lock name in use. `G` is what a holder hands over to the next waiter: a guard.
#[derive(Debug)]
pub(crate) struct LocalQueues<G> {
    queues: Mutex<Queues<G>>,
}

#[derive(Debug)]
struct Queues<G> {
    by_name: HashMap<LockName, Queue<G>, RandomState>,
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
    /// Most locks have none, and there may be many locks.
    waiters: Option<Box<Waiters<G>>>,
}

#[derive(Debug)]
struct Waiters<G> {
    in_order: VecDeque<Waiter<G>>,
    /// The waiter that watches the holder, so that the others need not wake up.
    watcher: Option<Id>,
}

#[derive(Debug)]
struct Waiter<G> {
    id: Id,
    spec: Arc<LockSpec>,
    wait: Wait,
    runtime: Handle,
    event: oneshot::Sender<QueueEvent<G>>,
    /// Notified when this waiter becomes the watcher.
    watches: Arc<Notify>,
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
    /// `None` for a turn beside that of another task, and for one that was handed over.
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
    event: oneshot::Receiver<QueueEvent<G>>,
    watches: Arc<Notify>,
}

impl<G> LocalQueues<G> {
    /// Waits for the turn or for a hand-over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. A turn that was given already goes to the next waiter, a guard is dropped.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        spec: &Arc<LockSpec>,
        wait: Wait,
        runtime: &Handle,
    ) -> QueueEvent<G> {
        let mut entry = match self.enter(spec, wait, runtime) {
            Ok(turn) => return QueueEvent::Turn(turn),
            Err(entry) => entry,
        };
        let (id, event, watches, name) = (&mut entry.id, &mut entry.event, &entry.watches, entry.name);
        let watch_the_holder = async {
            watches.notified().await;
            loop {
                self.advance_if_lost(name);
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            event = event => match event {
                Ok(event) => {
                    *id = None;
                    event
                }
                Err(_) => unreachable!("a waiter is removed by itself, or with an event"),
            },
            () = watch_the_holder => unreachable!("it loops for ever"),
        }
    }

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

    /// Delivers the guard to this waiter if it still waits, else drops the guard.
    pub(crate) fn deliver(&self, name: &LockName, next: &NextWaiter, guard: G) {
        let waiter = self.queues().by_name.get_mut(name).and_then(|queue| queue.remove(next.id));
        if let Some(waiter) = waiter {
            // Fails if the waiter has left since; that drops the guard.
            drop(waiter.event.send(QueueEvent::HandedOver(guard)));
        }
    }

    /// The number of tasks that wait behind the one that has the turn.
    pub(crate) fn waiters(&self, name: &LockName) -> usize {
        self.queues().by_name.get(name).map_or(0, |queue| queue.in_order().len())
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
        let (sender, event) = oneshot::channel();
        let (id, watches) = (queues.next_id(), Arc::new(Notify::new()));
        let waiter = Waiter {
            id,
            spec: Arc::clone(spec),
            wait,
            runtime: runtime.clone(),
            event: sender,
            watches: Arc::clone(&watches),
        };
        let queue = queues.by_name.entry(name.clone()).or_default();
        queue.waiters.get_or_insert_default().push(waiter);
        Err(QueueEntry { queues: self, name, id: Some(id), event, watches })
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
        self.advance(name, |queue| queue.held.as_ref().is_some_and(is_lost));
    }

    /// Gives the turn to the first waiter that still waits, if the current turn has ended.
    fn advance(self: &Arc<Self>, name: &LockName, has_ended: impl FnOnce(&Queue<G>) -> bool) {
        let mut queues = self.queues();
        let id = queues.next_id();
        let Entry::Occupied(mut entry) = queues.by_name.entry(name.clone()) else { return };
        let queue = entry.get_mut();
        if !has_ended(queue) {
            return;
        }
        (queue.turn, queue.mode, queue.held) = (None, None, None);
        while let Some(waiter) = queue.pop() {
            let mode = waiter.spec.mode;
            match waiter.event.send(QueueEvent::Turn(self.turn_of(id, name))) {
                Ok(()) => {
                    (queue.turn, queue.mode) = (Some(id), Some(mode));
                    return;
                }
                Err(QueueEvent::Turn(mut turn)) => turn.id = None,
                Err(QueueEvent::HandedOver(_)) => unreachable!("it was a turn"),
            }
        }
        entry.remove();
    }

    fn queues(&self) -> MutexGuard<'_, Queues<G>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G> Queues<G> {
    fn next_id(&mut self) -> Id {
        self.last_id = self.last_id.saturating_add(1);
        self.last_id
    }
}

impl<G> Queue<G> {
    fn pop(&mut self) -> Option<Waiter<G>> {
        self.waiters.as_mut()?.pop()
    }

    fn remove(&mut self, waiter: Id) -> Option<Waiter<G>> {
        self.waiters.as_mut()?.remove(waiter)
    }

    fn in_order(&self) -> impl ExactSizeIterator<Item = &Waiter<G>> {
        self.waiters.as_ref().map_or_else(Default::default, |waiters| waiters.in_order.iter())
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
    fn push(&mut self, waiter: Waiter<G>) {
        self.in_order.push_back(waiter);
        self.choose_watcher();
    }

    fn pop(&mut self) -> Option<Waiter<G>> {
        let waiter = self.in_order.pop_front();
        self.removed(waiter)
    }

    fn remove(&mut self, waiter: Id) -> Option<Waiter<G>> {
        let at = self.in_order.iter().position(|other| other.id == waiter)?;
        let waiter = self.in_order.remove(at);
        self.removed(waiter)
    }

    fn removed(&mut self, waiter: Option<Waiter<G>>) -> Option<Waiter<G>> {
        if self
            .watcher
            .take_if(|watcher| waiter.as_ref().is_some_and(|waiter| waiter.id == *watcher))
            .is_some()
        {
            self.choose_watcher();
        }
        waiter
    }

    /// Makes the last waiter the watcher if there is none: it is likely to wait the longest.
    fn choose_watcher(&mut self) {
        if let (None, Some(last)) = (self.watcher, self.in_order.back()) {
            self.watcher = Some(last.id);
            last.watches.notify_one();
        }
    }
}

impl<G> Turn<G> {
    /// Notes the lock that was granted in this turn.
    pub(crate) fn hold(&self, validity: &Validity) {
        if let Some(queue) = self.queues.queues().by_name.get_mut(&self.name)
            && queue.turn == self.id
        {
            queue.held = Some(validity.clone());
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
        let first = queue.in_order().next().filter(|first| !first.event.is_closed())?;
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

impl<G> Drop for QueueEntry<'_, G> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut queues = self.queues.queues();
        let removed = queues.by_name.get_mut(self.name).and_then(|queue| queue.remove(id));
        // Outside the mutex: the destructor of the waiter may lock it again.
        drop((queues, removed));
    }
}

impl<G> Default for LocalQueues<G> {
    fn default() -> Self {
        Self { queues: Mutex::new(Queues { by_name: HashMap::default(), last_id: Id::MIN }) }
    }
}

impl<G> Default for Waiters<G> {
    fn default() -> Self {
        Self { in_order: VecDeque::new(), watcher: None }
    }
}

impl<G> Default for Queue<G> {
    fn default() -> Self {
        Self { turn: None, mode: None, held: None, waiters: None }
    }
}

/// A lock that is being released is not lost: its turn ends when the server has confirmed the release.
fn is_lost(held: &Validity) -> bool {
    matches!(held.state(), GuardState::Lost(reason) if reason != LossReason::Released)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_spec::tests::spec;
    use crate::{Clock, ValidityCell};
    use std::num::NonZeroU32;
    use std::task::{Context, Waker};

    async fn turn(queue: &Arc<LocalQueues<()>>) -> Turn<()> {
        turn_in(queue, Mode::Exclusive).await
    }

    async fn turn_in(queue: &Arc<LocalQueues<()>>, mode: Mode) -> Turn<()> {
        match queue.wait(&spec(mode), Wait::Forever, &Handle::current()).await {
            QueueEvent::Turn(turn) => turn,
            QueueEvent::HandedOver(()) => panic!("nothing was held"),
        }
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
}
