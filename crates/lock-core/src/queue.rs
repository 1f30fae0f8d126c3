//! The queue of one process: of all its tasks that want a lock, one talks to the server.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::{AcquireRequest, Guard, GuardState, LockName, LossReason, Mode, Validity};

/// How often somebody looks whether the holder has lost its lock.
const LOOK: Duration = Duration::from_millis(50);

/// First-in, first-out queues, one for each lock name in use.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    by_name: HashMap<LockName, Line, RandomState>,
    /// Counts turns and waiters.
    last_id: u64,
}

/// Who has the turn, and who waits for it; it goes away with the last.
#[derive(Debug, Default)]
struct Line {
    turn: Option<u64>,
    /// How the one who has the turn wants the lock.
    mode: Option<Mode>,
    /// What the one who has the turn holds, once it does.
    held: Option<Validity>,
    waiters: VecDeque<Waiter>,
    /// The waiter that looks after the holder, so that the others need not be woken.
    sentinel: Option<u64>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    request: Arc<AcquireRequest>,
    runtime: Handle,
    come: oneshot::Sender<Come>,
    /// It has become the sentinel.
    appointed: Arc<Notify>,
}

/// What comes to the first in line.
#[derive(Debug)]
pub(crate) enum Come {
    /// Its turn to ask the server.
    Turn(Turn),
    /// The lock itself, from the holder before.
    Guard(Guard),
}

/// The right to talk to the server about a lock, and to hold it. The next in line gets it on drop, or
/// when what is held is lost: nobody waits for a holder that is none any more.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` when there is nothing to give up.
    id: Option<u64>,
    queue: Arc<LocalQueue>,
    name: LockName,
}

/// The first in line, to whom a holder may pass its lock.
#[derive(Debug)]
pub(crate) struct Heir {
    id: u64,
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) runtime: Handle,
}

/// A place in a line.
#[derive(Debug)]
struct Place<'a> {
    queue: &'a Arc<LocalQueue>,
    name: &'a LockName,
    id: u64,
    come: oneshot::Receiver<Come>,
    appointed: Arc<Notify>,
}

