//! The queue of one process: of all its tasks that want a lock, one talks to the server.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{LockName, LossReason, Standing, Validity};

/// First-in, first-out queues, one for each lock name in use.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    lines: Mutex<HashMap<LockName, Line>>,
}

#[derive(Debug)]
struct Line {
    turns: Arc<Semaphore>,
    /// Holders and waiters; the line goes away with the last.
    members: usize,
    /// What the one who has the turn holds, once it does.
    held: Option<Validity>,
    /// Counts what was held.
    tenure: u64,
    /// Something else is held.
    changed: Arc<Notify>,
}

/// The right to talk to the server about a lock, and to hold it. The next in line gets it on drop, or
/// when what is held is lost: nobody waits for a holder that is none any more.
#[derive(Debug)]
pub(crate) struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    /// Which of those that the line counts is ours.
    tenure: Option<u64>,
    place: Place,
}

/// A place in a line, from the moment that a task asks.
#[derive(Debug)]
struct Place {
    queue: Arc<LocalQueue>,
    name: LockName,
}

impl LocalQueue {
    /// Waits for the turn.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the line.
    pub(crate) async fn turn(self: &Arc<Self>, name: &LockName) -> Turn {
        let (place, turns, changed) = self.enter(name);
        let mut permit = pin!(turns.acquire_owned());
        loop {
            let mut change = pin!(changed.notified());
            change.as_mut().enable();
            let held = self.held(name);
            tokio::select! {
                biased;
                permit = &mut permit => return Turn { permit: permit.ok(), tenure: None, place },
                () = change => {}
                () = lost(held) => self.pass_on(name),
            }
        }
    }

    /// Takes the turn if nobody has it.
    pub(crate) fn try_turn(self: &Arc<Self>, name: &LockName) -> Option<Turn> {
        let (place, turns, _) = self.enter(name);
        if self.held(name).is_some_and(|held| is_lost(&held)) {
            self.pass_on(name);
        }
        let permit = turns.try_acquire_owned().ok()?;
        Some(Turn { permit: Some(permit), tenure: None, place })
    }

    /// How many tasks wait behind the one that has the turn.
    pub(crate) fn waiters(&self, name: &LockName) -> usize {
        self.lines().get(name).map_or(0, |line| line.members.saturating_sub(1))
    }

    fn enter(self: &Arc<Self>, name: &LockName) -> (Place, Arc<Semaphore>, Arc<Notify>) {
        let mut lines = self.lines();
        let line = lines.entry(name.clone()).or_insert_with(|| Line {
            turns: Arc::new(Semaphore::new(1)),
            members: 0,
            held: None,
            tenure: 0,
            changed: Arc::default(),
        });
        line.members += 1;
        let place = Place { queue: Arc::clone(self), name: name.clone() };
        (place, Arc::clone(&line.turns), Arc::clone(&line.changed))
    }

    fn held(&self, name: &LockName) -> Option<Validity> {
        self.lines().get(name).and_then(|line| line.held.clone())
    }

    /// Gives the turn of a holder that lost its lock to the next in line. The turn of the holder is
    /// none any more: see the drop of [`Turn`].
    fn pass_on(&self, name: &LockName) {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(name) else { return };
        if line.held.take_if(|held| is_lost(held)).is_some() {
            line.turns.add_permits(1);
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LockName, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Notes what is held in this turn.
    pub(crate) fn hold(&mut self, validity: &Validity) {
        if let Some(line) = self.place.queue.lines().get_mut(&self.place.name) {
            line.tenure += 1;
            line.held = Some(validity.clone());
            self.tenure = Some(line.tenure);
            line.changed.notify_waiters();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(tenure) = self.tenure else { return };
        let mut lines = self.place.queue.lines();
        let Some(line) = lines.get_mut(&self.place.name) else { return };
        let ours = line.held.is_some() && line.tenure == tenure;
        if ours {
            line.held = None;
        } else if let Some(permit) = self.permit.take() {
            // It was passed on when the lock was lost.
            permit.forget();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.queue.lines();
        if let Some(line) = lines.get_mut(&self.name) {
            line.members -= 1;
            if line.members == 0 {
                lines.remove(&self.name);
            }
        }
    }
}

async fn lost(held: Option<Validity>) {
    if let Some(held) = held {
        held.lost().await;
        if is_lost(&held) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// A lock that is being given back is not lost: its turn ends when the server has it back.
fn is_lost(held: &Validity) -> bool {
    matches!(held.standing(), Standing::Lost(reason) if reason != LossReason::Released)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, ValidityCell};
    use std::time::Duration;

    #[tokio::test]
    async fn turns_come_in_order_and_lines_go_away() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("a").unwrap();
        let first = queue.turn(&name).await;
        assert!(queue.try_turn(&name).is_none());

        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..5 {
            let (queue, name, sender) = (Arc::clone(&queue), name.clone(), sender.clone());
            tokio::spawn(async move {
                let _turn = queue.turn(&name).await;
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
        assert!(queue.lines().is_empty());
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_the_line() {
        let queue = Arc::new(LocalQueue::default());
        let name = LockName::new("a").unwrap();
        let holder = queue.turn(&name).await;
        let waiter = tokio::time::timeout(Duration::from_millis(5), queue.turn(&name)).await;
        assert!(waiter.is_err());
        assert_eq!(queue.waiters(&name), 0);
        drop(holder);
        assert!(queue.try_turn(&name).is_some());
        assert!(queue.lines().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_lost_its_lock_is_not_waited_for() {
        let (queue, clock) = (Arc::new(LocalQueue::default()), Clock::tokio());
        let name = LockName::new("a").unwrap();
        let cell = |seconds| ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(seconds));

        let mut lost = queue.turn(&name).await;
        let waiter = tokio::spawn({
            let (queue, name) = (Arc::clone(&queue), name.clone());
            async move { queue.turn(&name).await }
        });
        tokio::task::yield_now().await;
        lost.hold(&cell(5).validity());
        let mut next = waiter.await.unwrap();
        assert!(clock.now().since_boot() >= Duration::from_secs(5));

        next.hold(&cell(5).validity());
        drop(lost);
        assert!(queue.try_turn(&name).is_none(), "the turn of the lost holder was passed on already");
        drop(next);
        let turn = queue.try_turn(&name);
        assert!(turn.is_some() && queue.try_turn(&name).is_none());
        drop(turn);
        assert!(queue.lines().is_empty());
    }
}
