//! The queue of one process: of all its tasks that want a lock, one talks to the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::LockName;

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
}

/// The right to talk to the server about a lock, and to hold it. The next in line gets it on drop.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
    _place: Place,
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
        let (place, turns) = self.enter(name);
        let permit = turns.acquire_owned().await.ok();
        Turn { _permit: permit, _place: place }
    }

    /// Takes the turn if nobody has it.
    pub(crate) fn try_turn(self: &Arc<Self>, name: &LockName) -> Option<Turn> {
        let (place, turns) = self.enter(name);
        let permit = turns.try_acquire_owned().ok()?;
        Some(Turn { _permit: Some(permit), _place: place })
    }

    /// How many tasks wait behind the one that has the turn.
    pub(crate) fn waiters(&self, name: &LockName) -> usize {
        self.lines().get(name).map_or(0, |line| line.members.saturating_sub(1))
    }

    fn enter(self: &Arc<Self>, name: &LockName) -> (Place, Arc<Semaphore>) {
        let mut lines = self.lines();
        let line = lines
            .entry(name.clone())
            .or_insert_with(|| Line { turns: Arc::new(Semaphore::new(1)), members: 0 });
        line.members += 1;
        (Place { queue: Arc::clone(self), name: name.clone() }, Arc::clone(&line.turns))
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LockName, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let waiter = tokio::time::timeout(std::time::Duration::from_millis(5), queue.turn(&name)).await;
        assert!(waiter.is_err());
        assert_eq!(queue.waiters(&name), 0);
        drop(holder);
        assert!(queue.try_turn(&name).is_some());
        assert!(queue.lines().is_empty());
    }
}