impl LocalQueue {
    /// Waits for the turn.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line, and what has come to it.
    pub(crate) async fn turn(self: &Arc<Self>, request: &Arc<AcquireRequest>, runtime: &Handle) -> Come {
        let mut place = match self.enter(request, runtime) {
            Ok(turn) => return Come::Turn(turn),
            Err(place) => place,
        };
        let (come, appointed, name) = (&mut place.come, &place.appointed, place.name);
        let looking_after_the_holder = async {
            appointed.notified().await;
            loop {
                self.pass_on(name);
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            biased;
            come = come => match come {
                Ok(come) => come,
                Err(_) => unreachable!("a waiter leaves the line by itself, or with something"),
            },
            () = looking_after_the_holder => unreachable!("it goes on for ever"),
        }
    }

    /// Takes the turn of one who would wait, if nobody has it.
    pub(crate) fn free_turn(self: &Arc<Self>, name: &LockName, mode: Mode) -> Option<Turn> {
        self.take_if_free(&mut self.lines(), name, mode)
    }

    /// Takes the turn if nobody has it.
    ///
    /// Who may share the lock with the one who has the turn asks beside it: it cannot know that it has to
    /// wait.
    pub(crate) fn try_turn(self: &Arc<Self>, name: &LockName, mode: Mode) -> Option<Turn> {
        self.pass_on(name);
        let mut lines = self.lines();
        self.take_if_free(&mut lines, name, mode).or_else(|| {
            let shares = lines.by_name.get(name).is_some_and(|line| line.may_share(mode));
            shares.then(|| Turn { id: None, queue: Arc::clone(self), name: name.clone() })
        })
    }

    /// Gives the lock to this waiter if it is still there; if not, the guard is dropped.
    pub(crate) fn bequeath(&self, heir: &Heir, guard: Guard) {
        let waiter = {
            let mut lines = self.lines();
            let line = lines.by_name.get_mut(guard.name());
            line.and_then(|line| line.remove(heir.id))
        };
        if let Some(waiter) = waiter {
            // It may have left since.
            drop(waiter.come.send(Come::Guard(guard)));
        }
    }

    /// How many tasks wait behind the one that has the turn.
    pub(crate) fn waiters(&self, name: &LockName) -> usize {
        self.lines().by_name.get(name).map_or(0, |line| line.waiters.len())
    }

    fn enter<'a>(
        self: &'a Arc<Self>,
        request: &'a Arc<AcquireRequest>,
        runtime: &Handle,
    ) -> Result<Turn, Place<'a>> {
        let (mut lines, name) = (self.lines(), &request.name);
        if let Some(turn) = self.take_if_free(&mut lines, name, request.mode) {
            return Ok(turn);
        }
        let (sender, come) = oneshot::channel();
        let (id, appointed) = (lines.next_id(), Arc::new(Notify::new()));
        let waiter = Waiter {
            id,
            request: Arc::clone(request),
            runtime: runtime.clone(),
            come: sender,
            appointed: Arc::clone(&appointed),
        };
        let line = lines.by_name.entry(name.clone()).or_default();
        line.waiters.push_back(waiter);
        line.appoint();
        Err(Place { queue: self, name, id, come, appointed })
    }

    fn take_if_free(self: &Arc<Self>, lines: &mut Lines, name: &LockName, mode: Mode) -> Option<Turn> {
        let id = lines.next_id();
        let line = lines.by_name.entry(name.clone()).or_default();
        if line.turn.is_some() {
            return None;
        }
        (line.turn, line.mode) = (Some(id), Some(mode));
        Some(self.turn_of(id, name))
    }

    fn turn_of(self: &Arc<Self>, id: u64, name: &LockName) -> Turn {
        Turn { id: Some(id), queue: Arc::clone(self), name: name.clone() }
    }

    /// Gives the turn of a holder that lost its lock to the next in line. The turn of the holder is
    /// none any more.
    fn pass_on(self: &Arc<Self>, name: &LockName) {
        self.advance(name, |line| line.held.as_ref().is_some_and(is_lost));
    }

    /// Gives the turn to the first who is still there, if that of the one who has it is over.
    fn advance(self: &Arc<Self>, name: &LockName, is_over: impl FnOnce(&Line) -> bool) {
        let mut lines = self.lines();
        let id = lines.next_id();
        let Entry::Occupied(mut entry) = lines.by_name.entry(name.clone()) else { return };
        let line = entry.get_mut();
        if !is_over(line) {
            return;
        }
        (line.turn, line.mode, line.held) = (None, None, None);
        while let Some(waiter) = line.pop() {
            let mode = waiter.request.mode;
            match waiter.come.send(Come::Turn(self.turn_of(id, name))) {
                Ok(()) => {
                    (line.turn, line.mode) = (Some(id), Some(mode));
                    return;
                }
                Err(Come::Turn(mut turn)) => turn.id = None,
                Err(Come::Guard(_)) => unreachable!("it was a turn"),
            }
        }
        entry.remove();
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl Line {
    fn pop(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front();
        self.left(waiter)
    }

    fn remove(&mut self, waiter: u64) -> Option<Waiter> {
        let at = self.waiters.iter().position(|other| other.id == waiter)?;
        let waiter = self.waiters.remove(at);
        self.left(waiter)
    }

    fn left(&mut self, waiter: Option<Waiter>) -> Option<Waiter> {
        if self
            .sentinel
            .take_if(|sentinel| waiter.as_ref().is_some_and(|waiter| waiter.id == *sentinel))
            .is_some()
        {
            self.appoint();
        }
        waiter
    }

    /// Whether one who does not wait may ask beside the one who has the turn: if all in line could share the
    /// lock, the server knows best who has to wait.
    fn may_share(&self, mode: Mode) -> bool {
        let shares = |other| {
            matches!((other, mode), (Mode::Shared, Mode::Shared) | (Mode::Permit { .. }, Mode::Permit { .. }))
        };
        self.mode.is_some_and(shares) && self.waiters.iter().all(|waiter| shares(waiter.request.mode))
    }

    /// Appoints a sentinel if there is none: the last in line, who is going to stay the longest.
    fn appoint(&mut self) {
        if let (None, Some(last)) = (self.sentinel, self.waiters.back()) {
            self.sentinel = Some(last.id);
            last.appointed.notify_one();
        }
    }
}

impl Turn {
    /// Notes what is held in this turn.
    pub(crate) fn hold(&self, validity: &Validity) {
        if let Some(line) = self.queue.lines().by_name.get_mut(&self.name)
            && line.turn == self.id
        {
            line.held = Some(validity.clone());
        }
    }

    /// The queue that the turn belongs to.
    pub(crate) fn queue(&self) -> Arc<LocalQueue> {
        Arc::clone(&self.queue)
    }

    /// The next in line, who keeps its place.
    pub(crate) fn heir(&self) -> Option<Heir> {
        let lines = self.queue.lines();
        let line = lines.by_name.get(&self.name).filter(|line| line.turn == self.id)?;
        let first = line.waiters.front().filter(|first| !first.come.is_closed())?;
        Some(Heir { id: first.id, request: Arc::clone(&first.request), runtime: first.runtime.clone() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.queue.advance(&self.name, |line| line.turn == Some(id));
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.queue.lines();
        // Nothing is dropped under the lock that could want it.
        let left = lines.by_name.get_mut(self.name).and_then(|line| line.remove(self.id));
        drop((lines, left));
    }
}

/// A lock that is being given back is not lost: its turn ends when the server has it back.
fn is_lost(held: &Validity) -> bool {
    matches!(held.state(), GuardState::Lost(reason) if reason != LossReason::Released)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, LeasePolicy, OwnerInfo, ValidityCell, Wait};
    use std::num::NonZeroU32;
    use std::task::{Context, Waker};

    fn request(mode: Mode) -> Arc<AcquireRequest> {
        let (name, owner) = (LockName::new("a").unwrap(), Arc::new(OwnerInfo::this_process()));
        let request = AcquireRequest::exclusive(name, Wait::Forever, LeasePolicy::default(), owner);
        Arc::new(request.in_mode(mode))
    }

    async fn turn(queue: &Arc<LocalQueue>) -> Turn {
        turn_in(queue, Mode::Exclusive).await
    }

    async fn turn_in(queue: &Arc<LocalQueue>, mode: Mode) -> Turn {
        match queue.turn(&request(mode), &Handle::current()).await {
            Come::Turn(turn) => turn,
            Come::Guard(guard) => panic!("{guard:?}"),
        }
    }

    #[tokio::test]
    async fn turns_come_in_order_and_lines_go_away() {
        let queue = Arc::new(LocalQueue::default());
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
        assert!(queue.lines().by_name.is_empty());
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_the_line() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("a").unwrap();
        let holder = turn(&queue).await;
        let waiter = tokio::time::timeout(Duration::from_millis(5), turn(&queue)).await;
        assert!(waiter.is_err());
        assert_eq!(queue.waiters(&name), 0);
        drop(holder);
        assert!(queue.try_turn(&name, Mode::Exclusive).is_some());
        assert!(queue.lines().by_name.is_empty());
    }

    #[tokio::test]
    async fn a_turn_that_came_to_a_waiter_that_left_goes_on() {
        let queue = Arc::new(LocalQueue::default());
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
        assert!(queue.lines().by_name.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_lost_its_lock_is_not_waited_for() {
        let (queue, clock) = (Arc::new(LocalQueue::default()), Clock::tokio());
        let name = LockName::new("a").unwrap();
        let cell = |seconds| ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(seconds));

        let lost = turn(&queue).await;
        let waiter = |queue: &Arc<LocalQueue>| {
            let queue = Arc::clone(queue);
            tokio::spawn(async move { turn(&queue).await })
        };
        let (first, second) = (waiter(&queue), waiter(&queue));
        tokio::task::yield_now().await;
        lost.hold(&cell(5).validity());
        let next = first.await.unwrap();
        assert!(clock.now().since_boot() >= Duration::from_secs(5));
        assert!(lost.heir().is_none(), "a turn that was passed on has no heir");

        next.hold(&cell(5).validity());
        drop(lost);
        assert!(
            queue.try_turn(&name, Mode::Exclusive).is_none(),
            "the turn of the lost holder was passed on already"
        );
        // The second still looks after what is held.
        let last = second.await.unwrap();
        drop(next);
        drop(last);
        let turn = queue.try_turn(&name, Mode::Exclusive);
        assert!(turn.is_some() && queue.try_turn(&name, Mode::Exclusive).is_none());
        drop(turn);
        assert!(queue.lines().by_name.is_empty());
    }

    #[tokio::test]
    async fn who_may_share_asks_beside_those_who_do_but_never_before_another() {
        let queue = Arc::new(LocalQueue::default());
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
            assert!(queue.lines().by_name.is_empty());
        }
    }
}
